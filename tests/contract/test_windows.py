"""Windows: of two that want to be undisturbed the later one waits, and nobody for longer than was
announced, by his own clock."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import memledger
from helpers.member import plain_device
from helpers.members import Member
from helpers.raw import Raw
from helpers.units import GiB
from memledger.ledger import Ledger

Spawn = Callable[..., Member]
Until = Callable[..., Any]
TOTAL = 24 * GiB
WINDOW = 13
"""Index of the window's word in a record."""
MILLISECONDS = (1 << 29) - 1
"""Bits of that word."""


def window_word(segment: Path, slot: int) -> int:
    with Raw(segment) as raw:
        return raw[raw.record_word(0, slot) + WINDOW]


def opener(spawn: Spawn, label: str = "opener") -> Member:
    member = spawn(label, total=TOTAL)
    member.run("import contextlib\nopen_windows = contextlib.ExitStack()")
    return member


def open_window(member: Member, max_s: float) -> Any:
    return member.run(f"open_windows.enter_context(device.window({max_s}))")


def test_window_is_open_inside_and_closed_after(ledger: memledger.Ledger, segment: Path) -> None:
    device = plain_device(ledger, "test:card", TOTAL)
    slot = ledger._info()["slot"]
    with device.window(2.0) as waited:
        assert waited is not None
        assert waited >= 0
        word = window_word(segment, slot)
        assert word & MILLISECONDS == 2000
    assert window_word(segment, slot) == 0
    with pytest.raises(RuntimeError), device.window(1.0):
        raise RuntimeError
    assert window_word(segment, slot) == 0


def test_wait_clear_waits_for_a_sibling_and_not_for_itself(
    ledger: memledger.Ledger, spawn: Spawn
) -> None:
    device = plain_device(ledger, "test:card", TOTAL)
    member = opener(spawn)
    with device.window(30):
        assert device.wait_clear(0) is True, "its own window hinders nobody"
        assert member.run("device.wait_clear(0.01)") is False
    assert member.run("device.wait_clear(0.01)") is True
    # Of another device: not concerned.
    with plain_device(ledger, "test:other", TOTAL).window(30):
        assert member.run("device.wait_clear(0)") is True


def test_wait_clear_goes_on_as_soon_as_the_window_closes(
    ledger: memledger.Ledger, spawn: Spawn
) -> None:
    """Long before its announced time: both would otherwise meet the watchdog."""
    device = plain_device(ledger, "test:card", TOTAL)
    member = opener(spawn)
    open_window(member, 29)
    cleared: list[bool] = []
    waiting = threading.Thread(target=lambda: cleared.append(device.wait_clear(600)))
    waiting.start()
    member.run("open_windows.close()")
    waiting.join(60)
    assert cleared == [True]


def test_later_window_waits_for_the_earlier_one(
    ledger: memledger.Ledger, spawn: Spawn, segment: Path, wait_until: Until
) -> None:
    """And has its own closed meanwhile, or the two would wait for each other."""
    device = plain_device(ledger, "test:card", TOTAL)
    slot = ledger._info()["slot"]
    member = opener(spawn)
    open_window(member, 29)
    opened, go = threading.Event(), threading.Event()

    def capture() -> None:
        with device.window(5):
            opened.set()
            go.wait(60)

    later = threading.Thread(target=capture)
    later.start()
    # It has looked: a ticket was taken (the pool's counter stands before the pool's kind).
    with Raw(segment) as raw:
        from helpers.raw import POOL_OFFSET

        ticket = raw[POOL_OFFSET] // 8 + 16 + 5
        wait_until(lambda: raw[ticket] >= 2)
    wait_until(lambda: window_word(segment, slot) == 0)
    assert not opened.is_set()
    member.run("open_windows.close()")
    assert opened.wait(60)
    assert member.run("device.wait_clear(0)") is False
    go.set()
    later.join(60)


@pytest.mark.parametrize("how", ["killed", "stopped"])
def test_owner_that_is_gone_holds_nobody_longer_than_announced(
    ledger: memledger.Ledger, spawn: Spawn, how: str
) -> None:
    """Nothing in the segment is compared with a clock: a stopped owner does not close, and there is
    no time of its that another member could believe. Swept windows are closed anyhow."""
    device = plain_device(ledger, "test:card", TOTAL)
    member = opener(spawn)
    open_window(member, 0.2)
    if how == "killed":
        member.kill()
    else:
        member.stop()
    assert device.wait_clear(600) is True
    with device.window(0.1) as waited:
        assert waited is not None
    if how == "stopped":
        member.resume()
        assert member.run("open_windows.close()") is None


