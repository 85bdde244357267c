# ruff: noqa: F821
"""The new generation: pins, dynamic models, OOM by is_oom, an interrupt that is a BaseException."""

from generations import run_shared

import comfy.memory_management
import comfy.system_memory

run_shared("model_management", globals())


def _ram_total():
    return comfy.system_memory.virtual_memory_total()


def _ram_available():
    return comfy.system_memory.virtual_memory_available()


total_vram = get_total_memory(get_torch_device()) / (1024 * 1024)
total_ram = _ram_total() / (1024 * 1024)
MAX_PINNED_MEMORY = _ram_total() * 0.95 if is_nvidia() else -1
TOTAL_PINNED_MEMORY = 0
PIN_PRESSURE_HYSTERESIS = 256 * 1024 * 1024


class InterruptProcessingException(BaseException):
    pass


def is_oom(e):
    return isinstance(e, OOM_EXCEPTION)


def raise_non_oom(e):
    if not is_oom(e):
        raise e


def free_memory(
    memory_required,
    device,
    keep_loaded=[],  # noqa: B006
    for_dynamic=False,
    pins_required=0,
    ram_required=0,
):
    unloaded = []
    for index in _candidates(device, keep_loaded):
        to_free = 1e32
        model = current_loaded_models[index].model
        if not DISABLE_SMART_MEMORY or device is None:
            to_free = 0 if device is None else memory_required - get_free_memory(device)
            if model.is_dynamic() and for_dynamic:
                memory_required -= model.loaded_size()
                to_free = 0
        if to_free > 0 and current_loaded_models[index].model_unload(to_free):
            unloaded.append(index)
    if not for_dynamic and pins_required > 0:
        ensure_pin_budget(pins_required)
        ensure_pin_registerable(pins_required)
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
    dynamic = all(entry.model.is_dynamic() for entry in entries)
    needed, pins = {}, {}
    for entry in entries:
        where = entry.device
        needed[where] = needed.get(where, 0) + entry.model_memory_required(where)
        if not entry.model.is_dynamic():
            pins[where] = pins.get(where, 0) + entry.model_memory()
    for device in needed:
        if not is_device_cpu(device):
            free_memory(
                needed[device] * 1.1 + extra,
                device,
                for_dynamic=dynamic,
                pins_required=pins.get(device, 0),
            )
    for device in needed:
        if not is_device_cpu(device) and get_free_memory(device) < minimum:
            free_memory(minimum, device, for_dynamic=dynamic)
    _load_all(entries, minimum)


# ---- pins

_pinned = []
"""(bytes, active) of each pinned buffer, oldest first."""


def pin(size, active=False):
    """For tests: pin a buffer as a loading model does. False: it stayed pageable."""
    global TOTAL_PINNED_MEMORY
    if MAX_PINNED_MEMORY <= 0 or not ensure_pin_budget(size) or not ensure_pin_registerable(size):
        return False
    _pinned.append((size, active))
    TOTAL_PINNED_MEMORY += size
    return True


def free_pins(size, evict_active=False, loaded=False):
    global TOTAL_PINNED_MEMORY
    freed = 0
    for entry in list(_pinned):
        if freed >= size:
            break
        if entry[1] and not evict_active:
            continue
        _pinned.remove(entry)
        TOTAL_PINNED_MEMORY -= entry[0]
        freed += entry[0]
    return freed


def ensure_pin_budget(size, evict_active=False, loaded=False):
    headroom = max(comfy.memory_management.RAM_CACHE_HEADROOM / 2, 2048 * 1024**2)
    shortfall = size + headroom - comfy.system_memory.virtual_memory_available()
    if shortfall <= 0:
        return True
    to_free = shortfall + PIN_PRESSURE_HYSTERESIS
    return free_pins(to_free, evict_active=evict_active, loaded=loaded) >= shortfall


def free_registrations(shortfall, evict_active=True):
    if MAX_PINNED_MEMORY <= 0:
        return False
    if shortfall <= 0:
        return True
    return free_pins(shortfall, evict_active=evict_active) >= shortfall


def ensure_pin_registerable(size, evict_active=True):
    return free_registrations(
        TOTAL_PINNED_MEMORY + size - MAX_PINNED_MEMORY, evict_active=evict_active
    )
