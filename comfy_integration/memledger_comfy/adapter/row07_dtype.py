"""Row 7: which dtype a model gets, from what this process may own instead of the whole card.

The bytes of the larger dtype are claimed when it is chosen, and the claim is kept for the load that
follows, so that two processes never both choose it where only one fits.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from memledger_comfy import policy
from memledger_comfy.adapter import claims, figures
from memledger_comfy.pledges import TTL_S

if TYPE_CHECKING:
    from memledger_comfy.context import Context

NAME = "dtype"
ROWS = (7,)
ROLES = ("host", "worker")
REQUIRES = ("comfy.model_management",)

_here = threading.local()
"""`choosing`: the model whose dtype this thread is choosing."""


class _Choice:
    """A model whose dtype is being chosen. bytes_each: of a parameter, in the larger dtype that the
    gate asks about: 2 for fp16 beside fp8, 4 for fp32 beside fp16."""

    def __init__(self, parameters: int) -> None:
        self.parameters = parameters
        self.bytes_each = 2


def install(context: Context) -> str | None:
    mm = context.mm
    for name in ("maximum_vram_for_weights", "minimum_inference_memory", "get_torch_device"):
        if not hasattr(mm, name):
            return f"this ComfyUI has no {name}"
    if not hasattr(mm, "get_free_memory"):
        return "this ComfyUI has no get_free_memory"

    def limit(value: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return _limit(context, value, args[0] if args else kwargs.get("device"))

    wraps = context.wraps
    wraps.result(mm, "maximum_vram_for_weights", NAME, limit)
    if not wraps.around(mm, "unet_dtype", NAME, _choosing):
        context.lack(NAME, "unet_dtype")
    for name in ("should_use_fp16", "should_use_bf16"):
        if not wraps.around(mm, name, NAME, _asking_about_fp32):
            context.lack(NAME, name)
    return None


def _choosing(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    parameters = args[1] if len(args) > 1 else kwargs.get("model_params", 0)
    before = getattr(_here, "choosing", None)
    known = 0 < parameters < policy.EVERYTHING
    _here.choosing = _Choice(int(parameters)) if known else None

    def leave(*_: Any) -> None:
        _here.choosing = before

    return leave


def _asking_about_fp32(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    choice: _Choice | None = getattr(_here, "choosing", None)
    if choice is None:
        return None
    before, choice.bytes_each = choice.bytes_each, 4

    def leave(*_: Any) -> None:
        choice.bytes_each = before

    return leave


def _limit(context: Context, upstream: float, torch_device: Any) -> float:
    mm = context.mm
    name = context.link.name(mm.get_torch_device() if torch_device is None else torch_device)
    device = context.link.device(name)
    if device is None or name == "cpu":
        return upstream
    inference = mm.minimum_inference_memory()
    with context.link.raw():
        free = mm.get_free_memory(torch_device)
    coherent = policy.coherent_free(free, device.claimed_by_others())
    weights = figures.own_weights(context, name)
    limit = policy.vram_for_weights(upstream, coherent, weights, inference)
    choice: _Choice | None = getattr(_here, "choosing", None)
    if choice is None:
        return limit
    large = choice.parameters * choice.bytes_each
    if large > limit:
        # The smaller one is what will be loaded: the next chooser should see it.
        _pledge(context, name, [large // 2 + int(inference)])
        return limit
    chosen = _pledge(context, name, [large + int(inference), large // 2 + int(inference)])
    return limit if chosen == 0 else policy.refuse_dtype(limit, large)


def _pledge(context: Context, name: str, sizes: list[int]) -> int | None:
    """Keep a claim of the first of `sizes` that fits; which, or None. What this process has
    pledged already counts: its models make room for each other."""
    pledged = context.pledges.size(name)
    if pledged >= sizes[0]:
        return 0
    context.publisher.publish(name)
    before = context.pledges.take(name)
    if before is not None:
        before.cancel()
    own = figures.replaceable(context, name)
    for index, size in enumerate(sizes):
        found = claims.claim(context, name, size, own, TTL_S)
        if found is not None:
            context.pledges.keep(name, found)
            return index
    return None
