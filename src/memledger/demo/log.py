"""The log of a run: JSON lines, appended by all processes, in the order in which they decided.

How the order is known. "Read the figures, decide, claim, write the line" is done under one lock
(of the log's file, so that the kernel releases it at death), and so is "publish a smaller held,
write the line". Hence the lines stand in the order in which the ledger granted.

Why that hides no race. The race of the demo is between a decision and the bytes that follow it,
tens of milliseconds to seconds later; allocating and landing never hold the lock. The run without
the ledger takes the same lock at the same places, and runs out of memory all the same, and so does
the ledger's own run once its claims are left out (--break-claims). What the lock gives is an order
to compare with: without it a second process may decide between the first one's grant and its line.
Two loaders are also raced without it, see scenarios.py.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

try:
    import fcntl
except ImportError:  # Windows, where there are no simulated cards either
    fcntl = None  # type: ignore[assignment]

from memledger.demo.policy import Checkpoint, Step

Event = dict[str, Any]


class Log:
    """One line is one write to a descriptor with O_APPEND, so lines of two processes never mix."""

    def __init__(self, path: str) -> None:
        self.path = path
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | getattr(os, "O_CLOEXEC", 0)
        self._fd = os.open(path, flags, 0o600)

    @contextmanager
    def in_order(self) -> Iterator[None]:
        """Alone among the processes of the run."""
        fcntl.flock(self._fd, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.flock(self._fd, fcntl.LOCK_UN)

    def write(self, event: Event) -> None:
        """Call it inside `in_order`."""
        os.write(self._fd, (json.dumps(event, sort_keys=True) + "\n").encode())

    def close(self) -> None:
        os.close(self._fd)


class Request(NamedTuple):
    """What a process asked for, and nothing of what it decided or saw."""

    kind: str
    """load, step, free (what `subject` names), died (all that `who` has); pin (`nbytes`); begin and
    stop (the prompt of `group`), turn (a step of it that needs no memory)"""
    who: str
    subject: str
    """unique in the run for a load, a step, a pin and a turn"""
    checkpoint: Checkpoint | None = None
    step: Step | None = None
    nbytes: int = 0
    group: str = ""


def read_events(path: str) -> list[Event]:
    with open(path, encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def request_event(request: Request) -> Event:
    event: Event = {"kind": request.kind, "who": request.who, "subject": request.subject}
    if request.checkpoint is not None:
        event["checkpoint"] = request.checkpoint._asdict()
    if request.step is not None:
        event["step"] = request.step._asdict()
    if request.nbytes:
        event["nbytes"] = request.nbytes
    if request.group:
        event["group"] = request.group
    return event


def request_of(event: Event) -> Request:
    """The request in a line. What stands beside it, decision and figures, is not looked at."""
    checkpoint, step = event.get("checkpoint"), event.get("step")
    return Request(
        kind=event["kind"],
        who=event["who"],
        subject=event["subject"],
        checkpoint=checkpoint
        and Checkpoint(
            checkpoint["fp8_bytes"], checkpoint["activation_bytes"], tuple(checkpoint["dtypes"])
        ),
        step=step and Step(**step),
        nbytes=event.get("nbytes", 0),
        group=event.get("group", ""),
    )
