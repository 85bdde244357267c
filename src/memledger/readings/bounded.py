"""A source whose driver may hang, asked on a thread of its own and waited for only so long.

A hung driver must cost an age on the figure and nothing more: not the claim that wanted a newer
reading, and not the housekeeping that answers asks and sweeps.
"""

from __future__ import annotations

import threading
import time

from memledger.model import Reading, absent
from memledger.readings import Source


class BoundedSource:
    """Wraps `source`. While one of its calls has not come back, every further read is absent at
    once; no second call is made into the same driver. A read costs a thread, some 60 us."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._hanging: threading.Thread | None = None
        self._since = 0.0

    @property
    def name(self) -> str:
        return self._source.name

    @property
    def timeout_s(self) -> float:
        return self._source.timeout_s

    def read(self) -> Reading:
        """As `Source.read`; "probe_failed" when there is no answer within `timeout_s`. Raises what
        the source raises."""
        if self._hanging is not None and self._hanging.is_alive():
            waited = time.monotonic() - self._since
            return absent(self.name, "probe_failed", f"no answer for {waited:.1f} s")
        outcome: list[Reading | Exception] = []

        def ask() -> None:
            try:
                outcome.append(self._source.read())
            except Exception as error:
                outcome.append(error)

        self._since = time.monotonic()
        self._hanging = threading.Thread(target=ask, name="memledger-source", daemon=True)
        self._hanging.start()
        self._hanging.join(self.timeout_s)
        if not outcome:
            return absent(self.name, "probe_failed", f"no answer within {self.timeout_s} s")
        self._hanging = None
        if isinstance(outcome[0], Exception):
            raise outcome[0]
        return outcome[0]

    def explain(self) -> str:
        return self._source.explain()

    def close(self) -> None:
        """Drops the driver's session, unless a call is still inside."""
        if self._hanging is None or not self._hanging.is_alive():
            close = getattr(self._source, "close", None)
            if close is not None:
                close()


def bounded(source: Source) -> Source:
    """`source`, where its class says that it never blocks; else wrapped."""
    return source if getattr(source, "never_blocks", False) else BoundedSource(source)
