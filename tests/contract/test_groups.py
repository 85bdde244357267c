"""Groups: who leads whom, and that interrupt, prompt and free words reach the own group and nobody
else."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import memledger
from helpers.members import Member
from helpers.raw import FREE, Raw
from memledger import groups
from memledger.ledger import Ledger

Spawn = Callable[..., Member]
Until = Callable[..., Any]
ASK, INTERRUPT, FREE_PENDING, PROMPT = 1, 2, 4, 8
UNLOAD, CACHE = 1, 2


def join(spawn: Spawn, label: str, role: str, group: str | None = None, **options: Any) -> Member:
    member = spawn(join=False, **options)
    member.run(
        "import memledger\n"
        f"ledger = me.ledger = memledger.join({label!r}, {role!r}, group={group!r})\nNone"
    )
    return member


def pair(spawn: Spawn, name: str) -> tuple[Member, Member]:
    return join(spawn, f"{name}-host", "host", name), join(spawn, f"{name}-worker", "worker", name)


def leader_of(member: Member) -> tuple[str | None, str]:
    label, why = member.run("found = ledger.leader\n[found and found.label, ledger.leader_reason]")
    return label, why


# ---- who leads


def test_leader_is_named_by_argument_or_environment(spawn: Spawn) -> None:
    join(spawn, "a", "host", "A")
    join(spawn, "b", "host", "B")
    assert leader_of(join(spawn, "w", "worker", "B")) == ("b", "named by the group")
    by_environment = join(spawn, "v", "worker", env={groups.ENVIRONMENT: "A"})
    assert leader_of(by_environment) == ("a", "named by the group")
    both = join(spawn, "u", "worker", "B", env={groups.ENVIRONMENT: "A"})
    assert leader_of(both)[0] == "b", "the argument counts before the environment"


def test_leader_is_the_nearest_ancestor_that_is_a_host(spawn: Spawn, segment: Path) -> None:
    memledger.join("outer", "host")
    join(spawn, "stranger", "host", "S")
    # A process of its own between the two, which has not joined.
    nested = join(spawn, "w", "worker", prefix=("/bin/sh", "-c", '"$0" "$@"; exit $?'))
    label, why = leader_of(nested)
    assert label == "outer"
    assert why == f"an ancestor (pid {os.getpid()})"


def test_leader_is_the_only_host_until_a_better_one_joins(
    spawn: Spawn, segment: Path, wait_until: Until
) -> None:
    """A worker that comes before its own host must not hear another server's clicks for ever."""
    join(spawn, "stranger", "host")
    worker = join(spawn, "w", "worker")
    assert leader_of(worker) == ("stranger", "the only host")
    memledger.join("own", "host")
    wait_until(lambda: leader_of(worker)[0] == "own")


def test_leader_is_nobody_and_the_reason_says_why(spawn: Spawn, segment: Path) -> None:
    worker = join(spawn, "w", "worker")
    assert leader_of(worker) == (None, "no host has joined")
    for name in "ab":
        join(spawn, name, "host")
    other = join(spawn, "v", "worker")
    assert leader_of(other) == (None, "2 hosts, none of them an ancestor; name one by group=")
    lost = join(spawn, "u", "worker", "C")
    assert leader_of(lost) == (None, "no live host has joined with this group's name")
    for call in ("ledger.prompt()", "ledger.leader"):
        assert lost.run(call) is None
    for call in ("interrupted()", "request_free()", "prompt_begin('p')", "prompt_end()"):
        assert lost.run(f"ledger.{call}") is False
    assert lost.run("ledger.job('j').interrupt()") is False
    assert lost.run("[ledger.pending(), ledger.free_epoch()[1]]") == [0, 0]


def test_leader_is_found_when_it_joins_later(spawn: Spawn, wait_until: Until) -> None:
    worker = join(spawn, "w", "worker", "A")
    assert leader_of(worker)[0] is None
    join(spawn, "a", "host", "A")
    wait_until(lambda: leader_of(worker)[0] == "a")


def test_host_without_a_name_makes_one_for_its_workers(spawn: Spawn) -> None:
    host = join(spawn, "h", "host")
    join(spawn, "other", "host")
    name = host.run("ledger.group")
    assert name.startswith("host-")
    assert leader_of(join(spawn, "w", "worker", name))[0] == "h"


