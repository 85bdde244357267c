"""The routes in a server like ComfyUI's: what they answer, and that they never hurt it."""

from __future__ import annotations

import asyncio
import json
import logging
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

import memledger
from helpers.web_page import adapter

routes, log = adapter("routes"), adapter("log")
GIB = 1 << 30
CARD = "sim:card?total=24GiB"
SYSTEM_STATS = '{"system": {"ram_free": 1.10, "odd": NaN, "a": "\\u00e4"},  "devices": [1e3]}'


class PromptServer:
    """Of ComfyUI's: routes, app, and every route once more under /api."""

    def __init__(self, system_stats: str = SYSTEM_STATS, **answer: Any) -> None:
        self.routes = web.RouteTableDef()
        self.app = web.Application()
        answer = {"content_type": "application/json", "text": system_stats, **answer}

        @self.routes.get("/system_stats")
        async def get_system_stats(request: web.Request) -> web.Response:
            return web.Response(**answer)

        @self.routes.get("/other")
        async def get_other(request: web.Request) -> web.Response:
            return web.json_response({"devices": []})

    def add_routes(self) -> None:
        twins = web.RouteTableDef()
        for route in self.routes:
            twins.route(route.method, "/api" + route.path)(route.handler, **route.kwargs)
        self.app.add_routes(twins)
        self.app.add_routes(self.routes)


class Free:
    """request_free, and what it was called with."""

    def __init__(self, error: Exception | None = None) -> None:
        self.calls: list[dict[str, Any]] = []
        self.error = error

    def __call__(self, **wanted: Any) -> None:
        self.calls.append(wanted)
        if self.error:
            raise self.error


def visit(server: PromptServer, do: Callable[[TestClient], Awaitable[Any]]) -> Any:
    """Start the server, run `do` with a client, stop it."""

    async def run() -> Any:
        server.add_routes()
        async with TestClient(TestServer(server.app)) as client:
            return await asyncio.wait_for(do(client), 60)

    return asyncio.run(run())


def get(server: PromptServer, *paths: str) -> list[tuple[int, str]]:
    async def do(client: TestClient) -> list[tuple[int, str]]:
        answers = []
        for path in paths:
            async with client.get(path) as response:
                answers.append((response.status, await response.text()))
        return answers

    found: list[tuple[int, str]] = visit(server, do)
    return found


@pytest.fixture
def host(segment: Path) -> memledger.Ledger:
    return memledger.join(label="comfyui-host", role="host")


@pytest.fixture(autouse=True)
def _talkative() -> None:
    log.forget()


# ---- /memledger/stats


def test_stats_are_served_under_both_paths(host: memledger.Ledger) -> None:
    host.device(CARD).publish(held=3 * GIB)
    server = PromptServer()
    assert routes.install(server, lambda: host, Free())
    for status, text in get(server, "/memledger/stats", "/api/memledger/stats"):
        shown = json.loads(text)
        assert (status, shown["status"]) == (200, "ok")
        assert shown["devices"][0]["held"] == 3 * GIB


def test_stats_without_ledger_are_off() -> None:
    server = PromptServer()
    routes.install(server, lambda: None, Free())
    ((status, text),) = get(server, "/memledger/stats")
    assert (status, json.loads(text)["status"]) == (200, "off")


def test_an_error_is_answered_as_json_and_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    """Failure: a stack trace in the browser, or a log line every two seconds."""

    def broken() -> None:
        raise OSError("the segment is on fire")

    server = PromptServer()
    routes.install(server, broken, Free(), period_s=0.0)
    with caplog.at_level(logging.WARNING, logger="memledger.comfy"):
        answers = get(server, "/memledger/stats", "/memledger/stats", "/other")
    assert [status for status, _ in answers] == [503, 503, 200]
    shown = json.loads(answers[0][1])
    assert (shown["schema"], shown["status"]) == (1, "error")
    assert "the segment is on fire" in shown["degraded_reason"]
    assert len(caplog.records) == 1


