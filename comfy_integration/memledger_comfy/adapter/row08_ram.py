"""Row 8: RAM, of the machine or of the container, less what siblings in it were promised.

New ComfyUI asks `comfy.system_memory`, which knows control groups; old ComfyUI asks psutil, which
does not: there the ledger's own figure bounds it, and `total_ram` is that of the container.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from memledger_comfy import policy

if TYPE_CHECKING:
    from memledger_comfy.context import Context

NAME = "ram"
ROWS = (8,)
ROLES = ("host", "worker")
REQUIRES = ("comfy.model_management",)

_MIB = 1 << 20


def install(context: Context) -> str | None:
    system = context.module("comfy.system_memory")
    if system is not None and hasattr(system, "virtual_memory_available"):
        return _wrap_system_memory(context, system)
    return _bound_old(context)


def _wrap_system_memory(context: Context, system: Any) -> str | None:
    link = context.link

    def available(value: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        ram = None if link.is_raw else link.device("cpu")
        return value if ram is None else policy.coherent_free(value, ram.claimed_by_others())

    context.wraps.result(system, "virtual_memory_available", NAME, available)
    context.ram_is_coherent = True
    return None


def _bound_old(context: Context) -> str | None:
    mm, link = context.mm, context.link
    ram = link.device("cpu")
    if ram is None:
        return "the ledger has no RAM device here"

    def bounded(value: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        where = args[0] if args else kwargs.get("dev")
        where = mm.get_torch_device() if where is None else where
        if link.is_raw or str(where) != "cpu":
            return value
        # Row 6's claims are subtracted from `value` already; the ledger's figure lacks them too.
        free = ram.free()
        if not isinstance(value, tuple):
            return policy.bounded_ram(value, free)
        total = policy.bounded_ram(value[0], free)
        return (total, min(int(value[1]), total), *value[2:])

    if not context.wraps.result(mm, "get_free_memory", NAME, bounded):
        return "this ComfyUI has no get_free_memory"
    total = ram.total()
    if total and hasattr(mm, "total_ram") and mm.total_ram > total / _MIB:
        upstream, assigned = mm.total_ram, total / _MIB
        mm.total_ram = assigned

        def undo() -> None:
            if mm.total_ram == assigned:
                mm.total_ram = upstream

        context.on_undo(undo)
    return None
