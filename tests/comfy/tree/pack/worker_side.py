"""What the worker does."""

from __future__ import annotations

import os
import signal

HELD = 5 << 20


def hold() -> int:
    """Join, and say that it holds HELD bytes of RAM. Returns its pid."""
    import memledger

    memledger.join(label="test worker").device("ram").publish(HELD)
    return os.getpid()


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)
