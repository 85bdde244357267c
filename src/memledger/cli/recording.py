"""What `memledger record` has written, read back: samples per device and member, and events."""

from __future__ import annotations

import csv
import math
import os
from collections.abc import Iterable
from typing import NamedTuple

from memledger.cli.record import COLUMNS

Who = tuple[str, str, str]
"""(label, pid, slot)"""

_BYTES = COLUMNS[COLUMNS.index("total") : COLUMNS.index("event")]


class BadRecording(Exception):
    """One line that says what is wrong with the file."""


class Sample(NamedTuple):
    """One device at one time; figures and members in bytes, None for unknown."""

    time: float
    figures: dict[str, int | None]
    members: dict[Who, dict[str, int]]

    @property
    def used(self) -> int:
        return sum(self.figures[name] or 0 for name in ("held", "claimed", "unaccounted"))


class Happened(NamedTuple):
    time: float
    name: str
    who: Who
    times: int


class Recording(NamedTuple):
    devices: dict[str, list[Sample]]
    events: list[Happened]
    notes: list[str]

    @property
    def span(self) -> tuple[float, float]:
        """First and last time, Unix seconds."""
        times = [sample.time for samples in self.devices.values() for sample in samples]
        return min(times), max(times)


def read(name: str) -> Recording:
    """Raises BadRecording, OSError."""
    if os.path.isdir(name):
        raise BadRecording(f"{name} is a directory")
    with open(name, "rb") as file:
        data = file.read()
    if not data:
        raise BadRecording(f"{name} is empty")
    notes = []
    if not data.endswith(b"\n"):
        # The recorder was killed, or the disk full, in the middle of a line.
        data = data[: data.rfind(b"\n") + 1]
        notes.append("The last line was cut off in the middle, and is left out.")
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        raise BadRecording(f"{name} is no recording: not a text file") from None
    found = _parse(name, text.splitlines())
    if not found.devices:
        raise BadRecording(f"{name} holds no sample")
    return found._replace(notes=notes)


def _parse(name: str, lines: Iterable[str]) -> Recording:
    rows = csv.reader(lines)
    try:
        header = next(rows, [])
        if tuple(header[: len(COLUMNS)]) != COLUMNS:
            raise BadRecording(f"{name} is no recording: its first line has other columns")
        found = Recording({}, [], [])
        for fields in rows:
            if len(fields) < len(COLUMNS):
                raise BadRecording(f"{name}, line {rows.line_num}: too few columns")
            try:
                _add(found, dict(zip(COLUMNS, fields, strict=False)))
            except (ValueError, LookupError) as error:
                raise BadRecording(f"{name}, line {rows.line_num}: {error}") from None
    except csv.Error as error:
        raise BadRecording(f"{name}, line {rows.line_num}: {error}") from None
    return found


def _add(found: Recording, row: dict[str, str]) -> None:
    now = float(row["time"])
    if not math.isfinite(now):
        raise ValueError(f"time {row['time']}")
    who = (row["member"], row["pid"], row["slot"])
    if row["row"] == "device":
        figures = {name: int(row[name]) if row[name] else None for name in _BYTES}
        found.devices.setdefault(row["device"], []).append(Sample(now, figures, {}))
    elif row["row"] == "member":
        samples = found.devices.get(row["device"], [])
        if not samples:
            raise ValueError(f"a member of {row['device']}, which has no line before")
        samples[-1].members[who] = {
            name: int(row[name]) for name in ("held", "releasable", "pinned", "claimed")
        }
    elif row["row"] == "event":
        found.events.append(Happened(now, row["event"], who, int(row["count"])))
    else:
        raise ValueError(f"a row of an unknown kind, {row['row']!r}")


def thinned(samples: list[Sample], most: int) -> list[Sample]:
    """At most `most` of them: of each stretch the fullest, so that no peak is lost; and the
    last."""
    if len(samples) <= most:
        return samples
    step = len(samples) / (most - 1)
    parts = [samples[int(i * step) : int((i + 1) * step)] for i in range(most - 1)]
    chosen = [max(part, key=lambda sample: sample.used) for part in parts if part]
    return [*chosen, samples[-1]] if chosen[-1] is not samples[-1] else chosen


class DeviceTable(NamedTuple):
    """What a page says of a device, in bytes."""

    device: str
    total: int | None
    peak_held: int
    mean_held: int
    peak_claimed: int
    least_free: int | None
    peak_unaccounted: int | None
    peak_overcommit: int | None


class MemberTable(NamedTuple):
    who: Who
    peaks: dict[str, int]
    events: dict[str, int]


def device_tables(recording: Recording) -> list[DeviceTable]:
    return [_device_table(key, samples) for key, samples in recording.devices.items()]


def _device_table(key: str, samples: list[Sample]) -> DeviceTable:
    def known(name: str) -> list[int]:
        return [value for s in samples if (value := s.figures[name]) is not None]

    held = known("held") or [0]
    return DeviceTable(
        key,
        max(known("total"), default=None),
        max(held),
        sum(held) // len(held),
        max(known("claimed"), default=0),
        min(known("free"), default=None),
        max(known("unaccounted"), default=None),
        max(known("overcommit"), default=None),
    )


def member_tables(recording: Recording) -> list[MemberTable]:
    found: dict[Who, MemberTable] = {}

    def of(who: Who) -> MemberTable:
        return found.setdefault(who, MemberTable(who, {}, {}))

    for key, samples in recording.devices.items():
        for sample in samples:
            for who, amounts in sample.members.items():
                peaks = of(who).peaks
                peaks[key] = max(peaks.get(key, 0), amounts["held"])
    for event in recording.events:
        if any(event.who):
            counts = of(event.who).events
            counts[event.name] = counts.get(event.name, 0) + event.times
    return sorted(found.values(), key=lambda table: -max(table.peaks.values(), default=0))


def total_events(recording: Recording) -> dict[str, int]:
    counts: dict[str, int] = {}
    for event in recording.events:
        counts[event.name] = counts.get(event.name, 0) + event.times
    return counts
