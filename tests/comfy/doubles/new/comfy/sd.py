# ruff: noqa: F821
"""The new generation's VAE: is_oom, and tiles that grow to a share of the card."""

from generations import run_shared

run_shared("sd", globals())


def _guarded(self, samples, memory_used):
    try:
        self._run(samples, memory_used)
    except Exception as error:
        model_management.raise_non_oom(error)
        return True
    return False


def _tiles(self, samples, memory_used):
    model_management.soft_empty_cache()
    self.budget = min(memory_used, int(model_management.get_total_memory(self.device) * 0.8))
    model_management.load_models_gpu([self.patcher], memory_required=self.budget)


VAE._guarded = _guarded
VAE._free = lambda self: self.patcher.get_free_memory(self.device)
VAE._tiles = _tiles
