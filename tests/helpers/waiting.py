"""Waiting for something that will be so, in place of sleeping for as long as it usually takes."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

WATCHDOG_S = 30.0
"""No test asserts a maximum time; this only ends what would never end."""


def wait_until(
    predicate: Callable[[], T],
    watchdog_s: float = WATCHDOG_S,
    what: str = "",
    step_s: float = 0.002,
) -> T:
    """What `predicate` returns once that is true. AssertionError when the watchdog barks."""
    deadline = time.monotonic() + watchdog_s
    while True:
        value = predicate()
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"still not so after {watchdog_s} s: {what or predicate}")
        time.sleep(step_s)
