"""What it costs to be a member: import, joining, memory, system calls."""

from __future__ import annotations

import os
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


def run_ms(statement: str) -> tuple[float, float]:
    """Milliseconds of an interpreter that runs `statement`: wall clock, and CPU time."""
    cpu, begin = os.times(), time.perf_counter()
    subprocess.run([sys.executable, "-c", statement], cwd=ROOT, check=True)
    wall, after = time.perf_counter() - begin, os.times()
    used = after.children_user + after.children_system - cpu.children_user - cpu.children_system
    return wall * 1e3, used * 1e3


def test_import_time(once: Any, rows: list[Row], size: Size) -> None:
    bare: list[tuple[float, float]] = []
    full: list[tuple[float, float]] = []

    def measure() -> None:
        for _ in range(1 if size.quick else 25):
            bare.append(run_ms("pass"))
            full.append(run_ms("import memledger"))

    once(measure)
    wall = min(one[0] for one in full) - min(one[0] for one in bare)
    middle = statistics.median(one[0] - other[0] for one, other in zip(full, bare, strict=True))
    cpu = (sum(one[1] for one in full) - sum(one[1] for one in bare)) / len(full)
    note = f"median of differences {middle:.1f} ms; CPU time, mean {cpu:.0f} ms"
    rows.append(
        Row(GROUP, "import memledger", wall, "ms", target="< 50 ms", met=wall < 50, note=note)
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
