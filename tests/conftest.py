"""Fixtures that all tests share: a private segment, processes that obey, and a watchdog."""

from __future__ import annotations

import faulthandler
import os
import shutil
import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import memledger
from helpers import units, waiting
from helpers.members import Member
from memledger._native import LAYOUT_MAJOR

TEST_WATCHDOG_S = 120
LONG_WATCHDOG_S = 1800


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--long", action="store_true", help="the long suite: full counts")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "watchdog(seconds): for this test instead of the usual one")
    if config.getoption("--long"):
        os.environ["MEMLEDGER_LONG"] = "1"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if units.is_long() or "long" in (config.getoption("markexpr") or ""):
        return
    left_out = [item for item in items if item.get_closest_marker("long")]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]


@pytest.fixture(autouse=True)
def _watchdog(request: pytest.FixtureRequest) -> Iterator[None]:
    """First an alarm, which fails the test that hangs; where that cannot get through (C code that
    holds the GIL), a traceback of all threads and the end of the run."""
    marker = request.node.get_closest_marker("watchdog")
    seconds = marker.args[0] if marker else TEST_WATCHDOG_S
    if units.is_long():
        seconds = max(seconds, LONG_WATCHDOG_S)
    has_alarm = hasattr(signal, "SIGALRM") and (
        threading.current_thread() is threading.main_thread()
    )

    def bark(number: int, frame: FrameType | None) -> None:
        raise TimeoutError(f"the test's watchdog barked after {seconds} s")

    previous: Any = None
    if has_alarm:
        previous = signal.signal(signal.SIGALRM, bark)
        signal.setitimer(signal.ITIMER_REAL, seconds)
    faulthandler.dump_traceback_later(seconds + 30, exit=True, file=sys.__stderr__ or 2)
    yield
    faulthandler.cancel_dump_traceback_later()
    if has_alarm:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)


@pytest.fixture
def segment(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The path of a segment that nobody else uses, not made yet, in a new directory under /dev/shm
    (else the temporary directory). MEMLEDGER_PATH names it; all goes away afterwards. Handles that
    this process joined there are left."""
    place = "/dev/shm" if os.path.isdir("/dev/shm") else None
    directory = Path(tempfile.mkdtemp(prefix="memledger-test-", dir=place))
    uid = os.geteuid() if hasattr(os, "geteuid") else 0
    path = directory / f"memledger-v{LAYOUT_MAJOR}-{uid}"
    monkeypatch.setenv("MEMLEDGER_PATH", str(path))
    yield path
    from memledger import ledger as module

    for handle in list(module._joined.values()):
        if handle.path.startswith(str(directory)):
            handle.leave()
    shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture
def ledger(segment: Path) -> memledger.Ledger:
    """This process's own handle on the private segment; left with the segment's fixture."""
    return memledger.join(label="test")


Spawn = Callable[..., Member]


@pytest.fixture
def spawn(segment: Path) -> Iterator[Spawn]:
    """Starts a Python process that joins and obeys: spawn("label") -> Member, with
    `total=` a source-less device "test:card" of that many bytes is opened too. spawn(join=False):
    it only waits for commands. Everything is killed and reaped at the end, and none of them may
    have printed anything."""
    members: list[Member] = []

    def start(
        label: str = "", *, join: bool = True, total: int | None = None, quiet: bool = True,
        key: str = "test:card", **options: Any,
    ) -> Member:  # fmt: skip
        member = Member(**options)
        members.append(member)
        noisy[id(member)] = not quiet
        if join:
            member.join(label)
            if total is not None:
                member.open_plain(key, total)
        return member

    noisy: dict[int, bool] = {}
    yield start
    printed = [m.stderr() for m in members if not noisy[id(m)]]
    for member in members:
        member.reap()
    assert not any(printed), f"a member printed: {[text for text in printed if text]}"


@pytest.fixture
def wait_until() -> Callable[..., Any]:
    return waiting.wait_until
