"""Row 34: all processes page-lock RAM within one budget.

Each pin of ComfyUI asks `ensure_pin_budget` first: there a claim is taken in the ledger's pin
pools, and settled with ComfyUI's own counter when it next comes by. What a sibling asks for,
`free_pins` gives. `MAX_PINNED_MEMORY`, which ComfyUI reads at every use, is this process's share of
the ceiling.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

from memledger_comfy import forks, log, policy
from memledger_comfy.publisher import Part

if TYPE_CHECKING:
    from memledger_comfy.context import Context

NAME = "pins"
ROWS = (34,)
ROLES = ("host", "worker")
REQUIRES = ("comfy.model_management",)

_NEEDED = ("ensure_pin_budget", "free_pins", "TOTAL_PINNED_MEMORY", "MAX_PINNED_MEMORY")
_ASK_EVERY_S = 1.0
"""After siblings had nothing to give: ComfyUI pins hundreds of buffers in a row, and each would
wait for an ask of its own."""


def install(context: Context) -> str | None:
    mm = context.mm
    missing = [name for name in _NEEDED if not hasattr(mm, name)]
    if missing:
        return f"this ComfyUI has no {', '.join(missing)}"
    ram = context.link.device("cpu")
    if ram is None:
        return "the ledger has no RAM device here"
    pins = context.kept.get(NAME)
    if pins is None:
        pins = context.kept[NAME] = _Pins(context, mm, ram)
        context.publisher.watch(NAME, pins.follow)
        context.publisher.contribute(NAME, pins.part)
        context.on_undo(pins.undo)
    context.wraps.replace(mm, "ensure_pin_budget", NAME, pins.budgeted)
    pins.follow()
    return None


class _Pins:
    def __init__(self, context: Context, mm: Any, ram: Any) -> None:
        self._context, self._mm, self._ram = context, mm, ram
        self._upstream_ceiling = mm.MAX_PINNED_MEMORY
        self._assigned: Any = None
        self._share_ceiling()
        self._claim: Any = None
        self._ask_after = 0.0
        self._lock: Any
        forks.afresh(self, "_lock", threading.RLock)
        context.serving.share(NAME, self.release_memory)

    def budgeted(self, original: Any) -> Any:
        """`ensure_pin_budget(size, ...)`: upstream's answer, and the ledger's."""

        def ensure_pin_budget(*args: Any, **kwargs: Any) -> Any:
            if not original(*args, **kwargs):
                return False
            try:
                return self._claim_pin(int(args[0] if args else kwargs["size"]))
            except Exception as error:
                log.failed(NAME, error)
                return True

        return ensure_pin_budget

    def _claim_pin(self, size: int) -> bool:
        if size <= 0 or self._mm.MAX_PINNED_MEMORY <= 0:
            return True
        with self._lock:
            self._settle()
            budget = self._ram.pin_budget()
            now = time.monotonic()
            if budget is not None and size > budget and now < self._ask_after:
                return False
            self._claim = self._ram.try_pin(size)  # asks siblings where it does not fit
            if self._claim is None:
                self._ask_after = now + _ASK_EVERY_S
            return self._claim is not None

    def _settle(self) -> None:
        """What ComfyUI has pinned since: the promise becomes pinned bytes, or goes."""
        total = int(self._mm.TOTAL_PINNED_MEMORY)
        claim, self._claim = self._claim, None
        if claim is not None:
            claim.settle(total, releasable=total)
        else:
            self._ram.pinned(total, releasable=total)

    def follow(self) -> None:
        """At a safe point: publish the pins, and take this process's share of the ceiling."""
        with self._lock:
            self._settle()
            if self._mm.MAX_PINNED_MEMORY not in (self._assigned, self._upstream_ceiling):
                self._upstream_ceiling = self._mm.MAX_PINNED_MEMORY  # somebody else's choice
                self._share_ceiling()
            own = int(self._mm.TOTAL_PINNED_MEMORY)
            share = policy.pin_ceiling(self._upstream_ceiling, own, self._pinned_by_others())
            if share != self._mm.MAX_PINNED_MEMORY:
                self._mm.MAX_PINNED_MEMORY = self._assigned = share

    def part(self, name: str) -> Part | None:
        """Pinned buffers are RAM that this process holds."""
        return Part(held=int(self._mm.TOTAL_PINNED_MEMORY)) if name == "cpu" else None

    def _share_ceiling(self) -> None:
        """The budget of all is what one ComfyUI would have taken, not the ledger's default."""
        if self._upstream_ceiling > 0:
            self._ram.pin_ceiling(int(self._upstream_ceiling))

    def _pinned_by_others(self) -> int:
        snapshot = self._ram.snapshot()
        return max(0, sum(row.pinned for row in snapshot.rows) - self._ram.amounts[2])

    def release_memory(self, device: Any, size: int) -> int:
        """A sibling asks for pins: ComfyUI's own ladder gives up what is not in use."""
        if not str(getattr(device, "key", "")).startswith("pin:"):
            return 0
        freed = int(self._mm.free_pins(size) or 0)
        with self._lock:
            self._settle()
        return freed

    def undo(self) -> None:
        if self._assigned == self._mm.MAX_PINNED_MEMORY:
            self._mm.MAX_PINNED_MEMORY = self._upstream_ceiling
