"""Requests to free, as a host makes and hears them: others' without its own.

A host follows itself, so what it asks of its group stands in the words that it reads. Were it
heard, the host would free, and ask its group to, for ever.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from memledger_comfy import forks
from memledger_comfy.points import FREE

if TYPE_CHECKING:
    from memledger_comfy.context import Context

    from memledger import Ledger

_KEPT = "free words"


class FreeWords:
    def __init__(self, get_ledger: Callable[[], Ledger | None]) -> None:
        self._get_ledger = get_ledger
        self._lock: Any
        forks.afresh(self, "_lock", threading.Lock)
        self._unheard = 0
        """Flags of others' requests that were found while one of our own was made."""

    def request(self, *, unload: bool, cache: bool, scope: str = "group") -> bool:
        """As Ledger.request_free, which this host will not hear. False: no ledger, or no group.
        (What another server asks in the microseconds between the two calls goes unheard too.)"""
        ledger = self._get_ledger()
        if ledger is None:
            return False
        with self._lock:
            self._unheard |= ledger.free_epoch()[1]
            asked = ledger.request_free(unload=unload, cache=cache, scope=scope)
            ledger.free_epoch()
        return bool(asked)

    def take(self) -> int:
        """Flags (1 unload, 2 cache) of others' requests since the last call. Well under 1 us where
        there is none."""
        ledger = self._get_ledger()
        if ledger is None or not (self._unheard or ledger.pending() & FREE):
            return 0
        with self._lock:
            flags = self._unheard | ledger.free_epoch()[1]
            self._unheard = 0
        return flags


def of(context: Context) -> FreeWords:
    """The one of this process."""
    link = context.link
    words: FreeWords = context.kept.setdefault(_KEPT, FreeWords(lambda: link.ledger))
    return words
