"""The demo's decisions: figures in, decision out."""

from __future__ import annotations

import pytest

from memledger.demo.policy import (
    GIB,
    Checkpoint,
    Figures,
    Step,
    choose_batch,
    choose_dtype,
    dtypes_that_fit,
    load_bytes,
    step_bytes,
    weights_bytes,
)

CHECKPOINT = Checkpoint(fp8_bytes=12 * GIB, activation_bytes=2 * GIB)


def figures(free: int, *, held: int = 0) -> Figures:
    return Figures(free=free, budget=free + held, held=held)


@pytest.mark.parametrize(
    ("free", "expected"),
    [
        (48 * GIB, "fp16"),
        (26 * GIB, "fp16"),
        (26 * GIB - 1, "fp8"),
        (14 * GIB, "fp8"),
        (14 * GIB - 1, None),
        (0, None),
    ],
)
def test_dtype_is_the_best_that_fits_with_its_activations(free: int, expected: str | None) -> None:
    assert choose_dtype(CHECKPOINT, figures(free)) == expected


def test_dtype_own_bytes_do_not_count_as_room() -> None:
    assert choose_dtype(CHECKPOINT, figures(20 * GIB, held=10 * GIB)) == "fp8"


def test_dtypes_that_fit_best_first() -> None:
    assert dtypes_that_fit(CHECKPOINT, figures(48 * GIB)) == ("fp16", "fp8")
    assert dtypes_that_fit(CHECKPOINT._replace(dtypes=("fp8",)), figures(48 * GIB)) == ("fp8",)
    assert dtypes_that_fit(CHECKPOINT, figures(0)) == ()


def test_load_fp16_is_twice_fp8_and_the_activations_stay() -> None:
    assert weights_bytes(CHECKPOINT, "fp16") == 24 * GIB
    assert weights_bytes(CHECKPOINT, "fp8") == 12 * GIB
    assert load_bytes(CHECKPOINT, "fp16") == 26 * GIB


@pytest.mark.parametrize(
    ("free", "batch"),
    [
        (48 * GIB, 8),
        (12 * GIB, 8),
        (12 * GIB - 1, 7),
        (4 * GIB, 2),
        (int(1.5 * GIB), 1),
        (GIB, 1),
        (GIB - 1, 0),
        (0, 0),
    ],
)
def test_batch_is_two_thirds_of_free_at_most_the_wish(free: int, batch: int) -> None:
    step = Step(image_bytes=GIB, most=8)
    assert choose_batch(step, figures(free)) == batch
    assert step_bytes(step, batch) <= free
