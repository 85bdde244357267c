# ruff: noqa: F821
"""The new generation's patcher: dynamic models, and a free figure of its own."""

from generations import run_shared

run_shared("model_patcher", globals())


def _get_free_memory(self, device):
    return comfy.model_management.get_free_memory(device)


ModelPatcher.get_free_memory = _get_free_memory


def _deepclone_multigpu(self, new_load_device=None, models_cache=None):
    clone = ModelPatcher(self.model.size, new_load_device or self.load_device, self.offload_device)
    clone.partially_load(clone.load_device, 1e32)
    return clone


ModelPatcher.deepclone_multigpu = _deepclone_multigpu
ModelPatcher.is_dynamic = lambda self: False


class ModelPatcherDynamic(ModelPatcher):
    def is_dynamic(self):
        return True
