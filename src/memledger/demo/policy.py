"""The decisions of the demo: figures in, decision out.

Pure functions, used alike by the runs without the ledger, the runs with it, and the oracle. So
where two runs decide differently, their figures differed, and nothing else did.
"""

from __future__ import annotations

from typing import NamedTuple

GIB = 1 << 30

_BYTES_PER_FP8_BYTE = {"fp16": 2, "fp8": 1}


class Figures(NamedTuple):
    """What a process knows when it decides, in bytes."""

    free: int
    """what it may take now"""
    budget: int
    """what it may own, `held` included"""
    held: int
    """what it owns"""


class Checkpoint(NamedTuple):
    """A model on disk, in fp8; in fp16 its weights are twice that."""

    fp8_bytes: int
    activation_bytes: int = 0
    dtypes: tuple[str, ...] = ("fp16", "fp8")
    """The ones to choose from, the best first."""


class Step(NamedTuple):
    """One sampler step over up to `most` images."""

    image_bytes: int
    most: int


def weights_bytes(checkpoint: Checkpoint, dtype: str) -> int:
    return checkpoint.fp8_bytes * _BYTES_PER_FP8_BYTE[dtype]


def load_bytes(checkpoint: Checkpoint, dtype: str) -> int:
    """By which a load in that dtype makes the process grow: weights and activations."""
    return weights_bytes(checkpoint, dtype) + checkpoint.activation_bytes


def dtypes_that_fit(checkpoint: Checkpoint, figures: Figures) -> tuple[str, ...]:
    """The best first; empty where the load has to wait."""
    return tuple(
        dtype
        for dtype in checkpoint.dtypes
        if figures.held + load_bytes(checkpoint, dtype) <= figures.budget
    )


def choose_dtype(checkpoint: Checkpoint, figures: Figures) -> str | None:
    """The best dtype that fits in the budget; None: none does."""
    return next(iter(dtypes_that_fit(checkpoint, figures)), None)


def choose_batch(step: Step, figures: Figures) -> int:
    """As many images as two thirds of what is free hold: a sampler that takes it all starves its
    next step. 0: not even one image fits."""
    batch = min(step.most, 2 * figures.free // (3 * step.image_bytes))
    return batch or int(figures.free >= step.image_bytes)


def step_bytes(step: Step, batch: int) -> int:
    return step.image_bytes * batch
