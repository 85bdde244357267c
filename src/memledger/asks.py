"""Asking siblings to give memory back, and answering when they ask.

A holder is any object with `release_memory(device, size) -> int`: it gives back up to about `size`
bytes of `device` and returns how many it has freed. It may free less, nothing, or say what it knows
and do the work afterwards; only bytes that this process has published as gone are credited.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple, Protocol

from memledger.errors import LedgerClosed

if TYPE_CHECKING:
    from memledger.device import Device
    from memledger.ledger import Ledger

_OK, _BUSY, _EXPIRED = 0, 3, 6
_WAIT_STEP_S = 0.001
_QUICK_LINK_S = 0.002
DEFAULT_TIMEOUT_S = 0.15


class Holder(Protocol):
    """What `ledger.holders.register` takes, and what `ledger.as_holder()` gives."""

    def release_memory(self, device: object, size: int) -> int:
        """Give back about `size` bytes of `device`; returns bytes freed. May return 0."""
        ...


class MemberAnswer(NamedTuple):
    """What one sibling said. state: done, partial, refused, busy, no_answer or gone."""

    slot: int
    state: str
    asked: int
    credited: int
    """bytes that it has published as released for this ask"""


class AskResult(NamedTuple):
    """What came of an ask.

    state: done (all of it), partial, refused (nobody gave anything), or nobody (nobody holds
    anything that it could release).
    credited: bytes that siblings published as released, for this ask alone.
    verified: bytes of those that the device's own readings confirm; None where there is no reading.
    """

    state: str
    credited: int
    verified: int | None
    members: tuple[MemberAnswer, ...]


class _Registered(NamedTuple):
    holder: Holder
    thread_safe: bool
    quick: bool


class Holders:
    """The holders of this process, in the order in which they are asked."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._all: tuple[_Registered, ...] = ()

    def register(
        self, holder: Holder, *, thread_safe: bool = False, quick: bool = False
    ) -> Callable[[], None]:
        """Have `holder` asked when a sibling wants memory. Returns the function that takes it back.

        thread_safe: it may be called on the housekeeping thread; otherwise only in `serve()`.
        quick: it takes no longer than emptying an allocator's idle cache; such a one also answers
        while this process is itself inside an ask.
        """
        if not callable(getattr(holder, "release_memory", None)):
            raise TypeError(
                f"expected an object with release_memory(device, size), got {type(holder).__name__}"
            )
        entry = _Registered(holder, thread_safe, quick)
        with self._lock:
            self._all = (*self._all, entry)

        def unregister() -> None:
            with self._lock:
                self._all = tuple(known for known in self._all if known is not entry)

        return unregister

    def _reset_lock(self) -> None:
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._all)

    def _for_housekeeping(self) -> tuple[_Registered, ...]:
        return tuple(known for known in self._all if known.thread_safe)

    def _quick_ones(self, here: bool) -> tuple[_Registered, ...]:
        return tuple(known for known in self._all if known.quick and (here or known.thread_safe))


