"""The life of a claim: the timelines of the figures as tables, and every way of ending one."""

from __future__ import annotations

import gc
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

import memledger
from helpers.member import plain_device
from helpers.members import Member, RemoteError
from helpers.raw import Raw
from helpers.units import UNIT, GiB, MiB, seeded
from helpers.waiting import wait_until

T = 24


@pytest.fixture
def card(ledger: memledger.Ledger) -> memledger.Device:
    device: memledger.Device = plain_device(ledger, "test:card", T * GiB)
    return device


@pytest.fixture
def other(spawn: Any) -> Member:
    member: Member = spawn("other", total=T * GiB)
    return member


def gib(value: int | None) -> float | None:
    return None if value is None else value / GiB


def row(card: memledger.Device, other: Member) -> tuple[Any, ...]:
    """(held, claimed, own free, the other's free, overcommit), in GiB; as a snapshot has them."""
    mine, theirs = card.figures(), other.figures()
    assert mine.held == theirs["held"]
    assert mine.claimed == theirs["claimed"]
    snapshot = card.snapshot()
    assert snapshot.coherent
    assert sum(r.held for r in snapshot.rows) == mine.held
    assert sum(r.claimed for r in snapshot.rows) == mine.claimed
    assert card.free() == mine.free
    return (gib(mine.held), gib(mine.claimed), gib(mine.free), gib(theirs["free"]),
            gib(mine.overcommit))  # fmt: skip


def test_claims_worked_example_of_the_figures(ledger: memledger.Ledger, spawn: Any) -> None:
    """T 24, own held 10, the other's 20: free 0, budget 4; with 10 releasable: available 4."""
    card = plain_device(ledger, "test:card", T * GiB)
    other: Member = spawn("other", total=T * GiB)
    card.publish(10 * GiB)
    other.publish(20 * GiB)
    figures = card.figures()
    assert (gib(figures.free), gib(figures.budget), gib(figures.available)) == (0, 4, 0)
    assert gib(figures.overcommit) == 6
    other.publish(20 * GiB, 10 * GiB)
    assert gib(card.available()) == 4
    other.publish(10 * GiB, 10 * GiB)
    assert (gib(card.free()), gib(card.available()), gib(card.budget())) == (4, 14, 14)


def test_claims_timeline_of_a_load_counts_nothing_twice(
    card: memledger.Device, other: Member
) -> None:
    card.publish(2 * GiB)
    assert row(card, other) == (2, 0, 22, 22, 0)
    claim = card.claim(6 * GiB)
    assert row(card, other) == (2, 6, 22, 16, 0)
    for landed in (1, 2, 4, 5):  # draining: held grows by as much as the claim shrinks
        claim.publish((2 + landed) * GiB)
        assert row(card, other) == (2 + landed, 6 - landed, 22 - landed, 16, 0)
        assert gib(claim.open) == 6 - landed
    claim.settle(8 * GiB)
    assert row(card, other) == (8, 0, 16, 16, 0)
    assert claim.ended


def test_claims_settling_less_gives_the_rest_back_at_once(
    card: memledger.Device, other: Member
) -> None:
    claim = card.claim(10 * GiB)
    claim.settle(3 * GiB)
    assert row(card, other) == (3, 0, 21, 21, 0)


def test_claims_settling_more_is_growth_and_no_error(card: memledger.Device, other: Member) -> None:
    claim = card.claim(10 * GiB)
    other.call("claim", 14 * GiB)
    claim.settle(12 * GiB)
    assert row(card, other) == (12, 14, 0, 12, 2)


def test_claims_held_that_shrinks_refills_the_claim_up_to_its_size(
    card: memledger.Device, other: Member
) -> None:
    card.publish(5 * GiB)
    claim = card.claim(4 * GiB)
    claim.publish(8 * GiB)
    assert gib(claim.open) == 1
    claim.publish(6 * GiB)
    assert gib(claim.open) == 3
    claim.publish(0)
    assert gib(claim.open) == 4
    assert row(card, other) == (0, 4, 24, 20, 0)
    claim.cancel()


def test_claims_plain_publish_leaves_claims_alone(card: memledger.Device, other: Member) -> None:
    claim = card.claim(4 * GiB)
    card.publish(3 * GiB)
    assert gib(claim.open) == 4
    assert row(card, other) == (3, 4, 21, 17, 0)
    claim.cancel()
    assert row(card, other) == (3, 0, 21, 21, 0)


