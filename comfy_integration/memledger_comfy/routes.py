"""ComfyUI's web server: `/memledger/stats`, `/memledger/free`, and a block in `/system_stats`.

The page polls; the server pushes nothing. A push through ComfyUI's websocket goes to every open
page, looked at or not, needs a timer here, and its rate has to be bound to who looks. A poll is
nothing at all while no panel is open, and ends by itself with the page. It costs 10 ms on another
thread, at most once per `period_s`, however many pages ask.

Nothing here raises into the server: an error is answered as JSON, or leaves ComfyUI's own response
as it was, with one log line per kind.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TYPE_CHECKING, Any

from aiohttp import web
from memledger_comfy import log
from memledger_comfy.free_words import FreeWords
from memledger_comfy.points import CACHE, UNLOAD
from memledger_comfy.stats import SCHEMA, OwnDevices, off, stats, system_stats_block

if TYPE_CHECKING:
    from memledger import Ledger

_SYSTEM_STATS = ("/system_stats", "/api/system_stats")
_BODY_MAX = 4096
_MARK = "__memledger_routes__"
_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def install(
    server: Any,
    get_ledger: Callable[[], Ledger | None],
    request_free: Callable[..., object],
    period_s: float = 1.0,
    *,
    own_devices: Callable[[], OwnDevices] | None = None,
    words: FreeWords | None = None,
) -> bool:
    """Add the routes and the middleware to `server`, ComfyUI's PromptServer, before it starts.

    get_ledger: the joined ledger, or None while there is none.
    request_free: called as request_free(unload=bool, cache=bool) for this process's own part.
    period_s: seconds for which figures are served again without a new look.
    own_devices: ComfyUI's names for the ledger's devices; default: those that the ledger opened.
    words: where requests of other servers are heard, once per `period_s`.

    A second call (a reload) replaces the callbacks. False when nothing could be installed. Never
    raises.
    """
    words = words or FreeWords(get_ledger)
    view = View(get_ledger, request_free, period_s, own_devices or (lambda: ()), words)
    known = getattr(server, _MARK, None)
    if known is not None:
        known.__dict__.update(view.__dict__)
        return True
    try:
        server.routes.get("/memledger/stats")(view.get_stats)
        server.routes.post("/memledger/free")(view.post_free)
        setattr(server, _MARK, view)
    except Exception as error:
        log.failed("routes", error)
        return False
    try:
        server.app.middlewares.append(view.middleware())
        server.app.cleanup_ctx.append(view.listening)
    except Exception as error:  # the server runs already: nothing can be added to it
        log.failed("the block in /system_stats", error)
    return True


class View:
    """What the routes share. One per server."""

    def __init__(
        self,
        get_ledger: Callable[[], Ledger | None],
        request_free: Callable[..., object],
        period_s: float,
        own_devices: Callable[[], OwnDevices],
        words: FreeWords,
    ) -> None:
        self._get_ledger = get_ledger
        self._request_free = request_free
        self._own_devices = own_devices
        self._period_s = period_s
        self._words = words
        self._looking: asyncio.Future[tuple[int, str]] | None = None
        self._answer: tuple[int, str] = (503, "")
        self._answer_at = float("-inf")

    # ---- GET /memledger/stats

    async def get_stats(self, request: web.Request) -> web.Response:
        if time.monotonic() - self._answer_at >= self._period_s:
            if self._looking is None:  # several pages: one look for all
                loop = asyncio.get_running_loop()
                self._looking = loop.run_in_executor(None, self._look)
                self._looking.add_done_callback(self._looked)
            # Shielded: a page that goes away takes only its own wait with it.
            await asyncio.shield(self._looking)
        status, text = self._answer
        return web.Response(
            status=status, text=text, content_type="application/json", headers=_no_store()
        )

    def _look(self) -> tuple[int, str]:
        """On a thread of the executor."""
        try:
            shown = stats(self._get_ledger(), own_devices=self._own_devices())
            return 200, json.dumps(shown)
        except Exception as error:
            log.failed("/memledger/stats", error)
            return 503, json.dumps(off(f"{type(error).__name__}: {error}", "error"))

    def _looked(self, look: asyncio.Future[tuple[int, str]]) -> None:
        self._looking = None
        if not look.cancelled() and look.exception() is None:
            self._answer, self._answer_at = look.result(), time.monotonic()

    # ---- POST /memledger/free

    async def post_free(self, request: web.Request) -> web.Response:
        """Ask every member to drop models and caches at its next safe point.

        Body: {"unload": true, "cache": true, "scope": "all" | "group"}, all optional. A page of
        another site can post a form, but not this content type, without a preflight request, which
        ComfyUI answers only where its user has allowed that site.
        """
        if request.content_type != "application/json":
            return _refused(415, "expected the content type application/json")
        if request.content_length is None or request.content_length > _BODY_MAX:
            return _refused(413, f"expected at most {_BODY_MAX} bytes with a Content-Length")
        try:
            wanted = _wanted(json.loads(await request.text()))
        except (ValueError, TypeError, RecursionError) as error:
            return _refused(400, str(error))
        return web.json_response(self._free(**wanted), headers=_no_store())

    def _free(self, unload: bool, cache: bool, scope: str) -> dict[str, Any]:
        errors = []
        siblings, asked = 0, False
        try:
            ledger = self._get_ledger()
            if ledger is not None:
                siblings = sum(m.state in ("live", "unverified") for m in ledger.members()) - 1
                asked = self._words.request(unload=unload, cache=cache, scope=scope)
            else:
                errors.append("memledger is off: only this server was asked")
        except Exception as error:
            log.failed("/memledger/free", error)
            errors.append(f"siblings: {type(error).__name__}: {error}")
        own = False
        try:
            self._request_free(unload=unload, cache=cache)
            own = True
        except Exception as error:
            log.failed("/memledger/free of this server", error)
            errors.append(f"this server: {type(error).__name__}: {error}")
        return {
            "schema": SCHEMA,
            "asked": asked,
            "siblings": max(0, siblings) if asked else 0,
            "own": own,
            "errors": errors,
        }

    # ---- requests of other servers

    async def listening(self, app: web.Application) -> AsyncIterator[None]:
        """While the server runs."""
        task = asyncio.create_task(self._listen())
        yield
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task

    async def _listen(self) -> None:
        while True:
            await asyncio.sleep(max(self._period_s, 0.05))
            try:
                flags = self._words.take()
                if flags:
                    self._request_free(unload=bool(flags & UNLOAD), cache=bool(flags & CACHE))
            except Exception as error:
                log.failed("what another server asks", error)

    # ---- /system_stats

    def middleware(self) -> Any:
        @web.middleware
        async def memledger_block(request: web.Request, handler: _Handler) -> web.StreamResponse:
            response = await handler(request)
            if request.path in _SYSTEM_STATS and request.method == "GET":
                try:
                    self._add_block(response)
                except Exception as error:
                    log.failed("the block in /system_stats", error)
            return response

        return memledger_block

    def _add_block(self, response: web.StreamResponse) -> None:
        """Write one more key before the object's last brace: what is there stays byte for byte."""
        if not isinstance(response, web.Response) or response.prepared or response.status != 200:
            return
        headers = response.headers
        encoded = response.compression or "Content-Encoding" in headers or "ETag" in headers
        body = response.body
        if response.content_type != "application/json" or encoded or not isinstance(body, bytes):
            return
        ledger = self._get_ledger()
        if ledger is None:
            return
        before = json.loads(body)
        if not isinstance(before, dict) or "memledger" in before:
            return
        block = system_stats_block(ledger, own_devices=self._own_devices())
        start = body.rstrip()[:-1]
        comma = b", " if before else b""
        new = start + comma + b'"memledger": ' + json.dumps(block).encode() + b"}"
        json.loads(new)  # in no encoding that is not a superset of ASCII
        response.headers.popall("Content-Length", None)
        response.body = new


def _wanted(body: object) -> dict[str, Any]:
    if not isinstance(body, dict):
        raise TypeError("expected an object")
    unload, cache = body.get("unload", True), body.get("cache", True)
    scope = body.get("scope", "all")
    if not isinstance(unload, bool) or not isinstance(cache, bool) or not (unload or cache):
        raise TypeError("unload, cache: expected true or false, and one of them true")
    if scope not in ("all", "group"):
        raise ValueError("scope: expected 'all' or 'group'")
    return {"unload": unload, "cache": cache, "scope": scope}


def _refused(status: int, why: str) -> web.Response:
    return web.json_response({"schema": SCHEMA, "error": why}, status=status, headers=_no_store())


def _no_store() -> dict[str, str]:
    return {"Cache-Control": "no-store"}
