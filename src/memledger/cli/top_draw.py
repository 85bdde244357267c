"""What `memledger top` shows, as cells of text: devices as bars, members as rows. Knows nothing of
terminals, so a frame is the same on a live screen, in a pipe and in a test."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from memledger.cli.look import Look, gib, short_names
from memledger.cli.screen import Cell, Column, Table
from memledger.views import Member, Row, Snapshot

Line = list[Cell]
MemberId = tuple[int, int]
"""(slot, generation)"""

HISTORY_SAMPLES = 240
_TAGS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
_BAR_MAX = 160

_MARKS = {
    "held": "█", "pinned": "▓", "releasable": "╱",  # noqa: RUF001  a hatching
    "claimed": "+", "unaccounted": "░", "free": "·",
}  # fmt: skip
_ASCII_MARKS = {
    "held": "#", "pinned": "@", "releasable": "/", "claimed": "+", "unaccounted": ":", "free": ".",
}  # fmt: skip
_LEVELS, _ASCII_LEVELS = "▁▂▃▄▅▆▇█", "_.:-=+*#"


class Tags:
    """A letter per member, which it keeps while it lives: what leads from a bar to a row."""

    def __init__(self) -> None:
        self._letters: dict[MemberId, str] = {}

    def update(self, members: Iterable[Member]) -> None:
        there = [(m.slot, m.generation) for m in members]
        self._letters = {who: tag for who, tag in self._letters.items() if who in set(there)}
        free = [tag for tag in _TAGS if tag not in self._letters.values()]
        for who in there:
            if who not in self._letters:
                self._letters[who] = free.pop(0) if free else "*"

    def of(self, slot: int, generation: int) -> str:
        return self._letters.get((slot, generation), "?")

    def style(self, slot: int, generation: int) -> str:
        """One of the styles member0 to member4."""
        tag = self.of(slot, generation)
        return f"member{_TAGS.find(tag) % 5}" if tag in _TAGS else "dim"


class History:
    """Used share of each device over the last looks, for the sparklines."""

    def __init__(self) -> None:
        self._shares: dict[str, deque[float | None]] = {}

    def add(self, seen: Look) -> None:
        here = {pool.key: _used_share(pool) for pool in seen.pools}
        for key in self._shares.keys() | here.keys():
            kept = self._shares.setdefault(key, deque(maxlen=HISTORY_SAMPLES))
            kept.append(here.get(key))

    def of(self, key: str) -> Sequence[float | None]:
        return tuple(self._shares.get(key, ()))


def _used_share(pool: Snapshot) -> float | None:
    figures = pool.figures
    if not figures.total or figures.free is None:
        return None
    return 1 - figures.free / figures.total


def spark(shares: Sequence[float | None], width: int, *, ascii_only: bool) -> str:
    """The newest `width` of `shares` (0 to 1), a character each; a blank where unknown."""
    levels = _ASCII_LEVELS if ascii_only else _LEVELS
    newest = shares[-width:] if width > 0 else ()
    return "".join(
        " " if share is None else levels[min(7, max(0, int(share * 8)))] for share in newest
    )


# ---- devices


def shown_pools(seen: Look) -> list[Snapshot]:
    """All but the budgets for pins, which `dump` has: their bytes are the RAM's pinned ones."""
    return [pool for pool in seen.pools if pool.kind != "pin"]


def device_lines(
    pool: Snapshot,
    name: str,
    width: int,
    tags: Tags,
    history: Sequence[float | None],
    *,
    ascii_only: bool = False,
) -> list[Line]:
    """Two lines of at most `width`: the figures with a sparkline, and the bar."""
    head = _figures_line(pool, name)
    text = sum(len(cell.text) for cell in head)
    drawn = spark(history, min(32, width - text - 2), ascii_only=ascii_only)
    if drawn:
        head.append(Cell(" " * (width - text - len(drawn)) + drawn, "dim"))
    return [_cut(head, width), _bar(pool, min(width, _BAR_MAX), tags, ascii_only=ascii_only)]


def _figures_line(pool: Snapshot, name: str) -> Line:
    figures = pool.figures
    over = bool(figures.overcommit)
    line = [Cell(f"{name} ", "bold"), Cell(f"{gib(figures.total)} GiB")]
    line.append(
        Cell(f"  free {gib(figures.free)}", "bad" if over else "good" if figures.free else "warn")
    )
    line.append(Cell(f"  available {gib(figures.available)}"))
    if over:
        line.append(Cell(f"  overcommit {gib(figures.overcommit)}", "bad"))
    reading = pool.reading
    if reading.age_s is None:
        line.append(Cell(f"  no reading ({reading.reason or 'no_probe'})", "warn"))
    elif reading.reason:
        line.append(Cell(f"  reading {reading.reason}", "warn"))
    if not pool.coherent:
        line.append(Cell("  changing", "warn"))
    return line


