"""B47: each process thinks it is alone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import memledger
from helpers.members import Member, RemoteError
from helpers.units import GiB
from memledger import sim

Spawn = Callable[..., Member]


def test_b47_claims_headroom_and_unaccounted_bound_everybody(segment: Path, spawn: Spawn) -> None:
    """Total 24, headroom 2, 1 used by nobody that is known. A claims 14; B's 10 do not fit beside
    it, and it hears how much would; A settles at 14 and releases 8; then they fit."""
    ledger = memledger.join(label="looks")
    card = ledger.device("sim:b47?total=24GiB")
    card.headroom(2 * GiB)
    sim.open_url("b47").foreign(GiB)
    card.refresh(max_age_s=0)
    a, b = spawn("A"), spawn("B")
    for member in (a, b):
        member.call("open", "sim:b47")
    claim = a.call("claim", 14 * GiB)
    with pytest.raises(RemoteError) as refused:
        b.call("claim", 10 * GiB)
    assert (refused.value.kind, refused.value.free) == ("ClaimRefused", 7 * GiB)
    # What it has landed is on the card, and in the ledger.
    a.run(
        "import memledger.sim as sim\ncard = sim.open_url('b47')\n"
        "blocks = [card.alloc(6 << 30), card.alloc(8 << 30)]\nNone"
    )
    a.call("settle", claim, 14 * GiB)
    assert b.call("try_claim", 10 * GiB) is None
    a.run("blocks.pop().free()\ndevice.publish(6 << 30)")
    assert b.call("claim", 10 * GiB) == 1
    figures = card.snapshot().figures
    assert (figures.held, figures.claimed, figures.headroom) == (6 * GiB, 10 * GiB, 2 * GiB)
    assert figures.free is not None
    assert figures.free <= 5 * GiB
    assert {m.label for m in ledger.members()} == {"looks", "A", "B"}


def test_b47_view_covers_members_and_what_nobody_accounts_for(segment: Path, spawn: Spawn) -> None:
    ledger = memledger.join(label="looks")
    card = ledger.device("sim:b47?total=24GiB")
    sim.open_url("b47").foreign(GiB)
    other = spawn("other")
    other.call("open", "sim:b47")
    other.run(
        "import memledger.sim as sim\nblock = sim.open_url('b47').alloc(5 << 30)\n"
        "device.publish(5 << 30)"
    )
    card.refresh(max_age_s=0)
    figures = card.snapshot().figures
    assert (figures.held, figures.unaccounted, figures.free) == (5 * GiB, GiB, 18 * GiB)
