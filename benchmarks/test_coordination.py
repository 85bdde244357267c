"""What members say to each other: flags that are read at every step, asks, wake-ups."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import pytest

import memledger
from benchmarks.conftest import Size
from benchmarks.measure import Row, loop
from benchmarks.members import Child, children, joined_device

GROUP = "7 between members"
Bench = Callable[..., None]


@pytest.mark.parametrize("method", ["pending", "interrupted"])
def test_flags(paired: Bench, path: str, method: str) -> None:
    device = joined_device(path)
    call = loop(f"ledger.{method}()", ledger=device._ledger)
    paired(GROUP, f"{method}(), no leader", call, device, limit=2)


@pytest.mark.parametrize("call", ["ledger.pending()", "ledger.interrupted()", "job.interrupted()"])
def test_flags_with_a_leader(paired: Bench, path: str, call: str) -> None:
    device = joined_device(path)
    ledger = device._ledger
    host = memledger.Ledger(label="host", role="host", path=path)
    ledger._follow(*host._leader())  # type: ignore[misc]
    names = {"ledger": ledger, "job": ledger.job("a prompt")}
    name = call if call.startswith("job") else call.partition(".")[2]
    paired(GROUP, f"{name}, a leader", loop(call, **names), device, limit=2)
    host.leave()


@pytest.mark.parametrize("where", ["serve", "housekeeping"])
def test_ask_is_answered(once: Any, rows: list[Row], path: str, where: str, size: Size) -> None:
    """From the ask to its answer, with a victim whose thread waits for it."""
    device = joined_device(path)
    with children(Child("victim", path, where)):
        took: list[float] = []

        def asks() -> None:
            for _ in range(20 if size.quick else 300):
                began = time.perf_counter()
                result = device.ask(4096, timeout=1.0)
                took.append(time.perf_counter() - began)
                assert result.state == "done", result

        once(asks)
    us = sorted(value * 1e6 for value in took)
    note = f"99 %: {us[int(len(us) * 0.99)]:.0f} us, most {us[-1]:.0f} us"
    p50 = statistics.median(us)
    rows.append(
        Row(GROUP, f"ask to answer, victim in {where}", p50, "us", target="<= 100 us",
            met=p50 <= 100, note=note)
    )  # fmt: skip


def test_ask_ends_by_its_deadline(once: Any, rows: list[Row], path: str, size: Size) -> None:
    """A victim that never answers."""
    device = joined_device(path)
    late: list[float] = []
    with children(Child("victim", path, "deaf")):

        def asks() -> None:
            for _ in range(3 if size.quick else 20):
                began = time.perf_counter()
                device.ask(4096, timeout=0.05)
                late.append((time.perf_counter() - began - 0.05) * 1e3)

        once(asks)
    rows.append(
        Row(GROUP, "ask beyond its deadline, most", max(late), "ms", target="<= 50 ms",
            met=max(late) <= 50)
    )  # fmt: skip


def test_idle_housekeeping(once: Any, rows: list[Row], path: str, size: Size) -> None:
    """Wake-ups of a member that holds nothing."""
    ledger = memledger.join("idle", path=path)
    rounds: list[float] = []
    real = ledger._housekeep
    ledger._housekeep = lambda: (rounds.append(time.monotonic()), real())[1]  # type: ignore[method-assign]
    seconds = 2.0 if size.quick else 6.0
    once(lambda: time.sleep(seconds))
    ledger.leave()
    rate = len(rounds) / seconds
    rows.append(
        Row(GROUP, "wake-ups of an idle member", rate, "/s", target="<= 2 /s", met=rate <= 2)
    )
