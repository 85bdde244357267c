# ruff: noqa: F821
"""The old generation's VAE: a literal except, and tiles of a fixed size."""

from generations import run_shared

run_shared("sd", globals())


def _guarded(self, samples, memory_used):
    try:
        self._run(samples, memory_used)
    except model_management.OOM_EXCEPTION:
        return True
    return False


VAE._guarded = _guarded
VAE._free = lambda self: model_management.get_free_memory(self.device)
VAE._tiles = lambda self, samples, memory_used: None
