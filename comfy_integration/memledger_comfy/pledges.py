"""Claims that outlive the decision they were made for: a dtype was chosen because the model fits,
and the load that adopts the claim comes later."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from memledger_comfy import forks, log

if TYPE_CHECKING:
    from memledger_comfy.context import Context

TTL_S = 60.0
"""A checkpoint is read from disk between the choice and the load. Node boundaries renew it."""


class Pledges:
    """At most one claim per device: models of one process make room for each other, so the largest
    of them is what it needs."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._lock: Any
        forks.afresh(self, "_lock", threading.Lock)
        self._claims: dict[str, Any] = {}
        forks.in_child(self, lambda self: self._claims.clear())

    def size(self, name: str) -> int:
        """Bytes pledged on the torch device called `name`, and not dropped since."""
        claim = self.peek(name)
        return 0 if claim is None else int(claim.size)

    def peek(self, name: str) -> Any | None:
        """The claim, if there is one that still counts."""
        claim = self._claims.get(name)
        return None if claim is None or claim.ended else claim

    def keep(self, name: str, claim: Any) -> None:
        """Hold `claim` for the next load there, in the place of an earlier one."""
        with self._lock:
            before = self._claims.get(name)
            self._claims[name] = claim
        if before is not None and before is not claim:
            before.cancel()

    def take(self, name: str) -> Any | None:
        """The claim, which is the caller's from now on; None: there is none that still counts."""
        with self._lock:
            claim = self._claims.pop(name, None)
        return None if claim is None or claim.ended else claim

    def renew(self) -> None:
        """At a node boundary: the prompt is still on its way to the load."""
        for claim in list(self._claims.values()):
            try:
                if not claim.ended:
                    claim.renew(TTL_S)
            except Exception as error:
                log.failed("renewing a claim", error)

    def drop(self) -> None:
        """The prompt is over: nobody will adopt them."""
        for name in list(self._claims):
            claim = self.take(name)
            if claim is not None:
                try:
                    claim.cancel()
                except Exception as error:
                    log.failed("dropping a claim", error)
