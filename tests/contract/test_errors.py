"""Bad arguments: the named exception, with what was expected and what came, and nothing changed."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import memledger
from helpers.member import plain_device
from helpers.units import GiB

TOTAL = 24 * GiB
MAX = (1 << 63) - 1


class Index:
    """Converts without loss, as numpy's ints do."""

    def __init__(self, value: int) -> None:
        self.value = value

    def __index__(self) -> int:
        return self.value


@pytest.fixture
def card(ledger: memledger.Ledger) -> memledger.Device:
    device: memledger.Device = plain_device(ledger, "test:card", TOTAL)
    device.publish(4 * GiB, releasable=2 * GiB, pinned=GiB)
    device.account("named").publish(GiB)
    return device


NOT_BYTES = st.one_of(
    st.booleans(),
    st.floats(allow_nan=True),
    st.text(max_size=5),
    st.binary(max_size=5),
    st.none(),
    st.lists(st.integers(), max_size=2),
    st.complex_numbers(),
    st.fractions(),
    st.decimals(),
)
OUT_OF_RANGE = st.one_of(
    st.integers(max_value=-1),
    st.integers(min_value=1 << 63),
    st.sampled_from([-1, 1 << 63, 1 << 64]),
)


def must_raise(call: Callable[[], Any], number: int) -> None:
    """Says which of many did not."""
    call()
    pytest.fail(f"call {number} raised nothing")


def state(card: memledger.Device) -> tuple[Any, ...]:
    """All that a call could change. Not account_held: housekeeping brings that in when it comes."""
    rows = [(r.slot, r.generation, r.held, r.releasable, r.pinned, r.claimed, r.pending,
             r.headroom, r.limit) for r in card.snapshot().rows]  # fmt: skip
    return (
        card.amounts,
        card.account("named").amounts,
        card.figures(),
        rows,
        card._ledger._info()["rejoin_count"],
    )


@pytest.fixture
def claim(card: memledger.Device) -> memledger.Claim:
    return card.claim(GiB)


def calls_with_bytes(
    card: memledger.Device, claim: memledger.Claim
) -> list[tuple[str, Callable[[Any], Any]]]:
    """Every place that takes a number of bytes."""
    named = card.account("named")
    return [
        ("held", lambda v: card.publish(v)),
        ("held", lambda v: card.publish(held=v)),
        ("releasable", lambda v: card.publish(5 * GiB, releasable=v)),
        ("pinned", lambda v: card.publish(5 * GiB, pinned=v)),
        ("held", lambda v: named.publish(v)),
        ("nbytes", lambda v: card.try_claim(v)),
        ("replacing", lambda v: card.try_claim(GiB, replacing=v)),
        ("nbytes", lambda v: card.claim(v)),
        ("nbytes", lambda v: card.claim(v, 0.01)),
        ("replacing", lambda v: card.claim(GiB, replacing=v)),
        ("nbytes", lambda v: card.claim_first([v])),
        ("nbytes", lambda v: named.claim(v)),
        ("held", lambda v: claim.publish(v)),
        ("held", lambda v: claim.settle(v)),
        ("pinned", lambda v: claim.settle(5 * GiB, pinned=v)),
        ("nbytes", lambda v: claim.resize(v)),
        ("headroom", lambda v: card.headroom(v)),
    ]


@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(value=NOT_BYTES)
def test_errors_what_is_no_int_is_a_type_error(
    card: memledger.Device, claim: memledger.Claim, value: Any
) -> None:
    calls = calls_with_bytes(card, claim)
    before = state(card)
    for name, call in calls:
        if value is None and name == "headroom":
            continue
        with pytest.raises(TypeError) as raised:
            call(value)
        assert name in str(raised.value), (name, str(raised.value))
        assert type(value).__name__ in str(raised.value)
        assert state(card) == before