def test_many_pages_share_a_look() -> None:
    """Failure: every open page costs the server a look of its own. The look is held until all five
    have asked; the server answers others meanwhile, so the loop is not blocked."""
    looks: list[int] = []
    go = threading.Event()

    def get_ledger() -> None:
        looks.append(1)
        assert go.wait(30)

    server = PromptServer()
    routes.install(server, get_ledger, Free(), period_s=3600.0)

    async def do(client: TestClient) -> list[int]:
        pages = [asyncio.create_task(client.get("/memledger/stats")) for _ in range(5)]
        for _ in range(3):
            async with client.get("/other") as response:
                assert response.status == 200
        go.set()
        return [(await page).status for page in pages] + [
            (await client.get("/memledger/stats")).status
        ]

    assert visit(server, do) == [200] * 6
    assert len(looks) == 1


# ---- /memledger/free


def post(server: PromptServer, **request: Any) -> tuple[int, Any]:
    async def do(client: TestClient) -> tuple[int, Any]:
        async with client.post("/memledger/free", **request) as response:
            return response.status, await response.json()

    found: tuple[int, Any] = visit(server, do)
    return found


def test_free_reaches_siblings_and_the_own_process(
    host: memledger.Ledger, spawn: Callable[..., Any]
) -> None:
    sibling = spawn(join=False)
    sibling.join("another server", role="host")  # in no group of ours
    before = sibling.run("ledger.free_epoch()")[0]
    free = Free()
    server = PromptServer()
    routes.install(server, lambda: host, free)
    status, answer = post(server, json={"unload": True, "cache": True})
    assert status == 200
    assert (answer["asked"], answer["siblings"], answer["own"]) == (True, 1, True)
    assert answer["errors"] == []
    assert free.calls == [{"unload": True, "cache": True}]
    epoch, flags = sibling.run("ledger.free_epoch()")
    assert (epoch > before, flags) == (True, 3)


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        ({"data": {"unload": "true"}}, 415),  # a form
        ({"data": b"{}", "headers": {"Content-Type": "text/plain"}}, 415),
        ({"data": b"{}", "headers": {"Content-Type": "text/plain; application/json"}}, 415),
        ({"data": b"", "headers": {"Content-Type": "multipart/form-data"}}, 415),
        ({"data": b"{}"}, 415),
        ({"data": b"{" + b" " * 5000 + b"}", "headers": {"Content-Type": "application/json"}}, 413),
        ({"data": b"{", "headers": {"Content-Type": "application/json"}}, 400),
        ({"data": b"[" * 4000, "headers": {"Content-Type": "application/json"}}, 400),
        ({"data": b"\xff", "headers": {"Content-Type": "application/json"}}, 400),
        ({"json": []}, 400),
        ({"json": {"unload": 1}}, 400),
        ({"json": {"unload": False, "cache": False}}, 400),
        ({"json": {"scope": "everyone"}}, 400),
        ({"json": {"scope": []}}, 400),
    ],
)
def test_free_that_a_foreign_page_could_send_or_is_malformed_does_nothing(
    request_: dict[str, Any], status: int
) -> None:
    """Failure: any page on the web can unload the user's models by a form."""
    free = Free()
    touched: list[int] = []
    server = PromptServer()
    routes.install(server, lambda: touched.append(1), free)
    got, answer = post(server, **request_)
    assert (got, free.calls, touched) == (status, [], [])
    assert answer["error"]


def test_free_by_get_is_not_allowed() -> None:
    server = PromptServer()
    free = Free()
    routes.install(server, lambda: None, free)
    ((status, _),) = get(server, "/memledger/free")
    assert (status, free.calls) == (405, [])


def test_free_goes_on_where_a_half_of_it_fails(
    host: memledger.Ledger, spawn: Callable[..., Any]
) -> None:
    sibling = spawn("sibling")
    server = PromptServer()
    routes.install(server, lambda: host, Free(RuntimeError("queue is closed")))
    status, answer = post(server, json={"cache": True, "unload": False})
    assert (status, answer["asked"], answer["own"]) == (200, True, False)
    assert "queue is closed" in answer["errors"][0]
    assert sibling.run("ledger.free_epoch()")[1] == 2

    def broken() -> None:
        raise OSError("no segment")

    free = Free()
    server = PromptServer()
    routes.install(server, broken, free)
    status, answer = post(server, json={})
    assert (status, answer["asked"], answer["own"], answer["siblings"]) == (200, False, True, 0)
    assert free.calls == [{"unload": True, "cache": True}]


