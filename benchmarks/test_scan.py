"""What the machine allows: the same lines read by bare C, and one line between two cores."""

from __future__ import annotations

import statistics
from typing import Any

import pytest

from benchmarks.conftest import Size
from benchmarks.measure import Row
from benchmarks.native import Unavailable, run_scan

COLD = "5 C, lines just written by another core"
WARM = "6 C, lines in the own cache"


def scans(mode: str, members: int, number: int, runs: int) -> list[dict[str, float]]:
    try:
        return [run_scan(mode, members, number) for _ in range(runs)]
    except Unavailable as reason:
        pytest.skip(str(reason))


@pytest.mark.parametrize("members", [1, 8, 64, 255])
def test_changed_by_another_core(once: Any, rows: list[Row], members: int, size: Size) -> None:
    if size.quick and members > 8:
        pytest.skip("many processes")
    found: list[dict[str, float]] = []
    once(
        lambda: found.extend(
            scans("cross", members, 20 if size.quick else 2000, 2 + size.rounds // 50)
        )
    )
    lines = min(run["line_mid"] for run in found)
    bare = min(run["bare_mid"] - run["clock_mid"] for run in found)
    free = min(run["free_mid"] - run["clock_mid"] for run in found)
    ratios = [
        (run["free_mid"] - run["clock_mid"]) / max(run["bare_mid"] - run["clock_mid"], 1)
        for run in found
    ]
    rows.append(
        Row(
            COLD,
            f"ml_device_free, {members} members",
            free,
            "ns",
            min(ratios),
            statistics.median(ratios),
            "bare scan",
            "<= 2x",
            min(ratios) <= 2,
            f"bare scan {bare:.0f} ns, one line from core to core {lines:.0f} ns;"
            f" {len(ratios)} runs",
        )
    )


@pytest.mark.parametrize("members", [1, 8, 60, 255])
def test_warm(once: Any, rows: list[Row], members: int, size: Size) -> None:
    if size.quick and members > 8:
        pytest.skip("many processes")
    found: list[dict[str, float]] = []
    once(
        lambda: found.extend(
            scans("warm", members, 100 if size.quick else 20_000, 1 if size.quick else 3)
        )
    )
    least = {key: min(run[key] for run in found) for key in found[0]}
    rows.append(
        Row(
            WARM,
            f"ml_device_free after a publish, {members} members",
            least["changed"],
            "ns",
            least["changed"] / max(least["bare"], 0.01),
            None,
            "bare scan",
            note=f"bare scan {least['bare']:.1f} ns, unchanged {least['unchanged']:.1f} ns, publish"
            f" {least['publish']:.1f} ns",
        )
    )
