"""Asks: who is asked, what is credited, and that every ask ends whatever the other side does."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import memledger
from helpers.member import plain_device
from helpers.members import Member, MemberGone
from helpers.raw import Raw
from helpers.units import GiB, MiB
from memledger.ledger import Ledger

Spawn = Callable[..., Member]
Until = Callable[..., Any]
TOTAL = 24 * GiB
OK, BUSY, NOT_READY, EXPIRED = 0, 3, 4, 6


def victim(
    spawn: Spawn, held: int, releasable: int, holder: str = "holders.Gives(device)",
    options: str = "thread_safe=True", label: str = "victim",
) -> Member:  # fmt: skip
    member = spawn(label, total=TOTAL)
    member.publish(held, releasable)
    # Opened without a name: the ledger does not know it yet.
    member.run("import holders\nledger._devices[device.key] = device")
    if holder:
        member.run(f"holder = {holder}\nledger.holders.register(holder, {options})\nNone")
    return member


def slot_of(member: Member) -> int:
    return int(member.run("me.info()['slot']"))


def asker(ledger: memledger.Ledger) -> Any:
    return plain_device(ledger, "test:card", TOTAL)


def raw_ask(member: Member, slot: int, nbytes: int = MiB) -> int:
    """Sends and keeps the ask as `sent` over there; its status."""
    return int(
        member.run(
            "ticket = ledger._asking(True)\n"
            f"status, sent = ledger._ask_send(device._pools()[0], {slot}, {nbytes})\nstatus"
        )
    )


def raw_poll(member: Member) -> list[Any]:
    found: list[Any] = member.run("list(ledger._ask_poll(sent))")
    return found


# ---- who is asked, and what comes of it


def test_ask_asks_the_largest_first_and_no_more_than_needed(
    ledger: memledger.Ledger, spawn: Spawn
) -> None:
    """Asking everybody at once would make three models leave for one that comes."""
    small, large = victim(spawn, 2 * GiB, 2 * GiB), victim(spawn, 7 * GiB, 6 * GiB)
    result = asker(ledger).ask(5 * GiB, 10)
    assert result.state == "done"
    assert result.credited == 5 * GiB
    assert [answer.slot for answer in result.members] == [slot_of(large)]
    assert large.run("device.amounts") == [2 * GiB, GiB, 0]
    assert small.run("holder.calls") == 0


def test_ask_for_more_than_one_holds_asks_several(ledger: memledger.Ledger, spawn: Spawn) -> None:
    for held in (2 * GiB, 4 * GiB):
        victim(spawn, held, held)
    result = asker(ledger).ask(5 * GiB, 10)
    assert result.state == "done"
    assert sorted(answer.credited for answer in result.members) == [GiB, 4 * GiB]


def test_ask_goes_on_to_the_next_where_the_first_gives_less(
    ledger: memledger.Ledger, spawn: Spawn
) -> None:
    victim(spawn, 8 * GiB, 8 * GiB, f"holders.Gives(device, {GiB})")
    second = victim(spawn, 4 * GiB, 4 * GiB)
    result = asker(ledger).ask(3 * GiB, 10)
    assert [a.state for a in result.members] == ["partial", "done"]
    assert result.credited == 3 * GiB
    assert second.run("device.amounts[0]") == 2 * GiB


def test_ask_without_anybody_who_could_give_is_nobody(
    ledger: memledger.Ledger, spawn: Spawn
) -> None:
    victim(spawn, 2 * GiB, 0)
    result = asker(ledger).ask(GiB, 10)
    assert (result.state, result.members, result.verified) == ("nobody", (), None)


@pytest.mark.parametrize("nbytes", [0, -1])
def test_ask_for_nothing_is_refused(ledger: memledger.Ledger, nbytes: int) -> None:
    with pytest.raises(ValueError, match="nbytes"):
        asker(ledger).ask(nbytes)


@pytest.mark.parametrize(
    "holder",
    [
        "",
        "holders.Says(0)",
        f"holders.Says({4 * GiB})",
        "holders.Raises(RuntimeError('x'))",
        "holders.Raises(__import__('memledger').LedgerClosed('of another ledger'))",
        "holders.Raises(SystemExit(3))",
    ],
)
def test_ask_of_a_holder_that_gives_nothing_is_refused_and_its_member_goes_on(
    ledger: memledger.Ledger, spawn: Spawn, holder: str
) -> None:
    """A holder that lies is not believed; one that raises LedgerClosed or SystemExit must not end
    the housekeeping of its process."""
    member = victim(spawn, 4 * GiB, 4 * GiB, holder)
    device = asker(ledger)
    for _ in range(2):
        result = device.ask(GiB, 20)
        assert result.state == "refused"
        assert [a.state for a in result.members] == ["refused"]
        assert result.credited == 0
    assert member.run("ledger._housekeeping._thread.is_alive()")
    assert member.run("device.amounts[0]") == 4 * GiB


def test_ask_is_answered_by_serve_where_the_holder_is_not_thread_safe(
    ledger: memledger.Ledger, spawn: Spawn
) -> None:
    member = victim(spawn, 4 * GiB, 4 * GiB, options="")
    member.run("import threading\nheld_by = []")
    member.run(
        "release = holder.release_memory\n"
        "def noting(d, n):\n    held_by.append(threading.current_thread().name)\n"
        "    return release(d, n)\n"
        "holder.release_memory = noting"
    )
    member.send_run("ledger.serve(30)")
    result = asker(ledger).ask(GiB, 20)
    assert member.receive() == 1
    assert result.state == "done"
    assert member.run("held_by") == ["MainThread"]


def test_quick_holder_answers_while_its_process_asks(
    ledger: memledger.Ledger, spawn: Spawn
) -> None:
    """A member inside an ask gives idle cache at once; its full holder is never run then."""
    member = victim(spawn, 4 * GiB, 4 * GiB, "holders.Says(0)", "")
    member.run("quick = holders.Gives(device)\nledger.holders.register(quick, quick=True)\nNone")
    # The one it asks itself never answers, so it stays inside until somebody has asked it.
    silent = victim(spawn, GiB, GiB, options="")
    member.send_run("list(device.ask(1 << 20, 20))")
    device = asker(ledger)
    result = device.ask(2 * GiB, 10)
    assert [a.state for a in result.members if a.slot != slot_of(silent)] == ["done"]
    silent.run("ledger.serve(30)")
    member.receive()
    assert member.run("[holder.calls, quick.calls]") == [0, 1]


def test_serve_from_inside_a_holder_runs_no_holder(ledger: memledger.Ledger, spawn: Spawn) -> None:
    """Holders are not re-entrant: one that comes to a safe point of its own must not be entered a
    second time."""
    member = victim(spawn, 4 * GiB, 4 * GiB, "holders.Gives(device)", "")
    member.run(
        "depth, deepest = [0], [0]\n"
        "other = plain_device(ledger, 'test:other', 1 << 34)\n"
        "other.publish(1 << 30, releasable=1 << 30)\n"
        "ledger._devices[other.key] = other\n"
        "give = holder.release_memory\n"
        "def enter(d, n):\n"
        "    depth[0] += 1\n    deepest[0] = max(deepest[0], depth[0])\n"
        "    for _ in range(2): ledger.serve(0)\n"
        "    depth[0] -= 1\n    return give(d, n)\n"
        "holder.release_memory = enter"
    )
    device, other = asker(ledger), plain_device(ledger, "test:other", TOTAL)
    slot = slot_of(member)
    for one in (device, other):
        assert ledger._ask_send(one._pools()[0], slot, MiB)[0] == OK
    assert member.run("ledger.serve(30)") >= 1
    assert member.run("deepest") == [1]


# ---- credit


def test_late_answer_does_not_touch_the_answer_to_a_later_ask(
    ledger: memledger.Ledger, spawn: Spawn
) -> None:
    """The first ask was taken back while its holder hung. When that ends, the second asker has not
    read its answer yet: with stores before the check its bytes were another ask's, or gone."""
    member = victim(spawn, 4 * GiB, 4 * GiB, "holders.Hangs(holders.Gives(device))")
    first = spawn("first", total=TOTAL)
    assert first.run("device.ask(1 << 30, 0.2).state") == "refused"
    assert member.run("holder.inside.wait(30)")
    second = spawn("second", total=TOTAL)
    assert raw_ask(second, slot_of(member), 3 * GiB) == OK
    assert member.run("ledger.serve(30)") == 1
    assert member.run("holder.go.set()\nholder.ended.wait(30)")
    # Two rounds of housekeeping: the hung answer has been given by then.
    member.run("ledger._asks.serve_on_housekeeping()\nledger._housekeeping.stop()")
    assert raw_poll(second) == [OK, "done", 3 * GiB]
    assert raw_poll(second)[0] == EXPIRED, "credited twice"


