"""A ledger of memory that every process on a machine shares.

    import memledger

    ledger = memledger.join(label="my-program")
    gpu = ledger.device("cuda:0")
    with gpu.claim(6 << 30) as claim:
        weights = load()
        claim.settle(held=allocated())

Importing costs a few milliseconds and needs nothing beyond the standard library.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from memledger._native import Claim, Figures
from memledger.device import Account, Delta, Device
from memledger.errors import (
    ClaimRefused,
    InvalidFigure,
    LayoutMismatch,
    LedgerClosed,
    LedgerError,
    UnknownDevice,
)
from memledger.ledger import Ledger, join
from memledger.model import Reading
from memledger.sizes import format_size, parse_size
from memledger.views import Member, Row, Snapshot

__version__ = "0.1.0"

__all__ = [
    "Account",
    "Claim",
    "ClaimRefused",
    "Delta",
    "Device",
    "Figures",
    "InvalidFigure",
    "LayoutMismatch",
    "Ledger",
    "LedgerClosed",
    "LedgerError",
    "Member",
    "Reading",
    "Row",
    "Snapshot",
    "UnknownDevice",
    "__version__",
    "format_size",
    "join",
    "parse_size",
    "sim",
]


def __getattr__(name: str) -> Any:
    # The simulator only where it is used: members in production never need it.
    if name == "sim":
        return import_module("memledger.sim")
    raise AttributeError(f"module 'memledger' has no attribute {name!r}")
