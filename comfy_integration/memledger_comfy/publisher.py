"""What this process holds, measured where it is safe and published.

Held is the larger of what torch has reserved and what the pager has mapped, plus the context:
never their sum, for the pager's memory is not torch's and the same bytes may show in both.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from memledger_comfy import log

if TYPE_CHECKING:
    from memledger_comfy.context import Context

PERIOD_S = 0.25


class Measured(NamedTuple):
    """Bytes of one device."""

    held: int
    releasable: int


class Part(NamedTuple):
    """What a row adds to the figures of one device, in signed bytes. held: on top of what torch and
    the pager say, for what they do not see. releasable: minus for bytes that only look idle."""

    held: int = 0
    releasable: int = 0


class Publisher:
    """`at_safe_point()` publishes; `step()` does so at most four times a second."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._next = 0.0
        self._parts: dict[str, Callable[[str], Part | None]] = {}
        self._watchers: dict[str, Callable[[], None]] = {}

    def contribute(self, key: str, part: Callable[[str], Part | None]) -> None:
        """Have `part(torch device name)` asked at every publish; once per key."""
        self._parts[key] = part

    def watch(self, key: str, watcher: Callable[[], None]) -> None:
        """Have `watcher()` called at every safe point, before the publish; once per key."""
        self._watchers[key] = watcher

    def step(self) -> None:
        """At a sampler step: a clock read, and a publish where one is due."""
        now = time.monotonic()
        if now >= self._next:
            self._next = now + PERIOD_S
            self.at_safe_point()

    def at_safe_point(self) -> None:
        """Measure and publish every device that has been opened. Never raises."""
        for key, watcher in list(self._watchers.items()):
            try:
                watcher()
            except Exception as error:
                log.failed(key, error)
        for name, device in self._context.link.devices().items():
            try:
                self._publish(name, device)
            except Exception as error:
                log.failed("publish", error)

    def _publish(self, name: str, device: Any) -> None:
        measured = self.measure(name)
        if measured is not None:
            # What is pinned is row 34's to say; a publish that did not name it would clear it.
            pinned = min(device.amounts[2], measured.held)
            device.publish(measured.held, releasable=measured.releasable, pinned=pinned)

    def measure(self, name: str) -> Measured | None:
        """What this process holds on the torch device called `name`. None: unknown."""
        raise NotImplementedError
