"""What people see: label, role, parent, accounts and counters."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import memledger
from helpers.member import plain_device
from helpers.members import Member
from helpers.units import GiB, MiB
from memledger.views import Counters

Spawn = Callable[..., Member]
Until = Callable[..., Any]
TOTAL = 24 * GiB


def member_of(ledger: memledger.Ledger, pid: int) -> Any:
    return next(m for m in ledger.members() if m.pid == pid)


def accounts_of(ledger: memledger.Ledger, device: memledger.Device, pid: int) -> dict[str, int]:
    member = member_of(ledger, pid)
    row = next((r for r in device.snapshot().rows if r.slot == member.slot), None)
    if row is None:
        return {}
    return dict(zip(member.accounts, row.account_held, strict=False))


def test_member_shows_label_role_parent_and_program(ledger: memledger.Ledger, spawn: Spawn) -> None:
    member = spawn(join=False)
    member.join("pack", role="worker")
    shown = member_of(ledger, member.pid)
    assert (shown.label, shown.role, shown.parent_pid) == ("pack", "worker", os.getpid())
    assert shown.program == "member.py"
    assert shown.state == "live"
    assert shown.counters == Counters()


def test_accounts_are_shown_within_a_round_of_housekeeping(
    ledger: memledger.Ledger, spawn: Spawn, wait_until: Until
) -> None:
    device = plain_device(ledger, "test:card", TOTAL)
    member = spawn("host", total=TOTAL)
    member.run(
        f"device.publish({GiB})\n"
        f"device.account('weights').publish({3 * GiB})\n"
        f"cache = device.account('cache')\ncache.publish({2 * GiB})"
    )
    wanted = {"weights": 3 * GiB, "cache": 2 * GiB}
    wait_until(lambda: accounts_of(ledger, device, member.pid) == wanted)
    assert device.figures().held == 6 * GiB, "accounts are parts of the one record"
    member.run(f"cache.publish({MiB})")
    wait_until(lambda: accounts_of(ledger, device, member.pid)["cache"] == MiB)
    member.run("cache.publish(0)")
    wait_until(lambda: accounts_of(ledger, device, member.pid)["cache"] == 0)


def test_ninth_account_counts_but_is_not_shown_and_hides_no_other(
    ledger: memledger.Ledger, spawn: Spawn, wait_until: Until
) -> None:
    """There is room for the names of eight."""
    device = plain_device(ledger, "test:card", TOTAL)
    member = spawn("host", total=TOTAL)
    member.run(f"for n in range(8): device.account(f'part{{n}}').publish({MiB})")
    wait_until(lambda: len(accounts_of(ledger, device, member.pid)) == 8)
    member.run(f"device.account('ninth').publish({GiB})")
    for n in range(8):
        member.run(f"device.account('part{n}').publish({2 * MiB})")
    wait_until(lambda: set(accounts_of(ledger, device, member.pid).values()) == {2 * MiB})
    assert "ninth" not in accounts_of(ledger, device, member.pid)
    assert device.figures().held == GiB + 16 * MiB


def test_names_that_are_alike_at_first_are_summed(
    ledger: memledger.Ledger, spawn: Spawn, wait_until: Until
) -> None:
    """15 bytes of a name are kept; the later of the two would have hidden the earlier."""
    device = plain_device(ledger, "test:card", TOTAL)
    member = spawn("host", total=TOTAL)
    member.run(
        f"device.account('activations-of-a').publish({MiB})\n"
        f"device.account('activations-of-b').publish({4 * MiB})"
    )
    wait_until(lambda: accounts_of(ledger, device, member.pid) == {"activations-of-": 5 * MiB})


def test_accounts_are_per_device(ledger: memledger.Ledger, spawn: Spawn, wait_until: Until) -> None:
    first, second = (plain_device(ledger, key, TOTAL) for key in ("test:card", "test:other"))
    member = spawn("host", total=TOTAL)
    member.run(
        f"device.account('weights').publish({GiB})\n"
        f"other = plain_device(ledger, 'test:other', {TOTAL})\n"
        f"other.account('weights').publish({2 * GiB})"
    )
    wait_until(lambda: accounts_of(ledger, first, member.pid).get("weights") == GiB)
    wait_until(lambda: accounts_of(ledger, second, member.pid).get("weights") == 2 * GiB)


def test_next_owner_of_a_slot_has_no_names_and_no_counts(
    ledger: memledger.Ledger, spawn: Spawn, wait_until: Until
) -> None:
    device = plain_device(ledger, "test:card", TOTAL)
    member = spawn("old", total=TOTAL)
    slot = member.call("info")["slot"]
    member.run(f"device.account('weights').publish({GiB})\ndevice.note_oom(5)")
    wait_until(lambda: accounts_of(ledger, device, member.pid))
    member.kill()
    wait_until(lambda: ledger.sweep() or slot not in [m.slot for m in ledger.members()])
    heir = spawn("new", total=TOTAL)
    heir.publish(1)
    shown = member_of(ledger, heir.pid)
    assert shown.slot == slot
    assert (shown.accounts, shown.counters) == ((), Counters())
    row = next(r for r in device.snapshot().rows if r.slot == slot)
    assert not any(row.account_held)


def test_counters_count_what_happened(
    ledger: memledger.Ledger, spawn: Spawn, wait_until: Until
) -> None:
    giver, other = spawn("giver", total=8 * GiB), spawn("other", total=8 * GiB)
    giver.publish(6 * GiB, 4 * GiB)
    giver.run(
        "import holders\nledger._devices[device.key] = device\n"
        "ledger.holders.register(holders.Gives(device, 1 << 30), thread_safe=True)\nNone"
    )
    other.run("device.note_oom(5)\ndevice.note_oom()")
    assert other.run("device.try_claim(4 << 30) is None")
    other.run(
        "try: device.claim(4 << 30)\nexcept Exception: pass\n"
        "for _ in range(2): device.ask(1 << 30, 20)"
    )
    shown = member_of(ledger, other.pid).counters
    assert (shown.ooms, shown.asks_sent) == (2, 2)
    assert shown.claims_refused >= 1
    # Counted after the answer, so that nobody waits for it.
    wait_until(lambda: member_of(ledger, giver.pid).counters.asks_answered == 2)
    assert member_of(ledger, giver.pid).counters.asks_declined == 0


def test_refused_ask_is_counted_as_declined(
    ledger: memledger.Ledger, spawn: Spawn, wait_until: Until
) -> None:
    member = spawn("keeps", total=TOTAL)
    member.publish(GiB, GiB)
    assert plain_device(ledger, "test:card", TOTAL).ask(MiB, 20).state == "refused"
    wait_until(lambda: member_of(ledger, member.pid).counters.asks_declined == 1)
    assert member_of(ledger, os.getpid()).counters.asks_sent == 1