def test_members_show_whom_they_follow(spawn: Spawn, ledger: memledger.Ledger) -> None:
    host, worker = pair(spawn, "A")
    slots = {m.label: (m.slot, m.leader) for m in ledger.members()}
    own = slots["A-host"][0]
    assert slots["A-host"] == (own, own)
    assert slots["A-worker"][1] == own
    assert host.run("ledger.leader.pid") == host.pid
    assert worker.run("ledger.leader.pid") == host.pid


# ---- interrupt


def test_interrupt_reaches_its_own_group_and_no_other(spawn: Spawn) -> None:
    """Two servers on one machine: a stop click in one."""
    a, a_worker = pair(spawn, "A")
    b, b_worker = pair(spawn, "B")
    for host in (a, b):
        assert host.run("ledger.prompt_begin('same id')") is True
    assert a.run("ledger.job('same id').interrupt()") is True
    for member, hears in ((a, True), (a_worker, True), (b, False), (b_worker, False)):
        assert member.run("[ledger.interrupted(), ledger.job('same id').interrupted()]") == [
            hears, hears,
        ]  # fmt: skip
        assert bool(member.run("ledger.pending()") & INTERRUPT) is hears


def test_interrupt_may_come_from_any_member_of_the_group(spawn: Spawn) -> None:
    host, worker = pair(spawn, "A")
    host.run("ledger.prompt_begin('p')")
    assert worker.run("ledger.job('p').interrupt()") is True
    assert host.run("ledger.interrupted()") is True


def test_interrupt_is_not_consumed_and_ends_with_its_prompt(spawn: Spawn) -> None:
    host, worker = pair(spawn, "A")
    worker.run("job = ledger.job('p')\nNone")
    host.run("ledger.prompt_begin('p')")
    host.run("ledger.job('p').interrupt()")
    assert worker.run("[job.interrupted() for _ in range(5)]") == [True] * 5
    host.run("ledger.prompt_end('p')")
    assert worker.run("[job.interrupted(), ledger.interrupted()]") == [False, False]
    host.run("ledger.prompt_begin('q')")
    assert worker.run("[job.interrupted(), ledger.interrupted()]") == [False, False]


def test_interrupt_that_stayed_is_cleared_by_the_next_prompt(spawn: Spawn) -> None:
    """The host died inside a prompt, or forgot the end."""
    host, worker = pair(spawn, "A")
    host.run("ledger.prompt_begin('p')\nledger.job('p').interrupt()")
    host.run("ledger.prompt_begin('p')")
    assert worker.run("[ledger.interrupted(), ledger.job('p').interrupted()]") == [False, False]


def test_interrupt_of_the_wrong_job_is_ignored_and_counted(spawn: Spawn) -> None:
    host, worker = pair(spawn, "A")
    host.run("ledger.prompt_begin('8')")
    assert worker.run("ledger.job('7').interrupt()") is False
    assert worker.run("[ledger.interrupted(), ledger.job('7').interrupted()]") == [False, False]
    assert worker.run("ledger.members()[ledger._info()['slot']].counters.interrupts_ignored") == 1


def test_interrupt_after_the_job_has_ended_does_not_hit_the_next(spawn: Spawn) -> None:
    host, worker = pair(spawn, "A")
    host.run("ledger.prompt_begin('7')\nledger.prompt_end('7')")
    worker.run("ledger.job('7').interrupt()")
    host.run("ledger.prompt_begin('8')")
    assert worker.run("[ledger.interrupted(), ledger.pending() & 2]") == [False, 0]


@pytest.mark.parametrize(
    "job_id", ["x" * 63, "x" * 64, "ü" * 40, "x" * 5000, "", "a\0b", "\udc80"],
    ids=["63", "64", "two bytes each", "long", "empty", "nul", "surrogate"],
)  # fmt: skip
def test_id_of_any_length_works_the_same_in_every_process(spawn: Spawn, job_id: str) -> None:
    host, worker = pair(spawn, "A")
    source = ascii(job_id)
    assert host.run(f"ledger.prompt_begin({source})") is True
    shown = worker.run("ledger.prompt()")
    assert shown[0] == 1
    assert shown[2] is True
    if len(job_id.encode("utf-8", "surrogatepass")) <= 63 and job_id.isprintable():
        assert shown[1] == job_id
    assert worker.run(f"ledger.job({source}).interrupt()") is True
    assert host.run(f"ledger.job({source}).interrupted()") is True
    assert host.run(f"ledger.job({source} + 'x').interrupted()") is False


