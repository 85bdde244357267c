"""`memledger record`: the ledger over time, into a CSV file. Never joins."""

from __future__ import annotations

import argparse
import contextlib
import csv
import io
import os
import signal
import stat
import sys
import threading
import time
from collections.abc import Iterator
from types import FrameType
from typing import Any, BinaryIO, NamedTuple

from memledger.cli import screen
from memledger.cli.look import Look, add_path, choose_path, look
from memledger.cli.options import duration, rate
from memledger.views import Counters, Member

COLUMNS = (
    "time", "row", "device", "member", "pid", "slot", "total", "free", "available", "held",
    "releasable", "pinned", "claimed", "unaccounted", "overcommit", "event", "count",
)  # fmt: skip

_EPILOG = """\
Until Ctrl-C, SIGTERM or the end of --for. Whole lines are written, so the file
can be read at any moment, while it grows and after a crash. Each sample reads
the segment once (about 10 ms). While no process has joined, it waits.

The file is CSV (UTF-8, a header, sizes in bytes, unknown ones empty). The
column `row` says what a line is about:
  device  total to overcommit of `device` at `time` (Unix seconds)
  member  held to claimed of a member on that device; none: no line
  event   what `member` counted since the sample before: claims_refused, ooms,
          asks_sent, asks_answered, asks_declined, death; or no_ledger: the
          segment could not be read from here on
`memledger report FILE` draws it.

exit codes: 0 recorded, however it was ended; 1 nothing to record, or the file
            cannot be written; 2 usage; 141 whoever read the output went away
"""


