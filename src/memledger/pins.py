"""Page-locked host memory: one budget for all members at every level of the RAM chain.

Each RAM pool has a pin pool beside it. Its total is the smallest ceiling that a live member wants
(by default half of the level's total) or has learned (pinning failed at that size). Pins are claims
there, in whole pages.
"""

from __future__ import annotations

import mmap
import threading
from typing import TYPE_CHECKING

from memledger.arguments import as_bytes
from memledger.errors import ClaimRefused
from memledger.model import KIND_PIN, DeviceSpec, PoolSpec

if TYPE_CHECKING:
    from memledger import _native
    from memledger.device import Device

PAGE_BYTES = mmap.PAGESIZE


def whole_pages(nbytes: int) -> int:
    """`nbytes` rounded up to pages, which is what a pin takes."""
    return -(-nbytes // PAGE_BYTES) * PAGE_BYTES


class PinClaim:
    """Bytes that may be page-locked. Settle it with the total that this process has pinned, or
    cancel it; leaving the context un-settled cancels."""

    def __init__(self, pins: Pins, claim: _native.Claim) -> None:
        self._pins = pins
        self._claim = claim

    def __repr__(self) -> str:
        state = "ended" if self._claim.ended else "open"
        return f"<memledger.PinClaim size={self._claim.size} open={self._claim.open} {state}>"

    @property
    def checked(self) -> bool:
        """False: granted without a check, since there was nothing to check against."""
        return self._claim.checked

    def settle(self, pinned: int, *, releasable: int | None = None) -> None:
        """`pinned`: bytes that this process has page-locked now, in all; what that is more than
        before counts in whole pages, so settle once per pin. `releasable`: see `Device.pinned`."""
        self._pins.settle(self._claim, pinned, releasable)

    def cancel(self) -> None:
        """Give back what was not settled. Harmless a second time."""
        self._claim.cancel()

    def __enter__(self) -> PinClaim:
        return self

    def __exit__(self, *exc: object) -> None:
        self._claim.cancel()


class Pins:
    """The pin pools beside one RAM device. Private; `Device` offers it."""

    def __init__(self, ram: Device) -> None:
        from memledger.device import Device

        self._ram = ram
        self.device = Device(ram._ledger, self._spec())
        self._lock = threading.Lock()
        self._learned: int | None = None
        self._ceiling: int | None = None
        self._applied: list[int | None] = [None] * len(ram._spec.levels)
        self._pinned = 0
        self.apply()

    def apply(self) -> None:
        """Each level's ceiling: half its total unless told otherwise, and what was learned. Totals
        may come late, and limits of containers move."""
        for level, pool in enumerate(self._ram._pools()):
            total = self._ram._ledger._reading(pool)["total"]
            if total is None:
                total = self._ram.total()
            wanted = self._ceiling if self._ceiling is not None else (total or 0) // 2 or None
            known = [n for n in (wanted, self._learned) if n is not None]
            limit = min(known) if known else None
            if limit != self._applied[level]:
                self.device._set_level_limit(level, limit)
                self._applied[level] = limit

    def follow_chain(self) -> None:
        """The RAM device draws from another chain: so do its pins."""
        self.device._follow_chain(self._spec())
        self._applied = [None] * len(self._ram._spec.levels)
        self.apply()

    def _spec(self) -> DeviceSpec:
        levels = tuple(
            PoolSpec("pin:" + level.key, kind=KIND_PIN, largest_bytes=level.largest_bytes)
            for level in self._ram._spec.levels
        )
        return DeviceSpec(f"pin:{self._ram.name}", levels, (None,) * len(levels))

    def ceiling(self, nbytes: int) -> None:
        """See Device.pin_ceiling."""
        self._ceiling = nbytes
        self.apply()

    def learn(self, nbytes: int | None) -> None:
        """See Device.learn_limit."""
        self._learned = nbytes
        self.apply()

    def settle(self, claim: _native.Claim | None, pinned: int, releasable: int | None) -> None:
        """The pin pool's record, and the pinned facet of the RAM record for dumps."""
        pinned = as_bytes(pinned, "pinned")
        with self._lock:
            before = self.device.amounts[0]
            # In a forked child nothing of the parent's is pinned.
            grown = pinned - (self._pinned if before else 0)
            held = before + whole_pages(grown) if grown >= 0 else before - whole_pages(-grown)
            held = max(held, whole_pages(pinned)) if pinned else 0
            if releasable is None:
                releasable = held if len(self._ram._ledger.holders) else 0
            if claim is None:
                self.device.publish(held, releasable=min(releasable, held))
            else:
                claim.settle(held, releasable=min(releasable, held))
            self._pinned = pinned
            # By difference, so that a publish of another thread is not undone.
            self._ram.add(pinned=held - self._ram.amounts[2])

    def claim(self, nbytes: int) -> PinClaim | None:
        """See Device.try_pin; does not ask siblings."""
        self.apply()
        wanted = whole_pages(nbytes)
        room = self._ram._pin_room()
        if room is not None and wanted > room:
            return None
        try:
            return PinClaim(self, self.device.claim(wanted))
        except ClaimRefused:
            return None
