"""What one process would have decided: ComfyUI's own formulas over exact figures, with everything
that is asked for resident at once. No ledger, no processes, no doubles."""

from __future__ import annotations

GIB = 1 << 30
INFERENCE = int(GIB * 0.8) + 400 * (1 << 20)


class Oracle:
    """A card of `total` bytes, of which `foreign` are nobody's here."""

    def __init__(self, total: int, foreign: int = 0) -> None:
        self.total, self.foreign = total, foreign
        self.resident: dict[str, int] = {}
        self.idle: set[str] = set()

    @property
    def free(self) -> int:
        return self.total - self.foreign - sum(self.resident.values())

    def load(self, name: str, nbytes: int) -> int:
        self._make_room(nbytes + INFERENCE)
        self.resident[name] = nbytes
        return nbytes

    def batches(self, conds: int, each: int) -> list[int]:
        """The largest part of the waiting conds of which one and a half fit."""
        ran: list[int] = []
        while sum(ran) < conds:
            waiting = conds - sum(ran)
            parts = (waiting // n for n in range(1, waiting + 1))
            ran.append(next((part for part in parts if part * each * 1.5 < self.free), 1))
        return ran

    def decode(self, samples: int, each: int) -> list[int]:
        self._make_room(samples * each + INFERENCE)
        batch = max(1, self.free // each)
        return [min(batch, samples - start) for start in range(0, samples, batch)]

    def dtype(self, parameters: int) -> str:
        limit = min(self.total * 0.88, self.free) - INFERENCE
        return "fp16" if parameters * 2 <= limit else "fp8"

    def _make_room(self, nbytes: int) -> None:
        for name in sorted(self.idle & set(self.resident)):
            if self.free >= nbytes:
                return
            del self.resident[name]
