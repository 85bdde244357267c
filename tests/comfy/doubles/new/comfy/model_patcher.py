# ruff: noqa: F821
"""The new generation's patcher: dynamic models, and a free figure of its own."""

import comfy_aimdo.control
import comfy_aimdo.model_vbar
from generations import run_shared

import comfy.model_management

run_shared("model_patcher", globals())


def _get_free_memory(self, device):
    pages = comfy_aimdo.model_vbar.vbars_analyze(device.index)
    return comfy.model_management.get_free_memory(device) + pages


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