def test_claims_replacing_claims_only_the_growth(card: memledger.Device, other: Member) -> None:
    """10 of 14 held go first; only 6 more are claimed, and giving back refills to 16."""
    card.publish(14 * GiB)
    claim = card.claim(16 * GiB, replacing=10 * GiB)
    assert (gib(claim.size), gib(claim.open)) == (16, 6)
    assert row(card, other) == (14, 6, 10, 4, 0)
    claim.publish(4 * GiB)
    assert gib(claim.open) == 16
    assert row(card, other) == (4, 16, 20, 4, 0)
    claim.settle(20 * GiB)
    assert row(card, other) == (20, 0, 4, 4, 0)


def test_claims_replacing_more_than_is_claimed_claims_nothing(
    card: memledger.Device, other: Member
) -> None:
    card.publish(14 * GiB)
    claim = card.claim(3 * GiB, replacing=10 * GiB)
    assert gib(claim.open) == 0
    assert row(card, other) == (14, 0, 10, 10, 0)
    claim.publish(4 * GiB)
    assert gib(claim.open) == 3
    claim.settle(7 * GiB)
    assert row(card, other) == (7, 0, 17, 17, 0)


def test_claims_first_that_fits(card: memledger.Device, other: Member) -> None:
    other.publish(6 * GiB)
    index, claim = card.claim_first([24 * GiB, 12 * GiB, 6 * GiB])
    assert (index, gib(claim.size)) == (1, 12)
    index, second = card.claim_first([12 * GiB, 6 * GiB])
    assert index == 1
    with pytest.raises(memledger.ClaimRefused) as refused:
        card.claim_first([12 * GiB, 6 * GiB])
    assert refused.value.wanted == 6 * GiB
    second.cancel()
    claim.cancel()
    card.publish(12 * GiB)
    index, claim = card.claim_first([24 * GiB, 12 * GiB], replacing=12 * GiB)
    assert index == 1, "a loader that replaces its own still knows the other's bytes"
    claim.cancel()
    with pytest.raises(ValueError, match="at least one"):
        card.claim_first([])


def test_claims_two_loaders_never_both_upcast(spawn: Any) -> None:
    """40 GiB, two loads of 24 (upcast) or 12."""
    a, b = (spawn(label, total=40 * GiB) for label in "ab")
    got = []
    for member in (a, b):
        got.append(member.run("i, c = device.claim_first([24 << 30, 12 << 30]); i"))
    assert got == [0, 1]


def test_claims_free_less_own_claims_is_what_fits(card: memledger.Device, other: Member) -> None:
    other.publish(3 * GiB + 5)
    card.publish(2 * GiB + 7)
    first = card.claim(GiB + 1)
    free = card.free()
    assert free is not None
    assert card.try_claim(free - first.open + 2 * UNIT) is None
    rest = card.claim(free - first.open - UNIT)
    assert rest.checked


def test_claims_context_manager_cancels_what_was_not_settled(
    card: memledger.Device, other: Member
) -> None:
    with card.claim(6 * GiB) as claim:
        claim.publish(2 * GiB)
        assert row(card, other) == (2, 4, 22, 18, 0)
    assert row(card, other) == (2, 0, 22, 22, 0)
    with pytest.raises(RuntimeError), card.claim(6 * GiB):
        raise RuntimeError("the load failed")
    assert row(card, other) == (2, 0, 22, 22, 0)
    with card.claim(6 * GiB) as claim:
        claim.settle(5 * GiB)
    assert row(card, other) == (5, 0, 19, 19, 0)


def test_claims_dropped_object_is_cancelled(card: memledger.Device, other: Member) -> None:
    claim: Any = card.claim(6 * GiB)
    assert row(card, other) == (0, 6, 24, 18, 0)
    del claim
    gc.collect()
    assert row(card, other) == (0, 0, 24, 24, 0)


