"""Row 32: what patched models have kept of their weights in RAM is held there.

Without in-place update the copy may be the live parameter's own storage, so storages are counted
once, and those that the model still uses not at all.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from memledger_comfy.publisher import Part

if TYPE_CHECKING:
    from memledger_comfy.context import Context

NAME = "backups"
ROWS = (32,)
ROLES = ("host", "worker")
REQUIRES = ("comfy.model_management",)


def install(context: Context) -> str | None:
    if not hasattr(context.mm, "current_loaded_models"):
        return "this ComfyUI has no current_loaded_models"
    if context.link.device("cpu") is None:
        return "the ledger has no RAM device here"

    def part(name: str) -> Part | None:
        if name != "cpu":
            return None
        return Part(held=kept_bytes(context.mm.current_loaded_models))

    context.publisher.contribute(NAME, part)
    return None


def kept_bytes(loaded_models: Any) -> int:
    """Bytes of CPU storages in the backups of `loaded_models`, each once, without those that are
    still the model's own."""
    counted: set[int] = set()
    total = 0
    for loaded in list(loaded_models):
        patcher = loaded.model
        if patcher is None:
            continue
        kept = [
            *_tensors(getattr(patcher, "backup", None)),
            *_tensors(getattr(patcher, "backup_buffers", None)),
        ]
        if not kept:
            continue
        live = _live_storages(patcher)
        for tensor in kept:
            if tensor.device.type != "cpu":
                continue
            storage = tensor.untyped_storage()
            where = storage.data_ptr()
            if where in counted or where in live:
                continue
            counted.add(where)
            total += storage.nbytes() if callable(storage.nbytes) else storage.nbytes
    return total


def _tensors(backup: Any) -> list[Any]:
    """ComfyUI keeps (weight, in place) tuples under `backup`, plain tensors under buffers."""
    found = []
    for entry in list((backup or {}).values()):
        weight = getattr(entry, "weight", None)
        if weight is None:
            weight = entry[0] if isinstance(entry, tuple) else entry
        if hasattr(weight, "untyped_storage"):
            found.append(weight)
    return found


def _live_storages(patcher: Any) -> set[int]:
    model = getattr(patcher, "model", None)
    parameters = getattr(model, "parameters", None)
    if not callable(parameters):
        return set()
    return {parameter.untyped_storage().data_ptr() for parameter in parameters()}
