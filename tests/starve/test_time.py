"""Signals all the time, next to no CPU, clocks that step, gaps like a suspend: nothing is lost,
nobody is taken for dead, and what is not known is said."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from helpers.members import Member
from helpers.system import linux_only
from helpers.units import GiB, count
from helpers.waiting import wait_until

TOTAL = 24 * GiB
REALTIME, MONOTONIC, BOOTTIME = 0, 1, 7
DAY_NS = 86_400 * 10**9
pytestmark = linux_only

STORM = """
import contextlib, signal, time, memledger
hits = 0
def on_alarm(number, frame):
    global hits
    hits += 1
signal.signal(signal.SIGALRM, on_alarm)          # no SA_RESTART: every system call is cut short
signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
wrong = []
for i in range(%d):
    told, tell = os.pipe()
    pid = os.fork()
    if pid == 0:
        signal.setitimer(signal.ITIMER_REAL, 0)
        device.publish(1 << 30)
        os.write(tell, b"x")
        signal.pause()
    os.close(tell)
    os.read(told, 1)
    os.close(told)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    ledger.sweep()
    if (device.figures().own_held, device.figures().held) != (1 << 30, 5 << 30):
        wrong.append(repr(device.figures()))
    try:
        device.claim(%d, timeout=0.02)           # does not fit: waits the whole time
        wrong.append("granted")
    except memledger.ClaimRefused:
        pass
    with device.claim(1 << 30, timeout=1.0) as c:
        c.publish(1 << 30)
    result = device.ask(1 << 20, 0.02)
    ledger._wait(0.01)
    ledger.serve(0.005)
    with device.window(0.005):
        pass
    device.refresh(0)
    device.snapshot(); ledger.members()
    again = memledger.ledger.Ledger(label="again", role="other", path=None)
    if again.degraded:
        wrong.append(again.degraded_reason)
    again.leave()
