"""Others at work at the same time: processes that publish flat out, threads that want the GIL."""

from __future__ import annotations

import mmap
import statistics
import time
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import memledger
from benchmarks.conftest import Size
from benchmarks.measure import Figures, Row, human_ns, loop, row_with_ratio
from benchmarks.members import Child, bound_to_first_cpu, children, joined_device

WRITERS = "7 beside processes that publish flat out"
SPINNING = "8 beside a thread that spins in pure Python"


def spread_note(found: dict[str, int]) -> str:
    parts = (f"{name} {human_ns(found[name])}" for name in ("p50", "p99", "p999", "max"))
    return ", ".join(parts)


class Round(NamedTuple):
    """Seconds of each loop, and publishes while the measured one ran."""

    bare: float
    empty: float
    free: float
    published: int


def rounds_beside(device: memledger.Device, counts: mmap.mmap, size: Size) -> list[Round]:
    loops = [loop("pass"), loop("gpu._empty()", gpu=device), loop("gpu.free()", gpu=device)]
    clock = time.perf_counter

    def published() -> int:
        return sum(int.from_bytes(counts[at : at + 8], "little") for at in range(0, 64, 8))

    found = []
    for _ in range(10 * size.rounds):
        times = []
        for run in loops:
            before, begin = published(), clock()
            run(size.turns)
            times.append(clock() - begin)
        found.append(Round(times[0], times[1], times[2], published() - before))
    return found


@pytest.mark.parametrize("writers", [1, 2])
def test_free_beside_writers(
    once: Any, rows: list[Row], path: str, writers: int, size: Size, tmp_path: Path
) -> None:
    """On a busy machine the writers are often not running, and free() is then as if unchanged. So
    they have the second CPU and the reader the first, and only rounds count in which at least half
    as much was published as in the busiest tenth."""
    device = joined_device(path)
    words = tmp_path / "counts"
    words.write_bytes(bytes(4096))
    found: list[Round] = []

    def measure() -> None:
        with (
            children(*(Child("write", path, words, index) for index in range(writers))),
            words.open("r+b") as file,
            mmap.mmap(file.fileno(), 4096) as counts,
            bound_to_first_cpu(),
        ):
            found.extend(rounds_beside(device, counts, size))

    once(measure)
    rates = sorted(one.published / one.free for one in found)
    busy = rates[len(rates) * 9 // 10]
    kept = [one for one in found if one.published / one.free >= busy / 2] or found
    bare, empty = (min(getattr(one, key) for one in found) for key in ("bare", "empty"))
    middle = statistics.median(one.free for one in kept)
    note = (
        f"writers were at work in {len(kept)} of {len(found)} rounds, then {busy / 1e6:.1f} M"
        " publishes/s in all; medians"
    )
    if writers > 1:
        note += "; they share a CPU"
    rows.append(
        row_with_ratio(
            WRITERS,
            f"free(), {writers} writers",
            Figures(
                (middle - bare) / size.turns * 1e9,
                (middle - bare) / max(empty - bare, 1e-12),
                (middle - bare) / max(empty - bare, 1e-12),
            ),
            None,
            note,
        )
    )


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
