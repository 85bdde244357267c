# ruff: noqa: F401, F821
"""comfy.samplers, what both generations have: how many conds run in one batch."""

import comfy.model_management
import torch


class Model:
    """An inner model that needs `each` bytes for every cond of a batch. `batches`: what it ran."""

    def __init__(self, each, patcher=None):
        self.each, self.current_patcher, self.batches = each, patcher, []

    def memory_required(self, conds):
        return self.each * conds

    def apply_model(self, conds, device):
        self.batches.append(conds)
        return torch.empty(int(self.memory_required(conds)), device=device)


def _batch(model, waiting, free):
    """The largest part of the waiting conds that fits."""
    for parts in range(1, waiting + 1):
        conds = waiting // parts
        if model.memory_required(conds) * 1.5 < free:
            return conds
    return 1


def _calc_cond_batch(model, conds, x_in, timestep, model_options):
    if "multigpu_clones" in model_options:
        return _calc_cond_batch_multigpu(model, conds, x_in, timestep, model_options)
    waiting, ran = len(conds), []
    while waiting:
        ran.append(_batch(model, waiting, _free_memory(model, x_in.device)))
        model.apply_model(ran[-1], x_in.device)
        waiting -= ran[-1]
    return ran


def calc_cond_batch(model, conds, x_in, timestep, model_options):
    return _calc_cond_batch(model, conds, x_in, timestep, model_options)
