"""What it costs to be a member: import, joining, memory, system calls."""

from __future__ import annotations

import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from benchmarks.conftest import Size
from benchmarks.measure import Row
from benchmarks.members import ROOT, Child

GROUP = "10 being a member"


def wall_ms(statement: str) -> float:
    begin = time.perf_counter()
    subprocess.run([sys.executable, "-c", statement], cwd=ROOT, check=True)
    return (time.perf_counter() - begin) * 1e3


def test_import_time(once: Any, rows: list[Row], size: Size) -> None:
    times: list[tuple[float, float]] = []

    def measure() -> None:
        for _ in range(1 if size.quick else 15):
            times.append((wall_ms("pass"), wall_ms("import memledger")))

    once(measure)
    bare, full = (min(column) for column in zip(*times, strict=True))
    middle = statistics.median(full - bare for bare, full in times)
    rows.append(
        Row(
            GROUP,
            "import memledger",
            full - bare,
            "ms",
            target="< 50 ms",
            met=full - bare < 50,
            note=f"interpreter with it {full:.1f} ms, without {bare:.1f} ms, median of differences"
            f" {middle:.1f} ms",
        )
    )


def ask(role: str, *arguments: object) -> Any:
    child = Child(role, *arguments)
    try:
        return child.reply()
    finally:
        child.end()


def test_join_time(once: Any, rows: list[Row], path: str, size: Size) -> None:
    first: list[float] = []
    later: list[float] = []

    def measure() -> None:
        for number in range(1 if size.quick else 7):
            first.append(ask("join_time", f"{path}-{number}"))
            later.append(ask("join_time", f"{path}-{number}"))

    once(measure)
    for name, times in (("segment is made", first), ("segment exists", later)):
        note = f"median {statistics.median(times):.2f} ms; without NVML"
        value = min(times)
        rows.append(
            Row(GROUP, f"join, {name}", value, "ms", target="< 5 ms", met=value < 5, note=note)
        )


@pytest.mark.skipif(sys.platform != "linux", reason="/proc")
def test_private_memory(once: Any, rows: list[Row], path: str, size: Size) -> None:
    steps: list[list[int]] = []
    once(lambda: steps.extend(ask("memory", path) for _ in range(1 if size.quick else 3)))
    start, imported, joined, used = min(steps, key=lambda step: step[3] - step[0])
    member = used - imported
    rows.append(Row(GROUP, "private memory of the import alone", imported - start, "KiB"))
    rows.append(
        Row(
            GROUP,
            "private memory of a member, beyond the import",
            member,
            "KiB",
            target="< 200 KiB",
            met=member < 200,
            note=f"join with its thread {joined - imported}, use"
            f" {used - joined}; pages of the segment left out",
        )
    )


@pytest.mark.skipif(shutil.which("strace") is None, reason="no strace")
def test_system_calls(once: Any, rows: list[Row], path: str, tmp_path: Path, size: Size) -> None:
    trace = tmp_path / "trace"
    count = 1000 if size.quick else 1_000_000

    def measure() -> None:
        child = Child("reads", path, count, prefix=("strace", "-o", str(trace)))
        try:
            child.reply()
        except RuntimeError as reason:
            pytest.skip(f"strace: {reason}")
        finally:
            child.end()

    once(measure)
    lines = trace.read_text(encoding="utf-8", errors="replace").splitlines()
    begin, end = (
        next(at for at, line in enumerate(lines) if f"memledger-benchmark-{mark}" in line)
        for mark in ("begin", "end")
    )
    between = end - begin - 1
    name = f"system calls in {count:,} free() and {count:,} figures()"
    rows.append(Row(GROUP, name, between, "calls", target="0", met=between == 0, note="by strace"))
