"""B52: an interrupt that hits the wrong job, or stays set for the next one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import memledger
from helpers.members import Member
from helpers.raw import Raw

Spawn = Callable[..., Member]
Until = Callable[..., Any]


@pytest.fixture
def group(spawn: Spawn, segment: Path) -> tuple[Member, Member]:
    members = []
    for role in ("host", "worker"):
        member = spawn(join=False)
        member.run(
            "import memledger\n"
            f"ledger = me.ledger = memledger.join({role!r}, {role!r}, group='b52')\nNone"
        )
        members.append(member)
    return members[0], members[1]


def interrupt_sequence(segment: Path, slot: int) -> int:
    with Raw(segment) as raw:
        return raw[raw.slot_word(slot) + 4] >> 12 & 0xFFF


def test_b52_job_7_is_stopped_while_8_runs(group: tuple[Member, Member]) -> None:
    host, worker = group
    host.run("ledger.prompt_begin('8')")
    assert host.run("ledger.job('7').interrupt()") is False
    assert worker.run("[ledger.interrupted(), ledger.job('8').interrupted()]") == [False, False]
    assert host.run("ledger.leader.counters.interrupts_ignored") == 1


def test_b52_set_twice_is_one_interruption(group: tuple[Member, Member], segment: Path) -> None:
    host, worker = group
    slot = host.call("info")["slot"]
    host.run("ledger.prompt_begin('7')")
    before = interrupt_sequence(segment, slot)
    for member in (host, worker):
        assert member.run("ledger.job('7').interrupt()") is True
    assert interrupt_sequence(segment, slot) == before + 1
    assert worker.run("[ledger.interrupted() for _ in range(3)]") == [True] * 3, "not consumed"
    host.run("ledger.prompt_end()")
    assert worker.run("ledger.interrupted()") is False
    host.run("ledger.prompt_begin('8')")
    assert worker.run("ledger.interrupted()") is False


def test_b52_new_owner_of_the_slot_starts_clear(
    group: tuple[Member, Member], ledger: memledger.Ledger, spawn: Spawn, wait_until: Until
) -> None:
    host, worker = group
    slot = host.call("info")["slot"]
    host.run("ledger.prompt_begin('7')\nledger.job('7').interrupt()")
    host.kill()
    wait_until(lambda: ledger.sweep() or slot not in [m.slot for m in ledger.members()])
    assert worker.run("ledger.interrupted()") is False, "a dead leader's words count as clear"
    heir = spawn(join=False)
    heir.run("import memledger\nledger = me.ledger = memledger.join('new', 'host', group='b52')")
    assert heir.call("info")["slot"] == slot
    assert heir.run("[ledger.interrupted(), ledger.job('7').interrupted()]") == [False, False]


def test_b52_reload_by_one_user_does_not_stop_the_other(
    group: tuple[Member, Member], spawn: Spawn
) -> None:
    """Two servers on one machine, whose prompts even have the same id."""
    host, _worker = group
    other = spawn(join=False)
    other.run("import memledger\nledger = me.ledger = memledger.join('other', 'host', group='x')")
    for member in (host, other):
        member.run("ledger.prompt_begin('7')")
    other.run("ledger.job('7').interrupt()")
    assert other.run("ledger.interrupted()") is True
    assert [m.run("ledger.interrupted()") for m in group] == [False, False]
