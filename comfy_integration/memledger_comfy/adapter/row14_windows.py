"""Row 14: a graph capture is a window in which siblings hold back loads, answers and captures.

Every capture goes through the class `torch.cuda.graph`, looked up at call time; so a subclass in
its place sees those of ComfyUI's compiler and of every pack. What a capture keeps in its private
pool is held and cannot be given back until ComfyUI drops its graphs.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from memledger_comfy import log
from memledger_comfy.publisher import Part
from memledger_comfy.wraps import put_back

if TYPE_CHECKING:
    from memledger_comfy.context import Context

NAME = "windows"
ROWS = (14,)
ROLES = ("host", "worker")
REQUIRES = ("torch", "comfy.model_management")
AFTER = ("comfy.model_prefetch",)

WINDOW_S = 0.25
"""What a capture announces: siblings go on after it, come what may."""
_DROPS = ("cleanup_prefetch_queues", "cleanup_malloc_graph", "_drop_graph")


class _Pools:
    """Bytes that captures have left in private pools, per device."""

    def __init__(self) -> None:
        self.kept: dict[str, int] = {}

    def part(self, name: str) -> Part | None:
        kept = self.kept.get(name, 0)
        return Part(releasable=-kept) if kept else None


def install(context: Context) -> str | None:
    torch = context.module("torch")
    cuda: Any = getattr(torch, "cuda", None)
    plain = getattr(cuda, "graph", None)
    if not isinstance(plain, type):
        return "this torch has no torch.cuda.graph"
    pools = context.kept.setdefault(NAME, _Pools())
    if not getattr(plain, "__memledger__", False):
        ours = cuda.graph = _window_class(plain, context, cuda, pools)
        context.publisher.contribute(NAME, pools.part)
        context.on_undo(lambda: put_back(cuda, "graph", ours, plain))
    _forget_at_cleanup(context, pools)
    return None


def _forget_at_cleanup(context: Context, pools: _Pools) -> None:
    prefetch = context.module("comfy.model_prefetch")
    if prefetch is None:
        return

    def forget(value: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        pools.kept.clear()
        return value

    for name in _DROPS:
        context.wraps.result(prefetch, name, NAME, forget)


def _window_class(plain: Any, context: Context, cuda: Any, pools: _Pools) -> type:
    class graph(plain):
        __memledger__ = True

        def __enter__(self) -> Any:
            self._memledger_window = _open_window(context, cuda)
            try:
                return super().__enter__()
            except BaseException:
                _close_window(self, context, cuda, pools)
                raise

        def __exit__(self, *exc: Any) -> Any:
            try:
                return super().__exit__(*exc)
            finally:
                _close_window(self, context, cuda, pools)

    graph.__qualname__ = graph.__name__ = plain.__name__
    graph.__doc__ = plain.__doc__
    return graph


def _open_window(context: Context, cuda: Any) -> Any:
    """(stack, device name, bytes reserved), or None where there is no window."""
    if context.stopped:
        return None
    try:
        name = f"cuda:{cuda.current_device()}"
        device = context.link.device(name)
        if device is None:
            return None
        stack = contextlib.ExitStack()
        stack.enter_context(device.window(WINDOW_S))
        return stack, name, _reserved(cuda, name)
    except Exception as error:
        log.failed(NAME, error)
        return None


def _close_window(graph: Any, context: Context, cuda: Any, pools: _Pools) -> None:
    opened, graph._memledger_window = getattr(graph, "_memledger_window", None), None
    if opened is None:
        return
    stack, name, before = opened
    try:
        stack.close()
        grown = _reserved(cuda, name) - before
        if grown > 0:
            pools.kept[name] = pools.kept.get(name, 0) + grown
        context.publisher.at_safe_point()
    except Exception as error:
        log.failed(NAME, error)


def _reserved(cuda: Any, name: str) -> int:
    return int(cuda.memory_stats(name).get("reserved_bytes.all.current", 0))
