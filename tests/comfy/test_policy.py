"""The decisions, by tables and by chance: figures in, decision out."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.adapters import load

GIB = 1 << 30
MIB = 1 << 20
bytes_ = st.integers(0, 1 << 48)


policy = load("policy")


@pytest.mark.parametrize(
    ("upstream", "claimed", "unseen", "expected"),
    [
        (10 * GIB, 0, 0, 10 * GIB),
        (10 * GIB, None, 0, 10 * GIB),
        (10 * GIB, 4 * GIB, 0, 6 * GIB),
        (10 * GIB, 4 * GIB, 2 * GIB, 4 * GIB),
        (10 * GIB, 10 * GIB, 0, 10 * GIB // 64),
        (10 * GIB, 99 * GIB, 0, 10 * GIB // 64),
        (1 * GIB, 1 * GIB, 0, 64 * MIB),
        (10 * MIB, 0, 0, 10 * MIB),
        (10 * MIB, 1 * GIB, 0, 10 * MIB),  # never more than upstream's own
        (0, 0, 0, 1),
        (-5, 0, 0, 1),
        (1e9, 0, 0, 10**9),
    ],
)
def test_coherent_free(upstream: float, claimed: int | None, unseen: int, expected: int) -> None:
    assert policy.coherent_free(upstream, claimed, unseen) == expected


@given(bytes_, bytes_, bytes_)
def test_coherent_free_is_positive_and_above_the_floor(up: int, claimed: int, unseen: int) -> None:
    value = policy.coherent_free(up, claimed, unseen)
    assert isinstance(value, int)
    assert value >= max(1, min(up, max(64 * MIB, up // 64)))
    assert value <= max(1, up)


@given(bytes_, bytes_, bytes_)
def test_what_a_free_gave_is_the_difference_of_two_figures(
    before: int, given_back: int, claimed: int
) -> None:
    """comfy-env's receipts: after less before. True as long as neither end is at the floor."""
    low, high = (policy.coherent_free(n, claimed) for n in (before, before + given_back))
    if low == before - claimed:
        assert high - low == given_back


@given(st.floats(0, 1e12), st.integers(1, 1 << 40))
def test_torch_free_is_part_of_the_total(torch_free: float, total: int) -> None:
    assert 0 <= policy.coherent_torch_free(torch_free, total) <= total


@pytest.mark.parametrize("everything", [1e30, 1e32, math.inf, math.nan, 10**18])
def test_everything_is_not_a_size(everything: float) -> None:
    assert policy.is_everything(everything)
    assert policy.shortfall(everything, 0) == 0


@pytest.mark.parametrize(
    ("required", "free", "evictable", "expected"),
    [
        (10, 4, 0, 6),
        (10, 4, 2, 4),
        (10, 40, 0, 0),
        (10, -5, 0, 15),
        (10.5, 4, 0, 6),
        (10, 4, 99, 0),
        (999 * 10**15, 0, 0, 999 * 10**15),
    ],
)
def test_shortfall(required: float, free: float, evictable: float, expected: int) -> None:
    assert policy.shortfall(required, free, evictable) == expected


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"reserved": 10, "active": 4}, (10, 6)),
        ({"reserved": 10, "active": 4, "evictable": 3}, (10, 9)),
        ({"reserved": 10, "active": 4, "pager": 25}, (25, 6)),  # never the sum
        ({"reserved": 10, "active": 4, "pager": 5}, (10, 6)),
        ({"reserved": 10, "active": 4, "context": 2}, (12, 6)),
        ({"reserved": 10, "active": 4, "evictable": 99}, (10, 10)),
        ({"reserved": 10, "active": 14}, (10, 0)),
        ({"reserved": 10, "active": 4, "parts": (5, -2)}, (15, 4)),
        ({"reserved": 10, "active": 4, "parts": (0, -99)}, (10, 0)),
        ({"reserved": 0, "active": 0, "parts": (-5, 5)}, (0, 0)),
    ],
)
def test_held(arguments: dict[str, Any], expected: tuple[int, int]) -> None:
    assert policy.held(**arguments) == expected


