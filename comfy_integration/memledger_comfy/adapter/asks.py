"""Asks, both ways: ComfyUI's free_memory asks siblings for what it could not free itself, and what
siblings ask for is freed here as ComfyUI frees."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from memledger_comfy import policy
from memledger_comfy.adapter import figures

if TYPE_CHECKING:
    from memledger_comfy.context import Context

NAME = "asks"
ROWS = (6,)
ROLES = ("host", "worker")
REQUIRES = ("comfy.model_management",)


def install(context: Context) -> str | None:
    mm = context.mm
    for name in ("get_free_memory", "free_memory"):
        if not hasattr(mm, name):
            return f"this ComfyUI has no {name}"
    context.wraps.around(mm, "free_memory", NAME, lambda args, kwargs: _free(context, args, kwargs))
    if not context.wraps.around(mm, "soft_empty_cache", NAME, lambda *_: _emptied(context)):
        context.lack(NAME, "soft_empty_cache")
    context.serving.quick = lambda name, size: _empty_cache(context, name)
    context.serving.add("cache", lambda name, size: _empty_cache(context, name))
    context.serving.add("models", lambda name, size: _unload(context, name, size))
    if hasattr(mm, "get_torch_device"):
        context.link.device(mm.get_torch_device())  # what is held there is published from the start
    context.serving.start()
    return None


# ---- asking


def _free(context: Context, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Around free_memory: what is short afterwards is asked of siblings."""
    if context.serving.is_serving:
        return None
    required = args[0] if args else kwargs.get("memory_required", 0)
    device = args[1] if len(args) > 1 else kwargs.get("device")
    for_dynamic = args[3] if len(args) > 3 else kwargs.get("for_dynamic", False)
    context.serving.begin()

    def leave(_: Any, error: BaseException | None) -> None:
        try:
            if device is not None and context.link.device(device) is not None:
                context.publisher.publish(context.link.name(device))
                if error is None:
                    _ask_for(context, required, device, for_dynamic)
        finally:
            context.serving.end()

    return leave


def _ask_for(context: Context, required: float, device: Any, for_dynamic: bool) -> None:
    name = context.link.name(device)
    if name == "cpu" or policy.is_everything(required) or context.upstream_asks:
        return
    ledger_device = context.link.device(device)
    if ledger_device is None:
        return
    with context.link.raw():
        free = context.mm.get_free_memory(device)
    # Not the coherent figure: that has a floor, and is short by nothing where it should be.
    free -= ledger_device.claimed_by_others()
    pages = figures.dynamic_loaded(context, name) if for_dynamic else 0
    context.serving.ask(device, policy.shortfall(required, free, pages))


def _emptied(context: Context) -> Any:
    """Around soft_empty_cache: pages went back to the driver, or will have been asked to."""
    if context.serving.is_serving:
        return None
    return lambda *_: context.publisher.at_safe_point()


# ---- answering


def _empty_cache(context: Context, name: str) -> None:
    if name != "cpu" and figures.idle(name):
        context.mm.soft_empty_cache()


def _unload(context: Context, name: str, size: int) -> None:
    """As ComfyUI makes room for itself, but for what a node is working with."""
    if name == "cpu":
        return
    import torch

    mm, device = context.mm, torch.device(name)
    # Raw, so that what is freed is what the figure moves by.
    with context.link.raw():
        keep = [*figures.used_models(context, name), *figures.in_workers(context, name)]
        mm.free_memory(mm.get_free_memory(device) + size, device, keep_loaded=keep)
        mm.soft_empty_cache()