class Asks:
    """Both sides of an ask for one ledger. Private to the package."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._asking = threading.local()
        self._left_open: list[tuple[float, bytes]] = []

    # ---- the asker

    def ask(self, device: Device, nbytes: int, timeout: float) -> AskResult:
        """See Device.ask."""
        ledger = self._ledger
        pool = device._pools()[0]
        if nbytes <= 0:
            raise ValueError(f"nbytes: expected at least 1 byte, got {nbytes!r}")
        deadline = time.monotonic() + timeout
        before = self._free_reading(device)
        ticket = ledger._asking(True)
        self._asking.active = getattr(self._asking, "active", 0) + 1
        answers: list[MemberAnswer] = []
        try:
            missing = nbytes
            tried: set[int] = set()
            while missing > 0 and time.monotonic() < deadline:
                sent = self._send_round(pool, missing, ticket, tried, answers)
                if not sent:
                    break
                missing -= self._collect(sent, deadline, answers)
        finally:
            self._asking.active -= 1
            if not self._asking.active:
                ledger._asking(False)
        credited = sum(answer.credited for answer in answers)
        state = "nobody" if not answers else "refused"
        if credited:
            state = "done" if credited >= nbytes else "partial"
        return AskResult(state, credited, self._verified(device, before, credited), tuple(answers))

    def _send_round(
        self,
        pool: int,
        missing: int,
        ticket: int,
        tried: set[int],
        answers: list[MemberAnswer],
    ) -> list[tuple[int, int, bytes]]:
        """Ask as many members at once as have `missing` between them: (slot, bytes, ask)."""
        sent = []
        for slot, _, _, releasable, asking, _, _ in sorted(
            self._ledger._victims(pool), key=_last_choice_last
        ):
            if missing <= 0:
                break
            # One that asked before us is waiting for somebody, perhaps for us.
            if slot in tried or (asking and asking < ticket):
                continue
            tried.add(slot)
            share = min(missing, releasable)
            status, ask = self._ledger._ask_send(pool, slot, share)
            if status == _OK:
                sent.append((slot, share, ask))
                missing -= share
            else:
                state = "gone" if status == _EXPIRED else "busy"
                answers.append(MemberAnswer(slot, state, share, 0))
        return sent

    def _collect(
        self, sent: list[tuple[int, int, bytes]], deadline: float, answers: list[MemberAnswer]
    ) -> int:
        """Wait for the answers of a round; bytes credited in all."""
        credited = 0
        while sent:
            still = []
            for slot, share, ask in sent:
                status, outcome, nbytes = self._ledger._ask_poll(ask)
                if status == _OK:
                    answers.append(MemberAnswer(slot, outcome, share, nbytes))
                    credited += nbytes
                elif status == _EXPIRED:
                    answers.append(MemberAnswer(slot, "gone", share, 0))
                else:
                    still.append((slot, share, ask))
            sent = still
            if not sent:
                break
            left = deadline - time.monotonic()
            if left <= 0:
                credited += self._withdraw(sent, answers)
                break
            self.serve_quick()
            self._ledger._wait(min(_WAIT_STEP_S, left))
        return credited

    def _withdraw(self, sent: list[tuple[int, int, bytes]], answers: list[MemberAnswer]) -> int:
        """Take back what nobody answered; an answer that came in between still counts."""
        credited = 0
        for slot, share, ask in sent:
            state, nbytes = "no_answer", 0
            if not self._ledger._ask_withdraw(ask):
                status, outcome, nbytes = self._ledger._ask_poll(ask)
                state = outcome if status == _OK else "gone"
            answers.append(MemberAnswer(slot, state, share, nbytes))
            credited += nbytes
        return credited

    @staticmethod
    def _free_reading(device: Device) -> tuple[int, int] | None:
        """(free of the source, bytes that members hold) now; None where nobody can read."""
        reading = device.refresh(max_age_s=0)
        if reading.free is None:
            return None
        return reading.free, device.figures().held

    def _verified(
        self, device: Device, before: tuple[int, int] | None, credited: int
    ) -> int | None:
        after = self._free_reading(device) if credited else before
        if before is None or after is None:
            return None
        # What else moved meanwhile is known from the records: only the rest is these bytes' doing.
        others = (after[1] - before[1]) + credited
        return max(0, min(credited, after[0] - before[0] + others))

    # ---- without waiting

    def ask_behind(self, device: Device, nbytes: int, bound_s: float) -> int:
        """Ask, wait no longer than `bound_s`, and let what is unanswered go on: bytes credited by
        then. Housekeeping takes the rest back."""
        pool = device._pools()[0]
        ticket = self._ledger._asking(True)
        answers: list[MemberAnswer] = []
        try:
            open_asks = self._send_round(pool, nbytes, ticket, self._busy_slots(pool), answers)
            deadline = time.monotonic() + bound_s
            credited = 0
            while open_asks and time.monotonic() < deadline:
                still = []
                for entry in open_asks:
                    status, _, freed = self._ledger._ask_poll(entry[2])
                    if status == _OK:
                        credited += freed
                    elif status != _EXPIRED:
                        still.append(entry)
                open_asks = still
                if open_asks:
                    self._ledger._wait(min(_WAIT_STEP_S, bound_s))
        finally:
            self._ledger._asking(False)
        until = time.monotonic() + DEFAULT_TIMEOUT_S
        self._left_open.extend((until, ask) for _, _, ask in open_asks)
        return credited

    def _busy_slots(self, pool: int) -> set[int]:
        """Members that are inside an ask of their own: never asked from a holder."""
        return {victim[0] for victim in self._ledger._victims(pool) if victim[4]}

    def take_back(self) -> None:
        """Housekeeping: asks that were left open behind a call end at their deadline."""
        now = time.monotonic()
        left = self._left_open
        self._left_open = [entry for entry in left if entry[0] > now]
        for until, ask in left:
            if until <= now:
                self._ledger._ask_withdraw(ask)

    # ---- the victim

    def serve(self, timeout: float = 0.0) -> int:
        """See Ledger.serve."""
        deadline = time.monotonic() + timeout
        served = 0
        while True:
            served += self._serve_with(self._ledger.holders._all)
            left = deadline - time.monotonic()
            if served or left <= 0:
                return served
            self._ledger._wait(min(left, 0.05))

    def serve_on_housekeeping(self) -> None:
        """Answers what thread-safe holders can answer; with no holder at all, says so at once."""
        holders = self._ledger.holders
        if not len(holders):
            self._serve_with(())
        elif holders._for_housekeeping():
            self._serve_with(holders._for_housekeeping())

    def serve_quick(self) -> None:
        """Inside an ask of our own: answer at once from quick holders, or say busy."""
        here = threading.current_thread() is threading.main_thread()
        self._serve_with(self._ledger.holders._quick_ones(here), otherwise="busy")

    def _serve_with(self, holders: tuple[_Registered, ...], otherwise: str = "refused") -> int:
        served = 0
        while True:
            request = self._ledger._request_next()
            if request is None:
                return served
            opaque, pool, nbytes, _ = request
            freed = self._release(pool, nbytes, holders)
            outcome = otherwise if not freed else ("done" if freed >= nbytes else "partial")
            self._ledger._request_answer(opaque, outcome, freed)
            served += 1

    def _release(self, pool: int, nbytes: int, holders: tuple[_Registered, ...]) -> int:
        """Run holders until `nbytes` are published as gone. A holder that raises has freed nothing
        that counts; one that says more than was published is not believed."""
        device = self._ledger._device_of(pool)
        if device is None:
            return 0
        before = device.figures().own_held
        for known in holders:
            missing = nbytes - max(0, before - device.figures().own_held)
            if missing <= 0:
                break
            try:
                known.holder.release_memory(device, missing)
            except LedgerClosed:
                raise
            except Exception:
                continue
        return max(0, before - device.figures().own_held)


class AllSiblings:
    """One holder that stands for all siblings: what an upstream registry of holders would take.
    `ledger.as_holder()` makes it."""

    def __init__(self, ledger: Ledger, bound_s: float) -> None:
        self._ledger = ledger
        self._bound_s = bound_s

    def release_memory(self, device: object, size: int) -> int:
        """Ask the siblings for `size` bytes of `device` (what `Ledger.device` takes). Answers
        within the bound, on this thread, with the bytes that were published as released by then;
        the rest goes on behind the call. Never asks a member that is asking."""
        from memledger.device import Device

        target = device if isinstance(device, Device) else self._ledger.device(device)
        if size <= 0:
            return 0
        return self._ledger._asks.ask_behind(target, size, self._bound_s)


def _last_choice_last(victim: tuple[int, int, int, int, int, bool, bool]) -> tuple[int, int]:
    """Largest releasable first; those that are asking, in a window, or busy with a prompt last."""
    _, _, _, releasable, asking, window, prompt = victim
    return (int(bool(asking)) + int(window) + int(prompt), -releasable)
