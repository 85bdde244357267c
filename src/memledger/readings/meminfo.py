"""The machine's RAM from /proc/meminfo (Linux)."""

from __future__ import annotations

import os

from memledger.model import SUSPECT, Reading, absent, plausible
from memledger.readings.zfs import arc
from memledger.sizes import format_size

_KIB = 1024


class Meminfo:
    """Reads <root>/proc/meminfo. About 40 us, no state between calls.

    total is MemTotal; free is MemAvailable, clamped to [0, total - reserved]; immediate is MemFree
    within free; reserved is the pool of huge pages, which MemTotal contains and nothing but an
    explicit huge-page mapping can take.

    The reading is marked suspect where the file contradicts itself: a container's emulation (lxcfs)
    that shows MemAvailable as a copy of MemFree, or fields of the host beside a total of the
    container. A level that knows the container's own limit is the better witness then.

    bounded: such a level stands before this one. Then a file that is not about the machine gives no
    reading at all ("implausible", "meminfo_suspect" in its detail): published, it would bind every
    member outside of the container too. emulated: something is mounted over the file.
    """

    name = "meminfo"
    timeout_s = 0.2
    never_blocks = True  # kernel files and memory, no driver

    def __init__(self, *, root: str = "/", bounded: bool = False, emulated: bool = False) -> None:
        self._root = root
        self._path = os.path.join(root, "proc", "meminfo")
        self._bounded = bounded
        self._emulated = emulated

    def read(self) -> Reading:
        """Never raises: a missing file is "no_probe", a forbidden one "no_permission", nonsense
        "implausible"."""
        try:
            with open(self._path, "rb") as file:
                content = file.read()
        except FileNotFoundError:
            return absent(self.name, "no_probe", f"no {self._path}")
        except PermissionError as error:
            return absent(self.name, "no_permission", f"open {self._path}: {error.strerror}")
        except OSError as error:
            return absent(self.name, "probe_failed", f"read {self._path}: {error.strerror}")
        fields = parse_meminfo(content)
        reading = reading_of(fields, self.name)
        if self._emulated and reading.known:
            text = f"{self._path} is emulated (lxcfs)"
            detail = "; ".join(filter(None, (reading.detail, text)))
            reading = reading._replace(flags=reading.flags | SUSPECT, detail=detail)
        of_the_machine = not self._emulated and _of_the_machine(fields)
        if self._bounded and reading.known and not of_the_machine:
            return absent(self.name, "implausible", f"meminfo_suspect: {reading.detail}")
        return self._with_cache_of_zfs(reading)

    def _with_cache_of_zfs(self, reading: Reading) -> Reading:
        cache = arc(root=self._root) if reading.known else None
        if cache is None:
            return reading
        text = (
            f"ZFS cache {format_size(cache.size)}, of which {format_size(cache.shrinkable)} would "
            "go if needed; not in free"
        )
        return reading._replace(detail="; ".join(filter(None, (reading.detail, text))))

    def explain(self) -> str:
        return (
            f"reads {self._path}: the whole machine, whoever uses it; nothing better exists, and "
            "nothing needs to be done"
        )


def _of_the_machine(fields: dict[str, int]) -> bool:
    """False where the file shows a container's figures, or a mixture of both."""
    total = fields.get("MemTotal", 0)
    return (
        fields.get("MemAvailable") != fields.get("MemFree")
        and _huge_pages(fields) < total
        and all(fields.get(name, 0) <= total for name in ("MemFree", "MemAvailable", "Shmem"))
    )


def parse_meminfo(content: bytes) -> dict[str, int]:
    """Fields of a meminfo file in bytes, the HugePages_* counts in pages. Lines that are not `name:
    number [kB]` are left out."""
    fields: dict[str, int] = {}
    for line in content.splitlines():
        name, separator, rest = line.partition(b":")
        words = rest.split()
        if not separator or not words or not words[0].isdigit() or len(words[0]) > 20:
            continue
        scale = _KIB if len(words) > 1 and words[1].lower() == b"kb" else 1
        fields[name.strip().decode("ascii", "replace")] = int(words[0]) * scale
    return fields


def reading_of(fields: dict[str, int], source: str) -> Reading:
    """The reading that these fields make."""
    total, mem_free = fields.get("MemTotal"), fields.get("MemFree")
    if total is None or mem_free is None:
        return absent(source, "probe_failed", "meminfo without MemTotal or MemFree")
    doubts: list[str] = []
    huge = _huge_pages(fields)
    if huge >= total > 0:
        # The host's huge pages beside the container's total: they say nothing about this total.
        doubts.append(f"huge pages {huge} >= MemTotal {total}")
        huge = 0
    available = fields.get("MemAvailable")
    if available is None:
        doubts.append("no MemAvailable, estimated")
        available = _estimate_available(fields, mem_free)
    elif available == mem_free:
        # A kernel computes MemAvailable from reserves, cache and slab; it never comes out equal to
        # MemFree.
        doubts.append("MemAvailable is a copy of MemFree")
    doubts += [
        f"{name} > MemTotal"
        for name in ("MemFree", "MemAvailable", "Shmem")
        if fields.get(name, 0) > total
    ]
    free = max(0, min(available, total - huge))
    reading = Reading(
        source,
        total=total,
        free=free,
        reserved=huge,
        immediate=min(mem_free, free),
        flags=SUSPECT if doubts else 0,
        detail="; ".join(doubts),
    )
    return plausible(reading)


def _huge_pages(fields: dict[str, int]) -> int:
    """Bytes set apart for huge pages. `Hugetlb` counts every page size, but kernels before 4.15
    lack it."""
    counted = fields.get("Hugetlb")
    if counted is not None:
        return counted
    return fields.get("HugePages_Total", 0) * fields.get("Hugepagesize", 0)


def _estimate_available(fields: dict[str, int], mem_free: int) -> int:
    """For kernels before 3.14: half of what could be reclaimed, as the kernel itself reckons, never
    shared memory (Cached contains Shmem, which only swap can free)."""
    shared = fields.get("Shmem", 0)
    files = fields.get("Active(file)", 0) + fields.get("Inactive(file)", 0)
    if not files:
        files = fields.get("Cached", 0) + fields.get("Buffers", 0) - shared
    return mem_free + max(0, files) // 2 + fields.get("SReclaimable", 0) // 2
