# ruff: noqa: F821
"""comfy.model_management, what both generations have."""

import threading
import weakref
from enum import Enum

import torch


class VRAMState(Enum):
    DISABLED = 0
    NO_VRAM = 1
    LOW_VRAM = 2
    NORMAL_VRAM = 3
    HIGH_VRAM = 4
    SHARED = 5


vram_state = VRAMState.NORMAL_VRAM
DISABLE_SMART_MEMORY = False
MIN_WEIGHT_MEMORY_RATIO = 0.4
EXTRA_RESERVED_VRAM = 400 * 1024 * 1024
OOM_EXCEPTION = torch.cuda.OutOfMemoryError
current_loaded_models = []


def get_torch_device():
    return torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")


def get_all_torch_devices(exclude_current=False):
    return [torch.device("cuda", n) for n in range(torch.cuda.device_count())][exclude_current:]


def is_device_cpu(device):
    return device.type == "cpu"


def cpu_mode():
    return not torch.cuda.is_available()


def is_nvidia():
    return torch.cuda.is_available()


def get_total_memory(dev=None, torch_total_too=False):
    dev = get_torch_device() if dev is None else dev
    total = torch_total = _ram_total()
    if dev.type != "cpu":
        total = torch.cuda.mem_get_info(dev)[1]
        torch_total = torch.cuda.memory_stats(dev)["reserved_bytes.all.current"]
    return (total, torch_total) if torch_total_too else total


def get_free_memory(dev=None, torch_free_too=False):
    dev = get_torch_device() if dev is None else dev
    if dev.type == "cpu":
        free = idle = _ram_available()
    else:
        stats = torch.cuda.memory_stats(dev)
        idle = stats["reserved_bytes.all.current"] - stats["active_bytes.all.current"]
        free = torch.cuda.mem_get_info(dev)[0] + idle
    return (free, idle) if torch_free_too else free


class LoadedModel:
    def __init__(self, model):
        self._model = weakref.ref(model)
        self.device = model.load_device
        self.real_model = None
        self.currently_used = True
        self.model_finalizer = None

    @property
    def model(self):
        return self._model()

    def model_memory(self):
        return self.model.model_size()

    def model_loaded_memory(self):
        return self.model.loaded_size()

    def model_offloaded_memory(self):
        return self.model.model_size() - self.model.loaded_size()

    def model_memory_required(self, device):
        if device == self.model.current_loaded_device():
            return self.model_offloaded_memory()
        return self.model_memory()

    def model_load(self, lowvram_model_memory=0, force_patch_weights=False):
        self.model_use_more_vram(lowvram_model_memory or 1e32)
        self.real_model = weakref.ref(self.model.model)
        self.model_finalizer = weakref.finalize(self.model.model, cleanup_models)
        self.model_finalizer.atexit = False
        return self.model.model

    def model_unload(self, memory_to_free=None, unpatch_weights=True):
        if memory_to_free is not None and memory_to_free < self.model.loaded_size():
            freed = self.model.partially_unload(self.model.offload_device, memory_to_free)
            if freed >= memory_to_free:
                return False
        self.model.detach(unpatch_weights)
        if self.model_finalizer is not None:
            self.model_finalizer.detach()
        self.model_finalizer = self.real_model = None
        return True

    def model_use_more_vram(self, extra_memory, force_patch_weights=False):
        return self.model.partially_load(self.device, extra_memory)

    def __eq__(self, other):
        return self.model is other.model

    __hash__ = None

    def is_dead(self):
        return self.real_model is not None and self.real_model() is not None and self.model is None


def cleanup_models_gc():
    pass


def cleanup_models():
    for index in reversed(range(len(current_loaded_models))):
        real = current_loaded_models[index].real_model
        if real is not None and real() is None:
            current_loaded_models.pop(index)


def extra_reserved_memory():
    return EXTRA_RESERVED_VRAM


def minimum_inference_memory():
    return (1024 * 1024 * 1024) * 0.8 + extra_reserved_memory()


def maximum_vram_for_weights(device=None):
    return get_total_memory(device) * 0.88 - minimum_inference_memory()


def unet_dtype(device=None, model_params=0, supported_dtypes=(), weight_dtype=None):
    """The memory gate alone: fp8 where fp16 weights would not fit the card."""
    if model_params * 2 > maximum_vram_for_weights(device):
        return torch.float8_e4m3fn
    return torch.float16


def should_use_fp16(device=None, model_params=0, prioritize_performance=True, manual_cast=False):
    """The memory gate alone: an older card, whose fp16 is not faster than fp32."""
    return not manual_cast or model_params * 4 > maximum_vram_for_weights(device)


should_use_bf16 = should_use_fp16


def _candidates(device, keep_loaded):
    """As the real one orders them: most offloaded last to go, then by size."""
    found = []
    for index in range(len(current_loaded_models) - 1, -1, -1):
        loaded = current_loaded_models[index]
        if device is not None and loaded.device != device:
            continue
        if loaded not in keep_loaded and not loaded.is_dead():
            found.append((-loaded.model_offloaded_memory(), loaded.model_memory(), index))
            loaded.currently_used = False
    return [index for *_, index in sorted(found)]


def _drop(indices):
    return [current_loaded_models.pop(index) for index in sorted(indices, reverse=True)]


def _end_of_free(unloaded, device):
    if unloaded:
        soft_empty_cache()
    elif device is not None and vram_state != VRAMState.HIGH_VRAM:
        total, idle = get_free_memory(device, torch_free_too=True)
        if idle > total * 0.25:
            soft_empty_cache()


def _wanted(models):
    """The models to load with their patches' models, and the entries for them."""
    every = {}
    for model in models:
        every[model] = None
        for extra in model.model_patches_models():
            every[extra] = None
    entries = []
    for model in every:
        entry = LoadedModel(model)
        if entry in current_loaded_models:
            entry = current_loaded_models[current_loaded_models.index(entry)]
            entry.currently_used = True
        entries.append(entry)
    for entry in entries:
        for index in reversed(range(len(current_loaded_models))):
            if entry.model.is_clone(current_loaded_models[index].model):
                old = current_loaded_models.pop(index)
                old.model.detach(unpatch_all=False)
    return entries


def _load_all(entries, minimum):
    for entry in entries:
        loaded = entry.model_loaded_memory()
        current = get_free_memory(entry.model.load_device) + loaded
        lowvram = max(
            128 * 1024 * 1024,
            current - minimum,
            min(current * MIN_WEIGHT_MEMORY_RATIO, current - minimum_inference_memory()),
        )
        entry.model_load(max(0.1, lowvram - loaded))
        current_loaded_models.insert(0, entry)


def load_model_gpu(model):
    return load_models_gpu([model])


def loaded_models(only_currently_used=False):
    return [
        entry.model
        for entry in current_loaded_models
        if entry.currently_used or not only_currently_used
    ]


def soft_empty_cache(force=False):
    if not cpu_mode():
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        torch.cuda.ipc_collect()


def unload_all_models():
    free_memory(1e30, get_torch_device())


interrupt_processing_mutex = threading.RLock()
interrupt_processing = False


def interrupt_current_processing(value=True):
    global interrupt_processing
    with interrupt_processing_mutex:
        interrupt_processing = value


def processing_interrupted():
    with interrupt_processing_mutex:
        return interrupt_processing


def throw_exception_if_processing_interrupted():
    global interrupt_processing
    with interrupt_processing_mutex:
        if interrupt_processing:
            interrupt_processing = False
            raise InterruptProcessingException()
