"""`memledger demo`: the demonstration, with options of its own."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from typing import Any


def add_parser(commands: Any) -> None:
    # Only for the list of commands: `main` hands everything behind "demo" to `run`.
    commands.add_parser("demo", help="processes on a simulated card, without and with the ledger")


def run(arguments: list[str]) -> int:
    spec = importlib.util.find_spec("memledger.demo")
    if spec is None or spec.origin is None:  # an empty folder counts as a package without origin
        print("memledger: this installation has no demo", file=sys.stderr)
        return 1
    return int(importlib.import_module("memledger.demo").main(arguments))
