"""Row 6: the free figure that ComfyUI sizes its batches by."""

from __future__ import annotations

from typing import Any

import pytest

from memledger import sim

GIB = 1 << 30


def test_free_without_claims_is_upstreams(comfy: Any, card: sim.Card) -> None:
    assert comfy.start_host() is not None
    assert comfy.mm.get_free_memory() == card.free()


def test_free_lacks_what_a_sibling_was_promised(comfy: Any, card: sim.Card, sibling: Any) -> None:
    context = comfy.start_host()
    sibling.call("claim", 6 * GIB)
    assert context.link.device("cuda:0").claimed_by_others() == 6 * GIB
    assert comfy.mm.get_free_memory() == card.free() - 6 * GIB
    total, torch_free = comfy.mm.get_free_memory(torch_free_too=True)
    assert (total, torch_free) == (card.free() - 6 * GIB, 0)
    with context.link.raw():
        assert comfy.mm.get_free_memory() == card.free()


def test_free_is_never_below_the_floor(comfy: Any, card: sim.Card, sibling: Any) -> None:
    comfy.start_host()
    sibling.call("claim", 24 * GIB)
    free = comfy.mm.get_free_memory()
    assert isinstance(free, int)
    assert free == card.free() // 64


def test_free_is_upstreams_where_it_is_switched_off(
    comfy: Any, card: sim.Card, sibling: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MEMLEDGER_COMFY_FREE", "off")
    context = comfy.start_host()
    assert context.status["free"] == "MEMLEDGER_COMFY_FREE=off"
    sibling.call("claim", 6 * GIB)
    assert comfy.mm.get_free_memory() == card.free()


def test_free_is_upstreams_after_the_ledger_was_left(comfy: Any, card: sim.Card) -> None:
    context = comfy.start_host()
    comfy.mm.get_free_memory()
    context.link.ledger.leave()
    assert comfy.mm.get_free_memory() == card.free()
