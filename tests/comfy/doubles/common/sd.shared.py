"""comfy.sd, what both generations have: a VAE that decodes as many samples at once as fit."""

import comfy.model_management as model_management
import torch


class VAE:
    """`each`: bytes for one sample. `batches`: sizes that ran; `tiled`: whether tiles had to do."""

    def __init__(self, patcher, each, device=None):
        self.patcher = patcher
        self.device = model_management.get_torch_device() if device is None else device
        self.vae_dtype = torch.float16
        self.latent_dim, self.not_video, self.disable_offload = 2, False, False
        self.memory_used_decode = lambda shape, dtype: each
        self.memory_used_encode = lambda shape, dtype: each
        self.batches, self.tiled, self.budget, self.during = [], False, None, None

    def _run(self, samples, memory_used):
        model_management.load_models_gpu([self.patcher], memory_required=memory_used)
        batch = max(1, int(self._free() / memory_used))
        for start in range(0, samples.shape[0], batch):
            now = min(batch, samples.shape[0] - start)
            if self.during is not None:
                self.during()
            tensor = torch.empty(int(now * memory_used), device=self.device)
            self.batches.append(now)
            del tensor

    def decode(self, samples_in, vae_options={}):  # noqa: B006
        used = self.memory_used_decode(samples_in.shape, self.vae_dtype)
        if self._guarded(samples_in, used):
            self.tiled = True
            self._tiles(samples_in, used)
        return self.batches

    def encode(self, pixel_samples):
        shape = (pixel_samples.shape[0], pixel_samples.shape[-1], *pixel_samples.shape[1:-1])
        used = self.memory_used_encode(shape, self.vae_dtype)
        if self._guarded(pixel_samples, used):
            self.tiled = True
        return self.batches

    def decode_tiled(self, samples, tile_x=None, tile_y=None):
        used = self.memory_used_decode(samples.shape, self.vae_dtype)
        model_management.load_models_gpu([self.patcher], memory_required=used)
        return self.batches


class Samples:
    """A tensor that is only a shape."""

    def __init__(self, *shape):
        self.shape, self.ndim = shape, len(shape)
