"""What the worker does."""

from __future__ import annotations

import os
import signal

HELD = 5 << 20


def hold() -> int:
    """Say that it holds HELD bytes of RAM; nothing but the host's hand-over lets it import
    memledger. Returns its pid."""
    import memledger

    memledger.join(label="test worker").device("ram").publish(HELD)
    return os.getpid()


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)
