"""Sizes, and how often a test repeats what it repeats."""

from __future__ import annotations

import os
import random

KiB, MiB, GiB = 1 << 10, 1 << 20, 1 << 30
UNIT = 4 * KiB
"""Claims are counted in these, so `free()` may be below the exact sum by one of them per member."""


def is_long() -> bool:
    """The long suite: `pytest --long`, or MEMLEDGER_LONG=1."""
    return os.environ.get("MEMLEDGER_LONG", "") not in ("", "0")


def count(short: int, long: int) -> int:
    """How many rounds: `short` in the default run, `long` in the long suite."""
    return long if is_long() else short


def seeded(name: str) -> random.Random:
    """A random source whose seed is printed, so that a failure can be repeated with
    MEMLEDGER_SEED=<seed>."""
    seed = int(os.environ.get("MEMLEDGER_SEED", "") or random.SystemRandom().getrandbits(32))
    print(f"{name}: MEMLEDGER_SEED={seed}")
    return random.Random(seed)
