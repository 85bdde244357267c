"""The day ComfyUI has a registry of memory holders: all siblings are one holder in it, and our own
ask behind free_memory is left out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from memledger_comfy import log

if TYPE_CHECKING:
    from memledger_comfy.context import Context

NAME = "holder"
ROWS = (6,)
ROLES = ("host", "worker")
REQUIRES = ("comfy.model_management",)

_REGISTER = ("register_memory_holder", "add_memory_holder")
_UNREGISTER = ("unregister_memory_holder", "remove_memory_holder")


class Siblings:
    """`MemoryHolder.release_memory(device, size) -> int`."""

    def __init__(self, context: Context) -> None:
        self._context = context
        assert context.link.ledger is not None
        self._all = context.link.ledger.as_holder()

    def release_memory(self, device: Any, size: int) -> int:
        """Bytes of a torch device that siblings gave within some 20 ms. Never raises."""
        try:
            known = self._context.link.device(device)
            if known is None or self._context.serving.is_serving:
                return 0
            return int(self._all.release_memory(known, int(size)))
        except Exception as error:
            log.failed(NAME, error)
            return 0


def install(context: Context) -> str | None:
    mm = context.mm
    register = _first(mm, _REGISTER)
    if register is None:
        return f"this ComfyUI has no {_REGISTER[0]}"
    if not context.upstream_asks:
        holder = Siblings(context)
        register(holder)
        context.upstream_asks = True
        unregister = _first(mm, _UNREGISTER)

        def undo() -> None:
            context.upstream_asks = False
            if unregister is not None:
                unregister(holder)

        context.on_undo(undo)
    return None


def _first(mm: Any, names: tuple[str, ...]) -> Any:
    found = (getattr(mm, name, None) for name in names)
    return next((each for each in found if callable(each)), None)
