"""Page-locked host memory: one budget for all members at every level of the RAM chain.

Each RAM pool has a pin pool beside it. Its total is the smallest ceiling that a live member wants
(by default half of the level's total) or has learned (pinning failed at that size). Pins are claims
there, in whole pages.
"""

from __future__ import annotations

import mmap
from typing import TYPE_CHECKING

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

    @property
    def checked(self) -> bool:
        return self._claim.checked

    def settle(self, pinned: int) -> None:
        """`pinned`: bytes that this process has page-locked now, in all."""
        self._claim.settle(held=whole_pages(pinned))
        self._pins.publish_pinned(pinned)

    def cancel(self) -> None:
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
        levels = tuple(
            PoolSpec("pin:" + level.key, kind=KIND_PIN, largest_bytes=level.largest_bytes)
            for level in ram._spec.levels
        )
        spec = DeviceSpec(f"pin:{ram.name}", levels, (None,) * len(levels))
        self.device = Device(ram._ledger, spec)
        self._learned: int | None = None
        self._ceiling: int | None = None
        self._apply()

    def _apply(self) -> None:
        """Each level's ceiling: half its total unless told otherwise, and what was learned."""
        for level, pool in enumerate(self._ram._pools()):
            total = self._ram._ledger._reading(pool)["total"]
            wanted = self._ceiling if self._ceiling is not None else (total or 0) // 2
            known = [n for n in (wanted or None, self._learned) if n is not None]
            self.device._set_level_limit(level, min(known) if known else None)

    def ceiling(self, nbytes: int) -> None:
        self._ceiling = nbytes
        self._apply()

    def learn(self, nbytes: int | None) -> None:
        self._learned = nbytes
        self._apply()

    def publish_pinned(self, pinned: int) -> None:
        """The pinned facet of the RAM record, for dumps."""
        held, releasable, _ = self._ram.amounts
        self._ram.publish(held, releasable=releasable, pinned=pinned)

    def claim(self, nbytes: int) -> PinClaim | None:
        wanted = whole_pages(nbytes)
        room = self._ram._pin_room()
        if room is not None and wanted > room:
            return None
        try:
            return PinClaim(self, self.device.claim(wanted))
        except ClaimRefused:
            return None