def test_answer_waits_for_its_asker_while_others_find_the_victim_busy(
    ledger: memledger.Ledger, spawn: Spawn
) -> None:
    """There is one place for an answer: a second ask before the first asker has looked would have
    overwritten it, and nobody would have been credited with what was freed."""
    member = victim(spawn, 4 * GiB, 4 * GiB, options="")
    first = spawn("first", total=TOTAL)
    assert raw_ask(first, slot_of(member), GiB) == OK
    assert member.run("ledger.serve(30)") == 1
    result = asker(ledger).ask(GiB, 5)
    assert [a.state for a in result.members] == ["busy"]
    assert raw_poll(first) == [OK, "done", GiB]
    member.send_run("ledger.serve(30)")
    assert asker(ledger).ask(GiB, 20).state == "done"
    member.receive()


def test_answer_that_its_stopped_asker_does_not_fetch_keeps_nobody_out(
    ledger: memledger.Ledger, spawn: Spawn, wait_until: Until
) -> None:
    member = victim(spawn, 4 * GiB, 4 * GiB)
    first = spawn("first", total=TOTAL)
    assert raw_ask(first, slot_of(member), GiB) == OK
    first.stop()
    device = asker(ledger)
    wait_until(lambda: device.ask(GiB, 5).state == "done", what="the victim can be asked again")
    first.resume()
    assert raw_poll(first)[0] == EXPIRED


