"""Row 6: the free figure that sizes every batch, less what siblings were promised."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from memledger_comfy import policy

if TYPE_CHECKING:
    from memledger_comfy.context import Context

NAME = "free"
ROWS = (6,)
ROLES = ("host", "worker")
REQUIRES = ("comfy.model_management",)


def install(context: Context) -> str | None:
    mm = context.mm
    link = context.link

    def coherent(value: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if link.is_raw:
            return value
        where = args[0] if args else kwargs.get("dev")
        where = mm.get_torch_device() if where is None else where
        device = link.device(where)
        if device is None or (context.ram_is_coherent and str(where) == "cpu"):
            return value
        claimed = device.claimed_by_others()
        if not isinstance(value, tuple):
            return policy.coherent_free(value, claimed)
        total = policy.coherent_free(value[0], claimed)
        return (total, policy.coherent_torch_free(value[1], total), *value[2:])

    if not hasattr(mm, "get_torch_device"):
        return "this ComfyUI has no get_torch_device"
    if not context.wraps.result(mm, "get_free_memory", NAME, coherent):
        return "this ComfyUI has no get_free_memory"
    return None
