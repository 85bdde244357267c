"""Sources made of other sources."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from memledger.model import UNIFIED, Reading, absent, plausible
from memledger.sizes import format_size

if TYPE_CHECKING:
    from memledger.readings import Source


class FirstOf:
    """The first of several sources of one pool that has a figure, the best first. Costs what the
    asked ones cost."""

    def __init__(self, *sources: Source) -> None:
        if not sources:
            raise ValueError("FirstOf needs at least one source")
        self._sources = sources
        self.name = sources[0].name

    @property
    def timeout_s(self) -> float:
        return sum(source.timeout_s for source in self._sources)

    def read(self) -> Reading:
        """Never raises. Where none has a figure, the first one's reason, and what the others
        said. A sleeping device ("suspended") is not asked in another way."""
        absences: list[Reading] = []
        for source in self._sources:
            reading = source.read()
            if reading.known:
                why = "; ".join(f"{a.source}: {a.reason}" for a in absences)
                return reading._replace(detail="; ".join(filter(None, (reading.detail, why))))
            if reading.reason == "suspended":
                return reading
            absences.append(reading)
        others = "; ".join(f"{a.source}: {a.detail or a.reason}" for a in absences[1:])
        first = absences[0]
        return first._replace(detail="; ".join(filter(None, (first.detail, others))))

    def close(self) -> None:
        for source in self._sources:
            close = getattr(source, "close", None)
            if close is not None:
                close()

    def explain(self) -> str:
        return "; else ".join(source.explain() for source in self._sources)


class Unified:
    """A device that draws from the machine's RAM, up to a cap: its figures are those of the RAM
    within the cap, so that what other programs take of the RAM shows on the device too.

    cap: bytes that the device may use, asked at each reading; None: unknown, see `cap_needed`.
    used: bytes that its driver counts against the cap, None: it does not say (or not all: what
    members hold comes from the ledger anyway).
    """

    timeout_s = 0.25

    def __init__(
        self,
        name: str,
        system: Source,
        *,
        cap: Callable[[], int | None] = lambda: None,
        used: Callable[[], int | None] = lambda: None,
        cap_needed: bool = False,
        why_no_cap: str = "",
        explanation: str = "",
    ) -> None:
        self.name = name
        self._system = system
        self._cap = cap
        self._used = used
        self._cap_needed = cap_needed
        self._why_no_cap = why_no_cap
        self._explanation = explanation

    def read(self) -> Reading:
        """Never raises where `system`, `cap` and `used` do not."""
        cap = self._cap()
        if cap is None and self._cap_needed:
            return absent(self.name, "not_supported", self._why_no_cap)
        ram = self._system.read()
        if ram.total is None or ram.free is None:
            return ram
        total = ram.total if cap is None else min(cap, ram.total)
        within = max(0, total - (self._used() or 0))
        free = min(within, ram.free)
        return plausible(
            Reading(
                self.name,
                total=total,
                free=free,
                # The RAM's huge pages are apart from the RAM, not from the device's cap.
                reserved=min(ram.reserved, total - free) if cap is None else 0,
                immediate=None if ram.immediate is None else min(free, ram.immediate),
                flags=ram.flags | UNIFIED,
                detail="; ".join(filter(None, (ram.detail, _capped(cap)))),
            )
        )

    def explain(self) -> str:
        return self._explanation or self._system.explain()


def _capped(cap: int | None) -> str:
    return "" if cap is None else f"may use {format_size(cap)} of the RAM"
