"""B12, B14, B17: what proves death, and what does not."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

import memledger
from helpers.members import Member
from helpers.system import linux_only, need_root, unshare
from helpers.units import GiB, count
from helpers.waiting import wait_until

TOTAL = 24 * GiB
pytestmark = linux_only


def namespaced(spawn: Any, label: str, *flags: str) -> Member:
    prefix = unshare("--pid", "--fork", "--mount-proc", "--kill-child", *flags)
    member: Member = spawn(label, total=TOTAL, prefix=prefix)
    return member


def kill_inside(member: Member) -> None:
    """Kill the member itself; the words before it end with it."""
    member.process.kill()
    member.process.wait(30)


def test_b12_two_pid_ones_share_a_segment_and_count_both(spawn: Any) -> None:
    a, b = namespaced(spawn, "a"), namespaced(spawn, "b")
    assert a.pid == b.pid == 1
    a.publish(2 * GiB)
    b.publish(3 * GiB)
    for member in (a, b):
        assert member.figures()["held"] == 5 * GiB
        assert sorted(m["label"] for m in member.call("members")) == ["a", "b"]
        assert {m["pid"] for m in member.call("members")} == {1}
        assert {m["state"] for m in member.call("members")} == {"live"}
        assert len({m["pid_namespace"] for m in member.call("members")}) == 2
        assert member.call("sweep") == 0
    assert a.figures()["held"] == 5 * GiB


def test_b12_member_killed_in_another_namespace_is_reclaimed(spawn: Any) -> None:
    a, b = namespaced(spawn, "a"), namespaced(spawn, "b")
    a.publish(2 * GiB)
    b.publish(3 * GiB)
    kill_inside(a)
    wait_until(lambda: b.figures()["held"] == 3 * GiB, what="the kernel dropped a's lock")
    assert [m["label"] for m in b.call("members")] == ["b"]


def test_b12_outside_and_inside_see_each_other(spawn: Any) -> None:
    outside: Member = spawn("outside", total=TOTAL)
    inside = namespaced(spawn, "inside")
    outside.publish(GiB)
    inside.publish(2 * GiB)
    assert outside.figures()["held"] == inside.figures()["held"] == 3 * GiB
    assert outside.call("sweep") == inside.call("sweep") == 0
    outside.kill()
    inside.call("sweep")
    assert inside.figures()["held"] == 2 * GiB


def test_b14_other_users_signals_are_no_proof(spawn: Any, segment: Path) -> None:
    """kill() of a root process gives EPERM for others, which means alive. Neither user's death
    proof may touch the other's member; a path that both can use is refused to the second (B29), so
    the check is that the owner's slot stays."""
    need_root()
    a: Member = spawn("root", total=TOTAL)
    a.publish(4 * GiB)
    segment.parent.chmod(0o755)
    other: Member = spawn(join=False)
    other.become(12345)
    info = other.join("other")
    assert info["mode"] == 2
    assert "owner" in other.run("ledger.degraded_reason") or "Permission" in other.run(
        "ledger.degraded_reason"
    )
    other.call("sweep")
    assert a.figures()["held"] == 4 * GiB
    assert len(a.call("members")) == 1


def test_b14_stopped_member_is_never_evicted(spawn: Any) -> None:
    a, b = spawn("a", total=TOTAL), spawn("b", total=TOTAL)
    a.publish(6 * GiB)
    a.stop()
    for _ in range(count(50, 500)):
        assert b.call("sweep") == 0
    assert b.figures()["held"] == 6 * GiB
    assert sorted(m["label"] for m in b.call("members")) == ["a", "b"]
    a.resume()
    a.publish(7 * GiB)
    assert b.figures()["held"] == 7 * GiB
    assert a.call("info")["rejoin_count"] <= 1


def test_b14_slot_fields_that_look_dead_prove_nothing(spawn: Any, segment: Path) -> None:
    """A pid that does not exist, another boot id, absurd start ticks: all of that is display."""
    from helpers.raw import Raw

    a, b = spawn("a", total=TOTAL), spawn("b", total=TOTAL)
    a.publish(6 * GiB)
    with Raw(segment) as raw:
        slot = raw.slot_word(a.call("info")["slot"])
        for word in range(9, 15):  # pid, parent, namespace, start ticks, boot id
            raw[slot + word] = 0x7FFFFFFF
    assert b.call("sweep") == 0
    assert b.figures()["held"] == 6 * GiB


def test_b17_silence_is_not_death(spawn: Any) -> None:
    """Stopped over several housekeeping periods of the others, which sweep by themselves."""
    a, b = spawn("a", total=TOTAL), spawn("b", total=TOTAL)
    a.publish(6 * GiB)
    a.stop()
    b.publish(GiB)
    # Six rounds of b's housekeeping; the wait only decides how much was tried.
    b.run(
        "rounds = []\nplain = ledger._housekeep\n"
        "import memledger.ledger as m\n"
        "original = m.Ledger._housekeep\n"
        "m.Ledger._housekeep = lambda self: (rounds.append(1), original(self))[1]"
    )
    wait_until(lambda: b.run("len(rounds)") >= count(6, 240), 120, "housekeeping rounds")
    assert b.figures()["held"] == 7 * GiB
    assert {m["label"]: m["state"] for m in b.call("members")} == {"a": "live", "b": "live"}
    a.signal(signal.SIGCONT)
    assert a.figures()["held"] == 7 * GiB
    assert a.call("info")["generation"] == 1


def test_b17_clock_jump_of_a_time_namespace_kills_nobody(spawn: Any) -> None:
    """A member whose monotonic and boottime clocks are a day ahead."""
    prefix = unshare(
        "--time", "--monotonic", "86400", "--boottime", "86400", "--fork", "--kill-child"
    )
    ahead: Member = spawn("ahead", total=TOTAL, prefix=prefix)
    here: Member = spawn("here", total=TOTAL)
    ahead.publish(2 * GiB)
    here.publish(3 * GiB)
    for member in (ahead, here):
        assert member.call("sweep") == 0
        assert member.figures()["held"] == 5 * GiB
    ahead.run(f"c = device.claim({GiB}, ttl=60)")
    assert here.figures()["claimed_by_others"] == GiB
    with pytest.raises(Exception, match="refused"):
        here.call("claim", 19 * GiB)
    assert os.path.exists(memledger.join(label="x").path)
