# ruff: noqa: F821
"""The new generation's patcher: dynamic models, and a free figure of its own."""

from generations import run_shared

run_shared("model_patcher", globals())


def _get_free_memory(self, device):
    return comfy.model_management.get_free_memory(device)


ModelPatcher.get_free_memory = _get_free_memory
ModelPatcher.is_dynamic = lambda self: False


class ModelPatcherDynamic(ModelPatcher):
    def is_dynamic(self):
        return True