def test_dead_owner_is_swept_and_its_window_with_it(
    ledger: memledger.Ledger, spawn: Spawn, segment: Path, wait_until: Until
) -> None:
    plain_device(ledger, "test:card", TOTAL)
    member = opener(spawn)
    slot = member.call("info")["slot"]
    open_window(member, 29)
    member.kill()
    wait_until(lambda: ledger.sweep() or window_word(segment, slot) == 0)
    heir = opener(spawn)
    assert heir.call("info")["slot"] == slot
    assert window_word(segment, slot) == 0


def test_word_that_announces_days_holds_nobody_for_days(
    ledger: memledger.Ledger, spawn: Spawn, segment: Path
) -> None:
    """Garbage, or a wrong argument. The cap is half a minute; the owner's own is kept to it."""
    device = plain_device(ledger, "test:card", TOTAL)
    with device.window(1e6):
        assert window_word(segment, ledger._info()["slot"]) & MILLISECONDS == 30000
    member = opener(spawn)
    with Raw(segment) as raw:
        raw[raw.record_word(0, member.call("info")["slot"]) + WINDOW] = (1 << 64) - 1
    assert device.wait_clear(0.01) is False


@pytest.mark.watchdog(100)
def test_two_that_open_at_once_are_never_both_open(spawn: Spawn, segment: Path) -> None:
    """Each counts itself in before it does its work, and out after."""
    place = segment.parent / "inside"
    place.mkdir()
    pair = [opener(spawn, name) for name in "ab"]
    for member in pair:
        member.send_run(
            "clashes, missed = 0, 0\n"
            "for n in range(300):\n"
            "    with device.window(20) as waited:\n"
            "        if waited is None:\n            missed += 1\n            continue\n"
            f"        own = {str(place)!r} + f'/{{os.getpid()}}'\n"
            "        open(own, 'w').close()\n"
            f"        clashes += len(os.listdir({str(place)!r})) > 1\n"
            "        os.unlink(own)\n"
            "[clashes, missed]"
        )
    results = [member.receive(90) for member in pair]
    assert [clashes for clashes, _ in results] == [0, 0]
    assert all(missed < 300 for _, missed in results)


def test_victims_in_a_window_are_asked_last(ledger: memledger.Ledger, spawn: Spawn) -> None:
    device = plain_device(ledger, "test:card", TOTAL)
    members = [opener(spawn, name) for name in ("captures", "free")]
    for member, held in zip(members, (8 * GiB, GiB), strict=True):
        member.publish(held, held)
    open_window(members[0], 29)
    result = device.ask(GiB, 20)
    assert result.members[0].slot == members[1].call("info")["slot"]


@pytest.mark.parametrize("bad", [-1, float("nan"), "1"])
def test_window_wants_seconds(ledger: memledger.Ledger, bad: Any) -> None:
    device = plain_device(ledger, "test:card", TOTAL)
    with pytest.raises((ValueError, TypeError)), device.window(bad):
        pass
    with pytest.raises((ValueError, TypeError)):
        device.wait_clear(bad)


def test_window_of_a_private_ledger_opens_at_once(tmp_path: Path) -> None:
    with memledger.join("alone", path=tmp_path / "absent" / "segment") as ledger:
        device = plain_device(ledger, "test:card", TOTAL)
        with device.window(1.0) as waited:
            assert waited is not None
            assert device.wait_clear(0)


def test_window_of_an_unregistered_process_waits_for_others_but_holds_nobody(
    segment: Path, spawn: Spawn
) -> None:
    first = Ledger(label="only", role="other", path=str(segment), slots=1)
    device = plain_device(first, "test:card", TOTAL)
    late = opener(spawn, "late")
    assert late.call("info")["mode"] == 1
    with device.window(29):
        assert late.run("device.wait_clear(0.01)") is False
    open_window(late, 29)
    assert device.wait_clear(0) is True
    first.leave()
