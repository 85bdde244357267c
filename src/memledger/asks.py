"""Asking siblings to give memory back, and answering when they ask.

A holder is any object with `release_memory(device, size) -> int`: it gives back up to about `size`
bytes of `device` and returns how many it has freed. It may free less, nothing, or say what it knows
and do the work afterwards; only bytes that this process has published as gone are credited.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple, Protocol

from memledger.arguments import as_bytes, as_seconds
from memledger.errors import LedgerClosed

if TYPE_CHECKING:
    from memledger.device import Device
    from memledger.ledger import Ledger

_OK, _EXPIRED = 0, 6
_WAIT_STEP_S = 0.001
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

    def _clear(self) -> None:
        with self._lock:
            self._all = ()

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
        self._reset()

    def _reset(self) -> None:
        """In a forked child no other thread is inside anything, and no ask of the parent is
        ours."""
        self._lock = threading.Lock()
        self._here = threading.local()
        self._inside = 0
        self._ticket = 0
        self._left_open: list[tuple[float, bytes]] = []

    def _begin(self) -> int:
        """One ticket for the whole process: the one of the first of its threads that asks."""
        with self._lock:
            if not self._inside:
                self._ticket = self._ledger._asking(True)
            self._inside += 1
            return self._ticket

    def _end(self) -> None:
        with self._lock:
            self._inside -= 1
            if not self._inside:
                self._ledger._asking(False)

    # ---- the asker

    def ask(
        self, device: Device, nbytes: int, timeout: float, *, only: int | None = None
    ) -> AskResult:
        """See Device.ask. only: the slot of the one member to ask, where a person chose it."""
        nbytes = as_bytes(nbytes, "nbytes", least=1)
        deadline = time.monotonic() + timeout
        # Of a chain the level that binds: there room is missing, and its members can give it.
        pool = device._pools()[device.figures().level]
        before = self._look(device, pool)
        ticket = self._begin()
        answers: list[MemberAnswer] = []
        sent: list[tuple[int, int, bytes]] = []
        try:
            missing = nbytes
            tried: set[int] = set()
            while missing > 0 and time.monotonic() < deadline:
                self._send_round(pool, missing, ticket, tried, answers, sent, only)
                if not sent:
                    break
                missing -= self._collect(sent, deadline, answers)
        except BaseException:
            # Ctrl-C, or a holder that raises: nothing of this ask stays open.
            with contextlib.suppress(Exception):
                self._withdraw(sent, answers)
            raise
        finally:
            self._end()
        credited = sum(answer.credited for answer in answers)
        state = "nobody" if not answers else "refused"
        if credited:
            state = "done" if credited >= nbytes else "partial"
        verified = self._verified(device, pool, before, credited)
        return AskResult(state, credited, verified, tuple(answers))

    def _send_round(
        self,
        pool: int,
        missing: int,
        ticket: int,
        tried: set[int],
        answers: list[MemberAnswer],
        sent: list[tuple[int, int, bytes]],
        only: int | None = None,
    ) -> None:
        """Ask as many members at once as have `missing` between them: (slot, bytes, ask)."""
        for slot, _, _, releasable, asking, _, _ in sorted(
            self._ledger._victims(pool), key=_last_choice_last
        ):
            if missing <= 0:
                break
            if only is not None and slot != only:
                continue
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

    def _collect(
        self, sent: list[tuple[int, int, bytes]], deadline: float, answers: list[MemberAnswer]
    ) -> int:
        """Wait for the answers of a round; bytes credited in all. `sent` is what is still open."""
        credited = 0
        while sent:
            for entry in tuple(sent):
                slot, share, ask = entry
                status, outcome, nbytes = self._ledger._ask_poll(ask)
                if status not in (_OK, _EXPIRED):
                    continue
                sent.remove(entry)
                state = outcome if status == _OK else "gone"
                answers.append(MemberAnswer(slot, state, share, nbytes))
                credited += nbytes
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
        while sent:
            slot, share, ask = sent.pop()
            state, nbytes = "no_answer", 0
            if not self._ledger._ask_withdraw(ask):
                status, outcome, nbytes = self._ledger._ask_poll(ask)
                state = outcome if status == _OK else "gone"
            answers.append(MemberAnswer(slot, state, share, nbytes))
            credited += nbytes
        return credited

    def _look(self, device: Device, pool: int) -> tuple[int, int, int] | None:
        """(number of the reading, its free, bytes that members hold) now; None where nobody can
        read."""
        device.refresh(max_age_s=0)
        reading = self._ledger._reading(pool)
        if not reading["sequence"] or reading["free"] is None:
            return None
        held = self._ledger._snapshot(pool)["figures"].held
        return reading["sequence"], reading["free"], held

    def _verified(
        self, device: Device, pool: int, before: tuple[int, int, int] | None, credited: int
    ) -> int | None:
        if before is None:
            return None
        if not credited:
            return 0
        after = self._look(device, pool)
        if after is None or after[0] == before[0]:
            return None
        # What else moved meanwhile is known from the records: only the rest is these bytes' doing.
        others = (after[2] - before[2]) + credited
        return max(0, min(credited, after[1] - before[1] + others))

    # ---- without waiting

    def ask_behind(self, device: Device, nbytes: int, bound_s: float) -> int:
        """Ask, wait no longer than `bound_s`, and let what is unanswered go on: bytes credited by
        then. Housekeeping takes the rest back."""
        pool = device._pools()[device.figures().level]
        ticket = self._begin()
        answers: list[MemberAnswer] = []
        open_asks: list[tuple[int, int, bytes]] = []
        credited = 0
        try:
            self._send_round(pool, nbytes, ticket, self._busy_slots(pool), answers, open_asks)
            deadline = time.monotonic() + bound_s
            while open_asks:
                for entry in tuple(open_asks):
                    status, _, freed = self._ledger._ask_poll(entry[2])
                    if status in (_OK, _EXPIRED):
                        open_asks.remove(entry)
                        credited += freed
                left = deadline - time.monotonic()
                if not open_asks or left <= 0:
                    break
                self._ledger._wait(min(_WAIT_STEP_S, left))
        finally:
            self._end()
            if open_asks:
                self._leave_open([ask for _, _, ask in open_asks])
        return credited

    def _leave_open(self, asks: list[bytes]) -> None:
        until = time.monotonic() + DEFAULT_TIMEOUT_S
        with self._lock:
            self._left_open += [(until, ask) for ask in asks]
        self._ledger._wake()

    def _busy_slots(self, pool: int) -> set[int]:
        """Members that are inside an ask of their own: never asked from a holder."""
        return {victim[0] for victim in self._ledger._victims(pool) if victim[4]}

    def take_back(self) -> float | None:
        """Housekeeping: asks that were left open behind a call end at their deadline. Seconds until
        the next one is due; None: there is none."""
        if not self._left_open:
            return None
        now = time.monotonic()
        with self._lock:
            due = [ask for until, ask in self._left_open if until <= now]
            self._left_open = [entry for entry in self._left_open if entry[0] > now]
            later = min((until for until, _ in self._left_open), default=None)
        for ask in due:
            if not self._ledger._ask_withdraw(ask):
                self._ledger._ask_poll(ask)  # answered: nobody needs it, and the word is given back
        return None if later is None else later - now

    # ---- the victim

    def serve(self, timeout: float = 0.0) -> int:
        """See Ledger.serve."""
        if getattr(self._here, "serving", False):
            # From inside a holder: holders are not run re-entrantly.
            return self._serve_with((), "busy")
        deadline = time.monotonic() + as_seconds(timeout, "timeout")
        while True:
            mark = self._ledger._wake_mark()
            served = self._serve_with(self._ledger.holders._all)
            left = deadline - time.monotonic()
            if served or left <= 0:
                return served
            self._ledger._wait(min(left, 0.05), mark)

    def serve_on_housekeeping(self) -> None:
        """Answers what thread-safe holders can answer; with no holder at all, says so at once."""
        holders = self._ledger.holders
        if len(holders) and not holders._for_housekeeping():
            return
        try:
            self._serve_with(holders._for_housekeeping())
        except LedgerClosed:
            raise
        except BaseException:
            # A holder's SystemExit must not end the thread that keeps this member going.
            return

    def serve_quick(self) -> None:
        """Inside an ask of our own: answer at once from quick holders, or say busy."""
        here = threading.current_thread() is threading.main_thread()
        nested = getattr(self._here, "serving", False)
        self._serve_with(() if nested else self._ledger.holders._quick_ones(here), "busy")

    def _serve_with(self, holders: tuple[_Registered, ...], otherwise: str = "refused") -> int:
        served = 0
        while True:
            request = self._ledger._request_next()
            if request is None:
                return served
            opaque, pool, nbytes, _ = request
            nested = getattr(self._here, "serving", False)
            self._here.serving = True
            try:
                self._release(pool, nbytes, holders, opaque, otherwise)
            finally:
                self._here.serving = nested
            served += 1

    def _release(
        self,
        pool: int,
        nbytes: int,
        holders: tuple[_Registered, ...],
        request: bytes,
        otherwise: str,
    ) -> None:
        """Run holders until `nbytes` are published as gone, and answer, whatever they do. One that
        raises has freed nothing that counts; one that says more than was published is not
        believed."""
        device = self._ledger._device_of(pool)
        before = self._own_held(pool)
        try:
            for known in holders if device is not None else ():
                missing = nbytes - (before - self._own_held(pool))
                if missing <= 0:
                    break
                with contextlib.suppress(Exception):
                    known.holder.release_memory(device, missing)
        finally:
            freed = max(0, before - self._own_held(pool))
            outcome = otherwise if not freed else ("done" if freed >= nbytes else "partial")
            self._ledger._request_answer(request, outcome, freed)

    def _own_held(self, pool: int) -> int:
        device = self._ledger._device_of(pool)
        return 0 if device is None else device.figures().own_held


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
