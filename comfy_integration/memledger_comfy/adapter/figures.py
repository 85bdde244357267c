"""ComfyUI's, torch's and the pager's own figures, read and never changed. Not a row."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from memledger_comfy import log, policy

if TYPE_CHECKING:
    from memledger_comfy.context import Context


def counters(name: str) -> tuple[int, int] | None:
    """(reserved, active) bytes of torch's allocator on a device; None where it has no statistics.
    Makes no context."""
    kind, _, _ = name.partition(":")
    torch = sys.modules.get("torch")
    stats = getattr(getattr(torch, kind, None), "memory_stats", None)
    if torch is None or stats is None:
        return None
    is_initialized = getattr(getattr(torch, kind), "is_initialized", None)
    if is_initialized is not None and not is_initialized():
        return 0, 0
    found = stats(torch.device(name))
    reserved = int(found.get("reserved_bytes.all.current", 0))
    allocated = int(found.get("allocated_bytes.all.current", 0))
    return reserved, int(found.get("active_bytes.all.current", allocated))


def held(context: Context, name: str, *, parts: tuple[int, int], evictable: int) -> Any:
    """What this process holds on a device, as policy.held; None where that is unknown. RAM: what
    rows know of alone; the rest of this process shows there as unaccounted."""
    if name == "cpu":
        return policy.held(0, 0, parts=parts)
    found = counters(name)
    if found is None:
        return None
    reserved, active = found
    return policy.held(
        reserved,
        active,
        pager=pager_bytes(context, name, reserved),
        context=_context_bytes(context, name, reserved),
        evictable=evictable,
        parts=parts,
    )


def idle(name: str) -> int:
    """Bytes that torch's allocator has to spare."""
    found = counters(name)
    return 0 if found is None else max(0, found[0] - found[1])


def pager_bytes(context: Context, name: str, reserved: int) -> int | None:
    """What the pager has mapped. It has one figure for all devices: beside others, what its models
    have loaded on this one, on top of torch's, and no more than that figure."""
    control = sys.modules.get("comfy_aimdo.control")
    usage = getattr(control, "get_total_vram_usage", None)
    if usage is None:
        return None
    total = int(usage())
    devices = getattr(control, "devctxs", None)
    if not devices or len(devices) == 1:
        return total
    return min(total, reserved + dynamic_loaded(context, name))


def evictable(context: Context, name: str) -> int:
    """Bytes that ComfyUI's free_memory would give up beside torch's idle cache: models, and pages
    of the pager."""
    pages = vbars(name)
    whole = _loaded(context, name, unused=True, dynamic=None if pages is None else False)
    return sum(size for _, size in whole) + (pages or 0)


def replaceable(context: Context, name: str, keep: frozenset[int] = frozenset()) -> int:
    """Bytes that ComfyUI would give up for a load of its own: unlike what siblings may have, used
    models too, but for those that are loaded, `keep` by identity."""
    pages = vbars(name)
    models = _loaded(context, name, dynamic=None if pages is None else False)
    return sum(size for known, size in models if known not in keep) + (pages or 0)


def own_weights(context: Context, name: str) -> int:
    """Bytes of models on a device, used ones too."""
    return sum(size for _, size in _loaded(context, name))


def dynamic_loaded(context: Context, name: str) -> int:
    """Bytes that models under the pager have on a device."""
    return sum(size for _, size in _loaded(context, name, dynamic=True))


def used_models(context: Context, name: str) -> list[Any]:
    """The entries of current_loaded_models that a node is working with."""
    if not context.publisher.in_use:
        return []
    return [entry for entry in _entries(context, name) if entry.currently_used]


def vbars(name: str) -> int | None:
    """Pages that the pager would evict, bytes; None where there is no pager."""
    analyze = getattr(sys.modules.get("comfy_aimdo.model_vbar"), "vbars_analyze", None)
    if analyze is None:
        return None
    _, _, index = name.partition(":")
    return int(analyze(int(index)) if index.isdigit() else analyze())


def in_workers(context: Context, name: str) -> list[Any]:
    """The entries of current_loaded_models that stand for models of comfy-env's workers. Their
    bytes are the workers', who publish them, and are asked for them."""
    return [entry for entry in _all_entries(context, name) if _is_elsewhere(entry)]


def _entries(context: Context, name: str) -> list[Any]:
    return [entry for entry in _all_entries(context, name) if not _is_elsewhere(entry)]


def _all_entries(context: Context, name: str) -> list[Any]:
    mm = context.module("comfy.model_management")
    found = []
    for entry in list(getattr(mm, "current_loaded_models", ())):
        try:
            if entry.model is not None and context.link.name(entry.device) == name:
                found.append(entry)
        except Exception as error:  # one that is odd hides nobody else
            log.failed("a loaded model", error)
    return found


def _is_elsewhere(entry: Any) -> bool:
    return type(entry.model).__module__.partition(".")[0] == "comfy_env"


def _loaded(
    context: Context, name: str, *, unused: bool = False, dynamic: bool | None = None
) -> list[tuple[int, int]]:
    """(identity, loaded bytes) of each real model on a device; clones share theirs. unused: without
    those that a node is working with."""
    sizes: dict[int, int] = {}
    for entry in _entries(context, name):
        try:
            model = entry.model
            if model is None or (unused and context.publisher.in_use and entry.currently_used):
                continue
            if dynamic is not None and is_dynamic(model) is not dynamic:
                continue
            size = int(model.loaded_size())
        except Exception as error:
            log.failed("a loaded model", error)
            continue
        sizes[identity(model)] = max(sizes.get(identity(model), 0), size)
    return list(sizes.items())


def identity(patcher: Any) -> int:
    """The same for clones: patchers of one real model."""
    return id(getattr(patcher, "model", patcher))


def is_dynamic(patcher: Any) -> bool:
    ask = getattr(patcher, "is_dynamic", None)
    return bool(ask is not None and ask())


def _context_bytes(context: Context, name: str, reserved: int) -> int:
    """An allowance for the driver's context, once there is one. A simulated card has none."""
    device = context.link.device(name)
    if not reserved or device is None or str(device.key).startswith("sim:"):
        return 0
    from memledger.torch import CONTEXT_BYTES

    return CONTEXT_BYTES
