"""Runs in a real ComfyUI tree, which is the working directory, on the CPU: our entry points around
ComfyUI's imports, as main.py has them, then questions. argv: our folder, and the names to look for
("module:attribute.attribute") as JSON. The last line that it prints is the answers as JSON.
"""

from __future__ import annotations

import importlib
import json
import logging
import os
import sys
from types import SimpleNamespace
from typing import Any

ADAPTERS, NAMES = sys.argv[1], json.loads(sys.argv[2])
sys.argv[1:] = ["--cpu"]
sys.path.insert(0, os.getcwd())


class Lines(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


def is_there(name: str) -> bool:
    module, _, attributes = name.partition(":")
    try:
        found: Any = importlib.import_module(module)
    except ImportError:
        return False
    for attribute in filter(None, attributes.split(".")):
        if not hasattr(found, attribute):
            return False
        found = getattr(found, attribute)
    return True


def patched_model(mm: Any, model_patcher: Any, torch: Any) -> Any:
    """A model of one weight of 64 bytes, patched: ComfyUI's own patcher, on the CPU."""
    model = torch.nn.Sequential(torch.nn.Linear(4, 4, bias=False))
    cpu = torch.device("cpu")
    patcher = model_patcher.ModelPatcher(model, load_device=cpu, offload_device=cpu)
    patcher.add_patches({"0.weight": ("diff", (torch.ones(4, 4),))}, 1.0)
    return patcher


def cond_batches(patcher: Any, torch: Any, unit: float) -> list[int]:
    """The sizes of the batches in which ComfyUI runs four conds, of which each needs `unit` bytes
    (ComfyUI wants 1.5 times that)."""
    samplers = importlib.import_module("comfy.samplers")
    sizes: list[int] = []

    def apply_model(x: Any, timestep: Any, **conds: Any) -> Any:
        sizes.append(len(x))
        return x

    def memory_required(shape: Any, cond_shapes: Any = None) -> float:
        return shape[0] * unit

    model = SimpleNamespace(
        current_patcher=patcher, apply_model=apply_model, memory_required=memory_required
    )
    conds = [[{"model_conds": {}, "uuid": number} for number in range(4)]]
    latent = torch.zeros(1, 4, 8, 8)
    samplers.calc_cond_batch(model, conds, latent, torch.ones(1), {})
    return sizes


def vae_batches(patcher: Any, torch: Any, unit: float) -> list[int]:
    """The sizes of the batches in which ComfyUI decodes eight latents of `unit` bytes each."""
    sd = importlib.import_module("comfy.sd")
    sizes: list[int] = []

    class Stage:
        def decode(self, samples: Any, **options: Any) -> Any:
            sizes.append(len(samples))
            return torch.zeros(len(samples), 3, 8, 8)

    vae = object.__new__(sd.VAE)
    vae.first_stage_model, vae.patcher = Stage(), patcher
    vae.device = vae.output_device = torch.device("cpu")
    vae.vae_dtype, vae.latent_dim, vae.disable_offload = torch.float32, 2, False
    vae.extra_1d_channel = None
    vae.memory_used_decode = lambda shape, dtype: unit
    vae.process_output = lambda image: image
    vae.decode(torch.zeros(8, 4, 8, 8))
    return sizes


def attention_survives(torch: Any) -> bool:
    """Both slicing attentions divide by the free figure."""
    model = importlib.import_module("comfy.ldm.modules.diffusionmodules.model")
    attention = importlib.import_module("comfy.ldm.modules.attention")
    query = torch.ones(1, 16, 8)
    sliced = model.slice_attention(query, torch.ones(1, 8, 16), torch.ones(1, 8, 16))
    split = attention.attention_split(query, query, query, heads=2)
    return bool(sliced.isfinite().all() and split.isfinite().all())


def main() -> dict[str, Any]:
    heard = Lines()
    logging.getLogger("memledger").addHandler(heard)
    logging.getLogger("memledger").setLevel(logging.INFO)
    importlib.import_module("comfy.options").enable_args_parsing()
    # As in main.py: later, ComfyUI's own `comfy` folder comes first on the path, and has a `utils`.
    importlib.import_module("utils.extra_config")
    sys.path.append(ADAPTERS)
    host = importlib.import_module("memledger_comfy.host")
    host.start_early()
    torch_was_early = "torch" in sys.modules
    for name in ("comfy.utils", "execution", "nodes", "comfy.model_management", "server"):
        importlib.import_module(name)
    host.start_late()

    import torch

    mm = sys.modules["comfy.model_management"]
    model_patcher = sys.modules["comfy.model_patcher"]
    context = host.context()
    answers: dict[str, Any] = {
        "torch_was_early": torch_was_early,
        "names": {name: is_there(name) for name in NAMES},
        "joined": context is not None,
        "lines": heard.lines,
    }
    if context is None:
        return answers
    answers["status"], answers["lacks"] = dict(context.status), dict(context.lacks)
    with context.link.raw():
        raw = mm.get_free_memory(torch.device("cpu"))
    answers["raw"], answers["free"] = raw, mm.get_free_memory(torch.device("cpu"))
    answers["pair"] = mm.get_free_memory(torch.device("cpu"), torch_free_too=True)
    patcher = patched_model(mm, model_patcher, torch)
    mm.load_models_gpu([patcher])
    backups = importlib.import_module("memledger_comfy.adapter.row32_backups")
    answers["backup_bytes"] = backups.kept_bytes(mm.current_loaded_models)
    mm.unload_all_models()
    answers["backup_bytes_later"] = backups.kept_bytes(mm.current_loaded_models)
    # With all of `raw` four conds and eight latents fit at once; with half of it, two and four.
    answers["conds"] = cond_batches(patcher, torch, raw * 0.2 / 1.5)
    answers["latents"] = vae_batches(patcher, torch, raw / 9)
    with context.link.raw():
        answers["conds_raw"] = cond_batches(patcher, torch, raw * 0.2 / 1.5)
        answers["latents_raw"] = vae_batches(patcher, torch, raw / 9)
    device = type(context.link.device("cpu"))
    device.claimed_by_others = lambda self: 10**15
    answers["floor"] = mm.get_free_memory(torch.device("cpu"))
    answers["attention_survives"] = attention_survives(torch)
    return answers


if __name__ == "__main__":
    print("\n" + json.dumps(main()), flush=True)
