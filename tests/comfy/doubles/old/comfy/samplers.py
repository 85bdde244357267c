"""The old generation's samplers: the plain free figure."""

from generations import run_shared

run_shared("samplers", globals())


def _free_memory(model, device):
    return comfy.model_management.get_free_memory(device)  # noqa: F821