def test_ids_that_differ_behind_byte_64_are_different(spawn: Spawn) -> None:
    host, worker = pair(spawn, "A")
    host.run("ledger.prompt_begin('x' * 80 + 'a')")
    assert worker.run("ledger.job('x' * 80 + 'b').interrupt()") is False
    assert worker.run("ledger.job('x' * 80 + 'a').interrupt()") is True


@pytest.mark.parametrize("bad", ["7", "None", "b'x'"])
def test_id_must_be_a_string(spawn: Spawn, bad: str) -> None:
    host, _ = pair(spawn, "A")
    assert (
        host.run(
            f"try:\n    ledger.job({bad})\n    found = 'taken'\n"
            "except TypeError:\n    found = 'TypeError'\nfound"
        )
        == "TypeError"
    )


# ---- the leader dies; its slot gets another owner


def test_dead_leader_counts_as_clear_and_the_next_owner_starts_clear(
    spawn: Spawn, ledger: memledger.Ledger, wait_until: Until
) -> None:
    host, worker = pair(spawn, "A")
    host.run("ledger.prompt_begin('p')\nledger.job('p').interrupt()\nledger.request_free()")
    slot = host.call("info")["slot"]
    assert worker.run("ledger.interrupted()") is True
    host.kill()
    wait_until(lambda: ledger.sweep() or slot not in [m.slot for m in ledger.members()])
    assert worker.run("[ledger.interrupted(), ledger.prompt(), ledger.pending() & 10]") == [
        False, None, 0,
    ]  # fmt: skip
    heir = join(spawn, "heir", "host", "A")
    assert heir.call("info")["slot"] == slot
    assert heir.run("[ledger.interrupted(), ledger.prompt(), ledger.free_epoch()[1]]") == [
        False, None, 0,
    ]  # fmt: skip
    wait_until(lambda: leader_of(worker)[0] == "heir")
    assert worker.run("[ledger.interrupted(), ledger.prompt(), ledger.pending() & 2]") == [
        False, None, 0,
    ]  # fmt: skip


def test_words_meant_for_the_owner_before_mean_nothing(
    spawn: Spawn, segment: Path, ledger: memledger.Ledger
) -> None:
    """A member that was stopped in the middle of an interrupt stores it after the leader's slot has
    got a new owner: its word carries the old generation."""
    host, worker = pair(spawn, "A")
    host.run("ledger.prompt_begin('p')\nledger.job('p').interrupt()")
    with Raw(segment) as raw:
        at = raw.slot_word(host.call("info")["slot"])
        interrupt, free = at + 4, at + 5
        late = raw[interrupt]
        host.run("ledger.prompt_begin('p')")
        raw[interrupt] = late ^ 1
        raw[free] = (5 << 38 | 5 << 12 | (late & 0xFFF)) ^ 1
    assert worker.run("[ledger.interrupted(), ledger.pending() & 6]") == [False, 0]
    assert worker.run("ledger.job('p').interrupt()") is True
    assert worker.run("ledger.interrupted()") is True


def test_prompts_of_a_new_leader_are_pending_though_they_are_numbered_alike(
    spawn: Spawn, ledger: memledger.Ledger, wait_until: Until
) -> None:
    host, worker = pair(spawn, "A")
    host.run("ledger.prompt_begin('p')")
    assert worker.run("ledger.prompt()") == [1, "p", True]
    assert worker.run("ledger.pending() & 8") == 0
    host.kill()
    heir = join(spawn, "heir", "host", "A")
    heir.run("ledger.prompt_begin('q')")
    wait_until(lambda: leader_of(worker)[0] == "heir")
    assert worker.run("ledger.pending() & 8") == PROMPT
    assert worker.run("ledger.prompt()") == [1, "q", True]


# ---- prompts


def test_prompt_tells_sequence_id_and_whether_it_runs(spawn: Spawn) -> None:
    host, worker = pair(spawn, "A")
    assert worker.run("ledger.prompt()") is None
    for number, name in enumerate(["one", "two", "three"], 1):
        host.run(f"ledger.prompt_begin({name!r})")
        assert worker.run("ledger.pending() & 8") == PROMPT
        assert worker.run("ledger.prompt()") == [number, name, True]
        assert worker.run("ledger.pending() & 8") == 0
        host.run("ledger.prompt_end()")
        assert worker.run("ledger.pending() & 8") == PROMPT
        assert worker.run("ledger.prompt()") == [number, name, False]
    assert worker.run("ledger.prompt_begin('mine')") is False, "workers begin no prompts"


