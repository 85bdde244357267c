"""A simulated card as a source: what a driver would say about it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memledger.model import Reading, absent, plausible

if TYPE_CHECKING:
    from memledger.sim import Card


class SimulatedCard:
    """Reads a `memledger.sim.Card`, as slowly as the card's latency says."""

    name = "sim"
    timeout_s = 0.25
    never_blocks = True  # kernel files and memory, no driver

    def __init__(self, card: Card) -> None:
        self._card = card

    def read(self) -> Reading:
        """Never raises for a card that is gone or busy."""
        from memledger.sim import SimError

        try:
            used, reserved, total = self._card.read()
        except SimError as error:
            return absent(self.name, "probe_failed", str(error))
        return plausible(
            Reading(self.name, total=total, free=max(0, total - reserved - used), reserved=reserved)
        )

    def explain(self) -> str:
        return f"reads the simulated card {self._card.name}, which knows everything"
