"""B05, B07: a claim is decided by one step, lives in its owner's slot, and dies with it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import memledger
from helpers.member import plain_device
from helpers.members import Member, RemoteError
from helpers.units import GiB, MiB, count
from helpers.waiting import wait_until

RACER = """
import time
def race(rounds, size, me, others):
    # A barrier per round in a shared file: everybody's counter must reach the round.
    import mmap
    words = memoryview(mmap.mmap(os.open(barrier, os.O_RDWR), 4096)).cast("Q")
    def meet(step):
        words[me] = step
        while any(words[i] < step for i in others):
            pass
    won = []
    step = 0
    for _ in range(rounds):
        step += 1; meet(step)
        claim = device.try_claim(size)
        won.append(claim is not None)
        step += 1; meet(step)
        if claim is not None:
            claim.cancel()
    return "".join("1" if w else "0" for w in won)
"""


def test_b05_of_two_claims_for_most_of_a_card_exactly_one_is_granted(
    spawn: Any, segment: Path
) -> None:
    rounds = count(1500, 10_000)
    barrier = segment.with_name("barrier")
    barrier.write_bytes(bytes(4096))
    racers: list[Member] = [spawn(label, total=1024 * MiB) for label in "ab"]
    for me, racer in enumerate(racers):
        racer.run(f"barrier = {str(barrier)!r}\n{RACER}")
        racer.send_run(f"race({rounds}, {600 * MiB}, {me}, [{1 - me}])")
    first, second = (racer.receive(300) for racer in racers)
    both = sum(a == b == "1" for a, b in zip(first, second, strict=True))
    neither = sum(a == b == "0" for a, b in zip(first, second, strict=True))
    assert (both, neither) == (0, 0), f"of {rounds} rounds {both} granted both, {neither} neither"
    assert racers[0].figures()["claimed"] == 0


@pytest.mark.watchdog(300)
def test_b05_of_many_claims_exactly_those_that_fit_are_granted(spawn: Any) -> None:
    starter: Member = spawn(join=False)
    processes = 64
    for _ in range(count(2, 50)):
        granted, claimed, after = starter.run(
            f"""
import signal, memledger
go, let = os.pipe()
told, tell = os.pipe()
leave, end = os.pipe()
pids = []
for i in range({processes}):
    pid = os.fork()
    if pid == 0:
        os.close(let); os.close(end)
        device = plain_device(memledger.join(label=f"c{{i}}"), "test:card", {1000 * MiB})
        os.write(tell, b"r")
        os.read(go, 1)
        claim = device.try_claim({100 * MiB})
        while claim is None and device.free() >= {100 * MiB}:
            claim = device.try_claim({100 * MiB})
        os.write(tell, b"1" if claim else b"0")
        os.read(leave, 1)
        if claim:
            claim.cancel()
        os.write(tell, b"x")
        os._exit(0)
    pids.append(pid)
os.close(go); os.close(leave)
def hear(n):
    got = b""
    while len(got) < n:
        got += os.read(told, 4096)
    return got
ledger = memledger.join(label="starter")
device = plain_device(ledger, "test:card", {1000 * MiB})
hear({processes}); os.close(let)
granted = hear({processes}).count(b"1")
claimed = device.figures().claimed
os.close(end)
hear({processes})
after = device.figures().claimed
for pid in pids:
    os.waitpid(pid, 0)
ledger.leave()
[granted, claimed, after]
""",
            watchdog_s=120,
        )
        assert (granted, claimed, after) == (10, 1000 * MiB, 0)


def test_b05_refusal_says_what_would_have_fitted(ledger: memledger.Ledger) -> None:
    device = plain_device(ledger, "test:card", 1024 * MiB)
    device.publish(400 * MiB)
    with pytest.raises(memledger.ClaimRefused) as refused:
        device.claim(700 * MiB)
    assert refused.value.wanted == 700 * MiB
    assert refused.value.free == 624 * MiB
    assert refused.value.holders == (("test", 400 * MiB),)
    assert device.figures().claimed == 0


def test_b07_claims_die_with_their_owner(spawn: Any) -> None:
    a, b = spawn("a", total=8 * GiB), spawn("b", total=8 * GiB)
    a.call("claim", 6 * GiB)
    assert b.figures()["claimed_by_others"] == 6 * GiB
    assert b.call("try_claim", 4 * GiB) is None
    a.kill()
    b.call("sweep")
    assert b.figures()["claimed"] == 0
    assert b.call("try_claim", 6 * GiB) is not None


def test_b07_expired_claim_is_dropped_and_does_not_come_back(spawn: Any) -> None:
    a, b = spawn("a", total=8 * GiB), spawn("b", total=8 * GiB)
    number = a.call("claim", 6 * GiB, ttl=0.1)
    wait_until(lambda: b.call("try_claim", 6 * GiB), what="a's housekeeping drops the claim")
    assert a.run(f"claims[{number}].expired")
    for late in ("renew(5)", f"resize({7 * GiB})"):
        with pytest.raises(RemoteError, match="expired") as refused:
            a.run(f"claims[{number}].{late}")
        assert refused.value.kind == "ClaimRefused"
    assert a.figures()["own_claimed"] == 0
    # The memory exists by now: settling publishes it, as growth without a claim.
    a.call("settle", number, 6 * GiB)
    figures = b.figures()
    assert figures["held"] == 6 * GiB
    assert figures["overcommit"] == 4 * GiB


def test_b07_double_cancel_changes_nothing(ledger: memledger.Ledger) -> None:
    device = plain_device(ledger, "test:card", 8 * GiB)
    other = device.claim(2 * GiB)
    claim = device.claim(3 * GiB)
    for _ in range(3):
        claim.cancel()
        assert device.figures().claimed == 2 * GiB
    assert claim.ended
    other.cancel()
    assert device.figures().claimed == 0
    assert device.free() == 8 * GiB


def test_b07_renewed_claim_outlives_its_first_ttl(spawn: Any) -> None:
    a, b = spawn("a", total=8 * GiB), spawn("b", total=8 * GiB)
    number = a.call("claim", 6 * GiB, ttl=0.4)
    short = a.call("claim", GiB, ttl=0.4)
    a.run(f"claims[{number}].renew(60)")
    wait_until(lambda: a.run(f"claims[{short}].expired"), what="the short one expires")
    assert not a.run(f"claims[{number}].expired")
    assert b.figures()["claimed_by_others"] == 6 * GiB
