"""Claims of processes that want the same bytes at the same time."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.conftest import Size
from benchmarks.measure import Row, human_ns
from benchmarks.members import Child, children

GROUP = "9 try_claim, each call timed"


@pytest.mark.parametrize("claimers", [1, 2, 4])
def test_claims_contended(once: Any, rows: list[Row], path: str, claimers: int, size: Size) -> None:
    """Everybody claims 1 GiB of 24 and cancels it, flat out: all fit, so they only hinder each
    other by being there. They take turns at the first two CPUs."""
    found: list[dict[str, float]] = []

    def measure() -> None:
        everybody = [Child("claim", path, size.seconds, number % 2) for number in range(claimers)]
        with children(*everybody):
            for child in everybody:
                child.say("go")
            found.extend(child.reply() for child in everybody)

    once(measure)
    tries = sum(int(one["calls"]) for one in found)
    missed = sum(int(one["missed"]) for one in found)
    rate = sum((one["calls"] - one["missed"]) / one["seconds"] for one in found)
    p50, p99, worst = (max(one[key] for one in found) for key in ("p50", "p99", "max"))
    note = (
        f"p50 {human_ns(p50)}, p99 {human_ns(p99)}, max {human_ns(worst)} (of the slowest);"
        f" {missed} of {tries} not granted"
    )
    if claimers > 2:
        note += "; two processes a CPU"
    rows.append(Row(GROUP, f"{claimers} processes, grants", rate / 1e6, "M/s", note=note))
