"""Memory limits of control groups (Linux): what a container may use of the machine's RAM.

Page cache is charged to a group and looks like use, while most of it goes away when room is needed.
So two figures come out of each level: `free` counts the cache as room, `immediate` only the part
that nobody has touched twice. Meaning of the fields: the kernel's admin-guide/cgroup-v2 and
admin-guide/cgroup-v1/memory.
"""

from __future__ import annotations

import os
from typing import NamedTuple

from memledger.model import Reading, absent, plausible
from memledger.readings.cgroup_tree import Group
from memledger.readings.files import word
from memledger.sizes import format_size

_DIGITS_MOST = 20
"""Of a 64-bit number; longer ones are none, and Python refuses to read very long ones."""
_NO_LIMIT = 1 << 60
"""v1 writes "none" as the largest number of pages, which depends on the page size."""

_FILES = {
    1: ("memory.limit_in_bytes", "memory.usage_in_bytes", "memory.soft_limit_in_bytes"),
    2: ("memory.max", "memory.current", "memory.high"),
}
# v1's counts of the group alone and of all below it differ; the limit is about all of it.
_STAT = {
    1: {
        "inactive_file": "total_inactive_file",
        "active_file": "total_active_file",
        "file": "total_cache",
        "shmem": "total_shmem",
        "anon": "total_rss",
    },
    2: {name: name for name in ("inactive_file", "active_file", "file", "shmem", "anon")},
}
_KERNEL_PARTS = ("kernel_stack", "pagetables", "sec_pagetables", "percpu", "vmalloc")


class Usage(NamedTuple):
    """Bytes charged to a group. used: what stays when the page cache is dropped. strict: the same
    with the active half of the cache counted as use."""

    current: int
    used: int
    strict: int


class Limits(NamedTuple):
    """Bytes; None: no such limit. soft: memory.high, above which the kernel slows its processes
    down and reclaims (v1: its soft limit, which matters only while the machine is short)."""

    hard: int | None
    soft: int | None


class CgroupSource:
    """One level: the limit and the use of one control group, read from the same folder. About 60
    us. `free` is the limit less what stays when the page cache goes; `soft_limit` is memory.high.
    """

    timeout_s = 0.2
    never_blocks = True  # kernel files and memory, no driver

    def __init__(self, group: Group) -> None:
        self._group = group
        self.name = f"cgroup{group.version}"

    def read(self) -> Reading:
        """Never raises. A group that was removed, or made anew under the same name, is "no_probe":
        the process has moved, or will be told so by `RamWatch`."""
        group = self._group
        try:
            if os.stat(group.folder).st_ino != group.inode:
                return absent(self.name, "no_probe", f"{group.name} was made anew")
            limits = limits_of(group)
            if limits.hard is None:
                return absent(self.name, "no_probe", f"{group.name} has no limit any more")
            usage = usage_of(group)
        except FileNotFoundError as error:
            return absent(self.name, "no_probe", f"{group.name}: no {error.filename}")
        except PermissionError as error:
            return absent(self.name, "no_permission", f"{error.filename}: {error.strerror}")
        except (OSError, ValueError) as error:
            return absent(self.name, "probe_failed", f"{group.name}: {error}")
        return self._reading(limits.hard, limits.soft, usage)

    def _reading(self, limit: int, soft: int | None, usage: Usage) -> Reading:
        # A limit of 0 is allowed and means that nothing fits, which is not "no figure".
        total = max(limit, 4096)
        free = max(0, limit - usage.used)
        cache = usage.current - usage.used
        return plausible(
            Reading(
                self.name,
                total=total,
                free=free,
                immediate=max(0, min(free, limit - usage.strict)),
                soft_limit=soft,
                detail=f"{self._group.name}: {format_size(usage.current)} charged, "
                f"of which {format_size(cache)} page cache",
            )
        )

    def explain(self) -> str:
        limit = _FILES[self._group.version][0]
        return (
            f"reads {limit} of control group {self._group.name} and what is charged to it, page "
            "cache left out; to give it more room, raise that limit"
        )


def limits_of(group: Group) -> Limits:
    """The group's own limits, not those of the levels above it. Raises OSError, ValueError."""
    hard_name, _, soft_name = _FILES[group.version]
    hard = _limit(os.path.join(group.folder, hard_name))
    try:
        soft = _limit(os.path.join(group.folder, soft_name))
    except (OSError, ValueError):
        soft = None  # kernels without it, and it only informs
    return Limits(hard, soft)


