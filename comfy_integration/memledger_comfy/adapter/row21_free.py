"""Row 21: what the user frees in the host, the workers of its group free too."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from memledger_comfy import free_words

if TYPE_CHECKING:
    from memledger_comfy.context import Context

NAME = "free_request"
ROWS = (21,)
ROLES = ("host",)
REQUIRES = ("execution",)


class _Requests:
    """ComfyUI acts on a click after the prompt that runs; workers that are idle can act now. So a
    click is passed on twice: when it comes, and once more when the host acts on it, for what a
    worker has loaded meanwhile."""

    def __init__(self, context: Context) -> None:
        self._words = free_words.of(context)
        self._reset_expected = False

    def clicked(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        name = args[1] if len(args) > 1 else kwargs.get("name")
        data = args[2] if len(args) > 2 else kwargs.get("data")
        if data and name in ("unload_models", "free_memory"):
            self._request(unload=True, cache=name == "free_memory")

    def taken(self, flags: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        consumed = args[1] if len(args) > 1 else kwargs.get("reset", True)
        if consumed and flags:
            cache = bool(flags.get("free_memory", False))
            unload = bool(flags.get("unload_models", cache))
            if unload or cache:
                self._request(unload=unload, cache=cache)
            self._reset_expected = cache
        return flags

    def reset(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Somebody drops the host's caches. Its constructor does so too, when there are none."""
        expected, self._reset_expected = self._reset_expected, False
        if not expected and "success" in vars(args[0]):
            self._request(unload=False, cache=True)

    def _request(self, *, unload: bool, cache: bool) -> None:
        self._words.request(unload=unload, cache=cache)


def install(context: Context) -> str | None:
    execution = context.module("execution")
    queue = getattr(execution, "PromptQueue", None)
    executor = getattr(execution, "PromptExecutor", None)
    requests = _Requests(context)
    wraps = context.wraps
    heard = wraps.around(queue, "set_flag", NAME, requests.clicked)
    taken = wraps.result(queue, "get_flags", NAME, requests.taken)
    if not heard and not taken:
        return "this ComfyUI has no PromptQueue.set_flag"
    wraps.around(executor, "reset", NAME, requests.reset)
    return None