def _parts(pool: Snapshot, tags: Tags, marks: Mapping[str, str]) -> list[tuple[int, str, str, str]]:
    """(bytes, mark, style, letter for its first cell) from left to right."""
    parts = []
    for row in pool.rows:
        letter = tags.of(row.slot, row.generation)
        style = tags.style(row.slot, row.generation)
        releasable = min(row.releasable, row.held)
        pinned = min(row.pinned, row.held - releasable)
        rest = row.held - releasable - pinned
        amounts = {
            "held": rest, "pinned": pinned, "releasable": releasable, "claimed": row.claimed,
        }  # fmt: skip
        for kind, amount in amounts.items():
            if amount:
                parts.append((amount, marks[kind], style, letter))
                letter = ""
    if pool.figures.unaccounted:
        parts.append((pool.figures.unaccounted, marks["unaccounted"], "", ""))
    return parts


def _bar(pool: Snapshot, width: int, tags: Tags, *, ascii_only: bool) -> Line:
    marks = _ASCII_MARKS if ascii_only else _MARKS
    total = pool.figures.total
    if not total:
        known = f"held {gib(pool.figures.held)} GiB, claimed {gib(pool.figures.claimed)} GiB"
        return [Cell(f"total unknown; {known}"[:width], "dim")]
    parts = _parts(pool, tags, marks)
    # More than there is: the bar is then of what is held and claimed, and has no free end.
    scale = max(total, sum(part[0] for part in parts))
    line, begun, drawn = [], 0, 0
    for amount, mark, style, letter in parts:
        begun += amount
        cells = (begun * width + scale // 2) // scale - drawn
        if cells > 0:
            drawn += cells
            line.append(Cell((letter + mark * cells)[:cells], style))
    line.append(Cell(marks["free"] * (width - drawn), "dim"))
    return line


def legend(*, ascii_only: bool = False) -> Line:
    marks = _ASCII_MARKS if ascii_only else _MARKS
    text = "  ".join(f"{mark} {kind}" for kind, mark in marks.items())
    return [Cell(f"a-z member  {text}", "dim")]


def _cut(line: Line, width: int) -> Line:
    shown, left = [], width
    for cell in line:
        if left <= 0:
            break
        shown.append(Cell(cell.text[:left], cell.style))
        left -= len(cell.text)
    return shown


# ---- members


class MemberRow(NamedTuple):
    """What one member has on one device; `row` None: nothing anywhere."""

    tag: str
    member: Member
    key: str
    device: str
    row: Row | None

    @property
    def name(self) -> str:
        return self.member.label or self.member.program or "unnamed"


class Shown(NamedTuple):
    """A column: its name, header, and whether it is a number (sorted downwards at first)."""

    name: str
    header: str
    number: bool


COLUMNS = (
    Shown("tag", "", False),
    Shown("pid", "pid", True),
    Shown("role", "role", False),
    Shown("member", "member", False),
    Shown("state", "state", False),
    Shown("device", "device", False),
    Shown("held", "held", True),
    Shown("releasable", "releas.", True),
    Shown("claimed", "claimed", True),
    Shown("pinned", "pinned", True),
    Shown("ooms", "ooms", True),
    Shown("refused", "refused", True),
    Shown("answered", "answered", True),
)
_LEAVE_OUT = ("answered", "role", "refused", "ooms", "pinned", "state", "pid")
"""What is left out first where the width is short."""


def member_rows(seen: Look, tags: Tags) -> list[MemberRow]:
    pools = shown_pools(seen)
    names = short_names([pool.key for pool in pools])
    rows = []
    for member in seen.members:
        tag = tags.of(member.slot, member.generation)
        found = [
            MemberRow(tag, member, pool.key, names[pool.key], row)
            for pool in pools
            for row in pool.rows
            if (row.slot, row.generation) == (member.slot, member.generation)
            and (row.held or row.claimed or row.pinned)
        ]
        rows += found or [MemberRow(tag, member, "", "-", None)]
    return rows


def cells_of(entry: MemberRow) -> dict[str, str]:
    """Text per column."""
    member, row, counts = entry.member, entry.row, entry.member.counters
    mark = "†" if member.state == "dead" else ""
    amounts = (
        {"held": "-", "releasable": "-", "claimed": "-", "pinned": "-"}
        if row is None
        else {
            "held": gib(row.held) + (mark if row.held else ""),
            "releasable": gib(row.releasable),
            "claimed": gib(row.claimed),
            "pinned": gib(row.pinned),
        }
    )
    return {
        "tag": entry.tag,
        "pid": str(member.pid),
        "role": member.role,
        "member": _short(entry.name, 20),
        "state": member.state,
        "device": _short(entry.device, 18),
        **amounts,
        "ooms": str(counts.ooms),
        "refused": str(counts.claims_refused),
        "answered": str(counts.asks_answered),
    }


def _short(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"


def matching(rows: Sequence[MemberRow], words: str) -> list[MemberRow]:
    """Rows that contain each of `words` in their name, pid, role, state or device."""
    wanted = words.lower().split()
    return [
        entry
        for entry in rows
        if all(
            any(
                word in text.lower()
                for text in (
                    entry.name, str(entry.member.pid), entry.member.role, entry.member.state,
                    entry.device, entry.key,
                )
            )
            for word in wanted
        )
    ]  # fmt: skip


def in_order(rows: Sequence[MemberRow], column: str, *, reverse: bool = False) -> list[MemberRow]:
    """By a column: numbers the largest first, words from a to z; `reverse` turns that round. Equal
    ones stay in the order of slots."""
    number = next(shown.number for shown in COLUMNS if shown.name == column)
    return sorted(rows, key=lambda entry: _value(entry, column), reverse=number != reverse)


def _value(entry: MemberRow, column: str) -> int | str:
    member, row = entry.member, entry.row
    values: dict[str, int | str] = {
        "tag": entry.tag,
        "pid": member.pid,
        "role": member.role,
        "member": entry.name.lower(),
        "state": member.state,
        "device": entry.device,
        "held": row.held if row else -1,
        "releasable": row.releasable if row else -1,
        "claimed": row.claimed if row else -1,
        "pinned": row.pinned if row else -1,
        "ooms": member.counters.ooms,
        "refused": member.counters.claims_refused,
        "answered": member.counters.asks_answered,
    }
    return values[column]


def fitting_columns(
    rows: Sequence[MemberRow], width: int, marked: str = "", gap: int = 2
) -> list[Shown]:
    """The columns that there is room for, those of least use left out. marked: the one whose header
    needs room for an arrow, which stays."""
    texts = [cells_of(entry) for entry in rows]
    wide = {
        shown.name: max(
            [len(shown.header) + (shown.name == marked), *(len(text[shown.name]) for text in texts)]
        )
        for shown in COLUMNS
    }
    chosen = list(COLUMNS)
    for name in _LEAVE_OUT:
        if sum(wide[shown.name] + gap for shown in chosen) <= width:
            break
        chosen = [shown for shown in chosen if shown.name != name or name == marked]
    return chosen


def member_table(rows: Sequence[MemberRow], width: int, tags: Tags) -> Table:
    chosen = fitting_columns(rows, width)
    return Table(
        [Column(shown.header, right=shown.number) for shown in chosen],
        [
            [Cell(cells_of(entry)[shown.name], style_of(entry, shown.name, tags))
             for shown in chosen]
            for entry in rows
        ],
    )  # fmt: skip


def style_of(entry: MemberRow, column: str, tags: Tags) -> str:
    if entry.member.state == "dead":
        return "bad"
    if column == "tag":
        return tags.style(entry.member.slot, entry.member.generation)
    if column == "state":
        return {"live": "good", "unverified": "warn"}.get(entry.member.state, "dim")
    if column in ("ooms", "refused"):
        return "warn" if _value(entry, column) else "dim"
    return "bold" if column == "member" else ""


# ---- a frame


def title(seen: Look) -> str:
    count = f"{len(seen.live)} member{'' if len(seen.live) == 1 else 's'}"
    if seen.dead:
        count += f", {len(seen.dead)} dead"
    return f"memledger · {count} · scope {seen.scope} · sizes in GiB · {seen.path}"


def notes(seen: Look) -> list[tuple[str, str]]:
    """(text, style): what a reader must know to trust the figures."""
    found = []
    if seen.dead:
        found.append(("† dead: counted until the next sweep", "bad"))
    if seen.findings:
        found.append((f"{len(seen.findings)} broken invariant(s): see memledger doctor", "warn"))
    for path in seen.other_layouts:
        found.append((f"not in this total: another memledger version, in {path}", "warn"))
    return found
