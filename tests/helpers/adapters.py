"""Modules of comfy_integration for tests that need no ComfyUI."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

ADAPTERS = Path(__file__).resolve().parent.parent.parent / "comfy_integration"


def load(name: str) -> Any:
    """memledger_comfy.<name>, which nobody else gets to see: the doubles' tests make it anew."""
    sys.path.insert(0, str(ADAPTERS))
    try:
        return importlib.import_module(f"memledger_comfy.{name}")
    finally:
        sys.path.remove(str(ADAPTERS))
        for known in [
            known for known in sys.modules if known.partition(".")[0] == "memledger_comfy"
        ]:
            del sys.modules[known]