def test_credit_is_what_was_published_as_gone_not_what_was_said(
    ledger: memledger.Ledger, spawn: Spawn
) -> None:
    victim(spawn, 4 * GiB, 4 * GiB, f"holders.Says({GiB})")
    victim(spawn, 3 * GiB, 3 * GiB)
    result = asker(ledger).ask(4 * GiB, 10)
    assert result.credited == 3 * GiB
    assert result.state == "partial"


def test_verified_tells_bytes_that_the_source_confirms(
    ledger: memledger.Ledger, spawn: Spawn
) -> None:
    """One sibling gives its card memory back, another only says so in its record."""
    url = "sim:ask?total=24GiB"
    device = ledger.device(url)
    for really in (True, False):
        member = spawn("holder")
        member.call("open", url)
        member.run(
            "import memledger.sim as sim\n"
            "card = sim.open_url('ask')\n"
            f"block = card.alloc({4 * GiB})\n"
            f"device.publish({4 * GiB}, releasable={4 * GiB})\n"
            "class Holder:\n"
            "    def release_memory(self, d, n):\n"
            f"        {'block.free()' if really else 'pass'}\n"
            "        device.publish(0)\n        return 0\n"
            "ledger.holders.register(Holder(), thread_safe=True)\nNone"
        )
        result = device.ask(4 * GiB, 20)
        assert result.credited == 4 * GiB
        assert result.verified == (4 * GiB if really else 0)
        member.exit()


# ---- ends, whoever dies


def test_ask_of_a_member_that_never_comes_to_a_safe_point_ends(
    ledger: memledger.Ledger, spawn: Spawn
) -> None:
    member = victim(spawn, 4 * GiB, 4 * GiB, options="")
    result = asker(ledger).ask(GiB, 0.1)
    assert [a.state for a in result.members] == ["no_answer"]
    assert member.run("ledger.serve(0)") == 0, "the ask has outlived its deadline"
    assert member.run("ledger.pending() & 1") == 0


@pytest.mark.parametrize("stage", ["asked", "accepted", "answered"])
@pytest.mark.parametrize("how", ["killed", "stopped"])
def test_victim_that_ends_at_any_stage_leaves_its_asker_with_an_answer(
    ledger: memledger.Ledger, spawn: Spawn, stage: str, how: str, wait_until: Until
) -> None:
    member = victim(spawn, 4 * GiB, 4 * GiB, options="")
    slot, device = slot_of(member), asker(ledger)
    ledger._asking(True)
    status, ask = ledger._ask_send(device._pools()[0], slot, GiB)
    assert status == OK
    if stage != "asked":
        member.run("request = ledger._request_next()[0]\nNone")
    if stage == "answered":
        assert member.run(f"ledger._request_answer(request, 'done', {GiB})")
    if how == "stopped":
        member.stop()
        if stage == "answered":
            assert ledger._ask_poll(ask) == (OK, "done", GiB)
        else:
            assert ledger._ask_poll(ask)[0] == NOT_READY
            assert ledger._ask_withdraw(ask)
            assert ledger._ask_poll(ask)[0] == EXPIRED
        member.resume()
        if stage == "accepted":
            assert not member.run("ledger._request_answer(request, 'done', 5)"), "answered nobody"
            assert ledger._ask_poll(ask) == (EXPIRED, "none", 0)
    else:
        member.kill()
        wait_until(lambda: ledger.sweep() or slot not in [m.slot for m in ledger.members()])
        assert ledger._ask_poll(ask) == (EXPIRED, "none", 0)
    ledger._asking(False)


