"""Exceptions carry their parts, say what was expected and what came, and survive a pipe to another
process."""

from __future__ import annotations

import pickle

import pytest

from memledger.errors import (
    ClaimRefused,
    InvalidFigure,
    LayoutMismatch,
    LedgerClosed,
    LedgerError,
    UnknownDevice,
)

GIB = 1 << 30

ALL = [
    ClaimRefused(12 * GIB, 4 * GIB, holders=[("worker", GIB), ("host", 8 * GIB)], device="cuda:0"),
    ClaimRefused(1),
    LedgerClosed(),
    LedgerClosed("device ram"),
    LayoutMismatch((1, 0), (2, 3), "/somewhere"),
    UnknownDevice("cuda:7", "2 devices", ("ram", "GPU-1")),
    InvalidFigure("held -1"),
]


@pytest.mark.parametrize("error", ALL, ids=lambda error: f"{type(error).__name__}")
def test_error_any_is_a_ledger_error_and_pickles_whole(error: LedgerError) -> None:
    """The default pickling of exceptions calls the class with the finished message as its first
    argument."""
    assert isinstance(error, LedgerError)
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is type(error)
    assert str(copy) == str(error)
    assert copy.__dict__ == error.__dict__


def test_claim_refused_message_names_wanted_free_and_holders_largest_first() -> None:
    error = ALL[0]
    assert isinstance(error, ClaimRefused)
    assert (error.wanted, error.free) == (12 * GIB, 4 * GIB)
    assert error.holders == (("host", 8 * GIB), ("worker", GIB))
    for part in ("12.0 GiB", "4.0 GiB free", "cuda:0", "host 8.0 GiB, worker 1.0 GiB"):
        assert part in str(error)


def test_claim_refused_unknown_free_is_none_and_says_so() -> None:
    error = ClaimRefused(5, reason="no reading")
    assert error.free is None
    assert "free is unknown" in str(error)
    assert "no reading" in str(error)


def test_layout_mismatch_message_names_both_versions() -> None:
    error = LayoutMismatch((1, 0), (2, 3), "/somewhere")
    for part in ("1.0", "2.3", "/somewhere"):
        assert part in str(error)


def test_unknown_device_message_lists_candidates() -> None:
    error = UnknownDevice("cuda:7", "2 devices", ("ram", "GPU-1"))
    assert error.candidates == ("ram", "GPU-1")
    assert "'cuda:7'" in str(error)
    assert "ram, GPU-1" in str(error)


def test_invalid_figure_is_a_value_error_too() -> None:
    assert issubclass(InvalidFigure, ValueError)