signal.setitimer(signal.ITIMER_REAL, 0)
[hits, wrong]
"""


def test_signals_every_millisecond_disturb_no_sweep_wait_claim_or_join(spawn: Any) -> None:
    other: Member = spawn("other", total=TOTAL)
    other.publish(4 * GiB)
    member: Member = spawn("stormed", total=TOTAL)
    member.publish(GiB)
    hits, wrong = member.run(STORM % (count(8, 400), TOTAL), watchdog_s=count(90, 900))
    assert not wrong
    assert hits > 20, "the storm did not blow"
    assert other.figures()["held"] == 5 * GiB
    assert other.figures()["claimed"] == 0
    assert sorted(m["label"] for m in other.call("members")) == ["other", "stormed"]


# ---- next to no CPU


def _group(parent: Path, files: dict[str, str]) -> Path | None:
    folder = parent / f"memledger-test-{os.getpid()}"
    try:
        folder.mkdir()
        for name, value in files.items():
            (folder / name).write_text(value)
    except OSError:
        with contextlib.suppress(OSError):
            folder.rmdir()
        return None
    return folder


@contextlib.contextmanager
def hardly_any_cpu(member: Member) -> Iterator[Callable[[], int]]:
    """20 ms in each second: by a control group where one may be made, else by SIGSTOP and SIGCONT.
    Yields how often it was held up so far."""
    top = Path("/sys/fs/cgroup")
    folder = _group(top / "cpu", {"cpu.cfs_period_us": "1000000", "cpu.cfs_quota_us": "20000"})
    folder = folder or _group(top, {"cpu.max": "20000 1000000"})
    if folder is None:
        print("starved of CPU by signals")
        yield from by_signals(member)
        return
    print("starved of CPU by a control group")
    (folder / "cgroup.procs").write_text(str(member.pid))
    try:
        yield lambda: int(dict(map(str.split, _lines(folder / "cpu.stat")))["nr_throttled"])
    finally:
        (folder.parent / "cgroup.procs").write_text(str(member.pid))
        wait_until(lambda: not (folder / "cgroup.procs").read_text(), what="empty")
        folder.rmdir()


def _lines(path: Path) -> list[str]:
    return path.read_text().splitlines()


def by_signals(member: Member) -> Iterator[Callable[[], int]]:
    over = threading.Event()
    stops: list[int] = []

    def beat() -> None:
        while not over.is_set():
            member.signal(signal.SIGSTOP)
            stops.append(1)
            over.wait(0.98)
            member.signal(signal.SIGCONT)
            over.wait(0.02)

    thread = threading.Thread(target=beat)
    thread.start()
    try:
        yield lambda: len(stops)
    finally:
        over.set()
        thread.join()
        member.signal(signal.SIGCONT)


# More than a period's worth of CPU, so that it is held up in the middle of what follows.
BURN = "t = time.process_time()\nwhile time.process_time() - t < 0.025: pass\n"


def test_a_member_with_hardly_any_cpu_is_right_and_hinders_nobody(spawn: Any) -> None:
    slow: Member = spawn("slow", total=TOTAL, watchdog_s=90)
    other: Member = spawn("other", total=TOTAL)
    other.publish(GiB)
    slow.run("import time")
    with hardly_any_cpu(slow) as held_up:
        for i in range(1, count(2, 60) + 1):
            slow.send_run(f"{BURN}device.publish({i * GiB // 4})")
            other.run("for _ in range(50): device.claim(1 << 30, timeout=5.0).cancel()")
            other.run("for _ in range(50): ledger.sweep()")
            slow.receive()
            assert other.figures()["held"] == GiB + i * GiB // 4
            slow.send_run(f"{BURN}c = device.claim({2 * GiB}, timeout=30.0)")
            other.run("for _ in range(50): device.claim(1 << 30, timeout=5.0).cancel()")
            slow.receive()
            assert other.figures()["claimed_by_others"] == 2 * GiB
            slow.run("c.cancel()")
        assert slow.call("sweep") == 0
        assert sorted(m["label"] for m in other.call("members")) == ["other", "slow"]
        slow.run(f"{BURN}ledger.leave()")
        assert slow.call("join", "slow")["mode"] == 0
        assert held_up() >= 2, "it had all the CPU that it wanted"
    assert other.figures()["held"] == GiB
    assert len(other.call("members")) == 2


# ---- clocks


def step(member: Member, shim: Path, clock: int, ns: int) -> None:
    member.run(
        f"import ctypes; ctypes.CDLL({str(shim)!r}).starve_clock({clock}, ctypes.c_longlong({ns}))"
    )


@pytest.fixture
def pair(spawn: Any, shim: Path) -> tuple[Member, Member]:
    """Two members with a simulated card between them, both under the shim."""
    members = []
    for label in ("a", "b"):
        member: Member = spawn(label, env={"LD_PRELOAD": str(shim)})
        member.call("open", f"sim:clocks-{os.getpid()}?total=24GiB")
        members.append(member)
    a, b = members
    a.publish(4 * GiB)
    b.publish(2 * GiB)
    return a, b


def remove_card() -> None:
    from memledger import sim

    sim.remove(f"clocks-{os.getpid()}")


def goes_on(members: tuple[Member, ...]) -> None:
    """All are there with what they had, and the next claim is decided."""
    for member in members:
        assert member.figures()["held"] == 6 * GiB
        assert member.call("sweep") == 0
        assert {m["state"] for m in member.call("members")} == {"live"}
        assert len(member.call("members")) == 2
        member.call("cancel", member.call("claim", GiB))
        with pytest.raises(Exception, match="refused"):
            member.call("claim", 20 * GiB)
        assert member.call("info")["mode"] == 0
        assert member.call("info")["rejoin_count"] <= 1


@pytest.mark.parametrize("days", [-7300, 7300])
def test_the_wall_clock_may_step_by_years(
    pair: tuple[Member, Member], shim: Path, days: int
) -> None:
    """No decision rests on it: claims with a ttl stay, readings keep their age."""
    a, b = pair
    try:
        number = a.run("kept = device.claim(1 << 30, ttl=3600)")
        step(a, shim, REALTIME, days * DAY_NS)
        if days > 0:
            assert a.run("import time; time.time()") > time.time() + 7000 * 86_400
        else:
            assert a.run("import time; time.time()") < time.time() - 7000 * 86_400
        a.run("ledger._housekeep()")
        assert number is None
        assert a.run("kept.expired") is False
        assert b.figures()["claimed_by_others"] == GiB
        assert a.run("device.reading.age_s") < 60
        assert a.run("device.refresh(0).reason") is None
        a.run("kept.cancel()")
        goes_on(pair)
    finally:
        remove_card()


@pytest.mark.parametrize(
    "clocks", [(BOOTTIME,), (MONOTONIC, BOOTTIME)], ids=["suspend", "both-clocks"]
)
def test_clocks_that_jump_as_over_a_suspend_lose_nobody(
    pair: tuple[Member, Member], shim: Path, clocks: tuple[int, ...]
) -> None:
    """All members wake ten minutes later at once. What was read before is old now and says so, or
    is read anew; members and claims without an end stay."""
    a, b = pair
    try:
        a.run("kept = device.claim(1 << 30)")
        for member in pair:
            for clock in clocks:
                step(member, shim, clock, 600 * 10**9)
        for member in pair:
            figures = member.figures()
            assert figures["free"] is not None or figures["reason"] in ("stale", "no_probe")
            member.run("ledger._housekeep()")
        wait_until(lambda: b.run("device.reading.age_s") < 60, what="read again by itself")
        assert a.run("kept.ended") is False
        assert b.figures()["claimed_by_others"] == GiB
        a.run("kept.cancel()")
        goes_on(pair)
    finally:
        remove_card()


def test_all_members_stopped_for_seconds_and_woken_lose_nothing(
    pair: tuple[Member, Member],
) -> None:
    a, b = pair
    try:
        a.run("kept = device.claim(1 << 30)")
        b.run("brief = device.claim(1 << 30, ttl=0.3)")
        for member in pair:
            member.stop()
        time.sleep(count(2, 60))  # how much is tried; nothing below depends on it
        for member in pair:
            member.resume()
        assert a.run("kept.ended") is False
        assert b.figures()["claimed_by_others"] == GiB
        wait_until(lambda: b.run("brief.expired"), what="its time is over")
        wait_until(lambda: a.figures()["claimed_by_others"] == 0)
        wait_until(lambda: a.figures()["reason"] is None, what="read again by itself")
        a.run("kept.cancel()")
        goes_on(pair)
    finally:
        remove_card()
