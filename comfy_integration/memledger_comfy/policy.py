"""The decisions, as pure functions: figures in, decision out. All figures are bytes."""

from __future__ import annotations

import re
from typing import NamedTuple

MIB = 1 << 20
FLOOR = 64 * MIB
EVERYTHING = 10**18
"""ComfyUI frees "everything" by asking for 1e30 or 1e32 bytes; no real size is this large."""


def is_everything(nbytes: float) -> bool:
    """Whether a size means "all there is". Also for infinities and not-a-number."""
    return not nbytes < EVERYTHING


def coherent_free(upstream: float, claimed_by_others: int | None, unseen_held: int = 0) -> int:
    """What ComfyUI may take: its own live figure, less what siblings were promised and have not
    taken yet.

    Subtracted and not clamped, for ComfyUI and comfy-env measure what a free gave as the difference
    of two of these figures. Never below 64 MiB or a 64th of upstream's, since its attention code
    divides by this figure; never above upstream's own; at least 1.
    unseen_held: what siblings hold, only where upstream's figure is of this process alone.
    """
    own = int(upstream)
    taken = max(0, claimed_by_others or 0) + max(0, unseen_held)
    if not taken:
        return max(1, own)
    floor = min(own, max(FLOOR, own // 64))
    return max(own - taken, floor, 1)


def coherent_torch_free(torch_free: float, total_free: int) -> int:
    """The second figure of `get_free_memory(torch_free_too=True)`: what torch has idle, never more
    than the total that it is a part of, else ComfyUI empties its cache at every call."""
    return max(0, min(int(torch_free), total_free))


def shortfall(required: float, raw_free: float, evictable: float = 0) -> int:
    """Bytes to ask of siblings when ComfyUI wants `required` free and `raw_free` is; `evictable`:
    what its own pager will give up for it. 0 where it wants everything: that is not a size."""
    if is_everything(required):
        return 0
    return max(0, int(required) - int(raw_free) - int(evictable))


def bounded_ram(upstream: float, ledger_free: int | None) -> int:
    """RAM that ComfyUI may take where its own figure does not know the container: the smaller of
    the two, never below the floor of coherent_free, nor above ComfyUI's own."""
    own = int(upstream)
    if ledger_free is None:
        return max(1, own)
    floor = min(own, max(FLOOR, own // 64))
    return max(min(own, ledger_free), floor, 1)


def pin_ceiling(upstream: float, own_pinned: int, pinned_by_others: int) -> float:
    """The most that this process may pin: upstream's ceiling is one for all, so what others have
    pinned goes off it, and what this process has stays.

    Upstream's 0 or less means that pinning is off: it stays so. Never 0 otherwise, for that would
    switch it off.
    """
    if upstream <= 0 or pinned_by_others <= 0:
        return upstream
    return max(1, own_pinned, upstream - pinned_by_others)


def unseen_held(held: int, own_held: int) -> int:
    """What siblings hold, where upstream's free figure does not know of it (Windows' WDDM)."""
    return max(0, held - own_held)


class Held(NamedTuple):
    """Bytes of one device."""

    held: int
    releasable: int


def held(
    reserved: int,
    active: int,
    pager: int | None = None,
    context: int = 0,
    evictable: int = 0,
    parts: tuple[int, int] = (0, 0),
) -> Held:
    """What a process holds and could give back. reserved, active: torch's allocator. pager: what
    the pager has mapped, torch's part included, so the larger of the two counts and never the sum.
    evictable: models that ComfyUI would unload, and pages that the pager would. parts: what rows
    add to held and releasable, signed."""
    total = max(reserved, pager or 0) + context + parts[0]
    total = max(0, total)
    idle = max(0, reserved - active)
    return Held(total, min(max(0, idle + evictable + parts[1]), total))


def load_claim(weights: int, inference: float, covered: int = 0, idle: int = 0) -> int:
    """Bytes by which a load will make held grow. weights: what is not on the device yet; inference:
    what ComfyUI wants free beside them, of which an open claim of this thread covers `covered`;
    idle: what the own allocator has to spare."""
    beside = max(0, int(inference) - covered)
    return max(0, weights + beside - max(0, idle))


def vram_for_weights(
    upstream: float, free: int | None, own_weights: int, inference: float
) -> float:
    """The largest model that may be given a large dtype: upstream's (of the whole card), or what
    this process may own of it, whichever is less, and at least 1. Own weights count, as they would
    make room."""
    if free is None:
        return upstream
    return min(upstream, max(1, int(free) + own_weights - int(inference)))


def refuse_dtype(limit: float, needed: float) -> float:
    """A limit that makes ComfyUI's `needed > limit` true."""
    return min(limit, max(needed / 2, needed - 1))


def batch_claims(per_sample: float, batch: int, idle: int = 0) -> list[int]:
    """What to try to claim for a batch, the whole batch first and then halves of it, down to one
    sample; ComfyUI splits a batch that does not fit. Less what the allocator has idle."""
    if not 0 < per_sample < EVERYTHING or batch < 1:
        return []
    sizes: list[int] = []
    while batch >= 1:
        size = max(0, int(batch * per_sample) - max(0, idle))
        if not size:
            break
        sizes.append(size)
        batch //= 2
    return sizes


def encode_shape(shape: tuple[int, ...], latent_dim: int, is_video: bool = True) -> tuple[int, ...]:
    """The shape that VAE.encode plans with, of the pixels it is given (batch, height, width,
    channels)."""
    channels_second = (shape[0], shape[-1], *shape[1:-1])
    if latent_dim != 3 or len(channels_second) >= 5:
        return channels_second
    if is_video:
        return (1, channels_second[1], channels_second[0], *channels_second[2:])
    return (*channels_second[:2], 1, *channels_second[2:])


def tile_total(total: int, free: int, releasable: int) -> int:
    """The total that VAE's tiled fallback takes 0.8 of: such that what it takes is there."""
    return min(total, max(FLOOR, int((free + max(0, releasable)) / 0.8)))


_WANTED = re.compile(r"allocate\s+([0-9.]+)\s*(bytes|[KMGT]i?B)", re.IGNORECASE)
_UNITS = {"b": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}


def wanted_bytes(message: str) -> int:
    """What an out-of-memory error says that it could not have; 0 where it does not say."""
    found = _WANTED.search(message)
    if found is None:
        return 0
    try:
        return int(float(found.group(1)) * _UNITS[found.group(2)[0].lower()])
    except ValueError:
        return 0
