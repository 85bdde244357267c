"""The chain of RAM pools that this process draws from: each control group with a limit, its own
first, and last the machine."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, NamedTuple

from memledger.model import KIND_CGROUP, KIND_RAM, LEVELS_MAX, PoolSpec
from memledger.readings.machine import boot_identity, physical_ram

if TYPE_CHECKING:
    from memledger.readings import Source
    from memledger.readings.cgroup_tree import Group

_DEFAULT_LARGEST_BYTES = 4 << 40


class Chain(NamedTuple):
    """Pools and their sources, innermost first. detail: what was left out and why."""

    pools: tuple[PoolSpec, ...]
    sources: tuple[Source, ...]
    detail: str


class Swap(NamedTuple):
    """Bytes of swap that this process may use: the least of the machine's and of every group's.
    Never part of a free figure: swapped memory is slow and cannot be pinned."""

    total: int
    free: int
    detail: str


def ram_pool(*, root: str = "/") -> PoolSpec:
    """The pool of this machine's RAM: the same for every process of this boot, in any container."""
    return PoolSpec(f"ram:{boot_identity(root=root)}", kind=KIND_RAM, largest_bytes=_largest())


def ram_source(*, root: str = "/", bounded: bool = False) -> Source:
    """/proc/meminfo where there is one, else psutil. bounded: see `Meminfo`."""
    if os.path.exists(os.path.join(root, "proc", "meminfo")):
        from memledger.readings.cgroup_tree import is_mounted_over
        from memledger.readings.meminfo import Meminfo

        emulated = is_mounted_over("/proc/meminfo", root=root)
        return Meminfo(root=root, bounded=bounded, emulated=emulated)
    from memledger.readings.psutil_ram import PsutilRam

    return PsutilRam()


def chain(*, root: str = "/") -> Chain:
    """Of this process, now. About 0.2 ms. A process may be moved to another group at any time, and
    limits come and go: `RamWatch` tells."""
    limited, detail = _limited(root)
    pools = tuple(_group_pool(group, root) for group in limited)
    sources: tuple[Source, ...] = ()
    if limited:
        from memledger.readings.cgroup import CgroupSource

        sources = tuple(CgroupSource(group) for group in limited)
    machine = ram_source(root=root, bounded=bool(limited))
    return Chain((*pools, ram_pool(root=root)), (*sources, machine), detail)


def swap(*, root: str = "/") -> Swap:
    """What /proc/meminfo has, less what any group of this process forbids: a container without swap
    on a machine with swap has none. About 0.2 ms."""
    from memledger.readings.cgroup import swap_room
    from memledger.readings.cgroup_tree import own_place
    from memledger.readings.meminfo import parse_meminfo

    try:
        with open(os.path.join(root, "proc", "meminfo"), "rb") as file:
            fields = parse_meminfo(file.read())
    except OSError:
        fields = {}
    total, free = fields.get("SwapTotal", 0), fields.get("SwapFree", 0)
    binding = "the machine"
    for group in own_place(root=root).groups:
        room = swap_room(group)
        if room is not None and room[0] < total:
            total, binding = room[0], group.name
        free = min(free, room[1]) if room is not None else free
    return Swap(total, min(free, total), f"bound by {binding}")


class RamWatch:
    """Tells when the chain of a RAM device is no longer the one this process draws from: it was
    moved to another control group, or a limit was set or taken away.

    The ledger asks `changed()` once per housekeeping round (0.1 to 0.2 ms), and when it is true
    resolves the device's name again, publishes what the process holds on the new chain and zeros on
    the old one.
    """

    def __init__(self, *, root: str = "/") -> None:
        self._root = root
        self._groups = _limited(root)[0]

    def changed(self) -> bool:
        """Whether the chain differs from that at the last call (at first, from when this was
        made). Never raises."""
        groups = _limited(self._root)[0]
        # By inode: the pool, not the path, which a restarted container may have again.
        changed = [group.inode for group in groups] != [group.inode for group in self._groups]
        self._groups = groups
        return changed


def _limited(root: str) -> tuple[tuple[Group, ...], str]:
    """Groups with a limit, innermost first, at most three: the machine is the fourth level."""
    if not os.path.exists(os.path.join(root, "proc", "self", "cgroup")):
        return (), ""  # not Linux, or a kernel without control groups
    from memledger.readings.cgroup import hard_limit
    from memledger.readings.cgroup_tree import own_place

    place = own_place(root=root)
    limits = {group: hard_limit(group) for group in place.groups}
    limited = [group for group, limit in limits.items() if limit is not None]
    detail = place.detail
    if not limited and not detail:
        detail = "no cgroup limit"
    most = LEVELS_MAX - 1
    if len(limited) > most:
        # The tightest bind first; of equals the outer one, which more processes share.
        outermost_first = limited[::-1]
        kept = set(sorted(outermost_first, key=lambda group: limits[group] or 0)[:most])
        left_out = [group.name for group in limited if group not in kept]
        limited = [group for group in limited if group in kept]
        detail = f"wider limits left out: {', '.join(left_out)}"
    return tuple(limited), detail


def _group_pool(group: Group, root: str) -> PoolSpec:
    key = f"cgroup:{boot_identity(root=root)}:{group.inode}"
    return PoolSpec(key, kind=KIND_CGROUP, largest_bytes=_largest())


def _largest() -> int:
    """For the unit of a pool. The default serves up to 4 TiB; a larger machine counts in coarser
    ones. The same in all members of one machine, whatever their limits."""
    return physical_ram() if physical_ram() > _DEFAULT_LARGEST_BYTES else 0
