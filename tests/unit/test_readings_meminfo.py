"""RAM from /proc/meminfo, from files that containers and old kernels really show; and from
psutil."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from memledger.model import Reading, plausible
from memledger.readings.meminfo import Meminfo
from memledger.readings.psutil_ram import PsutilRam

GIB = 1 << 30
KIB = 1024


def read(root: Path, text: str) -> Reading:
    (root / "proc").mkdir()
    (root / "proc" / "meminfo").write_text(text)
    return Meminfo(root=str(root)).read()


def kib(**fields: int) -> str:
    names = {"Active_file": "Active(file)", "Inactive_file": "Inactive(file)"}
    return "".join(f"{names.get(name, name)}:   {value} kB\n" for name, value in fields.items())


def test_meminfo_ordinary_machine_gives_its_figures(tmp_path: Path) -> None:
    text = kib(MemTotal=127600748, MemFree=100000000, MemAvailable=118566368)
    reading = read(tmp_path, text + "HugePages_Total:       0\nHugepagesize:       2048 kB\n")
    assert reading.total == 130663165952
    assert reading.free == 121411960832
    assert reading.immediate == 100000000 * KIB
    assert (reading.reserved, reading.scope, reading.reason) == (0, "device", None)
    assert not reading.suspect
    assert reading.known


def test_meminfo_b57_available_is_a_copy_of_free_is_suspect(tmp_path: Path) -> None:
    """lxcfs showed 4.7 MB available of 4 GB. The figure stands, but a cgroup level may know
    better."""
    reading = read(tmp_path, kib(MemTotal=4194304, MemFree=4760, MemAvailable=4760, Cached=12))
    assert reading.free == 4760 * KIB
    assert reading.suspect
    assert "copy" in reading.detail


def test_meminfo_b57_shmem_above_total_gives_no_negative(tmp_path: Path) -> None:
    """Shmem came from the host, MemAvailable is missing: the estimate would subtract more than
    there is."""
    text = kib(MemTotal=4194304, MemFree=1000, Cached=2000, Buffers=5, Shmem=9000000)
    reading = read(tmp_path, text)
    assert reading.free == 1000 * KIB
    assert reading.suspect


def test_meminfo_b57_huge_pages_are_reserved_and_not_free(tmp_path: Path) -> None:
    text = kib(MemTotal=512 << 20, MemFree=450 << 20, MemAvailable=500 << 20)
    text += f"HugePages_Total: {400 * 512}\nHugePages_Free: {400 * 512}\nHugepagesize: 2048 kB\n"
    reading = read(tmp_path, text)
    assert reading.total is not None
    assert reading.total - reading.reserved == 112 * GIB
    assert reading.free == 112 * GIB
    assert reading.immediate == 112 * GIB


def test_meminfo_several_huge_page_sizes_are_all_counted(tmp_path: Path) -> None:
    text = kib(MemTotal=64 << 20, MemFree=9 << 20, MemAvailable=10 << 20, Hugetlb=40 << 20)
    text += "HugePages_Total: 1024\nHugepagesize: 2048 kB\n"
    assert read(tmp_path, text).reserved == 40 * GIB


def test_meminfo_huge_pages_of_the_host_above_total_are_ignored_and_suspect(tmp_path: Path) -> None:
    text = kib(MemTotal=4 << 20, MemFree=1 << 20, MemAvailable=2 << 20, Hugetlb=400 << 20)
    reading = read(tmp_path, text)
    assert (reading.free, reading.reserved) == (2 * GIB, 0)
    assert reading.suspect


@pytest.mark.parametrize("field", ["MemFree", "MemAvailable"])
def test_meminfo_field_above_total_is_clamped_and_suspect(tmp_path: Path, field: str) -> None:
    fields = {"MemTotal": 1000, "MemFree": 300, "MemAvailable": 400, field: 5000}
    reading = read(tmp_path, kib(**fields))
    assert reading.free == (1000 if field == "MemAvailable" else 400) * KIB
    assert reading.immediate is not None
    assert reading.immediate <= reading.free
    assert reading.suspect


def test_meminfo_without_available_estimates_and_is_suspect(tmp_path: Path) -> None:
    text = kib(MemTotal=10000, MemFree=1000, Active_file=400, Inactive_file=600, SReclaimable=200)
    reading = read(tmp_path, text)
    assert reading.free == (1000 + 500 + 100) * KIB
    assert reading.suspect


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("MemTotal: 0 kB\nMemFree: 0 kB\nMemAvailable: 0 kB\n", "implausible"),
        ("MemTotal: 5 kB\n", "probe_failed"),
        ("", "probe_failed"),
        ("\0\xff: what\n:::\nMemTotal: many kB\n", "probe_failed"),
    ],
)
def test_meminfo_nonsense_is_absent_with_a_reason(tmp_path: Path, text: str, reason: str) -> None:
    reading = read(tmp_path, text)
    assert (reading.total, reading.free, reading.reason, reading.scope) == (
        None,
        None,
        reason,
        "none",
    )
    assert not reading.known


def test_meminfo_missing_file_is_no_probe(tmp_path: Path) -> None:
    assert Meminfo(root=str(tmp_path)).read().reason == "no_probe"


def test_meminfo_unreadable_file_is_probe_failed(tmp_path: Path) -> None:
    (tmp_path / "proc" / "meminfo").mkdir(parents=True)
    reading = Meminfo(root=str(tmp_path)).read()
    assert reading.reason == "probe_failed"
    assert "meminfo" in reading.detail


def test_meminfo_forbidden_file_is_no_permission(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("builtins.open", refuse)
    assert Meminfo(root=str(tmp_path)).read().reason == "no_permission"


@pytest.mark.skipif(not Path("/proc/meminfo").exists(), reason="no /proc/meminfo here")
def test_meminfo_this_machine_is_plausible() -> None:
    reading = Meminfo().read()
    assert reading.total is not None
    assert reading.free is not None
    assert reading.immediate is not None
    assert 0 <= reading.immediate <= reading.free <= reading.total - reading.reserved


@pytest.mark.parametrize(
    ("total", "free", "reserved"),
    [(0, 0, 0), (-1, 0, 0), (10, 11, 0), (10, -1, 0), (10, 5, 6), (2**63, 5, 0), (10, 5, -1)],
)
def test_plausible_impossible_figures_are_dropped(total: int, free: int, reserved: int) -> None:
    reading = plausible(Reading("x", total=total, free=free, reserved=reserved))
    assert (reading.total, reading.free, reading.reason) == (None, None, "implausible")


def test_psutil_missing_package_is_no_probe(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psutil", None)
    reading = PsutilRam().read()
    assert (reading.free, reading.reason) == (None, "no_probe")


def test_psutil_available_beyond_its_bounds_is_clamped(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = SimpleNamespace(total=1000, available=-5, free=2000)
    fake = SimpleNamespace(virtual_memory=lambda: memory)
    monkeypatch.setitem(sys.modules, "psutil", fake)
    reading = PsutilRam().read()
    assert (reading.total, reading.free, reading.immediate) == (1000, 0, 0)


def test_psutil_failing_system_is_probe_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise OSError(5, "Input/output error")

    class Error(Exception):
        pass

    fake = SimpleNamespace(virtual_memory=fail, Error=Error, AccessDenied=type("D", (Error,), {}))
    monkeypatch.setitem(sys.modules, "psutil", fake)
    assert PsutilRam().read().reason == "probe_failed"
