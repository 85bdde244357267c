"""What one process would have decided: ComfyUI's own formulas over exact figures, with everything
that is asked for resident at once. No ledger, no processes, no doubles."""

from __future__ import annotations

GIB = 1 << 30
MIB = 1 << 20
RESERVED = 400 * MIB
INFERENCE = int(GIB * 0.8) + RESERVED
PIECE = 256 * MIB
VAE = MIB


class Oracle:
    """A card of `total` bytes, of which `foreign` are nobody's here."""

    def __init__(self, total: int, foreign: int = 0) -> None:
        self.total, self.foreign = total, foreign
        self.resident: dict[str, int] = {}
        self.idle: set[str] = set()
        self.loading: set[str] = set()
        """Models in the middle of a load: what ComfyUI wants free beside each is promised to it."""

    @property
    def free(self) -> int:
        promised = INFERENCE * len(self.loading)
        return self.total - self.foreign - sum(self.resident.values()) - promised

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
        """ComfyUI makes room for one sample, and then takes as many as fit beside the VAE."""
        self._make_room(VAE + max(INFERENCE, each + RESERVED))
        batch = max(1, (self.free - VAE) // each)
        return [min(batch, samples - start) for start in range(0, samples, batch)]

    def dtype(self, parameters: int) -> str:
        limit = min(self.total * 0.88, self.free) - INFERENCE
        return "fp16" if parameters * 2 <= limit else "fp8"

    def _make_room(self, nbytes: int) -> None:
        """Idle models give up what is missing, in whole pieces."""
        for name in sorted(self.idle & set(self.resident)):
            missing = max(0, nbytes - self.free)
            pieces = -(-missing // PIECE)
            self.resident[name] = max(0, self.resident[name] - pieces * PIECE)