def test_claims_dropped_object_after_the_slot_was_lost_is_forgotten(
    spawn: Any, segment: Path
) -> None:
    """Freed while the handle still lists it, it would be read and written after its end: the next
    expiry, leave or claim walks that list."""
    member: Member = spawn("m", total=T * GiB)
    viewer: Member = spawn("viewer", total=T * GiB)
    member.run(
        "import gc\nkept = [device.claim(1 << 20, ttl=3600) for _ in range(50)]\nfill = None"
    )
    member.stop()
    with Raw(segment) as raw:
        raw.forge_sweep(0)
    member.send_run(
        """
del kept
gc.collect()
# Whatever the freed objects' memory is used for now.
fill = [bytes([255]) * 96 for _ in range(5000)]
device.publish(1 << 20)
again = [device.claim(1 << 20, ttl=0.01) for _ in range(50)]
ledger._tick()
[device.figures().own_claimed >> 20, device.figures().own_held >> 20]
"""
    )
    member.resume()
    claimed, held = member.receive()
    assert held == 1
    assert claimed <= 50
    wait_until(lambda: viewer.figures()["claimed"] == 0, what="the short claims expire")
    member.call("leave")
    assert viewer.figures()["held"] == 0


def test_claims_resize(card: memledger.Device, other: Member) -> None:
    claim = card.claim(6 * GiB)
    claim.resize(10 * GiB)
    assert (gib(claim.size), gib(claim.open)) == (10, 10)
    claim.publish(4 * GiB)
    claim.resize(5 * GiB)
    assert (gib(claim.size), gib(claim.open)) == (5, 1)
    assert row(card, other) == (4, 1, 20, 19, 0)
    other.publish(16 * GiB)
    with pytest.raises(memledger.ClaimRefused):
        claim.resize(20 * GiB)
    assert (gib(claim.size), gib(claim.open)) == (5, 1), "a refused resize changes nothing"
    claim.resize(8 * GiB)
    assert gib(claim.open) == 4
    claim.resize(0)
    assert gib(claim.open) == 0
    claim.settle(4 * GiB)
    with pytest.raises(memledger.ClaimRefused):
        claim.resize(1)
    with pytest.raises(memledger.ClaimRefused):
        claim.renew(1)


def test_claims_resize_waits_for_room(card: memledger.Device, other: Member) -> None:
    other.publish(20 * GiB)
    claim = card.claim(2 * GiB)
    done: list[bool] = []

    def grow() -> None:
        claim.resize(10 * GiB, timeout=60)
        done.append(True)

    thread = threading.Thread(target=grow)
    thread.start()
    other.publish(10 * GiB)
    thread.join(60)
    assert done
    assert gib(claim.open) == 10


@pytest.mark.parametrize("ttl", [0, 0.01, 0.2])
def test_claims_ttl_ends_by_itself(card: memledger.Device, other: Member, ttl: float) -> None:
    claim = card.claim(6 * GiB, ttl=ttl)
    wait_until(lambda: other.figures()["claimed"] == 0, what="housekeeping drops it")
    assert claim.expired
    assert claim.ended
    assert claim.open == 0
    claim.cancel()
    claim.settle(5 * GiB)
    assert row(card, other) == (5, 0, 19, 19, 0)


def test_claims_ttl_drops_only_what_has_not_landed(card: memledger.Device, other: Member) -> None:
    claim = card.claim(6 * GiB, ttl=0.1)
    claim.publish(4 * GiB)
    wait_until(lambda: claim.expired)
    assert row(card, other) == (4, 0, 20, 20, 0)
    claim.publish(5 * GiB)  # growth without a claim
    assert row(card, other) == (5, 0, 19, 19, 0)


def test_claims_renew_none_never_ends(card: memledger.Device, other: Member) -> None:
    claim = card.claim(6 * GiB, ttl=0.3)
    claim.renew(None)
    short = card.claim(GiB, ttl=0.3)
    wait_until(lambda: short.expired)
    assert not claim.expired
    assert row(card, other) == (0, 6, 24, 18, 0)


def test_claims_waiting_gets_what_falls_free(card: memledger.Device, other: Member) -> None:
    other.publish(20 * GiB)
    other.send_run("import time; time.sleep(0.1); device.publish(0)")
    claim = card.claim(12 * GiB, timeout=60)
    assert claim.checked
    other.receive()
    assert row(card, other) == (0, 12, 24, 12, 0)


