"""Row 25: where a prompt begins and ends, for every worker of the group; and the RAM that the host
wants left free meanwhile."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from memledger_comfy import forks, log

if TYPE_CHECKING:
    from memledger_comfy.context import Context

NAME = "prompt"
ROWS = (25,)
ROLES = ("host", "worker")
REQUIRES = ()
AFTER = ("execution", "comfy.memory_management")


class _Prompts:
    """`execute` runs `execute_async`, and either may be called alone: the outer one counts."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._lock: Any
        forks.afresh(self, "_lock", threading.Lock)
        self._depth = 0

    def around(self, original: Callable[..., Any]) -> Callable[..., Any]:
        if inspect.iscoroutinefunction(original):

            async def run_async(*args: Any, **kwargs: Any) -> Any:
                self._change(+1, args, kwargs)
                try:
                    return await original(*args, **kwargs)
                finally:
                    self._change(-1, args, kwargs)

            return run_async

        def run(*args: Any, **kwargs: Any) -> Any:
            self._change(+1, args, kwargs)
            try:
                return original(*args, **kwargs)
            finally:
                self._change(-1, args, kwargs)

        return run

    def _change(self, step: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        with self._lock:
            self._depth += step
            outermost = self._depth == (1 if step > 0 else 0)
        if not outermost:
            return
        try:
            ledger = self._context.link.ledger
            if ledger is None:
                return
            prompt_id = str(args[2] if len(args) > 2 else kwargs.get("prompt_id", ""))
            if step > 0:
                ledger.prompt_begin(prompt_id)
            else:
                ledger.prompt_end(prompt_id)
            self._context.publisher.at_safe_point()
        except Exception as error:
            log.failed(NAME, error)


def install(context: Context) -> str | None:
    if context.role == "worker":
        return _install_in_worker(context)
    execution = context.module("execution")
    if execution is None:
        return "this ComfyUI has no execution"
    executor = getattr(execution, "PromptExecutor", None)
    prompts = _Prompts(context)
    wraps = context.wraps
    found = [
        wraps.replace(executor, name, NAME, prompts.around) for name in ("execute", "execute_async")
    ]
    _publish_headroom(context)
    return None if any(found) else "this ComfyUI has no PromptExecutor.execute"


def _publish_headroom(context: Context) -> None:
    def announced(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Callable[..., None]:
        headroom = args[1] if len(args) > 1 else kwargs.get("headroom", 0)

        def leave(value: Any, error: BaseException | None) -> None:
            ram = context.link.device("cpu")
            if ram is not None:
                ram.floor(max(0, int(headroom)))

        return leave

    memory = context.module("comfy.memory_management")
    context.wraps.around(memory, "set_ram_cache_release_state", NAME, announced)


def _install_in_worker(context: Context) -> str | None:
    """A worker has no executor that would tell its ComfyUI modules of the host's headroom."""
    memory = context.module("comfy.memory_management")
    if not hasattr(memory, "RAM_CACHE_HEADROOM"):
        return None

    def adopt() -> None:
        ram = context.link.device("cpu")
        if ram is not None:
            memory.RAM_CACHE_HEADROOM = _highest_floor(ram)  # type: ignore[union-attr]

    context.publisher.watch(NAME, adopt)
    if NAME not in context.kept:
        before = context.kept[NAME] = memory.RAM_CACHE_HEADROOM  # type: ignore[union-attr]
        context.on_undo(lambda: setattr(memory, "RAM_CACHE_HEADROOM", before))
    return None


def _highest_floor(ram: Any) -> int:
    """Free RAM that some member wants left: what a pin may take is the free figure less that."""
    free, room = ram.free(), ram._pin_room()
    return 0 if free is None or room is None else max(0, free - room)
