"""One device under two names, a chain, one process's own view, and whose doing a change was."""

from __future__ import annotations

from pathlib import Path

import pytest

import memledger
from memledger import _native

GIB = 1 << 30
OK = 0


def ledger(path: Path) -> _native.Ledger:
    return _native.Ledger(path=str(path), label="test")


def device(handle: _native.Ledger, *names: str, limit: int | None = 24 * GIB) -> _native.Device:
    made = _native.Device(handle, ((names[0], names[1:], 0, 0),))
    made._set_limit(limit)
    return made


def test_device_known_by_two_names_ends_in_one_pool_without_losing_bytes(tmp_path: Path) -> None:
    """Failure: two processes know a card by uuid and by PCI address only; each has a pool of its
    own, and both see 24 GiB free."""
    by_uuid, by_pci, by_both = (ledger(tmp_path / "segment") for _ in range(3))
    first = device(by_uuid, "GPU-1234")
    second = device(by_pci, "pci:0000:01:00.0")
    first.publish(held=5 * GIB)
    second.publish(held=7 * GIB, releasable=GIB, pinned=2 * GIB)
    claim = second.try_claim(GIB)
    assert claim is not None
    assert (first.free(), second.free()) == (19 * GIB, 17 * GIB)

    both = device(by_both, "GPU-1234", "pci:0000:01:00.0")
    second.free()  # notices, and moves; housekeeping does the same within a period

    for seen in (first, second, both):
        figures = seen.figures()
        assert (figures.held, figures.releasable, figures.pinned, figures.claimed) == (
            12 * GIB,
            GIB,
            2 * GIB,
            GIB,
        )
    assert both.free() == 11 * GIB
    claim.settle(held=8 * GIB)
    assert both.free() == 11 * GIB
    pools = _native.read_image(str(tmp_path / "segment"))[1]
    assert pools is not None
    assert len(pools["pools"]) == 1
    assert pools["findings"] == []


def test_device_merged_away_is_left_by_housekeeping_alone(tmp_path: Path) -> None:
    """A member that makes no call meanwhile moves at its next round."""
    by_pci, by_both = ledger(tmp_path / "segment"), ledger(tmp_path / "segment")
    second = device(by_pci, "pci:0000:02:00.0")
    second.publish(held=7 * GIB)
    device(by_both, "GPU-77")
    both = device(by_both, "GPU-77", "pci:0000:02:00.0")
    third = ledger(tmp_path / "segment")
    both = device(third, "GPU-77", "pci:0000:02:00.0")
    by_pci._tick()
    assert both.figures().held == 7 * GIB


def test_process_scope_reading_stays_with_its_reader(tmp_path: Path) -> None:
    """Where nobody sees the whole card, free is the smaller of the own view and of what the ledger
    leaves: min(F_own, T - headroom - sum(H) - sum(C of the others))."""
    one, two = ledger(tmp_path / "segment"), ledger(tmp_path / "segment")
    mine, theirs = (device(handle, "GPU-9", limit=None) for handle in (one, two))
    one._reading_local(
        mine._pools()[0], "hip", 24 * GIB, 20 * GIB, 0, None, None, "process", None, 0
    )
    assert mine.free() == 20 * GIB
    assert theirs.free() is None  # not in the segment
    theirs.publish(held=12 * GIB)
    figures = mine.figures()
    assert (figures.free, figures.scope, figures.complete) == (12 * GIB, "process", False)
    refused = mine._claim_run(12 * GIB + 1, 0, None, 0.0)
    assert refused[0] != OK
    one._reading_local(
        mine._pools()[0], "hip", 24 * GIB, 3 * GIB, 0, None, None, "process", None, 0
    )
    assert mine.free() == 3 * GIB
    assert mine._claim_run(4 * GIB, 0, None, 0.0)[0] != OK
    granted = mine._claim_run(3 * GIB, 0, None, 0.0)
    assert granted[0] == OK
    one._reading_local(
        mine._pools()[0], "hip", None, None, 0, None, None, "none", "probe_failed", 0
    )
    assert mine.free() is None


