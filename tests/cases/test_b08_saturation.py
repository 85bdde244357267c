"""B08: no subtraction ever wraps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import memledger
from helpers.member import plain_device
from helpers.raw import Raw
from helpers.units import GiB

U64 = st.one_of(
    st.integers(0, (1 << 64) - 1),
    st.sampled_from([0, 1, (1 << 63) - 1, 1 << 63, (1 << 64) - 1, 24 * GiB]),
)
FIGURE = st.integers(0, (1 << 63) - 1)


def test_b08_more_held_than_total_shows_zero_free_and_the_excess(spawn: Any) -> None:
    a, b = spawn("a", total=8 * GiB), spawn("b", total=8 * GiB)
    a.publish(5 * GiB)
    b.publish(6 * GiB)
    figures = a.figures()
    assert figures["free"] == 0
    assert figures["overcommit"] == 3 * GiB
    assert figures["total"] == 8 * GiB
    assert a.free() == 0


def test_b08_total_lowered_under_what_is_held(spawn: Any) -> None:
    a: Any = spawn("a", total=8 * GiB)
    a.publish(6 * GiB)
    b: Any = spawn("b", total=4 * GiB)
    assert b.figures()["free"] == 0
    assert b.figures()["overcommit"] == 2 * GiB
    assert a.figures()["budget"] == 4 * GiB


@settings(
    max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(total=st.integers(1, (1 << 63) - 1), figures=st.lists(FIGURE, min_size=3, max_size=3))
def test_b08_free_stays_between_zero_and_total(
    ledger: memledger.Ledger, total: int, figures: list[int]
) -> None:
    device = plain_device(ledger, "test:card", total)
    held, pinned, headroom = figures
    device.headroom(headroom)
    device.publish(held, releasable=held // 2, pinned=pinned)
    seen = device.figures()
    for value in (seen.free, seen.available, seen.budget, device.free()):
        assert isinstance(value, int)
        assert 0 <= value <= total
    assert seen.overcommit is not None
    assert 0 <= seen.overcommit < 1 << 64


@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(words=st.lists(U64, min_size=8, max_size=8), raw_word=U64)
def test_b08_any_bytes_in_a_foreign_record_keep_free_within_total(
    ledger: memledger.Ledger, segment: Path, words: list[int], raw_word: int
) -> None:
    """Another member's record filled with any 64-bit values, as a broken build might."""
    total = 24 * GiB
    device = plain_device(ledger, "test:card", total)
    device.publish(GiB)
    with Raw(segment) as raw:
        pool, slot = 0, 3
        at = raw.record_word(pool, slot)
        publishers = (raw[9] + pool * raw[10]) // 8 + 12
        raw[publishers] |= 1 << slot
        raw[at + 1] = raw_word
        for copy in range(4):
            for field in range(5):
                raw[at + 16 + 8 * copy + field] = words[field]
        raw[at] = words[5]
        device.publish(GiB)  # so that nothing cached answers
        seen = device.figures()
        assert seen.free is not None
        assert 0 <= seen.free <= total
        assert seen.available is not None
        assert 0 <= seen.available <= total
        assert seen.budget is not None
        assert 0 <= seen.budget <= total
        for row in device.snapshot().rows:
            assert row.releasable <= row.held
        for word in range(48):
            raw[at + word] = 0
        raw[publishers] &= ~(1 << slot)
