"""Others at work at the same time: processes that publish flat out, threads that want the GIL."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest

from benchmarks.conftest import Size
from benchmarks.measure import Row, human_ns, loop, spread, time_each
from benchmarks.members import Child, children, joined_device

WRITERS = "7 beside processes that publish flat out"
SPINNING = "8 beside a thread that spins in pure Python"


def spread_note(found: dict[str, int]) -> str:
    parts = (f"{name} {human_ns(found[name])}" for name in ("p50", "p99", "p999", "max"))
    return ", ".join(parts)


@pytest.mark.parametrize("writers", [1, 2])
def test_free_beside_writers(
    paired: Callable[..., None], rows: list[Row], path: str, writers: int, size: Size
) -> None:
    device = joined_device(path)
    with children(*(Child("write", path) for _ in range(writers))):
        call = loop("gpu.free()", gpu=device)
        paired(WRITERS, f"free(), {writers} writers", call, device, disturbed=True)
        count = min(size.singles, 200_000)
        found = spread(time_each(device.free, count, size.seconds))._asdict()
        empty = spread(time_each(device._empty, count, size.seconds))._asdict()
    if not rows:
        return
    note = f"clocked: {spread_note(found)}; empty: {spread_note(empty)}"
    if (os.cpu_count() or 1) <= writers:
        note += "; fewer cores than processes"
    rows[-1] = rows[-1]._replace(note=note)


def test_gil(once: Any, rows: list[Row], path: str, size: Size) -> None:
    """Of so many calls, how many took above 20 us. A call that keeps the GIL loses it only where
    the interpreter switches threads; one that gives it up waits for the other thread to yield."""
    found: dict[str, dict[str, int]] = {}

    def measure() -> None:
        arguments = (min(size.singles, 1_000_000), 5 * size.seconds)
        for role in ("spin", "spin_ffi"):
            child = Child(role, f"{path}-{role}", *arguments)
            try:
                found.update(child.reply())
            finally:
                child.end()

    once(measure)
    # Two runs of the same method differ, so the sums of both runs are compared.
    empty, free = (
        sum(found[name]["above"] for name in (kind, f"{kind} again")) for kind in ("empty", "free")
    )
    for name, one in found.items():
        target, met = ("", None)
        if name == "free again":
            target, met = "<= 2x empty", free <= 2 * empty
        label = f"{name.replace('empty', '_empty()').replace('free', 'free()')}, calls above 20 us"
        per_million = one["above"] / one["calls"] * 1e6
        note = f"{one['above']} of {one['calls']}; {spread_note(one)}"
        against = "both runs, empty" if target else ""
        ratio = free / max(empty, 1) if target else None
        rows.append(
            Row(
                SPINNING,
                label,
                per_million,
                "per 10^6",
                ratio,
                against=against,
                target=target,
                met=met,
                note=note,
            )
        )