@given(bytes_, bytes_, st.none() | bytes_, bytes_, bytes_, st.tuples(bytes_, bytes_))
def test_held_is_what_a_ledger_takes(
    reserved: int, active: int, pager: int | None, context: int, evict: int, parts: tuple[int, int]
) -> None:
    for signed in (parts, (-parts[0], parts[1]), (parts[0], -parts[1])):
        held, releasable = policy.held(reserved, active, pager, context, evict, signed)
        assert 0 <= releasable <= held


@pytest.mark.parametrize(
    ("weights", "inference", "covered", "idle", "expected"),
    [
        (8, 2, 0, 0, 10),
        (8, 2, 1, 0, 9),
        (8, 2, 5, 0, 8),  # what covers the inference covers no weights
        (8, 2, 0, 3, 7),
        (8, 2, 0, 99, 0),
        (0, 2.7, 0, 0, 2),
    ],
)
def test_load_claim(weights: int, inference: float, covered: int, idle: int, expected: int) -> None:
    assert policy.load_claim(weights, inference, covered, idle) == expected


@pytest.mark.parametrize(
    ("upstream", "free", "own", "inference", "expected"),
    [
        (40, 50, 0, 1, 40),
        (40, 20, 0, 1, 19),
        (40, 20, 10, 1, 29),
        (40, None, 10, 1, 40),
        (40, 0, 0, 1, 1),
        (-3, 20, 0, 1, -3),
    ],
)
def test_vram_for_weights(
    upstream: float, free: int | None, own: int, inference: float, expected: float
) -> None:
    assert policy.vram_for_weights(upstream, free, own, inference) == expected


@given(st.floats(-1e12, 1e12), st.integers(1, 1 << 48))
def test_a_refused_dtype_does_not_pass_the_gate(limit: float, needed: int) -> None:
    refused = policy.refuse_dtype(limit, needed)
    assert needed > refused
    assert refused <= limit


@pytest.mark.parametrize(
    ("each", "batch", "idle", "expected"),
    [
        (10, 8, 0, [80, 40, 20, 10]),
        (10, 5, 0, [50, 20, 10]),
        (10, 1, 0, [10]),
        (10, 8, 25, [55, 15]),
        (10, 0, 0, []),
        (0, 8, 0, []),
        (1e30, 8, 0, []),
        (math.nan, 8, 0, []),
    ],
)
def test_batch_claims(each: float, batch: int, idle: int, expected: list[int]) -> None:
    assert policy.batch_claims(each, batch, idle) == expected


@pytest.mark.parametrize(
    ("shape", "dimensions", "video", "expected"),
    [
        ((2, 64, 48, 3), 2, True, (2, 3, 64, 48)),
        ((9, 64, 48, 3), 3, True, (1, 3, 9, 64, 48)),
        ((9, 64, 48, 3), 3, False, (9, 3, 1, 64, 48)),
        ((1, 9, 64, 48, 3), 3, True, (1, 3, 9, 64, 48)),
        ((2, 3000, 2), 1, True, (2, 2, 3000)),
    ],
)
def test_encode_shape(
    shape: tuple[int, ...], dimensions: int, video: bool, expected: tuple[int, ...]
) -> None:
    assert policy.encode_shape(shape, dimensions, video) == expected


@given(bytes_, bytes_, bytes_)
def test_tiles_take_no_more_than_there_is(total: int, free: int, releasable: int) -> None:
    share = int(policy.tile_total(total, free, releasable) * 0.8)
    assert share <= max(64 * MIB, free + releasable)
    assert policy.tile_total(total, free, releasable) <= total


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("CUDA out of memory. Tried to allocate 2.50 GiB. GPU 0 has", 5 * GIB // 2),
        ("Tried to allocate 20.00 MiB (GPU 0; 24 GiB total)", 20 * MIB),
        ("HIP out of memory. Tried to allocate 512 bytes", 512),
        ("Tried to allocate 1.2.3 GiB", 0),
        ("out of memory", 0),
        ("", 0),
    ],
)
def test_wanted_bytes(message: str, expected: int) -> None:
    assert policy.wanted_bytes(message) == expected
