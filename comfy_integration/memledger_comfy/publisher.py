"""What this process holds, measured where it is safe and published.

Held is the larger of what torch has reserved and what the pager has mapped, plus the context:
never their sum, for the pager's figure has torch's memory in it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from memledger_comfy import forks, log
from memledger_comfy.policy import Held as Measured

if TYPE_CHECKING:
    from memledger_comfy.context import Context

PERIOD_S = 0.25
PUMP_S = 0.1


class Part(NamedTuple):
    """What a row adds to the figures of one device, in signed bytes. held: on top of what torch and
    the pager say, for what they do not see. releasable: minus for bytes that only look idle."""

    held: int = 0
    releasable: int = 0


class Publisher:
    """`at_safe_point()` publishes; `step()` does so at most four times a second.

    While one of our claims is open on a device, what is published there goes through the claim: the
    bytes that have landed are then not promised any more.
    """

    in_use = False
    """Models that ComfyUI marks as used are in use: from a load to the next node."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._next = 0.0
        self._parts: dict[str, Callable[[str], Part | None]] = {}
        self._watchers: dict[str, Callable[[], None]] = {}
        # Held over measuring and publishing, so that the pump never puts an older figure in the
        # place of a newer one. What is measured is ComfyUI's: a finalizer that runs meanwhile may
        # empty the cache, and come back to us on the thread that has it.
        self._lock: Any
        forks.afresh(self, "_lock", threading.RLock)
        self._measuring = False
        self._claims: dict[str, list[Any]] = {}
        self._evictable: dict[str, int] = {}
        self._pump: threading.Thread | None = None
        forks.in_child(self, Publisher._forget_parent)

    def _forget_parent(self) -> None:
        self._measuring, self._pump = False, None
        self._claims.clear()

    def contribute(self, key: str, part: Callable[[str], Part | None]) -> None:
        """Have `part(torch device name)` asked at every publish; once per key."""
        self._parts[key] = part

    def watch(self, key: str, watcher: Callable[[], None]) -> None:
        """Have `watcher()` called at every safe point, before the publish; once per key."""
        self._watchers[key] = watcher

    # ---- when

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
        for name in self._context.link.devices():
            self.publish(name)

    def publish(self, name: str, *, quick: bool = False) -> Measured | None:
        """Measure and publish one device; None where that is unknown. Never raises. quick: from
        another thread than ComfyUI's, with nothing but counters."""
        try:
            with self._lock:
                return self._publish(name, quick)
        except Exception as error:
            log.failed("publish", error)
            return None

    def _publish(self, name: str, quick: bool) -> Measured | None:
        account = self._context.link.account(name)
        measured = None if account is None else self.measure(name, quick)
        if account is None or measured is None:
            return None
        through = self._through(name)
        if through is None and measured.held < account.amounts[0]:
            # A pledge may count on own bytes that go first: they fill it. What else grows here
            # meanwhile is not what was pledged for.
            through = self._context.pledges.peek(name)
        publish = account.publish if through is None else through.publish
        publish(measured.held, releasable=measured.releasable)
        return measured

    def _through(self, name: str) -> Any | None:
        """The innermost open claim of the device that has not landed; None: no claim is open."""
        claims = [claim for claim in self._claims.get(name, ()) if not _was_ended(claim)]
        waiting = [claim for claim in claims if claim.open]
        return waiting[-1] if waiting else claims[-1] if claims else None

    # ---- claims

    def open_claim(self, name: str, claim: Any) -> None:
        """From now on what is published on device `name` goes through `claim`, ten times a second
        by a thread of ours, until `close_claim`."""
        with self._lock:
            self._claims.setdefault(name, []).append(claim)
            if self._pump is None:
                pump = threading.Thread(target=self._drain, name="memledger-comfy-pump")
                pump.daemon = True
                try:
                    pump.start()
                    self._pump = pump
                except RuntimeError as error:  # no more threads: safe points publish all the same
                    log.failed("pump", error)

    def close_claim(self, name: str, claim: Any) -> None:
        """What has landed is published through the claim, and the rest of it dropped. Never
        raises."""
        try:
            with self._lock:
                measured = self.measure(name)
                claims = self._claims.get(name, [])
                if claim in claims:
                    claims.remove(claim)
                if _was_ended(claim):
                    return
                if measured is None:
                    claim.cancel()
                else:
                    claim.settle(measured.held, releasable=measured.releasable)
        except Exception as error:
            log.failed("closing a claim", error)
            drop(claim)

    def claimed(self, name: str) -> int:
        """Bytes of our open claims on a device that have not landed."""
        return sum(claim.open for claim in self._claims.get(name, ()))

    def _drain(self) -> None:
        while True:
            time.sleep(PUMP_S)
            with self._lock:
                names = [name for name, claims in self._claims.items() if claims]
                if not names:
                    self._pump = None
                    return
            for name in names:
                self._publish_open(name)

    def _publish_open(self, name: str) -> None:
        """From the pump: nothing where the claim was closed meanwhile, for what its owner has
        published is newer."""
        try:
            with self._lock:
                if self._claims.get(name):
                    self._publish(name, True)
        except Exception as error:
            log.failed("publish", error)

    # ---- what

    def measure(self, name: str, quick: bool = False) -> Measured | None:
        """What this process holds on the torch device called `name`; the lock is held. None:
        unknown, or this thread is in the middle of measuring."""
        from memledger_comfy.adapter import figures

        if self._measuring:
            return None
        self._measuring = True
        try:
            added = self._added(name)
            return figures.held(
                self._context,
                name,
                parts=(sum(part[0] for part in added), sum(part[1] for part in added)),
                evictable=self._evictable.get(name, 0) if quick else self._evict(name),
            )
        except Exception as error:
            log.failed("measure", error)
            return None
        finally:
            self._measuring = False

    def _added(self, name: str) -> list[Part]:
        """What rows add. One that cannot say hides nothing of the rest."""
        added = []
        for key, part in list(self._parts.items()):
            try:
                found = part(name)
            except Exception as error:
                log.failed(key, error)
                continue
            if found is not None:
                added.append(found)
        return added

    def _evict(self, name: str) -> int:
        from memledger_comfy.adapter import figures

        value = self._evictable[name] = figures.evictable(self._context, name)
        return value


def drop(claim: Any) -> None:
    """Cancel a claim, whatever has happened to it. Never raises."""
    try:
        claim.cancel()
    except Exception as error:
        log.failed("dropping a claim", error)


def _was_ended(claim: Any) -> bool:
    """By its owner. One that has only expired still publishes: its bytes are there all the same."""
    return bool(claim.ended and not claim.expired)