@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(value=OUT_OF_RANGE)
def test_errors_out_of_range_is_an_invalid_figure(
    card: memledger.Device, claim: memledger.Claim, value: int
) -> None:
    calls = calls_with_bytes(card, claim)
    before = state(card)
    for name, call in calls:
        with pytest.raises(memledger.InvalidFigure) as raised:
            call(value)
        text = str(raised.value)
        assert name in text, text
        assert str(value) in text
        assert "expected" in text
        assert state(card) == before


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(held=st.integers(0, MAX), more=st.integers(1, MAX))
def test_errors_releasable_above_held(
    card: memledger.Device, claim: memledger.Claim, held: int, more: int
) -> None:
    releasable = min(MAX, held + more)
    if releasable == held:
        return
    before = state(card)
    calls: list[Callable[[], Any]] = [
        lambda: card.publish(held, releasable=releasable),
        lambda: card.account("named").publish(held, releasable=releasable),
        lambda: claim.publish(held, releasable=releasable),
        lambda: claim.settle(held, releasable=releasable),
    ]
    for call in calls:
        with pytest.raises(memledger.InvalidFigure, match="releasable") as raised:
            call()
        assert str(releasable) in str(raised.value)
        assert str(held) in str(raised.value)
        assert state(card) == before


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    held=st.integers(-(1 << 64), 1 << 64),
    releasable=st.integers(-(1 << 64), 1 << 64),
    pinned=st.integers(-(1 << 64), 1 << 64),
)
def test_errors_add_that_leaves_the_range_changes_nothing(
    card: memledger.Device, held: int, releasable: int, pinned: int
) -> None:
    card.publish(4 * GiB, releasable=2 * GiB, pinned=GiB)
    before = state(card)
    new = (4 * GiB + held, 2 * GiB + releasable, GiB + pinned)
    fits = (
        all(n >= 0 for n in new)
        and new[1] <= new[0]
        and new[0] + GiB <= MAX  # the named account's GiB is in the same sum
        and new[2] <= MAX
        and all(-(1 << 63) <= d < 1 << 63 for d in (held, releasable, pinned))
    )
    if fits:
        card.add(held, releasable=releasable, pinned=pinned)
        assert card.amounts == new
        return
    with pytest.raises(memledger.InvalidFigure):
        card.add(held, releasable=releasable, pinned=pinned)
    assert state(card) == before


def test_errors_sum_of_accounts_above_the_range_changes_nothing(card: memledger.Device) -> None:
    before = state(card)
    with pytest.raises(memledger.InvalidFigure, match=r"sum|2\^63"):
        card.account("other").publish(MAX)
    with pytest.raises(memledger.InvalidFigure):
        card.account("other").publish(0, pinned=MAX)
    assert state(card) == before


def test_errors_ints_of_other_libraries_are_taken(card: memledger.Device) -> None:
    card.publish(Index(3 * GiB), releasable=Index(GiB))  # type: ignore[arg-type]
    assert card.amounts == (3 * GiB, GiB, 0)
    claim = card.claim(Index(GiB))  # type: ignore[arg-type]
    assert claim.size == GiB
    with pytest.raises(memledger.InvalidFigure, match="-1"):
        card.publish(Index(-1))  # type: ignore[arg-type]


def test_errors_index_that_raises_is_passed_on(card: memledger.Device) -> None:
    class Broken:
        def __index__(self) -> int:
            raise ZeroDivisionError

    before = state(card)
    with pytest.raises(ZeroDivisionError):
        card.publish(Broken())  # type: ignore[arg-type]
    assert state(card) == before


def test_errors_replacing_more_than_is_held(card: memledger.Device) -> None:
    before = state(card)
    for call in (card.claim, card.try_claim):
        with pytest.raises(memledger.InvalidFigure, match="replacing") as raised:
            call(GiB, replacing=4 * GiB + 1)
        assert str(4 * GiB + 1) in str(raised.value)
        assert state(card) == before


BAD_CALLS: dict[str, Callable[[Any, Any], Any]] = {
    "publish without held": lambda d, c: d.publish(),
    "publish by position": lambda d, c: d.publish(1, 1),
    "publish unknown name": lambda d, c: d.publish(1, used=1),
    "publish twice": lambda d, c: d.publish(1, held=1),
    "add by position": lambda d, c: d.add(1, 1),
    "try_claim without size": lambda d, c: d.try_claim(),
    "try_claim unknown name": lambda d, c: d.try_claim(1, timeout=1),
    "claim without size": lambda d, c: d.claim(),
    "claim ttl text": lambda d, c: d.claim(1, ttl="1"),
    "try_claim ttl text": lambda d, c: d.try_claim(1, ttl="1"),
    "claim timeout text": lambda d, c: d.claim(1 << 50, "1"),
    "settle without held": lambda d, c: c.settle(),
    "resize timeout text": lambda d, c: c.resize(1, timeout="x"),
    "renew text": lambda d, c: c.renew("x"),
    "free with argument": lambda d, c: d.free(1),
    "account number": lambda d, c: d.account(5),
    "headroom without": lambda d, c: d.headroom(),
}


@pytest.mark.parametrize("name", BAD_CALLS)
def test_errors_bad_call_is_a_type_error_and_changes_nothing(
    card: memledger.Device, claim: memledger.Claim, name: str
) -> None:
    before = state(card)
    with pytest.raises(TypeError) as raised:
        BAD_CALLS[name](card, claim)
    assert str(raised.value)
    assert state(card) == before