def test_new_owner_of_a_slot_is_not_asked_what_the_old_one_was(
    ledger: memledger.Ledger, spawn: Spawn, wait_until: Until
) -> None:
    member = victim(spawn, 4 * GiB, 4 * GiB, options="")
    slot, device = slot_of(member), asker(ledger)
    status, ask = ledger._ask_send(device._pools()[0], slot, GiB)
    assert status == OK
    member.kill()
    wait_until(lambda: ledger.sweep() or slot not in [m.slot for m in ledger.members()])
    heir = victim(spawn, 4 * GiB, 4 * GiB, options="")
    assert slot_of(heir) == slot
    assert heir.run("ledger.serve(0)") == 0
    assert heir.run("ledger.pending() & 1") == 0
    assert ledger._ask_poll(ask)[0] == EXPIRED
    assert ledger._ask_send(device._pools()[0], slot, GiB)[0] == OK


@pytest.mark.parametrize("how", ["killed", "left"])
def test_asker_that_goes_gives_its_open_word_back(
    ledger: memledger.Ledger, spawn: Spawn, how: str, wait_until: Until
) -> None:
    """The victim never serves; without the sweep it could never be asked again."""
    member = victim(spawn, 4 * GiB, 4 * GiB, options="")
    first = spawn("first", total=TOTAL)
    slot, device = slot_of(member), asker(ledger)
    assert raw_ask(first, slot) == OK
    assert ledger._ask_send(device._pools()[0], slot, MiB)[0] == BUSY
    if how == "killed":
        first.kill()
    else:
        first.run("ledger.leave()")
    wait_until(
        lambda: ledger.sweep() or ledger._ask_send(device._pools()[0], slot, MiB)[0] == OK,
        what="the victim can be asked again",
    )
    assert ledger._ask_send(device._pools()[0], slot, MiB)[0] in (OK, BUSY)


