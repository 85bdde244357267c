"""A worker's safe points: between two nodes, between two steps of one, and while it waits for work.

On the main thread alone. Another thread that a node has started knows nothing of the kernels that
run on the main one, and must not take models away from under them.
"""

from __future__ import annotations

import gc
import sys
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from memledger_comfy import log

if TYPE_CHECKING:
    from memledger_comfy.context import Context

FREE = 4
"""The bit of `Ledger.pending()` that says that the group is asked to free."""
UNLOAD, CACHE = 1, 2
"""The bits of such a request."""
IDLE_S = 0.5


def on_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


class Points:
    """A worker is taken to work until its loop says that it waits: then asks are answered at once,
    by the ledger's thread. None of this raises."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._nodes = 0
        self._described = False
        self.on_free: list[Callable[[bool, bool], None]] = []
        """Called with (unload, cache) when the group is asked to free."""

    def step(self) -> None:
        """Between two steps of a node: publishes four times a second, answers asks."""
        if on_main_thread():
            self._context.publisher.step()
            self._context.serving.at_safe_point()

    def boundary(self) -> None:
        """Between two nodes, when whatever is loaded is in nobody's use: frees what the group is
        asked to free, publishes, answers asks."""
        if not on_main_thread():
            return
        from memledger_comfy.adapter import nodes

        try:
            self._free()
            nodes.boundary(self._context)
        except Exception as error:
            log.failed("node boundary", error)
        if not self._described:
            self._described = True
            log.info(self._context.describe())

    # ---- for loops that this package knows

    def node_begins(self) -> None:
        self._nodes += 1

    def node_ends(self) -> None:
        """Where several run at once, the last one's end is a boundary."""
        self._nodes = max(0, self._nodes - 1)
        if not self._nodes:
            self.boundary()

    @property
    def in_node(self) -> bool:
        return self._nodes > 0

    def wait(self) -> None:
        """The loop begins to wait for work."""
        self.boundary()
        self._context.serving.end()

    def resume(self) -> None:
        """There is work. Waits for an answer that the ledger's thread is giving just now."""
        self._context.serving.begin()

    def idle(self) -> float:
        """While the loop waits, on its thread: frees where the group is asked to. Returns the
        seconds after which to call it again."""
        ledger = self._context.link.ledger
        try:
            if ledger is not None and ledger.pending() & FREE:
                self.resume()
                self.wait()
        except Exception as error:
            log.failed("idle", error)
        return IDLE_S

    # ---- the group's word

    def _free(self) -> None:
        ledger = self._context.link.ledger
        flags = ledger.free_epoch()[1] if ledger is not None and ledger.pending() & FREE else 0
        if not flags:
            return
        unload, cache = bool(flags & UNLOAD), bool(flags & CACHE)
        for call in self.on_free:
            _try(call, unload, cache)
        mm = self._context.module("comfy.model_management")
        deep = getattr(sys.modules.get("memory_manager"), "full_release", None)
        if unload and cache and deep is not None and "comfy_worker" in sys.modules:
            _try(deep)  # comfy-env's own, which knows more of its caches
            return
        if unload and hasattr(mm, "unload_all_models"):
            _try(mm.unload_all_models)
        if cache:
            gc.collect()
        if hasattr(mm, "soft_empty_cache"):
            _try(mm.soft_empty_cache)


def _try(call: Callable[..., object], *args: object) -> None:
    try:
        call(*args)
    except Exception as error:
        log.failed("free", error)