def test_what_another_server_asks_is_done_once(
    host: memledger.Ledger, spawn: Callable[..., Any], wait_until: Callable[..., Any]
) -> None:
    """Failure: "ask all" on one server's page leaves the models of the others where they are; or a
    server hears what it asked itself, and never stops freeing."""
    other = spawn(join=False)
    other.join("another server", role="host")
    free, words = Free(), adapter("free_words").FreeWords(lambda: host)
    server = PromptServer()
    routes.install(server, lambda: host, free, 0.0, words=words)

    async def heard(calls: list[Any]) -> None:
        while free.calls != calls:
            await asyncio.sleep(0.01)

    async def do(client: TestClient) -> None:
        other.run("ledger.request_free(unload=False, scope='all')")
        await heard([{"unload": False, "cache": True}])
        async with client.post("/memledger/free", json={}) as response:
            assert (await response.json())["asked"]
        words.request(unload=True, cache=True)  # as row 21 does for every click
        other.run("ledger.request_free(cache=False, scope='all')")
        await heard([
            {"unload": False, "cache": True},  # the other's
            {"unload": True, "cache": True},  # the own button
            {"unload": True, "cache": False},  # the other's
        ])  # fmt: skip

    visit(server, do)


def test_a_request_found_while_asking_oneself_is_not_lost(
    host: memledger.Ledger, spawn: Callable[..., Any]
) -> None:
    other = spawn("other")
    words = adapter("free_words").FreeWords(lambda: host)
    other.run("ledger.request_free(cache=False, scope='all')")
    words.request(unload=False, cache=True)
    assert (words.take(), words.take()) == (1, 0)


# ---- /system_stats


def test_system_stats_get_a_block_and_keep_every_byte(host: memledger.Ledger) -> None:
    """Failure: a client that compares numbers as they were printed sees 1.1 where 1.10 stood."""
    host.device(CARD).publish(held=3 * GIB, releasable=GIB)
    server = PromptServer()
    routes.install(server, lambda: host, Free())
    for status, text in get(server, "/system_stats", "/api/system_stats"):
        assert status == 200
        assert text.startswith(SYSTEM_STATS[:-1] + ', "memledger": {')
        block = json.loads(text)["memledger"]
        assert block["devices"][0]["held"] == 3 * GIB
        assert block["devices"][0]["members"][0]["releasable"] == GIB


@pytest.mark.parametrize(
    "answer",
    [
        {"text": "[1]"},
        {"text": "not JSON"},
        {"text": '{"memledger": 1}'},
        {"text": "{}", "status": 500},
        {"text": "{}", "content_type": "text/plain"},
        {"text": '{"a": 1}', "headers": {"ETag": '"x"'}},
        {"text": '{"a": 1}', "charset": "utf-16"},
    ],
)
def test_what_is_not_the_known_answer_stays_as_it_is(
    host: memledger.Ledger, answer: dict[str, Any]
) -> None:
    server = PromptServer(**answer)
    routes.install(server, lambda: host, Free())
    ((status, text),) = get(server, "/system_stats")
    assert (status, text) == (answer.get("status", 200), answer["text"])


def test_empty_object_gets_the_block(host: memledger.Ledger) -> None:
    server = PromptServer("{}\n")
    routes.install(server, lambda: host, Free())
    ((_, text),) = get(server, "/system_stats")
    assert list(json.loads(text)) == ["memledger"]


