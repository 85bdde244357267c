"""How cost grows with members, devices and writers: `python -m benchmarks.scale`.

--quick        a tiny run, to see that everything works; its figures mean nothing
--json PATH    keep the figures there
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import memledger
from benchmarks.measure import Loop, human_ns, loop, spread, time_each
from benchmarks.members import (
    TOTAL_BYTES,
    Child,
    children,
    joined_device,
    other_members,
    segment_path,
)
from benchmarks.report import machine
from memledger import _native
from memledger.model import KIND_SIM, DeviceSpec, PoolSpec

MEMBERS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
DEVICES = (1, 2, 4, 8, 16, 32)
WRITERS = (1, 2, 8, 32)


class Size(NamedTuple):
    members: tuple[int, ...]
    devices: tuple[int, ...]
    writers: tuple[int, ...]
    rounds: int
    turns: int
    seconds: float


FULL = Size(MEMBERS, DEVICES, WRITERS, 60, 2000, 2.0)
QUICK = Size((1, 2, 4), (1, 2, 4), (1, 2), 3, 50, 0.1)

Row = dict[str, float]
SEGMENT, PRIVATE = "segment, KiB", "private memory of one member, KiB"
PLAIN = (SEGMENT, PRIVATE, "publishes/s", "slowest writer, publishes/s")
"""Rows that are no times."""


def second_device(ledger: memledger.Ledger, key: str) -> memledger.Device:
    """Where only this process publishes."""
    device = memledger.Device(ledger, DeviceSpec(key, (PoolSpec(key, (), KIND_SIM),), (None,)))
    device._set_limit(TOTAL_BYTES)
    device.publish(4096)
    return device


def least(loops: dict[str, Loop], size: Size) -> dict[str, float]:
    """ns per turn of each loop, from its best round; in each round all of them run."""
    clock = time.perf_counter
    best = dict.fromkeys(loops, float("inf"))
    for _ in range(size.rounds):
        for name, run in loops.items():
            begin = clock()
            run(size.turns)
            best[name] = min(best[name], clock() - begin)
    return {name: seconds / size.turns * 1e9 for name, seconds in best.items()}


def hot_calls(device: memledger.Device, size: Size) -> Row:
    """In ns, the loop subtracted."""
    loops = {
        "bare": loop("pass"),
        "steady": loop("gpu.free()", gpu=device),
        # Never the same figure twice, so that each read makes a new int.
        "publish": loop("gpu.publish(8192)\ngpu.publish(4096)", gpu=device),
        "free": loop("gpu.publish(8192)\ngpu.free()\ngpu.publish(4096)\ngpu.free()", gpu=device),
        "figures": loop("gpu.publish(8192)\ngpu.figures()", gpu=device),
        "one": loop("gpu.publish(8192)", gpu=device),
        "claim": loop("gpu.try_claim(4096).cancel()", gpu=device),
    }
    ns = least(loops, size)
    return {
        "read, steady": ns["steady"] - ns["bare"],
        "read, changed": (ns["free"] - ns["publish"]) / 2,
        "figures(), changed": ns["figures"] - ns["one"],
        "publish": (ns["publish"] - ns["bare"]) / 2,
        "claim + cancel": ns["claim"] - ns["bare"],
    }


def best_of(count: int, call: Callable[[], object]) -> float:
    """ns of the fastest of `count` calls."""
    return min(time_each(call, count, 5.0))


def join_and_leave(path: str) -> tuple[float, float]:
    begin = time.perf_counter_ns()
    one = _native.Ledger(path=path, label="one more")
    joined = time.perf_counter_ns()
    one._leave()
    return joined - begin, time.perf_counter_ns() - joined


def cold_calls(ledger: memledger.Ledger, path: str, size: Size) -> Row:
    """In ns: the fastest of some, since they enter the kernel."""
    count = 3 if size is QUICK else 30
    found = {
        "sweep": best_of(count, ledger.sweep),
        "members()": best_of(count, ledger.members),
        "housekeeping": best_of(count, ledger._housekeep),
    }
    joins = [join_and_leave(path) for _ in range(count)]
    return {**found, "join": min(j for j, _ in joins), "leave": min(leave for _, leave in joins)}


def private_kib(path: str) -> float:
    """Of a process of its own that joins and uses everything, beyond the import."""
    child = Child("memory", path)
    try:
        _, imported, _, used = child.reply()
    finally:
        child.end()
    return float(used - imported)


def by_members(size: Size) -> list[Row]:
    """All of them publish to one device. Joining is measured with one slot left: the largest number
    has one member fewer then."""
    rows = []
    with segment_path() as path, ExitStack() as stack:
        device = joined_device(path)
        ledger = device._ledger
        own = second_device(ledger, "bench:own")
        present = 1
        for members in size.members:
            row: Row = {"members": members}
            if members > 1:
                stack.enter_context(other_members(path, members - 1 - present))
                present = members - 1
            cold = cold_calls(ledger, path, size)
            if sys.platform == "linux":
                cold[PRIVATE] = private_kib(path)
            if members > present:
                stack.enter_context(other_members(path, members - present))
                present = members
            row.update(hot_calls(device, size))
            row["read, changed, publishers elsewhere"] = hot_calls(own, size)["read, changed"]
            row.update(cold)
            row[SEGMENT] = os.stat(path).st_blocks / 2
            rows.append(row)
        ledger.leave()
    return rows


def by_devices(size: Size) -> list[Row]:
    """One process opens all of them, beside 7 others that have only the first."""
    rows = []
    with segment_path() as path, other_members(path, 7):
        device = joined_device(path)
        ledger = device._ledger
        present = [device]
        for devices in size.devices:
            while len(present) < devices:
                present.append(second_device(ledger, f"bench:card{len(present)}"))
            row: Row = {"devices": devices, **hot_calls(device, size)}
            rows.append({**row, **cold_calls(ledger, path, size)})
        ledger.leave()
    return rows


@contextmanager
def flat_out(path: str, count: int, seconds: float) -> Iterator[tuple[Child, ...]]:
    with children(*(Child("publish_for", path, seconds) for _ in range(count))) as started:
        for child in started:
            child.say("go")
        yield started


def by_writers(size: Size) -> list[Row]:
    """So many processes publish flat out to one device, on whatever CPUs there are, while this one
    reads."""
    rows = []
    for count in size.writers:
        with segment_path() as path:
            device = joined_device(path)
            with flat_out(path, count, size.seconds) as started:
                reads = spread(time_each(device.free, 10_000_000, size.seconds * 0.8))
                answers = [child.reply() for child in started]
            device._ledger.leave()
        done = sum(one["done"] for one in answers)
        rows.append(
            {
                "writers": count,
                "publishes/s": sum(one["done"] / one["seconds"] for one in answers),
                "CPU ns per publish": sum(one["cpu_s"] for one in answers) / done * 1e9,
                "slowest writer, publishes/s": min(one["done"] / one["seconds"] for one in answers),
                "free() p50": reads.p50,
                "free() p99": reads.p99,
                "free() p99.9": reads.p999,
            }
        )
    return rows


# ---- what the growth is


def fit(rows: list[Row], by: str, what: str) -> tuple[float, float, float]:
    """(at 0, per one more, R squared) of a straight line."""
    x, y = [row[by] for row in rows], [row[what] for row in rows]
    slope, intercept = statistics.linear_regression(x, y)
    spread_y = sum((value - statistics.fmean(y)) ** 2 for value in y)
    rest = sum((b - intercept - slope * a) ** 2 for a, b in zip(x, y, strict=True))
    return intercept, slope, 1 - rest / spread_y if spread_y else 1.0


def fit_lines(rows: list[Row], by: str) -> list[str]:
    lines = []
    most = max(row[by] for row in rows)
    for what in [name for name in rows[0] if name not in (by, *PLAIN)]:
        at_zero, slope, r2 = fit(rows, by, what)
        growth = rows[-1][what] / rows[0][what]
        lines.append(
            f"  {what:40}{human_ns(at_zero):>10} {slope:+10.2f} ns per one more, R2 {r2:5.3f};"
            f" at {most:.0f}: {growth:.1f} times that of {rows[0][by]:.0f}"
        )
    return lines


def table(rows: list[Row], by: str) -> str:
    """Down: what; across: how many."""
    lines = [f"{by:40}" + "".join(f"{row[by]:>11.0f}" for row in rows)]
    for what in [name for name in rows[0] if name != by]:
        shown = (f"{row[what]:,.0f}" if what in PLAIN else human_ns(row[what]) for row in rows)
        lines.append(f"{what:40}" + "".join(f"{cell:>11}" for cell in shown))
    return "\n".join(lines)


def show(report: dict[str, Any]) -> None:
    print("\n".join(f"{name:8}{value}" for name, value in report["machine"].items()))
    print()
    for by in ("members", "devices", "writers"):
        print(table(report[by], by), end="\n\n")
        if by != "writers":
            print(f"straight lines through the {by}:", *fit_lines(report[by], by), "", sep="\n")


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Measure how cost grows.")
    parser.add_argument("--quick", action="store_true", help="a tiny run that shows nothing rots")
    parser.add_argument("--json", type=Path, metavar="PATH", help="keep the figures there")
    options = parser.parse_args(arguments)
    size = QUICK if options.quick else FULL
    report = {
        "machine": machine(),
        "members": by_members(size),
        "devices": by_devices(size),
        "writers": by_writers(size),
    }
    if options.json:
        options.json.write_text(json.dumps(report, indent=1), encoding="utf-8")
    show(report)
    return 0


if __name__ == "__main__":
    sys.exit(main())