def test_delta_tells_own_from_others_from_unaccounted(tmp_path: Path) -> None:
    with memledger.join(label="a", path=tmp_path / "segment") as first:
        name = f"delta-{tmp_path.name}"
        gpu = first.device(f"sim:{name}?total=24GiB")
        card = memledger.sim.Card(name)
        sibling = device(ledger(tmp_path / "segment"), f"sim:{name}", limit=None)
        try:
            with gpu.delta() as change:
                gpu.publish(held=2 * GIB)
                block = card.alloc(2 * GIB)
                sibling.publish(held=3 * GIB)
                other = card.alloc(3 * GIB)
                card.foreign(GIB)
            assert (change.own, change.others, change.unaccounted) == (-2 * GIB, -3 * GIB, -GIB)
            with gpu.delta() as back:
                other.free()
                sibling.publish(held=0)
            assert (back.own, back.others) == (0, 3 * GIB)
            block.free()
        finally:
            card.close()
            memledger.sim.remove(name)


@pytest.mark.parametrize("levels", [1, 2, 4])
def test_chain_takes_the_smallest_level(tmp_path: Path, levels: int) -> None:
    handle = ledger(tmp_path / "segment")
    totals = [24, 16, 12, 64][:levels]
    for index, total in enumerate(totals):
        device(handle, f"sim:level{index}", limit=total * GIB)
    chain = _native.Device(
        handle, tuple((f"sim:level{index}", (), 3, 0) for index in range(levels))
    )
    assert chain.free() == min(totals) * GIB
    chain.publish(held=2 * GIB)
    assert chain.figures().free == (min(totals) - 2) * GIB
    assert chain.figures().level == totals.index(min(totals))


def test_two_names_open_in_one_process_become_one_sum(tmp_path: Path) -> None:
    """Failure: after the merge both names wrote the same record, each over the other's sum, and a
    claim of bytes that were held was granted."""
    both, knows, stranger = (ledger(tmp_path / "segment") for _ in range(3))
    first, second = device(both, "GPU-a1"), device(both, "pci:0000:0a:00.0")
    first.publish(held=10 * GIB)
    second.publish(held=5 * GIB)
    device(knows, "GPU-a1", "pci:0000:0a:00.0")
    both._tick()
    seen = device(stranger, "GPU-a1")
    assert seen.figures().held == 15 * GIB
    first.publish(held=11 * GIB)
    assert seen.figures().held == 16 * GIB
    second.publish(held=0)
    assert seen.figures().held == 11 * GIB
    assert seen._claim_run(14 * GIB, 0, None, 0.0)[0] != OK
    assert stranger._check() == []


def test_claim_on_an_entry_that_was_merged_away_looks_at_the_other(tmp_path: Path) -> None:
    """Failure: a member that had not noticed the merge yet claimed against an entry which the
    others had left already."""
    holder, late, knows = (ledger(tmp_path / "segment") for _ in range(3))
    device(knows, "GPU-b1")  # first, so that it is the entry which stays
    held = device(holder, "pci:0000:0b:00.0")
    behind = device(late, "pci:0000:0b:00.0")
    held.publish(held=20 * GIB)
    device(ledger(tmp_path / "segment"), "GPU-b1", "pci:0000:0b:00.0")
    holder._tick()
    assert behind._claim_run(20 * GIB, 0, None, 0.0)[0] != OK
    assert behind._claim_run(4 * GIB, 0, None, 0.0)[0] == OK


def test_leaving_takes_the_ring_of_readings_along(tmp_path: Path) -> None:
    """Failure: a reading that was on its way when its member left was written into the next
    owner's ring."""
    one, two = ledger(tmp_path / "segment"), ledger(tmp_path / "segment")
    mine = device(one, "GPU-c1", limit=None)
    theirs = device(two, "GPU-c1", limit=None)
    begun = one._reading_begin(mine._pools()[0])
    one._leave()
    ledger(tmp_path / "segment")  # takes the slot
    status = one._reading_end(begun, "x", GIB, GIB, 0, None, None, "device", None, 0)
    assert status != OK
    assert theirs.free() is None
