"""One check for every argument in bytes, with the same words as the native module's."""

from __future__ import annotations

import operator

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