def test_claims_waiter_gets_freed_bytes_before_latecomers(spawn: Any, segment: Path) -> None:
    """8 fall free in two steps. The waiter wants 8, latecomers want 1 again and again: without a
    place in line they would take every byte that falls free."""
    holder, waiter, late = (spawn(label, total=8 * GiB) for label in ("holder", "waiter", "late"))
    holder.publish(8 * GiB)
    waiter.send("claim", 8 * GiB, 20)
    with Raw(segment) as raw:
        at = raw.record_word(0, 1)  # the waiter's: it joined second
        wait_until(lambda: raw[at + 2], what="the waiter stands in line")
        holder.publish(5 * GiB)
        with pytest.raises(RemoteError, match="wait"):
            late.call("claim", GiB)
        still_waiting = bool(raw[at + 2])
    assert late.call("try_claim", GiB) is None or not still_waiting
    holder.publish(0)
    assert waiter.receive() is not None
    assert late.figures()["claimed_by_others"] == 8 * GiB


def test_claims_stopped_waiter_delays_others_for_a_bounded_time(spawn: Any) -> None:
    holder, waiter, late = (spawn(label, total=8 * GiB) for label in ("holder", "waiter", "late"))
    holder.publish(8 * GiB)
    waiter.send("claim", 8 * GiB, 60)
    wait_until(lambda: "wait" in refusal(late, holder), what="the waiter stands in line")
    waiter.stop()
    holder.publish(0)
    wait_until(lambda: late.call("try_claim", GiB), what="the stopped waiter's time runs out")
    waiter.resume()
    holder.kill()


