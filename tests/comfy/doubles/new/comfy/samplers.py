# ruff: noqa: F821
"""The new generation's samplers: the model's own free figure, and several cards."""

from generations import run_shared

run_shared("samplers", globals())


def _free_memory(model, device):
    return model.current_patcher.get_free_memory(device)


def _calc_cond_batch_multigpu(model, conds, x_in, timestep, model_options):
    """As the real one: each card's share is sized by the plain free figure."""
    devices = list(model_options["multigpu_clones"])
    share = -(-len(conds) // len(devices))
    ran = []
    for device in devices:
        ran.append(_batch(model, share, comfy.model_management.get_free_memory(device)))
    return ran
