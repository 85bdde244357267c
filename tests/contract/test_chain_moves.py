"""A process that turns out to draw from another chain takes everything along."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import memledger
from memledger import _native
from memledger.model import KIND_CGROUP, KIND_RAM, DeviceSpec, PoolSpec

GIB = 1 << 30


def spec(*groups: str) -> DeviceSpec:
    levels = (*(PoolSpec(f"cgroup:{g}", kind=KIND_CGROUP) for g in groups),)
    levels = (*levels, PoolSpec("ram:test", kind=KIND_RAM))
    return DeviceSpec("ram", levels, (None,) * len(levels))


def held(ledger: memledger.Ledger, key: str) -> tuple[int, int, int]:
    """(held, pinned, claimed) of a pool, by its key."""
    parts = _native.read_image(ledger.path)[1]
    assert parts is not None
    figures = next(pool["figures"] for pool in parts["pools"] if pool["key"] == key)
    return figures.held, figures.pinned, figures.claimed


class Watch:
    """Says once that the process was moved."""

    def __init__(self) -> None:
        self.answers = [True]

    def changed(self) -> bool:
        return bool(self.answers and self.answers.pop())


@pytest.fixture
def ledger(tmp_path: Path) -> Any:
    with memledger.join(label="mover", path=tmp_path / "segment") as joined:
        yield joined


def test_chain_moves_with_accounts_claims_and_headroom(ledger: memledger.Ledger) -> None:
    """Failure: the old control group keeps bytes of a process that has left it, and the new one
    does not know of them."""
    from memledger.device import Device

    ram = Device(ledger, spec("a"))
    for level in range(2):
        ram._set_level_limit(level, (8 if level == 0 else 64) * GIB)
    cache = ram.account("cache")
    ram.publish(2 * GIB, pinned=GIB)
    cache.publish(GIB, releasable=GIB)
    ram.headroom(GIB)
    claim = ram.claim(3 * GIB)
    assert (ram.free(), held(ledger, "cgroup:a")) == (4 * GIB, (3 * GIB, GIB, 3 * GIB))

    ram._follow_chain(spec("b", "c"))

    assert ram.key == "cgroup:b"
    assert held(ledger, "cgroup:a") == (0, 0, 0)
    for key in ("cgroup:b", "cgroup:c", "ram:test"):
        assert held(ledger, key) == (3 * GIB, GIB, 3 * GIB), key
    assert ram.figures().headroom == GIB
    claim.settle(held=5 * GIB, pinned=GIB)
    cache.publish(0)
    assert held(ledger, "cgroup:c") == (5 * GIB, GIB, 0)
    assert held(ledger, "ram:test") == (5 * GIB, GIB, 0)
    ram._follow_chain(spec("a"))
    assert held(ledger, "cgroup:a") == (5 * GIB, GIB, 0)
    assert held(ledger, "cgroup:b") == (0, 0, 0)
    assert ledger._check() == []


def test_chain_moves_when_the_watch_says_so(
    ledger: memledger.Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Housekeeping asks once a round, and resolves "ram" again."""
    from memledger import ledger as module

    ram = ledger.device("ram")
    ram.publish(GIB)
    before = ram.key
    monkeypatch.setattr(ledger, "_ram_watch", Watch())
    monkeypatch.setattr(module, "resolve", lambda name: spec("moved"))
    ledger._follow_ram()
    assert (ram.key, ledger.device("ram") is ram) == ("cgroup:moved", True)
    assert held(ledger, "cgroup:moved")[0] == GIB
    assert before not in ledger._devices


def test_chain_moves_onto_a_device_in_use_and_forgets_what_it_had_cached(
    ledger: memledger.Ledger,
) -> None:
    """Failures: bytes of the device that was moved onto stayed for ever; and free() answered the
    number of the chain that was left, where the new one has no figure."""
    from memledger.device import Device

    ram, used = Device(ledger, spec("d")), Device(ledger, spec("e"))
    for level in range(2):
        ram._set_level_limit(level, 8 * GIB)
    ram.publish(3 * GIB)
    used.publish(5 * GIB)
    ram.floor(GIB)
    assert ram.free() == 0
    ram._follow_chain(spec("e"))
    assert held(ledger, "cgroup:e")[0] == 8 * GIB
    used.publish(0)
    assert held(ledger, "cgroup:e")[0] == 0
    assert held(ledger, "cgroup:d")[0] == 0
    assert ledger._check() == []


def test_chain_moves_under_a_claim_that_is_settled_through_the_old_handle(
    ledger: memledger.Ledger,
) -> None:
    from memledger.device import Device

    ram = Device(ledger, spec("f"))
    part = ram.account("part")
    ram._set_level_limit(0, 64 * GIB)
    claim = part.claim(3 * GIB)
    old = Device(ledger, spec("f"))
    ram._follow_chain(spec("g"))
    claim.settle(held=2 * GIB)
    old.publish(GIB)  # a handle of the chain that was left: it publishes where the device is now
    assert held(ledger, "cgroup:f") == (0, 0, 0)
    assert held(ledger, "cgroup:g") == (3 * GIB, 0, 0)


def test_chain_move_that_fails_is_tried_again(
    ledger: memledger.Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    from memledger import ledger as module

    ram = ledger.device("ram")
    monkeypatch.setattr(ledger, "_ram_watch", Watch())

    def fails(name: str) -> DeviceSpec:
        raise OSError("not now")

    monkeypatch.setattr(module, "resolve", fails)
    with pytest.raises(OSError, match="not now"):
        ledger._follow_ram()
    monkeypatch.setattr(module, "resolve", lambda name: spec("later"))
    ledger._follow_ram()
    assert ram.key == "cgroup:later"


def test_chain_without_a_figure_answers_none_and_not_what_was_cached(
    ledger: memledger.Ledger,
) -> None:
    from memledger.device import Device

    ram = Device(ledger, spec("h"))
    begun = ledger._reading_begin(ram._pools()[0])
    assert ledger._reading_end(begun, "x", 8 * GIB, 8 * GIB, 0, None, None, "device", None, 0) == 0
    assert ram.free() == 8 * GIB
    ram._follow_chain(spec("i"))
    assert [ram.free(), ram.free(), ram.figures().free] == [None, None, None]