def test_interrupted_ask_takes_back_what_it_sent(
    ledger: memledger.Ledger, spawn: Spawn, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C in the middle of an ask."""
    member = victim(spawn, 4 * GiB, 4 * GiB, options="")
    other = spawn("other", total=TOTAL)
    device = asker(ledger)

    def interrupt(*args: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(ledger, "_wait", interrupt, raising=False)
        with pytest.raises(KeyboardInterrupt):
            device.ask(GiB, 20)
    assert raw_ask(other, slot_of(member)) == OK
    assert ledger._asks._inside == 0


def test_holder_that_is_interrupted_still_answers(ledger: memledger.Ledger, spawn: Spawn) -> None:
    """Ctrl-C in the middle of a holder, on the main thread: the asker hears at once."""
    member = victim(spawn, 4 * GiB, 4 * GiB, "holders.Raises(KeyboardInterrupt())", "")
    member.send_run("try:\n    ledger.serve(30)\nexcept KeyboardInterrupt:\n    pass\nNone")
    result = asker(ledger).ask(GiB, 20)
    assert [a.state for a in result.members] == ["refused"]
    member.receive()


def test_two_members_that_ask_each_other_both_end_every_time(spawn: Spawn, segment: Path) -> None:
    """Synchronously, on their main threads, with holders that only those threads may run: each must
    hear from the other (`no_answer` would be a wait until the deadline)."""
    pair = [victim(spawn, 8 * GiB, 8 * GiB, options="", label=name) for name in "ab"]
    flags = [str(segment.parent / f"done-{name}") for name in "ab"]
    for member, own, others in zip(pair, flags, reversed(flags), strict=True):
        member.send_run(
            "states = []\n"
            "for _ in range(60):\n"
            "    device.publish(1 << 33, releasable=1 << 33)\n"
            "    result = device.ask(1 << 20, 20)\n"
            "    states += [a.state for a in result.members] or [result.state]\n"
            f"open({own!r}, 'w').close()\n"
            f"while not os.path.exists({others!r}):\n    ledger.serve(0.01)\n"
            "ledger.serve(0)\nsorted(set(states))"
        )
    seen = {state for member in pair for state in member.receive(100)}
    assert "no_answer" not in seen
    assert seen <= {"done", "partial", "refused", "busy", "nobody"}


def test_asking_is_shown_until_the_last_thread_has_ended(
    ledger: memledger.Ledger, spawn: Spawn, wait_until: Until
) -> None:
    """Two threads of one process ask; the first to end must not say for the other that it is over:
    others would then wait for one that waits for them."""
    victim(spawn, 4 * GiB, 4 * GiB, options="")
    device, other = asker(ledger), spawn("looks", total=TOTAL)
    device.publish(GiB, releasable=GiB)
    long, brief = (threading.Thread(target=device.ask, args=(GiB, t)) for t in (3, 0.05))

    def asking() -> int:
        seen = other.run("[v for v in ledger._victims(device._pools()[0])]")
        slot = ledger._info()["slot"]
        return next(int(v[4]) for v in seen if v[0] == slot)

    long.start()
    ticket = wait_until(asking)
    brief.start()
    brief.join(30)
    assert asking() == ticket
    long.join(30)
    assert asking() == 0


def test_ask_while_housekeeping_looks_elsewhere_is_not_slept_on(
    ledger: memledger.Ledger, spawn: Spawn, segment: Path, wait_until: Until
) -> None:
    """A round of housekeeping may be inside a driver when the ask comes. Whoever then goes to sleep
    on the word as it is now sleeps until the next round."""
    member = victim(spawn, 4 * GiB, 4 * GiB)
    looking, asked = segment.parent / "looking", segment.parent / "asked"
    member.run(
        "import time\n"
        "usual = ledger._housekeep\n"
        "def slowly():\n"
        "    usual()\n"
        f"    open({str(looking)!r}, 'w').close()\n"
        f"    while not os.path.exists({str(asked)!r}): time.sleep(0.001)\n"
        "    return 3600.0\n"
        "ledger._housekeep = slowly\nledger._wake()"
    )
    wait_until(looking.exists)
    device = asker(ledger)
    ledger._asking(True)
    status, ask = ledger._ask_send(device._pools()[0], slot_of(member), GiB)
    assert status == OK
    asked.touch()
    # Any later wake-up would hide the fault: nothing but the ask itself may wake it.
    wait_until(lambda: ledger._ask_poll(ask)[0] == OK, what="answered without another wake-up")
    ledger._asking(False)


def test_bytes_freed_by_an_ask_reach_the_claimer_that_waits(
    ledger: memledger.Ledger, spawn: Spawn, segment: Path, wait_until: Until
) -> None:
    """Somebody else tries for the same bytes all the time. The place in line is honoured for half a
    second by each observer's clock, so a round that took longer proves nothing and is repeated."""
    total = 10 * GiB
    device = plain_device(ledger, "test:card", total)
    holder = spawn("holder", total=total)
    holder.run(
        "import holders\nledger._devices[device.key] = device\n"
        "ledger.holders.register(holders.Gives(device), thread_safe=True)\nNone"
    )
    greedy = spawn("greedy", total=total)
    stop = segment.parent / "stop"
    for _ in range(8):
        stop.unlink(missing_ok=True)
        holder.publish(9 * GiB, 7 * GiB)
        granted: list[Any] = []

        def claim(granted: list[Any] = granted) -> None:
            try:
                granted.append(device.claim(6 * GiB, timeout=20))
            except memledger.ClaimRefused as error:
                granted.append(error)

        waiting = threading.Thread(target=claim)
        with Raw(segment) as raw:
            word = raw.record_word(0, ledger._info()["slot"]) + 2
            waiting.start()
            begin = time.monotonic()
            wait_until(lambda at=word, raw=raw: raw[at], step_s=0.0005)
        greedy.send_run(
            "import time\ntook = None\n"
            f"while took is None and not os.path.exists({str(stop)!r}):\n"
            f"    took = device.try_claim({5 * GiB})\n"
            "got = took is not None\n"
            "if got: took.cancel()\ngot"
        )
        device.ask(6 * GiB, 10)
        wait_until(lambda granted=granted: granted, step_s=0.0005)
        took = time.monotonic() - begin
        stop.touch()
        lost = greedy.receive()
        waiting.join(30)
        granted[0].cancel()
        if took < 0.45:
            assert not lost, "a later claimer took the bytes that were freed for the earlier one"
            return
    pytest.skip("this machine was too busy for a round of under half a second")


# ---- degraded, forked


def test_private_ledger_asks_nobody_and_raises_nothing(tmp_path: Path) -> None:
    with memledger.join(path=tmp_path / "absent" / "segment", label="alone") as ledger:
        assert ledger.scope == "private"
        device = plain_device(ledger, "test:card", TOTAL)
        device.publish(GiB, releasable=GiB)
        assert device.ask(GiB, 0.1).state == "nobody"
        assert ledger.serve(0) == 0
        assert ledger.as_holder().release_memory(device, GiB) == 0
        device.note_oom(1)


def test_unregistered_process_asks_nobody_and_raises_nothing(segment: Path, spawn: Spawn) -> None:
    """It has no slot in which an answer could reach it."""
    first = Ledger(label="only", role="host", path=str(segment), slots=1)
    device = plain_device(first, "test:card", TOTAL)
    device.publish(GiB, releasable=GiB)
    member = spawn("late", total=TOTAL)
    assert member.call("info")["mode"] == 1
    assert member.run("device.ask(1 << 20, 0.1).state") == "nobody"
    assert member.run("ledger.serve(0)") == 0
    assert member.run("ledger.as_holder().release_memory(device, 1 << 20)") == 0
    assert member.run("device.note_oom(1)\nledger.pending() & 1") == 0
    first.leave()


def test_fork_inside_an_ask_starts_clear(ledger: memledger.Ledger, spawn: Spawn) -> None:
    member = victim(spawn, 4 * GiB, 4 * GiB, options="")
    asking = spawn("asks", total=TOTAL)
    assert (
        asking.run(
            "import threading, time\n"
            "thread = threading.Thread(target=device.ask, args=(1 << 30, 5))\nthread.start()\n"
            "while not ledger._asks._inside: time.sleep(0.001)\n"
            "read, write = os.pipe()\n"
            "pid = os.fork()\n"
            "if pid == 0:\n"
            "    said = device.ask(1 << 20, 0.05).state\n"
            "    clear = ledger._asks._inside == 0 and said == 'refused'\n"
            "    os.write(write, b'1' if clear else b'0')\n"
            "    os._exit(0)\n"
            "os.waitpid(pid, 0)\n"
            "said = os.read(read, 1)\n"
            "thread.join()\nsaid.decode()"
        )
        == "1"
    )
    assert member.run("ledger.serve(0)") == 0


# ---- as_holder


def test_as_holder_asks_the_siblings_and_says_what_they_published(
    ledger: memledger.Ledger, spawn: Spawn
) -> None:
    victim(spawn, 4 * GiB, 4 * GiB)
    device = asker(ledger)
    assert ledger.as_holder(20).release_memory(device, GiB) == GiB
    assert ledger.as_holder(20).release_memory(device, 0) == 0


def test_as_holder_lets_the_freeing_go_on_and_housekeeping_ends_it(
    ledger: memledger.Ledger, spawn: Spawn, wait_until: Until
) -> None:
    member = victim(spawn, 4 * GiB, 4 * GiB, options="")
    device = asker(ledger)
    assert ledger.as_holder(0.001).release_memory(device, GiB) == 0
    assert ledger._asks._left_open
    wait_until(lambda: not ledger._asks._left_open)
    assert member.run("ledger.serve(0)") == 0, "the ask has outlived its deadline"


def test_as_holder_never_asks_one_that_is_asking(ledger: memledger.Ledger, spawn: Spawn) -> None:
    member = victim(spawn, 4 * GiB, 4 * GiB)
    member.run("ledger._asking(True)")
    assert ledger.as_holder(0.05).release_memory(asker(ledger), GiB) == 0
    assert member.run("holder.calls") == 0


# ---- a whole process dies in the middle


def test_holder_that_dies_ends_the_ask(ledger: memledger.Ledger, spawn: Spawn) -> None:
    member = victim(spawn, 4 * GiB, 4 * GiB, "holders.Dies()", "")
    member.send_run("ledger.serve(30)")
    result = asker(ledger).ask(GiB, 5)
    assert [a.state for a in result.members] in (["gone"], ["no_answer"])
    with pytest.raises(MemberGone):
        member.receive()


def test_stopped_victim_ends_as_no_answer(ledger: memledger.Ledger, spawn: Spawn) -> None:
    member = victim(spawn, 4 * GiB, 4 * GiB)
    member.stop()
    result = asker(ledger).ask(GiB, 0.1)
    assert [a.state for a in result.members] == ["no_answer"]
    os.kill(member.process.pid, signal.SIGCONT)
