"""B01, B02, B03: what the dead leave, and slots that stay where they are."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest

import memledger
from helpers.members import Member
from helpers.raw import Raw
from helpers.units import GiB, count

TOTAL = 24 * GiB

ZYGOTE = """
import json, signal

def fork_member(held):
    # A member made by fork: no interpreter to start, so a cycle takes milliseconds.
    ready, tell = os.pipe()
    pid = os.fork()
    if pid == 0:
        import memledger
        device = plain_device(memledger.join(label="cycle"), "test:card", None)
        device.publish(held)
        os.write(tell, b"!")
        while True:
            signal.pause()
    os.close(tell)
    os.read(ready, 1)
    os.close(ready)
    return pid

def kill(pid):
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
"""


def test_b01_killed_members_bytes_leave_the_total(spawn: Any, ledger: memledger.Ledger) -> None:
    a, b = spawn("a", total=TOTAL), spawn("b", total=TOTAL)
    a.publish(6 * GiB)
    b.publish(4 * GiB)
    assert b.figures()["held"] == 10 * GiB
    a.kill()
    ledger.leave()
    b.call("sweep")
    figures = b.figures()
    assert figures["held"] == 4 * GiB
    assert figures["free"] == 20 * GiB
    assert [m["label"] for m in b.call("members")] == ["b"]


def test_b01_many_kill_cycles_leave_one_member_and_one_slot(spawn: Any, segment: Path) -> None:
    b: Member = spawn("b", total=TOTAL)
    b.publish(4 * GiB)
    zygote: Member = spawn(join=False)
    zygote.run(ZYGOTE)
    for _ in range(count(100, 1000)):
        pid = zygote.run(f"fork_member({6 * GiB})")
        assert b.figures()["held"] == 10 * GiB
        zygote.run(f"kill({pid})")
        b.call("sweep")
        assert b.figures()["held"] == 4 * GiB
    assert len(b.call("members")) == 1
    with Raw(segment) as raw:
        assert len(raw.slots_in_use()) == 1


def test_b01_sweep_frees_many_dead_at_once(spawn: Any) -> None:
    b: Member = spawn("b", total=TOTAL)
    zygote: Member = spawn(join=False)
    zygote.run(ZYGOTE)
    b.publish(GiB)
    pids = [zygote.run(f"fork_member({GiB // 2})") for _ in range(30)]
    assert b.figures()["held"] == 16 * GiB
    for pid in pids:
        zygote.run(f"kill({pid})")
    b.call("sweep")
    assert b.figures()["held"] == GiB
    assert b.figures()["free"] == 23 * GiB


def test_b02_slots_never_move(spawn: Any) -> None:
    a, b, c = (spawn(label, total=TOTAL) for label in "abc")
    assert [m.call("info")["slot"] for m in (a, b, c)] == [0, 1, 2]
    b.kill()
    a.call("sweep")
    d = spawn("d", total=TOTAL)
    assert d.call("info")["slot"] == 1
    c.publish(3 * GiB)
    assert c.call("info")["slot"] == 2
    for viewer in (a, d):
        assert viewer.figures()["held"] == 3 * GiB
        rows = viewer.run("[(r.slot, r.held) for r in device.snapshot().rows if r.held]")
        assert rows == [[2, 3 * GiB]]


def test_b02_forged_sweep_is_noticed_at_the_next_publish(spawn: Any, segment: Path) -> None:
    a, c = spawn("a", total=TOTAL), spawn("c", total=TOTAL)
    c.publish(2 * GiB)
    before = c.call("info")
    c.stop()  # else its housekeeping heals it before its publish can
    with Raw(segment) as raw:
        raw.forge_sweep(before["slot"])
    assert a.figures()["held"] in (0, 2 * GiB)  # a cached figure may be as old as the last publish
    a.publish(0)
    assert a.figures()["held"] == 0
    c.send("publish", 3 * GiB)
    c.resume()
    c.receive()
    after = c.call("info")
    assert (after["slot"], after["generation"]) != (before["slot"], before["generation"])
    assert a.figures()["held"] == 3 * GiB  # exactly once
    assert [m["label"] for m in a.call("members")].count("c") == 1
    assert a.run("ledger._check()") == []


@pytest.mark.parametrize("end", ["exit", "leave", "kill", "alive"])
def test_b03_second_process_on_a_used_segment_is_counted(spawn: Any, end: str) -> None:
    first: Member = spawn("first", total=TOTAL)
    first.publish(GiB)
    if end == "exit":
        assert first.exit() == 0
    elif end == "leave":
        first.call("leave")
    elif end == "kill":
        first.kill()
    second, viewer = spawn("second", total=TOTAL), spawn("viewer", total=TOTAL)
    second.publish(GiB)
    viewer.call("sweep")
    held = 2 * GiB if end == "alive" else GiB
    assert viewer.figures()["held"] == held
    assert viewer.free() == TOTAL - held


def test_b01_terminated_by_sigterm_counts_as_dead(spawn: Any) -> None:
    a, b = spawn("a", total=TOTAL), spawn("b", total=TOTAL)
    a.publish(6 * GiB)
    a.signal(signal.SIGTERM)
    a.process.wait(30)
    b.call("sweep")
    assert b.figures()["held"] == 0
