"""B07: claims that leak, never expire, or come back after expiry."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import memledger
from helpers.member import plain_device
from helpers.members import Member, RemoteError
from helpers.units import GiB

Spawn = Callable[..., Member]
Until = Callable[..., Any]
TOTAL = 8 * GiB


def test_b07_claim_of_a_killed_process_goes_with_it(
    ledger: memledger.Ledger, spawn: Spawn, wait_until: Until
) -> None:
    device = plain_device(ledger, "test:card", TOTAL)
    a = spawn("A", total=TOTAL)
    a.call("claim", 6 * GiB)
    assert device.claimed_by_others() == 6 * GiB
    a.kill()
    wait_until(lambda: ledger.sweep() or device.claimed_by_others() == 0)
    assert device.free() == TOTAL


def test_b07_expired_claim_does_not_come_back(
    ledger: memledger.Ledger, spawn: Spawn, wait_until: Until
) -> None:
    """A claims 6 for 100 ms; renew is refused afterwards; its settle is growth without a claim."""
    device = plain_device(ledger, "test:card", TOTAL)
    a = spawn("A", total=TOTAL)
    number = a.call("claim", 6 * GiB, ttl=0.1)
    wait_until(lambda: a.run(f"claims[{number}].expired"))
    with pytest.raises(RemoteError) as refused:
        a.run(f"claims[{number}].renew(10)")
    assert refused.value.kind == "ClaimRefused"
    assert "expired" in refused.value.text
    granted = device.try_claim(6 * GiB)
    assert granted is not None, "its owner's housekeeping has dropped the claim"
    a.call("settle", number, 6 * GiB)
    figures = device.figures()
    assert (figures.held, figures.own_claimed) == (6 * GiB, 6 * GiB)
    assert figures.overcommit == 4 * GiB


def test_b07_cancel_twice_changes_nothing(ledger: memledger.Ledger) -> None:
    device = plain_device(ledger, "test:card", TOTAL)
    device.publish(GiB)
    kept = device.claim(2 * GiB)
    claim = device.claim(3 * GiB)
    for _ in range(3):
        claim.cancel()
        assert device.figures().own_claimed == 2 * GiB
        assert device.figures().held == GiB
    kept.cancel()
    assert device.free() == TOTAL - GiB
