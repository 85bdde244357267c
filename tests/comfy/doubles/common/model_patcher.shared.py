"""comfy.model_patcher, what both generations have: a model that is a number of bytes."""

import comfy.model_management
import torch


class Weights:
    """The inner model, shared by clones: what of it is on the card."""

    def __init__(self, size):
        self.size = size
        self.on_card = []
        self.device = torch.device("cpu")

    @property
    def loaded(self):
        return sum(tensor.nbytes for tensor in self.on_card)


class MemoryCounter:
    def __init__(self, initial, minimum=0):
        self.value = initial
        self.minimum = minimum

    def use(self, weight):
        size = weight.nelement() * weight.element_size()
        if not self.is_useable(size):
            return False
        self.decrement(size)
        return True

    def is_useable(self, used):
        return self.value - used > self.minimum

    def decrement(self, used):
        self.value -= used


class ModelPatcher:
    def __init__(self, model, load_device, offload_device, size=0, weight_inplace_update=False):
        self.model = Weights(model) if isinstance(model, int) else model
        self.load_device = load_device
        self.offload_device = offload_device
        self.parent = None
        self.backup = {}
        self.hook_backup = {}
        self.cached_hook_patches = {}

    def model_size(self):
        return self.model.size

    def loaded_size(self):
        return self.model.loaded

    def current_loaded_device(self):
        return self.model.device

    def model_patches_models(self):
        return []

    def is_clone(self, other):
        return other is not None and self.model is other.model and self is not other

    def clone(self):
        other = type(self)(self.model, self.load_device, self.offload_device)
        other.parent = self
        return other

    def partially_load(self, device, extra_memory, force_patch_weights=False):
        take = int(min(self.model.size - self.model.loaded, extra_memory))
        chunk = 256 * 1024 * 1024
        before = self.model.loaded
        while take > 0:
            self.model.on_card.append(torch.empty(min(chunk, take), device=device))
            take -= chunk
        self.model.device = device
        return self.model.loaded - before

    def partially_unload(self, device_to, memory_to_free=0):
        freed = 0
        while self.model.on_card and freed < memory_to_free:
            freed += self.model.on_card.pop().nbytes
        return freed

    def patch_hooks(self, hooks):
        """`hooks`: sizes of the weights that they patch, or None."""
        if hooks is None:
            self.unpatch_hooks()
            return
        counter = MemoryCounter(
            initial=comfy.model_management.get_free_memory(self.load_device),
            minimum=comfy.model_management.minimum_inference_memory() * 2,
        )
        for number, size in enumerate(hooks):
            where = self.load_device if counter.use(torch.Sized(size)) else self.offload_device
            self.hook_backup[f"weight.{number}"] = (torch.empty(size, device=where), where)

    def unpatch_hooks(self):
        self.hook_backup.clear()

    def clear_cached_hook_weights(self):
        self.cached_hook_patches.clear()
        self.patch_hooks(None)

    def clean_hooks(self):
        self.unpatch_hooks()
        self.clear_cached_hook_weights()

    def detach(self, unpatch_all=True):
        if unpatch_all:
            self.model.on_card.clear()
            self.model.device = self.offload_device
        return self.model
