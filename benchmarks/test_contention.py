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


REPEATS = 3


def merged(parts: list[dict[str, int]]) -> dict[str, int]:
    """Of several runs: the counts added, the worst of each percentile."""
    added = {key: sum(part[key] for part in parts) for key in ("calls", "above")}
    return {key: max(part[key] for part in parts) for key in parts[0]} | added


def test_gil(once: Any, rows: list[Row], path: str, size: Size) -> None:
    """Of so many calls, how many took above 20 us. A call that keeps the GIL loses it only where
    the interpreter switches threads; one that gives it up waits for the other thread to yield.

    The same method differs from run to run, so they take turns, and sums are compared."""
    found: dict[str, list[dict[str, int]]] = {}

    def measure() -> None:
        for number in range(REPEATS):
            for role in ("spin", "spin_ffi"):
                count = size.singles // REPEATS
                child = Child(role, f"{path}-{role}-{number}", count, size.seconds)
                try:
                    answers = child.reply()
                finally:
                    child.end()
                for name, one in answers.items():
                    found.setdefault(name, []).append(one)

    once(measure)
    totals = {name: merged(parts) for name, parts in found.items()}
    rates = {name: total["above"] / total["calls"] * 1e6 for name, total in totals.items()}
    for name, total in totals.items():
        times = ", ".join(str(part["above"]) for part in found[name])
        against = "_empty()" if name != "_empty()" else ""
        rows.append(
            Row(
                SPINNING,
                f"{name}, calls above 20 us",
                rates[name],
                "per 10^6",
                rates[name] / max(rates["_empty()"], 1e-9) if against else None,
                against=against,
                target="<= 2x" if name == "free()" else "",
                met=rates[name] <= 2 * rates["_empty()"] if name == "free()" else None,
                note=f"{times} in {REPEATS} runs of {total['calls']:,} calls in all;"
                f" {spread_note(total)}",
            )
        )