def test_system_stats_are_untouched_where_the_ledger_fails_or_is_off(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def broken() -> None:
        raise OSError("no segment")

    for get_ledger in (broken, lambda: None):
        server = PromptServer()
        routes.install(server, get_ledger, Free())
        caplog.clear()
        log.forget()
        for status, text in get(server, "/system_stats", "/api/system_stats"):
            assert (status, text) == (200, SYSTEM_STATS)
        assert len(caplog.records) == (1 if get_ledger is broken else 0)


def test_answers_of_other_routes_and_errors_pass(host: memledger.Ledger) -> None:
    server = PromptServer()
    routes.install(server, lambda: host, Free())
    assert get(server, "/other", "/absent") == [
        (200, '{"devices": []}'),
        (404, "404: Not Found"),
    ]


def test_a_compressed_answer_of_the_server_still_has_the_block(host: memledger.Ledger) -> None:
    """ComfyUI compresses in a middleware that was added before ours, so outside of it."""

    @web.middleware
    async def compress(request: Any, handler: Any) -> Any:
        response = await handler(request)
        response.enable_compression()
        return response

    server = PromptServer('{"a": 1}')
    server.app.middlewares.append(compress)
    routes.install(server, lambda: host, Free())
    ((_, text),) = get(server, "/system_stats")
    assert set(json.loads(text)) == {"a", "memledger"}


# ---- installing


class Queue:
    """Of ComfyUI's PromptQueue: what /free sets."""

    def __init__(self) -> None:
        self.flags: dict[str, bool] = {}

    def set_flag(self, name: str, data: bool) -> None:
        self.flags[name] = data


@pytest.mark.parametrize("there_already", [False, True])
def test_the_row_serves_whenever_the_server_is_made(
    host: memledger.Ledger, there_already: bool
) -> None:
    """Failure: nothing is served, because the row was installed right behind the import of
    `server`, before there was one."""
    row, wraps = adapter("adapter.row41_view"), adapter("wraps").Wraps()
    card = host.device(CARD)
    module = SimpleNamespace(PromptServer=type("Server", (PromptServer,), {}))
    context = SimpleNamespace(
        module=lambda name: {"server": module}.get(name),
        wraps=wraps,
        kept={},
        link=SimpleNamespace(ledger=host, devices=lambda: {"cuda:0": card}),
    )
    if there_already:
        server = module.PromptServer.instance = module.PromptServer()
    assert row.install(context) is None
    assert row.install(context) is None, "behind a reload"
    if not there_already:
        server = module.PromptServer.instance = module.PromptServer()
    server.prompt_queue = Queue()

    async def do(client: TestClient) -> tuple[Any, Any, Any]:
        shown = await (await client.get("/api/memledger/stats")).json()
        block = await (await client.get("/system_stats")).text()
        answer = await (await client.post("/memledger/free", json={"cache": False})).json()
        return shown, block, answer

    shown, block, answer = visit(server, do)
    assert [device["name"] for device in shown["devices"]] == ["cuda:0"]
    assert '"memledger": {' in block
    assert answer["own"]
    assert server.prompt_queue.flags == {"unload_models": True}


def test_the_row_says_what_is_missing() -> None:
    row = adapter("adapter.row41_view")
    context = SimpleNamespace(module=lambda name: SimpleNamespace(), wraps=adapter("wraps").Wraps())
    assert row.install(context) == "this ComfyUI has no PromptServer"


def test_a_second_install_replaces_the_callbacks_only(host: memledger.Ledger) -> None:
    """Failure: a reload registers the path again, which aiohttp refuses when ComfyUI starts; or
    the old callbacks stay."""
    server = PromptServer()
    assert routes.install(server, lambda: None, Free())
    assert routes.install(server, lambda: host, Free())
    (_, stats), (_, system) = get(server, "/memledger/stats", "/system_stats")
    assert json.loads(stats)["status"] == "ok"
    assert system.count('"memledger":') == 1


def test_a_server_of_another_shape_is_left_alone(caplog: pytest.LogCaptureFixture) -> None:
    assert routes.install(object(), lambda: None, Free()) is False
    assert len(caplog.records) == 1


def test_a_server_that_runs_already_costs_a_line_not_an_error(
    caplog: pytest.LogCaptureFixture,
) -> None:
    server = PromptServer()
    server.app.freeze()
    assert routes.install(server, lambda: None, Free())
    assert len(caplog.records) == 1
