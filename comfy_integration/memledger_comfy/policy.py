"""The decisions, as pure functions: figures in, decision out. All figures are bytes."""

from __future__ import annotations

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
    of two of these figures. Never below 64 MiB or a 64th of upstream's: its attention code divides
    by this figure.
    unseen_held: what siblings hold, only where upstream's figure is of this process alone.
    """
    taken = (claimed_by_others or 0) + max(0, unseen_held)
    floor = max(FLOOR, int(upstream) // 64)
    return max(int(upstream) - taken, floor)


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
    the two, never below the floor."""
    if ledger_free is None:
        return int(upstream)
    floor = max(FLOOR, int(upstream) // 64)
    return max(min(int(upstream), ledger_free), floor)


def pin_ceiling(upstream: float, own_pinned: int, budget: int | None) -> float:
    """The most that this process may pin: what it has, and what the shared budget still gives;
    never more than upstream's own ceiling.

    Upstream's 0 or less means that pinning is off: it stays so. Never 0 otherwise, for that would
    switch it off.
    """
    if upstream <= 0 or budget is None:
        return upstream
    return max(1, min(upstream, own_pinned + budget))