def hard_limit(group: Group) -> int | None:
    """Bytes; None where the group has no limit of its own, or none that can be read: the root of v2
    and groups without the memory controller have no such file. About 10 us."""
    return _quiet(group, _FILES[group.version][0])


def usage_of(group: Group) -> Usage:
    """What is charged to the group and all groups in it. Raises OSError, ValueError."""
    current = _count(os.path.join(group.folder, _FILES[group.version][1]))
    try:
        with open(os.path.join(group.folder, "memory.stat"), "rb") as file:
            stat = parse_stat(file.read())
    except OSError:
        stat = {}  # then all of it counts as used
    kernel = None
    if group.version == 1:
        text = word(group.folder, "memory.kmem.usage_in_bytes")
        kernel = int(text) if text.isdigit() else None
    return split(current, stat, group.version, kernel)


def parse_stat(content: bytes) -> dict[str, int]:
    """Fields of a memory.stat; lines that are not `name number` are left out."""
    fields = (line.split() for line in content.splitlines())
    return {
        pair[0].decode("ascii", "replace"): int(pair[1])
        for pair in fields
        if len(pair) == 2 and pair[1].isdigit() and len(pair[1]) <= _DIGITS_MOST
    }


def split(current: int, stat: dict[str, int], version: int = 2, kernel: int | None = None) -> Usage:
    """What of `current` bytes stays.

    used = current - inactive_file - active_file, at least anon + shmem + kernel memory that cannot
    be reclaimed. Shared memory is part of `file` but on the anonymous lists, and pinned pages are
    anonymous or shared, so neither is subtracted; where the lists claim more than file - shmem
    (freed anonymous pages wait on the inactive file list), only that much is. kernel: bytes, where
    another file than memory.stat has them (v1).
    """
    names = _STAT[version]
    inactive, active = stat.get(names["inactive_file"]), stat.get(names["active_file"])
    shmem, file = stat.get(names["shmem"], 0), stat.get(names["file"])
    droppable = None if file is None else max(0, file - shmem)
    if inactive is None and active is None:
        # Without the lists: file pages that are not shared memory.
        inactive, active = 0, droppable or 0
    inactive, active = inactive or 0, active or 0
    if droppable is not None:
        inactive = min(inactive, droppable)
        active = min(active, droppable - inactive)
    if kernel is None:
        kernel = _kernel_unreclaimable(stat)
    floor = min(current, stat.get(names["anon"], 0) + shmem + kernel)
    strict = max(floor, current - inactive)
    return Usage(current, max(floor, current - inactive - active), strict)


def _kernel_unreclaimable(stat: dict[str, int]) -> int:
    if "kernel" in stat:
        return max(0, stat["kernel"] - stat.get("slab_reclaimable", 0))
    return stat.get("slab_unreclaimable", 0) + sum(stat.get(name, 0) for name in _KERNEL_PARTS)


def swap_room(group: Group) -> tuple[int, int] | None:
    """(limit, free) bytes of swap that this group allows; None: it does not limit swap.

    v1 limits memory and swap together, so its swap is what that leaves beside the memory limit; and
    a swappiness of 0 there means no swap at all."""
    if group.version == 2:
        limit, used = _quiet(group, "memory.swap.max"), _quiet(group, "memory.swap.current")
        return None if limit is None else (limit, max(0, limit - (used or 0)))
    if word(group.folder, "memory.swappiness") == "0":
        return 0, 0
    both, memory = _quiet(group, "memory.memsw.limit_in_bytes"), _quiet(group, _FILES[1][0])
    if both is None:
        return None
    limit = max(0, both - (memory or 0))
    used_both = _quiet(group, "memory.memsw.usage_in_bytes") or 0
    used_memory = _quiet(group, _FILES[1][1]) or 0
    return limit, max(0, limit - max(0, used_both - used_memory))


def _quiet(group: Group, name: str) -> int | None:
    try:
        return _limit(os.path.join(group.folder, name))
    except (OSError, ValueError):
        return None


def _limit(path: str) -> int | None:
    """Bytes, None for "max" and what v1 writes for it."""
    text = _text(path)
    if text == "max":
        return None
    value = int(text)
    # v1 writes -1 in some emulations.
    return None if value >= _NO_LIMIT or value < 0 else value


def _count(path: str) -> int:
    value = int(_text(path))
    if value < 0:
        raise ValueError(f"{path}: {value}")
    return value


def _text(path: str) -> str:
    with open(path, "rb") as file:
        return file.read(64).strip().decode("ascii", "replace")