@pytest.mark.parametrize("bad", [-1, -0.5, float("nan"), float("-inf")])
def test_errors_bad_seconds(card: memledger.Device, claim: memledger.Claim, bad: float) -> None:
    before = state(card)
    calls: list[Callable[[], Any]] = [
        lambda: card.claim(1, ttl=bad),
        lambda: card.try_claim(1, ttl=bad),
        lambda: card.claim(1, bad),
        lambda: claim.renew(bad),
        lambda: claim.resize(2 * GiB, timeout=bad),
    ]
    for number, call in enumerate(calls):
        with pytest.raises(ValueError, match="seconds") as raised:
            must_raise(call, number)
        assert repr(bad) in str(raised.value)
        assert state(card) == before


@pytest.mark.parametrize("bad", ["", "x" * 32, "\N{SNOWMAN}" * 11, "a\0b"])
def test_errors_bad_account_name(card: memledger.Device, bad: str) -> None:
    with pytest.raises(ValueError, match=r"31|null"):
        card.account(bad)


def test_errors_refusal_says_everything_and_travels(card: memledger.Device) -> None:
    with pytest.raises(memledger.ClaimRefused) as raised:
        card.claim(100 * GiB)
    error = raised.value
    assert (error.wanted, error.free) == (100 * GiB, 19 * GiB)
    assert error.holders == (("test", 5 * GiB),)
    for part in ("100.0 GiB", "19.0 GiB", "test:card", "test 5.0 GiB"):
        assert part in str(error)
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), again.wanted, again.free) == (str(error), error.wanted, error.free)


def test_errors_all_derive_from_one() -> None:
    for name in (
        "ClaimRefused",
        "LedgerClosed",
        "LayoutMismatch",
        "UnknownDevice",
        "InvalidFigure",
    ):
        assert issubclass(getattr(memledger, name), memledger.LedgerError)
    assert issubclass(memledger.InvalidFigure, ValueError)


def test_errors_after_leave_every_call_says_closed(ledger: memledger.Ledger) -> None:
    device = plain_device(ledger, "test:card", TOTAL)
    account = device.account("a")
    device.publish(GiB)
    claim = device.claim(GiB)
    assert device.free() == 23 * GiB
    device.figures()
    ledger.leave()
    ledger.leave()
    calls: list[Callable[[], Any]] = [
        device.free, device.available, device.budget, device.figures, device.total,
        device.claimed_by_others, lambda: device.publish(1), lambda: device.add(1),
        lambda: device.try_claim(1), lambda: device.claim(1), lambda: device.claim_first([1]),
        lambda: account.publish(1), lambda: account.try_claim(1), lambda: claim.publish(1),
        lambda: claim.settle(1), lambda: device.headroom(1),
        lambda: ledger.device("sim:other?total=1GiB"), lambda: claim.renew(1),
        lambda: claim.resize(2 * GiB),
    ]  # fmt: skip
    for number, call in enumerate(calls):
        with pytest.raises(memledger.LedgerClosed, match="join"):
            must_raise(call, number)
    claim.cancel()
    with claim:
        pass
    assert claim.ended
    assert ledger.path.endswith(str(os.getuid()) if hasattr(os, "getuid") else "")
    assert memledger.join(label="again") is not ledger


def test_errors_unknown_devices_name_what_would_work(ledger: memledger.Ledger) -> None:
    for name in ("cuda:99", "GPU-nonsense", "tpu:0", "", "sim:", "sim:a b", "sim:x?total=1G",
                 "sim:x?color=red", 5, None, object()):  # fmt: skip
        with pytest.raises((memledger.UnknownDevice, memledger.InvalidFigure)) as raised:
            ledger.device(name)
        assert str(raised.value)


@pytest.mark.parametrize("bad", [-1, 1 << 63, 1.5, True, "24G", "x", b"24GiB", [1]])
def test_errors_bad_totals(ledger: memledger.Ledger, bad: Any) -> None:
    with pytest.raises((TypeError, memledger.InvalidFigure)):
        ledger.device("sim:card", total=bad)
    assert memledger.sim.existing() == ()


def test_errors_join(segment: Path) -> None:
    with pytest.raises(ValueError, match=r"host.*got 'king'"):
        memledger.join(role="king")
    with pytest.raises(TypeError):
        memledger.join(label=5)  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        memledger.join(path=5)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="512"):
        memledger.join(path="/dev/shm/" + "x" * 600)
    ledger = memledger.join(label="x" * 500)
    assert [m.label for m in ledger.members()] == ["x" * 63]


def test_errors_labels_stay_printable_wherever_they_are_cut(segment: Path) -> None:
    ledger = memledger.join(label="loader\n\x1b[31m")
    label = ledger.members()[0].label
    assert label.startswith("loader")
    assert label.isprintable()
    ledger.leave()
    for shift in range(4):  # 63 bytes end inside a character
        with memledger.join(label="x" * shift + "\N{SNOWMAN}" * 100) as ledger:
            assert ledger.members()[0].label.startswith("x" * shift)
