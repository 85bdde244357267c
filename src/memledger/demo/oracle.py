"""What one process would have decided.

The oracle takes the requests of a run's log, in their order, and decides each anew: the same
policy, one process, one allocator, exact figures. It never sees what the run decided or read
(`request_of` drops it). What nobody has freed stays resident, and what other members hold cannot be
evicted: so own held is that of the member which asks.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from memledger.demo import policy
from memledger.demo.log import Event, Request, request_of
from memledger.demo.policy import Figures

Decision = str | int | None


class Verdict(NamedTuple):
    decisions: dict[str, Decision]
    """by subject: the dtype of each load, the batch of each step, the bytes of each pin,
    whether each turn was made"""
    ooms: int
    peak_bytes: int


class Disagreement(NamedTuple):
    subject: str
    run: Decision
    oracle: Decision


class _Allocator:
    """One process's: it knows exactly what is resident."""

    def __init__(self, total: int) -> None:
        self._total = total
        self._resident: dict[tuple[str, str], int] = {}
        self.peak = 0
        self.ooms = 0

    def figures(self, who: str) -> Figures:
        free = self._total - sum(self._resident.values())
        held = sum(nbytes for (owner, _), nbytes in self._resident.items() if owner == who)
        return Figures(free=free, budget=free + held, held=held)

    def take(self, who: str, subject: str, nbytes: int) -> None:
        if nbytes > self.figures(who).free:
            self.ooms += 1
            return
        self._resident[who, subject] = nbytes
        self.peak = max(self.peak, sum(self._resident.values()))

    def free(self, who: str, subject: str) -> None:
        self._resident.pop((who, subject), None)

    def free_all(self, who: str) -> None:
        for key in [key for key in self._resident if key[0] == who]:
            del self._resident[key]


def decide_anew(requests: Iterable[Request], total: int) -> Verdict:
    """total: bytes of the card, or the budget where all requests are pins."""
    allocator = _Allocator(total)
    stopped: set[str] = set()
    """groups whose prompt was stopped"""
    decisions: dict[str, Decision] = {}
    for request in requests:
        who, subject = request.who, request.subject
        if request.kind == "load" and request.checkpoint is not None:
            dtype = policy.choose_dtype(request.checkpoint, allocator.figures(who))
            decisions[subject] = dtype
            if dtype is not None:
                allocator.take(who, subject, policy.load_bytes(request.checkpoint, dtype))
        elif request.kind == "step" and request.step is not None:
            batch = policy.choose_batch(request.step, allocator.figures(who))
            decisions[subject] = batch
            allocator.take(who, subject, policy.step_bytes(request.step, batch))
        elif request.kind == "pin":
            fits = request.nbytes <= allocator.figures(who).free
            decisions[subject] = request.nbytes if fits else 0
            if fits:
                allocator.take(who, subject, request.nbytes)
        elif request.kind == "begin":
            stopped.discard(request.group)
        elif request.kind == "stop":
            stopped.add(request.group)
        elif request.kind == "turn":
            decisions[subject] = "stopped" if request.group in stopped else "made"
        elif request.kind == "free":
            allocator.free(who, subject)
        elif request.kind == "died":
            allocator.free_all(who)
        else:
            raise ValueError(f"unknown request in the log: {request}")
    return Verdict(decisions, allocator.ooms, allocator.peak)


def decided(events: Iterable[Event]) -> dict[str, Decision]:
    """What the run decided, by subject."""
    return {event["subject"]: event["decision"] for event in events if "decision" in event}


def compare(events: list[Event], total: int) -> tuple[Verdict, list[Disagreement]]:
    """The oracle's verdict on a log, and where the run decided otherwise."""
    verdict = decide_anew((request_of(event) for event in events), total)
    run = decided(events)
    subjects = dict.fromkeys((*run, *verdict.decisions))
    return verdict, [
        Disagreement(subject, run.get(subject), verdict.decisions.get(subject))
        for subject in subjects
        if subject not in run
        or subject not in verdict.decisions
        or run[subject] != verdict.decisions[subject]
    ]
