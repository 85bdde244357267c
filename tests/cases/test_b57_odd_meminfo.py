"""B57: what containers, huge pages and old kernels write into meminfo; B55: page cache, as figures
of a level."""

from __future__ import annotations

from pathlib import Path

import pytest

from helpers.units import GiB
from memledger import model
from memledger.readings import resolve

BOOT = "0d4bbd6c-1ee5-4e0a-b1a4-3f6f3c2f7d00"


def readings(
    root: Path, meminfo: str, limit: int | None = None, current: int = 0, stat: str = ""
) -> tuple[model.Reading, ...]:
    files = {"proc/sys/kernel/random/boot_id": BOOT, "proc/meminfo": meminfo}
    if limit is not None:
        files |= {
            "proc/self/cgroup": "0::/",
            "proc/self/mountinfo": "30 1 0:28 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n",
            "sys/fs/cgroup/memory.max": f"{limit}\n",
            "sys/fs/cgroup/memory.current": f"{current}\n",
        }
        if stat:
            files["sys/fs/cgroup/memory.stat"] = stat
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    sources = resolve("ram", root=str(root), environ={}).sources
    return tuple(source.read() for source in sources if source is not None)


def free_of(found: tuple[model.Reading, ...]) -> int:
    """As figures over a chain: the smallest of the levels that are known."""
    return min(reading.free for reading in found if reading.free is not None)


LXCFS = "MemTotal: 4194304 kB\nMemFree: 4760 kB\nMemAvailable: 4760 kB\nCached: 12 kB\n"


def test_b57_degenerate_available_yields_to_the_groups_headroom(tmp_path: Path) -> None:
    found = readings(tmp_path, LXCFS, limit=4 * GiB, current=GiB)
    assert free_of(found) == 3 * GiB
    assert "meminfo_suspect" in found[-1].detail


def test_b57_degenerate_available_without_a_limit_stands_and_is_flagged(tmp_path: Path) -> None:
    (reading,) = readings(tmp_path, LXCFS)
    assert (reading.free, reading.suspect) == (4760 << 10, True)


@pytest.mark.parametrize("limit", [None, 4 * GiB])
def test_b57_shmem_of_the_host_gives_no_negative(tmp_path: Path, limit: int | None) -> None:
    meminfo = "MemTotal: 4194304 kB\nMemFree: 1000 kB\nCached: 2000 kB\nShmem: 99999999 kB\n"
    for reading in readings(tmp_path, meminfo, limit=limit):
        assert reading.free is None or 0 <= reading.free <= 4 * GiB


def test_b57_huge_pages_are_not_room(tmp_path: Path) -> None:
    meminfo = (
        f"MemTotal: {512 << 20} kB\nMemFree: {100 << 20} kB\nMemAvailable: {500 << 20} kB\n"
        f"HugePages_Total: {400 * 512}\nHugePages_Free: {400 * 512}\nHugepagesize: 2048 kB\n"
    )
    (reading,) = readings(tmp_path, meminfo)
    assert reading.total is not None
    assert reading.total - reading.reserved == 112 * GiB
    assert reading.free == 112 * GiB


SOUND = f"MemTotal: {128 << 20} kB\nMemFree: {90 << 20} kB\nMemAvailable: {100 << 20} kB\n"


@pytest.mark.parametrize(
    ("current", "stat", "used", "strict"),
    [
        (51 * GiB, f"inactive_file {46 * GiB}", 5 * GiB, 5 * GiB),
        (2048086016, "active_file 1942446080\ninactive_file 0", 105639936, 2048086016),
        (20 * GiB, f"file {10 * GiB}\nshmem {8 * GiB}", 18 * GiB, 20 * GiB),
        (20 * GiB, "", 20 * GiB, 20 * GiB),
    ],
)
def test_b55_both_figures_of_a_level(
    tmp_path: Path, current: int, stat: str, used: int, strict: int
) -> None:
    limit = 64 * GiB
    level = readings(tmp_path, SOUND, limit=limit, current=current, stat=stat)[0]
    assert (level.free, level.immediate) == (limit - used, limit - strict)