def add_parser(commands: Any) -> None:
    parser = commands.add_parser(
        "record",
        help="write the ledger over time into a file",
        description="Record devices, members and events. Joins nothing, changes nothing.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("file", metavar="FILE", help="CSV file to make; - for stdout")
    parser.add_argument(
        "--rate", metavar="N/s", type=rate, default=4.0,
        help="samples per time, such as 4/s or 30/min (default 4/s, at most 20/s)",
    )  # fmt: skip
    parser.add_argument(
        "--for", metavar="TIME", type=duration, dest="duration", default=None,
        help="stop after TIME, such as 30s, 10min or 2h (default: when stopped)",
    )  # fmt: skip
    parser.add_argument("--force", action="store_true", help="overwrite FILE where it exists")
    add_path(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    path, scope = choose_path(options.path)
    first = look(path, scope)
    if first.status not in ("ok", "absent"):
        return _complain(f"nothing to record: {first.reason}")
    try:
        out = _open(options.file, force=options.force)
    except FileExistsError:
        return _complain(f"{options.file} exists; --force overwrites it")
    except OSError as error:
        return _complain(f"cannot write {options.file}: {error.strerror}")
    if first.status == "absent":
        print(screen.clean(f"memledger: waiting: {first.reason}"), file=sys.stderr, flush=True)
    with out, _stopped_by_signals() as stop:
        recorder = Recorder(out)
        try:
            recorder.begin()
            _samples(recorder, path, scope, options, stop)
        except BrokenPipeError:
            raise
        except OSError as error:
            return _complain(
                f"cannot write {options.file}: {error.strerror}; "
                f"it holds the {recorder.samples} samples before that"
            )
    if not recorder.samples:
        return _complain(f"recorded nothing: {look(path, scope).reason}")
    if options.file != "-":
        text = f"{recorder.samples} samples in {options.file}; memledger report draws them"
        print(screen.clean(f"memledger: {text}"), file=sys.stderr)
    return 0


_ROUNDING_S = 1e-6
"""0.1 s five times after 18000.7 s is a little less than 0.5 s after it."""


def _samples(
    recorder: Recorder, path: str, scope: str, options: argparse.Namespace, stop: threading.Event
) -> None:
    begun = due = time.monotonic()
    while not stop.is_set():
        recorder.add(time.time(), look(path, scope))
        # From the beginning, so that slow looks do not add up; what was missed is left out.
        due = max(due + 1 / options.rate, time.monotonic())
        if options.duration is not None and due - begun >= options.duration - _ROUNDING_S:
            stop.wait(begun + options.duration - time.monotonic())
            break
        stop.wait(max(0.0, due - time.monotonic()))


@contextlib.contextmanager
def _stopped_by_signals() -> Iterator[threading.Event]:
    """An event that Ctrl-C and SIGTERM set: the usual way to end a recording is no failure."""
    stop = threading.Event()

    def end(number: int, frame: FrameType | None) -> None:
        stop.set()

    before = {n: signal.signal(n, end) for n in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _open(name: str, *, force: bool) -> BinaryIO:
    """Unbuffered, so that what was recorded is in the file."""
    if name == "-":
        return os.fdopen(os.dup(sys.stdout.fileno()), "wb", buffering=0)
    with contextlib.suppress(FileNotFoundError):
        # A pipe or a device is there before anybody writes.
        force = force or not stat.S_ISREG(os.stat(name).st_mode)
    return open(name, "wb" if force else "xb", buffering=0)


def _complain(text: str) -> int:
    print(screen.clean(f"memledger: {text}"), file=sys.stderr)
    return 1


# ---- lines


class Event(NamedTuple):
    """times: since the sample before. member: None where nobody knows whose it was."""

    name: str
    member: Member | None
    times: int


class Recorder:
    """Turns looks into lines."""

    def __init__(self, out: BinaryIO) -> None:
        self._out = out
        self._events = Events()
        self.samples = 0

    def begin(self) -> None:
        self._write([list(COLUMNS)])

    def add(self, now: float, seen: Look) -> None:
        lines = [_event_line(now, event) for event in self._events.since_last(seen)]
        if seen.status == "ok":
            self.samples += 1
            lines += _figure_lines(now, seen)
        self._write(lines)

    def _write(self, lines: list[list[Any]]) -> None:
        text = io.StringIO(newline="")
        csv.writer(text, lineterminator="\n").writerows(lines)
        rest = memoryview(text.getvalue().encode())
        while rest:
            rest = rest[self._out.write(rest) :]


def _line(**fields: Any) -> list[Any]:
    return [fields.get(name, "") for name in COLUMNS]


def _figure_lines(now: float, seen: Look) -> list[list[Any]]:
    owners = {(m.slot, m.generation): m for m in seen.members}
    lines = []
    for pool in seen.pools:
        figures = pool.figures
        known = {
            name: getattr(figures, name)
            for name in COLUMNS[COLUMNS.index("total") : COLUMNS.index("event")]
        }
        known = {name: value for name, value in known.items() if value is not None}
        when = {"time": f"{now:.3f}", "device": screen.clean(pool.key)}
        lines.append(_line(row="device", **when, **known))
        for row in pool.rows:
            member = owners.get((row.slot, row.generation))
            if member is None or not (row.held or row.claimed):
                continue
            lines.append(
                _line(row="member", **when, **_who(member), held=row.held, pinned=row.pinned,
                      releasable=row.releasable, claimed=row.claimed)
            )  # fmt: skip
    return lines


def _event_line(now: float, event: Event) -> list[Any]:
    who = {} if event.member is None else _who(event.member)
    return _line(time=f"{now:.3f}", row="event", event=event.name, count=event.times, **who)


def _who(member: Member) -> dict[str, Any]:
    # Cleaned of line ends too, so that a line of the file is a row, whatever a label contains.
    name = screen.clean(member.label or member.program or "unnamed")
    return {"member": name, "pid": member.pid, "slot": member.slot}


# ---- events

MemberId = tuple[int, int]
"""(slot, generation)"""
_COUNTED = ("claims_refused", "ooms", "asks_sent", "asks_answered", "asks_declined")


class Events:
    """What has happened between one look and the next, from the counters."""

    def __init__(self) -> None:
        self._members: dict[MemberId, Member] | None = None
        self._seen_dead: set[MemberId] = set()
        self._told_dead: set[MemberId] = set()
        self._swept = 0
        self._readable = True

    def since_last(self, seen: Look) -> list[Event]:
        if seen.status != "ok":
            lost = self._readable and self._members is not None
            self._readable = False
            return [Event("no_ledger", None, 1)] if lost else []
        here = {(m.slot, m.generation): m for m in seen.members}
        swept = int(seen.info["sweep_count"])
        before = self._members
        events: list[Event] = []
        if before is not None:
            for who, member in here.items():
                events += _counted(before.get(who), member)
            # A segment that was made anew counts from 0.
            events += self._deaths(before, here, max(0, swept - self._swept))
        self._members, self._swept, self._readable = here, swept, True
        return events

    def _deaths(
        self,
        before: dict[MemberId, Member],
        here: dict[MemberId, Member],
        swept: int,
    ) -> list[Event]:
        """Once for each: those seen dead twice (one that leaves looks dead for a moment), and those
        that were swept before that. Of more that have gone than were swept, those count that
        looked dead before they went; else nobody knows who just left."""
        dead = {who for who, member in here.items() if member.state == "dead"}
        sure = (dead & self._seen_dead) - self._told_dead
        events = [Event("death", here[who], 1) for who in sorted(sure)]
        gone = before.keys() - here.keys()
        unseen = max(0, swept - len(gone & self._told_dead))
        for missing in (gone - self._told_dead, (gone & self._seen_dead) - self._told_dead):
            if unseen and len(missing) == unseen:
                events += [Event("death", before[who], 1) for who in sorted(missing)]
                unseen = 0
        if unseen:
            events.append(Event("death", None, unseen))
        self._seen_dead = dead
        self._told_dead = (self._told_dead | sure) & here.keys()
        return events


def _counted(before: Member | None, now: Member) -> list[Event]:
    """A member that was not there before has counted from 0."""
    old = Counters() if before is None else before.counters
    raised = {name: getattr(now.counters, name) - getattr(old, name) for name in _COUNTED}
    return [Event(name, now, count) for name, count in raised.items() if count > 0]
