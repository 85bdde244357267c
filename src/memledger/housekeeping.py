"""The one background thread of a member.

It waits inside C without the GIL, and comes back to Python only to call a source. Each round:
expired claims, the segment's health, the dead, readings that are due from this member.
"""

from __future__ import annotations

import contextlib
import threading
import weakref
from typing import TYPE_CHECKING

from memledger.errors import LedgerClosed

if TYPE_CHECKING:
    from memledger.ledger import Ledger

_STOP_TIMEOUT_S = 1.0


class Housekeeping:
    """Owns the thread."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = weakref.ref(ledger)
        # Not an Event: setting one may stay half done where memory runs out, its lock held ever
        # after.
        self._stopping = False
        self._started = False
        self._thread = threading.Thread(target=self._run, name="memledger", daemon=True)

    def start(self) -> None:
        """Where there is room for one more thread; called again until there was."""
        if self._started or self._stopping:
            return
        # No thread can be made while an interpreter shuts down, or where the system has too many:
        # then this process goes on without (G8), and its slot is the kernel's to give back.
        with contextlib.suppress(RuntimeError, MemoryError):
            self._thread.start()
            self._started = True

    def stop(self) -> None:
        """Ends the thread, unless it hangs in a driver: then it is left to the process's end."""
        self._stopping = True
        ledger = self._ledger()
        if ledger is not None and self._thread.is_alive():
            ledger._wake()
            if self._thread is not threading.current_thread():
                self._thread.join(_STOP_TIMEOUT_S)

    def _run(self) -> None:
        pause_s, mark = 0.0, 0
        while not self._stopping:
            ledger = self._ledger()
            if ledger is None:
                return
            if pause_s:
                # From the mark: an ask that came while this round looked elsewhere is not slept on.
                ledger._wait(pause_s, mark)
                if self._stopping:
                    return
            try:
                mark = ledger._wake_mark()
                pause_s = ledger._housekeep()
            except LedgerClosed:
                return
            except Exception:
                # G8: never takes its host down. The next round tries again.
                pause_s = 1.0
            del ledger
