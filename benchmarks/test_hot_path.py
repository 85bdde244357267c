"""The calls that a sampler makes at every step."""

from __future__ import annotations

import mmap
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchmarks.conftest import Size
from benchmarks.measure import Row, human_ns, loop
from benchmarks.members import Child, children, joined_device, other_members

Bench = Callable[..., None]

UNCHANGED = "1 nothing changed since the last call"
CHANGED = "2 changed before every call"
WRITES = "3 writing"
CLAIMS = "4 claims"


@pytest.mark.parametrize("publishers", [1, 8, 64, 256])
def test_free_unchanged(paired: Bench, path: str, publishers: int, size: Size) -> None:
    if size.quick and publishers > 8:
        pytest.skip("many processes")
    device = joined_device(path)
    with other_members(path, publishers - 1):
        name = f"free(), {publishers} publishers"
        paired(UNCHANGED, name, loop("gpu.free()", gpu=device), device, limit=2)


@pytest.mark.parametrize("method", ["claimed_by_others", "available", "budget", "total", "figures"])
def test_other_figures_unchanged(paired: Bench, path: str, method: str) -> None:
    device = joined_device(path)
    limit = 2 if method == "claimed_by_others" else None
    with other_members(path, 7):
        call = loop(f"gpu.{method}()", gpu=device)
        paired(UNCHANGED, f"{method}(), 8 publishers", call, device, limit=limit)


@pytest.mark.parametrize(
    ("method", "publishers", "limit"),
    [
        ("free", 1, 4),
        ("free", 8, 6),
        ("free", 64, None),
        ("free", 256, None),
        ("available", 8, None),
        ("figures", 1, None),
        ("figures", 8, None),
        ("figures", 64, None),
    ],
)
def test_changed_by_this_process(
    paired: Bench, path: str, method: str, publishers: int, limit: float | None, size: Size
) -> None:
    """Of publish + call, less publish. The held published is never the same twice, so that every
    call makes a new int."""
    if size.quick and publishers > 8:
        pytest.skip("many processes")
    device = joined_device(path)
    publishes = [f"gpu.publish({4096 * k})" for k in range(1, 5)]
    with other_members(path, publishers - 1):
        paired(
            CHANGED,
            f"{method}() after an own publish, {publishers} publishers",
            loop("\n".join(f"{publish}\ngpu.{method}()" for publish in publishes), gpu=device),
            device,
            base=loop("\n".join(publishes), gpu=device),
            calls=4,
            limit=limit,
        )


@pytest.mark.parametrize("others", [1, 8, 60])
def test_free_changed_by_others(
    once: Any, rows: list[Row], path: str, others: int, tmp_path: Path, size: Size
) -> None:
    """Another process publishes once from each of its members and hands over; then one call is
    timed, a clock pair around it. The C side of this is in test_scan.py."""
    device = joined_device(path)
    turns = tmp_path / "turn"
    turns.write_bytes(bytes(4096))
    count = min(size.singles, 5000)
    samples: dict[str, list[int]] = {"free": [], "empty": []}

    def measure() -> None:
        with (
            children(Child("answer", path, others, turns)),
            turns.open("r+b") as file,
            mmap.mmap(file.fileno(), 4096) as turn,
        ):
            clock = time.perf_counter_ns
            end = time.monotonic() + 5 * size.seconds
            for index in range(2 * count):
                kind = ("free", "empty")[index % 2]
                call = device.free if index % 2 == 0 else device._empty
                turn[0] = 1
                waited = 0
                while turn[0]:
                    waited += 1
                    if waited % 1000 == 0:
                        time.sleep(0)
                begin = clock()
                call()
                samples[kind].append(clock() - begin)
                if time.monotonic() > end:
                    break

    once(measure)
    middle = {kind: middle_mean(values) for kind, values in samples.items()}
    note = (
        f"both with a clock pair, the empty call {middle['empty']:.0f} ns;"
        " it does not touch the changed lines"
    )
    name = f"free() after {others} members of another process published"
    ratio = middle["free"] / middle["empty"]
    rows.append(Row(CHANGED, name, middle["free"], "ns", ratio, None, "empty, clocked", note=note))


def middle_mean(samples: list[int]) -> float:
    ordered = sorted(samples)
    quarter = len(ordered) // 4
    half = ordered[quarter : len(ordered) - quarter]
    return sum(half) / len(half)


@pytest.mark.parametrize(
    ("name", "statements", "limit"),
    [
        ("publish(held)", ["gpu.publish(4096)", "gpu.publish(8192)"], 6),
        (
            "publish(held, releasable=, pinned=)",
            [
                "gpu.publish(4096, releasable=1024, pinned=512)",
                "gpu.publish(8192, releasable=2048, pinned=512)",
            ],
            6,
        ),
        ("add(held=)", ["gpu.add(held=4096)", "gpu.add(held=-4096)"], None),
        ("account.publish(held)", ["part.publish(4096)", "part.publish(8192)"], None),
    ],
)
def test_writing(
    paired: Bench, path: str, name: str, statements: list[str], limit: float | None
) -> None:
    device = joined_device(path)
    part = device.account("weights")
    with other_members(path, 7):
        call = loop("\n".join(statements), gpu=device, part=part)
        paired(WRITES, f"{name}, 8 publishers", call, device, calls=2, limit=limit)


@pytest.mark.parametrize("publishers", [1, 8, 64])
def test_claim_uncontended(paired: Bench, path: str, publishers: int, size: Size) -> None:
    if size.quick and publishers > 8:
        pytest.skip("many processes")
    device = joined_device(path)
    limit = 15 if publishers == 1 else None
    with other_members(path, publishers - 1):
        call = loop("gpu.try_claim(4096).cancel()", gpu=device)
        paired(CLAIMS, f"try_claim + cancel, {publishers} publishers", call, device, limit=limit)


def test_claim_with_settle(paired: Bench, path: str) -> None:
    device = joined_device(path)
    statement = "c = gpu.try_claim(4096)\nc.publish(6144)\nc.settle(8192)\ngpu.publish(4096)"
    paired(CLAIMS, "try_claim + publish + settle + publish", loop(statement, gpu=device), device)


def test_empty_call(once: Any, rows: list[Row], path: str, size: Size) -> None:
    """The unit of all ratios, in ns, with the loop subtracted."""
    device = joined_device(path)
    bare, empty = loop("pass"), loop("gpu._empty()", gpu=device)
    times: list[tuple[float, float]] = []

    def measure() -> None:
        clock = time.perf_counter
        for _ in range(size.rounds):
            begin = clock()
            bare(size.turns)
            middle = clock()
            empty(size.turns)
            times.append((middle - begin, clock() - middle))

    once(measure)
    least = [min(column) / size.turns * 1e9 for column in zip(*times, strict=True)]
    note = f"the loop around it took {human_ns(least[0])}"
    rows.append(Row("0 the unit", "an empty method", least[1] - least[0], note=note))