def refusal(late: Member, holder: Member) -> str:
    """Why a claim of what is free is refused; the holder lends a GiB for the question."""
    holder.publish(7 * GiB)
    try:
        number = late.call("claim", GiB // 2)
    except RemoteError as error:
        return error.text
    finally:
        holder.publish(8 * GiB)
    late.call("cancel", number)
    return ""


def test_claims_dead_waiter_is_forgotten(spawn: Any) -> None:
    holder, waiter, late = (spawn(label, total=8 * GiB) for label in ("holder", "waiter", "late"))
    holder.publish(8 * GiB)
    waiter.send("claim", 8 * GiB, 60)
    wait_until(lambda: "wait" in refusal(late, holder), what="the waiter stands in line")
    waiter.kill()
    holder.publish(0)
    late.call("sweep")
    assert late.call("try_claim", 8 * GiB) is not None


def test_claims_timeout_is_given_up_and_leaves_nothing(spawn: Any) -> None:
    holder, waiter, late = (spawn(label, total=8 * GiB) for label in ("holder", "waiter", "late"))
    holder.publish(6 * GiB)
    with pytest.raises(RemoteError, match="refused"):
        waiter.call("claim", 4 * GiB, 0.05)
    assert late.figures()["claimed"] == 0
    assert late.call("try_claim", 2 * GiB) is not None, "nobody stands in line any more"


def test_claims_that_can_never_fit_do_not_stand_in_line(spawn: Any) -> None:
    """More than the card has, whatever is freed: its place in line would only refuse the others."""
    waiter, late = (spawn(label, total=8 * GiB) for label in ("waiter", "late"))
    waiter.send("claim", 9 * GiB, 1.0)
    answers = late.run(
        "import time\nend = time.monotonic() + 0.3\nrefused = 0\n"
        "while time.monotonic() < end:\n"
        "    c = device.try_claim(1 << 20)\n"
        "    refused += c is None\n"
        "    c and c.cancel()\nrefused"
    )
    with pytest.raises(RemoteError, match="refused"):
        waiter.receive()
    assert answers == 0


def test_claims_of_accounts_are_one_promise_of_the_process(
    card: memledger.Device, other: Member
) -> None:
    weights, cache = card.account("weights"), card.account("cache")
    a, b = weights.claim(4 * GiB), cache.claim(2 * GiB)
    assert row(card, other) == (0, 6, 24, 18, 0)
    weights.publish(GiB)
    a.publish(3 * GiB)
    assert row(card, other) == (3, 4, 21, 17, 0)
    b.settle(2 * GiB)
    a.settle(5 * GiB)
    assert weights.amounts == (5 * GiB, 0, 0)
    assert cache.amounts == (2 * GiB, 0, 0)
    assert row(card, other) == (7, 0, 17, 17, 0)


def test_claims_through_a_claim_what_is_not_given_stays(
    card: memledger.Device, other: Member
) -> None:
    card.publish(4 * GiB, releasable=2 * GiB, pinned=GiB)
    claim = card.claim(4 * GiB)
    claim.publish(6 * GiB)
    assert card.amounts == (6 * GiB, 2 * GiB, GiB)
    claim.publish(GiB)  # releasable is a part of held
    assert card.amounts == (GiB, GiB, GiB)
    claim.settle(3 * GiB, releasable=0, pinned=0)
    assert card.amounts == (3 * GiB, 0, 0)


def test_claims_of_nothing_are_granted_and_harmless(card: memledger.Device, other: Member) -> None:
    other.publish(30 * GiB)
    claim = card.claim(0)
    assert (claim.size, claim.open) == (0, 0)
    claim.settle(0)
    assert row(card, other) == (30, 0, 0, 0, 6)


def test_claims_random_life_matches_a_model(card: memledger.Device, other: Member) -> None:
    """Every operation in random order, against ten lines of arithmetic."""
    rng = seeded("claims")
    held, claims = 0, dict[int, tuple[Any, int, int]]()  # claim, size, open
    for number in range(1500):
        step = rng.randrange(7)
        n = rng.randrange(1, 2 * GiB)
        some = rng.choice(list(claims)) if claims else None
        if step <= 1 or some is None:
            claim = card.try_claim(n)
            taken = held + sum(left for _, _, left in claims.values())
            if claim is None:
                assert taken + n > T * GiB - UNIT
            else:
                assert taken + n <= T * GiB
                claims[number] = (claim, n, n)
            continue
        claim, size, left = claims[some]
        if step == 2:
            new = max(0, held + rng.randrange(-GiB, GiB))
            left = max(0, left - (new - held)) if new >= held else min(size, left + held - new)
            claim.publish(new)
            held = new
            claims[some] = (claim, size, left)
        elif step == 3:
            held = max(0, held + rng.randrange(-GiB, GiB))
            claim.settle(held)
            del claims[some]
        elif step == 4:
            claim.cancel()
            del claims[some]
        elif step == 5:
            less = rng.randrange(size + 1)
            claim.resize(less)
            claims[some] = (claim, less, left - min(size - less, left))
        else:
            held = rng.randrange(8 * GiB)
            card.publish(held)
        figures = card.figures()
        assert figures.own_held == held
        assert figures.own_claimed == sum(left for _, _, left in claims.values())
    for claim, _, _ in claims.values():
        claim.cancel()
    assert card.figures().claimed == 0
    assert card._ledger._check() == []


def test_claims_of_one_thread_wait_while_another_publishes(
    card: memledger.Device, other: Member
) -> None:
    """A claim that waits holds no lock that a hot call needs."""
    other.publish(20 * GiB)
    result: list[Any] = []
    thread = threading.Thread(target=lambda: result.append(card.claim(12 * GiB, timeout=60)))
    thread.start()
    published = 0
    started = time.monotonic()
    while time.monotonic() - started < 0.2:
        card.publish(published % MiB)
        assert card.free() is not None
        published += 1
    card.publish(0)
    other.publish(0)
    thread.join(60)
    assert result[0].checked
    assert published > 100


class Stopped(Exception):
    pass


@pytest.mark.skipif(not hasattr(signal, "SIGUSR1"), reason="needs signals of POSIX")
@pytest.mark.parametrize("way", ["claim", "resize"])
def test_claims_that_wait_end_with_the_exception_of_a_signal_handler(
    card: memledger.Device, other: Member, way: str
) -> None:
    """As Ctrl-C does. Nothing of the claim is left, and the place in line is given up."""
    other.publish(20 * GiB)
    claim = card.claim(1 * GiB)
    main = threading.get_ident()

    def in_the_call() -> bool:
        frame = sys._current_frames()[main]
        names = set()
        while frame:
            names.add(frame.f_code.co_name)
            frame = frame.f_back
        return "waits" in names

    def waits() -> None:
        if way == "claim":
            card.claim(10 * GiB, timeout=60)
        else:
            claim.resize(10 * GiB, timeout=60)

    def handler(*_: object) -> None:
        raise Stopped

    def send() -> None:
        wait_until(in_the_call, watchdog_s=50)
        os.kill(os.getpid(), signal.SIGUSR1)

    before = signal.signal(signal.SIGUSR1, handler)
    sender = threading.Thread(target=send)
    try:
        sender.start()
        with pytest.raises(Stopped):
            waits()
    finally:
        sender.join()
        signal.signal(signal.SIGUSR1, before)
    assert claim.open == 1 * GiB
    assert row(card, other) == (20, 1, 4, 3, 0)
    claim.cancel()
    other.publish(0)
    card.claim(24 * GiB).cancel()
