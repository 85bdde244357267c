"""One check for each kind of argument, with the same words as the native module's."""

from __future__ import annotations

import operator
from typing import SupportsFloat

from memledger.errors import InvalidFigure
from memledger.model import BYTES_MAX


def as_bytes(value: object, name: str, *, least: int = 0) -> int:
    """`value` as a number of bytes. TypeError for what is no int (a bool and a float are none),
    InvalidFigure outside `least` to 2^63-1."""
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise TypeError(f"{name}: expected bytes as an int, got {type(value).__name__}")
    nbytes = operator.index(value)
    if not least <= nbytes <= BYTES_MAX:
        raise InvalidFigure(f"{name}: expected {least} to 2^63-1 bytes, got {nbytes}")
    return nbytes


def as_seconds(value: object, name: str) -> float:
    """`value` as seconds. TypeError for what is no number, ValueError below 0 and for NaN."""
    if not isinstance(value, (int, float, SupportsFloat)):  # the cheap tests come first
        raise TypeError(f"{name}: expected seconds as a number, got {value!r}")
    seconds = float(value)
    if not seconds >= 0:
        raise ValueError(f"{name}: expected seconds >= 0, got {value!r}")
    return seconds


def as_text(value: object, name: str) -> str:
    """`value` where it is a str, else TypeError."""
    if not isinstance(value, str):
        raise TypeError(f"{name}: expected a str, got {type(value).__name__}")
    return value
