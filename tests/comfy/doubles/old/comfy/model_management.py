# ruff: noqa: F821
"""The old generation: no pins, no pager, an interrupt that is an Exception."""

import psutil
from generations import run_shared

run_shared("model_management", globals())


def _ram_total():
    return psutil.virtual_memory().total


def _ram_available():
    return psutil.virtual_memory().available


total_vram = get_total_memory(get_torch_device()) / (1024 * 1024)
total_ram = _ram_total() / (1024 * 1024)


class InterruptProcessingException(Exception):
    pass


def free_memory(memory_required, device, keep_loaded=[]):  # noqa: B006
    unloaded = []
    for index in _candidates(device, keep_loaded):
        to_free = None
        if not DISABLE_SMART_MEMORY:
            free = get_free_memory(device)
            if free > memory_required:
                break
            to_free = memory_required - free
        if current_loaded_models[index].model_unload(to_free):
            unloaded.append(index)
    _end_of_free(unloaded, device)
    return _drop(unloaded)


def load_models_gpu(
    models,
    memory_required=0,
    force_patch_weights=False,
    minimum_memory_required=None,
    force_full_load=False,
):
    inference = minimum_inference_memory()
    extra = max(inference, memory_required + extra_reserved_memory())
    minimum = extra
    if minimum_memory_required is not None:
        minimum = max(inference, minimum_memory_required + extra_reserved_memory())
    entries = _wanted(models)
    needed = {}
    for entry in entries:
        needed[entry.device] = needed.get(entry.device, 0) + entry.model_memory_required(
            entry.device
        )
    for device in needed:
        if not is_device_cpu(device):
            free_memory(needed[device] * 1.1 + extra, device)
    for device in needed:
        if not is_device_cpu(device) and get_free_memory(device) < minimum:
            free_memory(minimum, device)
    _load_all(entries, minimum)
