"""Row 6: the free figure that sizes every batch, less what siblings were promised.

RAM's figure is corrected here only where row 8 has not corrected what it is derived from.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from memledger_comfy import policy
from memledger_comfy.adapter import figures

if TYPE_CHECKING:
    from memledger_comfy.context import Context

NAME = "free"
ROWS = (6,)
ROLES = ("host", "worker")
REQUIRES = ("comfy.model_management",)

sees_itself_alone = sys.platform == "win32"
"""WDDM tells a process of its own memory only."""


def install(context: Context) -> str | None:
    mm = context.mm
    link = context.link
    here = context.scopes

    # Called per layer: looked up once, and nothing made that is not needed.
    def coherent(value: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        where = args[0] if args else kwargs.get("dev")
        if where is None:
            where = mm.get_torch_device()
        device = link.device(where)
        if device is None or link.is_raw:
            return value
        if context.ram_is_coherent and device is link.device("cpu"):
            return value
        if type(value) is tuple:
            total = correct(device, value[0])
            return (total, policy.coherent_torch_free(value[1], total), *value[2:])
        if here.with_pages:
            value += figures.vbars(link.name(where)) or 0
        return correct(device, value)

    if not hasattr(mm, "get_torch_device"):
        return "this ComfyUI has no get_torch_device"
    if not context.wraps.result(mm, "get_free_memory", NAME, coherent):
        return "this ComfyUI has no get_free_memory"
    return None


def correct(device: Any, upstream: float) -> int:
    """Upstream's figure of a device, less what it does not know of."""
    claimed = device.claimed_by_others()
    if not sees_itself_alone:
        if not claimed and type(upstream) is int and upstream > 0:
            return upstream
        return policy.coherent_free(upstream, claimed)
    now = device.figures()
    return policy.coherent_free(upstream, claimed, policy.unseen_held(now.held, now.own_held))