def test_prompt_read_while_it_changes_is_never_mixed(spawn: Spawn) -> None:
    """The id of each sequence is known, so a mixed one shows."""
    host, worker = pair(spawn, "A")
    host.send_run(
        "for n in range(1, 20001):\n"
        "    ledger.prompt_begin(f'{n:x}-' * 8)\n"
        "    ledger.prompt_end()\nledger.prompt_begin('last')"
    )
    wrong = worker.run(
        "wrong, reads = [], 0\n"
        "while True:\n"
        "    found = ledger.prompt()\n"
        "    if not found: continue\n"
        "    n, name, _ = found\n"
        "    if name == 'last': break\n"
        "    reads += 1\n"
        "    if name != (f'{n:x}-' * 8)[:63]: wrong.append(found)\n"
        "wrong[:3]"
    )
    host.receive()
    assert wrong == []


# ---- free


def test_free_reaches_the_group_or_all(spawn: Spawn) -> None:
    a, a_worker = pair(spawn, "A")
    b, b_worker = pair(spawn, "B")
    assert a.run("ledger.request_free(unload=True, cache=False)") is True
    for member, hears in ((a, True), (a_worker, True), (b, False), (b_worker, False)):
        assert bool(member.run("ledger.pending()") & FREE_PENDING) is hears
        assert member.run("ledger.free_epoch()[1]") == (UNLOAD if hears else 0)
        assert member.run("ledger.pending()") & FREE_PENDING == 0
    assert b_worker.run("ledger.request_free(scope='all')") is True
    for member in (a, a_worker, b, b_worker):
        assert member.run("ledger.free_epoch()[1]") == UNLOAD | CACHE


def test_free_flags_are_of_all_requests_since_the_last_call(spawn: Spawn) -> None:
    """The second request must not hide what only the first one wanted."""
    host, worker = pair(spawn, "A")
    before = worker.run("ledger.free_epoch()[0]")
    host.run("ledger.request_free(unload=True, cache=False)")
    host.run("ledger.request_free(unload=False, cache=True)")
    epoch, flags = worker.run("ledger.free_epoch()")
    assert flags == UNLOAD | CACHE
    assert epoch > before
    assert worker.run("ledger.free_epoch()") == [epoch, 0]
    host.run("ledger.request_free(unload=False, cache=True)")
    later, flags = worker.run("ledger.free_epoch()")
    assert later > epoch
    assert flags == CACHE
    host.run("ledger.request_free(unload=True, cache=False)")
    host.run("ledger.request_free(unload=False, cache=True, scope='all')")
    assert worker.run("ledger.free_epoch()[1]") == UNLOAD | CACHE


def test_free_request_from_before_a_member_came_is_not_for_it(spawn: Spawn) -> None:
    """A worker that starts after /free was clicked has just loaded its model."""
    host = join(spawn, "h", "host", "A")
    host.run("ledger.request_free()")
    host.run("ledger.request_free(scope='all')")
    worker = join(spawn, "w", "worker", "A")
    assert worker.run("[ledger.pending() & 4, ledger.free_epoch()[1]]") == [0, 0]
    host.run("ledger.request_free()")
    assert worker.run("ledger.free_epoch()[1]") == UNLOAD | CACHE


@pytest.mark.parametrize(
    "arguments", [{"scope": "machine"}, {"unload": False, "cache": False}], ids=["scope", "nothing"]
)
def test_free_with_wrong_arguments_is_refused(
    ledger: memledger.Ledger, arguments: dict[str, Any]
) -> None:
    with pytest.raises(ValueError, match="expected"):
        ledger.request_free(**arguments)


def test_free_tickets_survive_their_wrap(spawn: Spawn, segment: Path) -> None:
    """26 bits of a ticket stand in the word."""
    host, worker = pair(spawn, "A")
    with Raw(segment) as raw:
        free_ticket = 23
        raw[free_ticket] = (1 << 26) - 3
    worker.run("ledger.free_epoch()")
    last = 0
    for number in range(8):
        cache_only = number % 2
        host.run(f"ledger.request_free(unload={not cache_only}, cache={bool(cache_only)})")
        epoch, flags = worker.run("ledger.free_epoch()")
        assert flags == (CACHE if cache_only else UNLOAD)
        assert epoch > last
        last = epoch
    assert last > 1 << 26


# ---- degraded, forked, replaced


def test_private_host_leads_itself(tmp_path: Path) -> None:
    with memledger.join("alone", "host", path=tmp_path / "absent" / "segment") as ledger:
        assert ledger.scope == "private"
        assert ledger.prompt_begin("p")
        assert ledger.prompt() == (1, "p", True)
        assert ledger.job("p").interrupt()
        assert ledger.interrupted()
        assert ledger.request_free()
        assert ledger.free_epoch()[1] == UNLOAD | CACHE
        assert ledger.prompt_end()
        assert not ledger.interrupted()


