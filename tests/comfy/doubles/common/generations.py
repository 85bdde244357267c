"""What both generations share. A module of a generation runs one of these texts in its own globals,
so that its functions look names up where ComfyUI's do: in the module that a custom node patches."""

from __future__ import annotations

from pathlib import Path
from typing import Any

_HERE = Path(__file__).parent


def run_shared(name: str, into: dict[str, Any]) -> None:
    """Run common/<name>.shared.py in the globals of the calling module."""
    path = _HERE / f"{name}.shared.py"
    exec(compile(path.read_text(), str(path), "exec"), into)