def test_unregistered_worker_still_hears_its_leader(segment: Path, spawn: Spawn) -> None:
    """A full table must not make the stop button dead."""
    host = Ledger(label="h", role="host", path=str(segment), group="A", slots=1)
    worker = join(spawn, "w", "worker", "A")
    assert worker.call("info")["mode"] == 1
    host.prompt_begin("p")
    assert worker.run("ledger.prompt()") == [1, "p", True]
    assert worker.run("ledger.job('p').interrupt()") is True
    assert host.interrupted()
    assert worker.run("ledger.interrupted()") is True
    assert worker.run("ledger.prompt_begin('q')") is False
    host.leave()


def test_forked_child_of_a_worker_follows_the_same_leader(spawn: Spawn) -> None:
    host, worker = pair(spawn, "A")
    host.run("ledger.prompt_begin('p')\nledger.job('p').interrupt()")
    assert (
        worker.run(
            "read, write = os.pipe()\n"
            "job = ledger.job('p')\n"
            "pid = os.fork()\n"
            "if pid == 0:\n"
            "    os.write(write, repr((job.interrupted(), ledger.leader.label)).encode())\n"
            "    os._exit(0)\n"
            "os.waitpid(pid, 0)\nos.read(read, 100).decode()"
        )
        == "(True, 'A-host')"
    )


def test_forked_child_of_a_host_follows_its_parent(spawn: Spawn) -> None:
    """It has the host's role and name; as a leader of its own it would not hear the stop button,
    and workers that start later might follow it."""
    host = join(spawn, "h", "host", "A")
    first = host.run(
        "down, up = os.pipe(), os.pipe()\n"
        "pid = os.fork()\n"
        "if pid == 0:\n"
        "    os.close(down[1])\n"
        "    ledger.prompt_begin('mine')\n"
        "    os.write(up[1], repr(ledger.leader.pid).encode())\n"
        "    os.read(down[0], 1)\n"
        "    os.write(up[1], repr(ledger.interrupted()).encode())\n"
        "    os._exit(0)\n"
        "os.read(up[0], 100).decode()"
    )
    assert int(first) == host.pid
    assert leader_of(join(spawn, "w", "worker", "A"))[0] == "h"
    assert host.run("ledger.leader.pid") == host.pid
    host.run("ledger.prompt_begin('p')\nledger.job('p').interrupt()")
    assert host.run("os.write(down[1], b'x')\nos.waitpid(pid, 0)\nos.read(up[0], 9).decode()") == (
        "True"
    )


def test_group_survives_a_segment_that_is_replaced(
    spawn: Spawn, segment: Path, wait_until: Until
) -> None:
    """The handle's leader stood in the old mapping; its index must be that of the new one."""
    host, worker = pair(spawn, "A")
    third = join(spawn, "x", "other", "A")
    host.run("ledger.prompt_begin('p')")
    segment.unlink()

    def moved(member: Member) -> bool:
        return segment.exists() and member.call("info")["file_id"] == segment.stat().st_ino

    # In the new one, each of them: until then they may follow the host in the old mapping.
    for member in (host, worker, third):
        wait_until(lambda member=member: moved(member))
    for member in (host, worker, third):
        wait_until(lambda member=member: leader_of(member)[0] == "A-host")
    assert host.run("ledger.prompt_begin('q')") is True
    assert worker.run("ledger.job('q').interrupt()") is True
    assert third.run("ledger.interrupted()") is True
    host_slot = host.call("info")["slot"]
    assert worker.run("ledger._leader()[0]") == host_slot


def test_left_slot_is_free_and_clear(spawn: Spawn, segment: Path) -> None:
    host, worker = pair(spawn, "A")
    host.run("ledger.prompt_begin('p')\nledger.job('p').interrupt()")
    slot = host.call("info")["slot"]
    host.run("ledger.leave()")
    with Raw(segment) as raw:
        assert raw.slot_state(slot) == FREE
    assert worker.run("[ledger.interrupted(), ledger.prompt(), ledger.pending()]") == [
        False, None, 0,
    ]  # fmt: skip


def test_pending_of_nothing_is_zero(ledger: memledger.Ledger) -> None:
    assert ledger.pending() == 0
    assert ledger.interrupted() is False
