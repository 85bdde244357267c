"""`memledger dump`: who holds what. Reads the segment's file; never joins."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from typing import Any

from memledger.cli import screen
from memledger.cli.look import Look, add_path, age, choose_path, gib, look, short_names
from memledger.cli.screen import Cell, Column, Screen, Table
from memledger.views import Member, Row, Snapshot

SCHEMA = 1

_HEADERS = (
    "total free available unaccounted held releasable claimed pinned",
    "total free available unac-counted held releasable claimed pinned",
    "total free avail-able unac-counted held releas-able claimed pinned",
)
"""Of the figures of a device, for less and less width. A "-" is where a header may be broken."""

_EPILOG = """\
The table, per device, in GiB:
  total        as the source says, or as configured where there is none
  free         what a process that holds nothing could take now
  available    the same, if every member gave back what it can
  unaccounted  used by somebody who is no member: the desktop, other programs
  held         by the members; releasable and pinned are parts of it
  claimed      promised to a member, not allocated yet
"?" is unknown, never 0; the table of readings gives the reason.

--json prints one object (with --watch one per line). Sizes are ints of bytes,
unknown ones null:
  schema         1; raised when a field changes its meaning or goes
  path, scope    of the segment; scope: user, path, session
  status         ok, absent, foreign (or corrupt), layout, error;
                 reason: why not ok
  layout         [major, minor] of the segment
  complete       no process of another layout is missing from these totals
  devices        key, aliases, kind, unit, coherent, complete, total, free,
                 available, held, releasable, claimed, pinned, unaccounted,
                 overcommit, reserved, headroom, dead_held,
                 reading {source, scope, total, free, reserved, immediate,
                 soft_limit, age_s, reader (a slot), reason, suspect, unified},
                 records [{slot, held, releasable, claimed, pending, pinned,
                 headroom, limit, dead, accounts {name: bytes}}]
  members        slot, state (live, joining, dead, unverified), role, label,
                 program, version, pid, parent_pid, pid_namespace, start_ticks,
                 generation, leader (the slot it follows), group (a number per
                 name), counters {ooms, claims_refused, asks_sent,
                 asks_answered, asks_declined, interrupts_ignored}
  findings       invariant, pool, slot, expected, actual, text; while members
                 are at work a finding may be a passing one: see
                 `memledger doctor`
  other_layouts  paths of segments of other versions with live members: not in
                 this total

exit codes: 0 shown; 1 cannot tell (nobody has joined, no access, not a
            segment, another layout); 2 usage; 130 interrupted
"""


def add_parser(commands: Any) -> None:
    parser = commands.add_parser(
        "dump",
        help="who holds what on which device",
        description="Show devices and members. Joins nothing, changes nothing.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--json", action="store_true", help="for programs; sizes in bytes")
    parser.add_argument(
        "--watch",
        metavar="SECONDS",
        nargs="?",
        type=_interval,
        const=1.0,
        help="again every SECONDS (default 1) until Ctrl-C",
    )
    add_path(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    path, scope = choose_path(options.path)
    if options.watch is None:
        return _once(look(path, scope), as_json=options.json)
    view = screen.open_screen()
    while True:
        seen = look(path, scope)
        if options.json:
            print(json.dumps(to_json(seen)))
        else:
            if view.live:
                view.clear()
            if seen.status == "ok":
                render(view, seen)
            else:
                view.line(seen.reason or seen.status, "warn")
        sys.stdout.flush()
        time.sleep(options.watch)


def _once(seen: Look, *, as_json: bool) -> int:
    if as_json:
        print(json.dumps(to_json(seen), indent=2))
    elif seen.status == "ok":
        render(screen.open_screen(), seen)
    if seen.status == "ok":
        return 0
    sys.stdout.flush()
    others = (
        f"; other layouts in use: {', '.join(seen.other_layouts)}" if seen.other_layouts else ""
    )
    print(screen.clean(f"memledger: {seen.reason}{others}"), file=sys.stderr)
    return 1


def _interval(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected seconds, got {text!r}") from None
    if not 0.05 <= seconds <= 86400:
        raise argparse.ArgumentTypeError(f"expected 0.05 to 86400 seconds, got {text}")
    return seconds


# ---- for people


def render(view: Screen, seen: Look) -> None:
    counts = f"{len(seen.live)} member{'' if len(seen.live) == 1 else 's'}"
    if seen.dead:
        counts += f", {len(seen.dead)} dead"
    view.line(f"memledger · {seen.path}", "bold")
    view.line(
        f"{counts} · scope {seen.scope} · layout {seen.layout[0]}.{seen.layout[1]} · sizes in GiB",
        "dim",
    )
    view.line()
    names = short_names([pool.key for pool in seen.pools])
    if seen.pools:
        _render_devices(view, seen, names)
    else:
        view.line("no device has been opened yet")
    if seen.members:
        table = screen.fitting(view, _member_tables(seen, names))
        if table:
            view.table(table)
        else:
            _list_members(view, seen, names)
    else:
        view.line("nobody is a member now")
    for text in (*_accounts(seen, names), *_groups(seen), *_events(seen)):
        view.line(text, "dim")
    for note, style in _notes(seen):
        view.line(note, style)


def _render_devices(view: Screen, seen: Look, names: dict[str, str]) -> None:
    everything = Table(
        [*_device_columns("key", _HEADERS[0]), *_reading_columns()],
        [[*_device_cells(pool, pool.key), *_reading_cells(pool, seen)] for pool in seen.pools],
    )
    if screen.fitting(view, [everything]):
        view.table(everything)
        return
    rows = [_device_cells(pool, names[pool.key]) for pool in seen.pools]
    screen.show(view, *(Table(_device_columns("device", headers), rows) for headers in _HEADERS))
    readings = [[Cell(names[pool.key], "bold"), *_reading_cells(pool, seen)] for pool in seen.pools]
    screen.show(view, Table([Column("reading of"), *_reading_columns()], readings))


def _device_columns(first: str, headers: str) -> list[Column]:
    names = (name.replace("-", "-\n") for name in headers.split())
    return [Column(first), *(Column(name, right=True) for name in names)]


def _device_cells(pool: Snapshot, name: str) -> list[Cell]:
    figures = pool.figures
    over = bool(figures.overcommit)
    return [
        Cell(name, "bold"),
        Cell(gib(figures.total)),
        Cell(gib(figures.free), "bad" if over else "good" if figures.free else "warn"),
        Cell(gib(figures.available)),
        Cell(gib(figures.unaccounted)),
        Cell(gib(figures.held), "bold"),
        Cell(gib(figures.releasable)),
        Cell(gib(figures.claimed)),
        Cell(gib(figures.pinned)),
    ]


def _reading_columns() -> list[Column]:
    return [Column("source"), Column("scope"), Column("age", right=True), Column("read by")]


def _reading_cells(pool: Snapshot, seen: Look) -> list[Cell]:
    reading = pool.reading
    if reading.age_s is None:
        configured = pool.figures.source == "ledger"
        why = "configured total" if configured else reading.reason or "no_probe"
        return [Cell("none"), Cell("-"), Cell("-"), Cell(f"nobody: {why}", "warn")]
    reader = next((m for m in seen.members if m.slot == reading.reader), None)
    by = _name(reader) if reader else "a member that has left"
    if reading.reason:
        by += f": {reading.reason}"
    if reading.suspect:
        by += " (suspect)"
    doubtful = bool(reading.reason) or reading.suspect
    return [
        Cell(reading.source),
        Cell(reading.scope),
        Cell(age(reading.age_s)),
        Cell(by, "warn" if doubtful else "dim"),
    ]


def _name(member: Member) -> str:
    return f"{member.label or member.program or 'unnamed'} ({member.pid})"


def _member_tables(seen: Look, names: dict[str, str]) -> list[Table]:
    """Widest first."""
    wide: list[list[Cell]] = []
    narrow: list[list[Cell]] = []
    for member in seen.members:
        who = _who(member)
        records = _records(member, seen.pools)
        devices = [names[pool.key] for pool, _ in records] or ["-"]
        rows: list[Row | None] = [row for _, row in records] or [None]
        for index, (name, row) in enumerate(zip(devices, rows, strict=True)):
            shown = who if index == 0 else [Cell("")] * len(who)
            device = Cell(name)
            figures = _record_cells(row, dead=member.state == "dead")
            wide.append([*shown, device, *figures])
            narrow.append([shown[0], shown[2], shown[3], device, *figures])
    figures_wide = [
        Column(name, right=True) for name in ("held", "releasable", "claimed", "pinned")
    ]
    figures_short = [
        Column(name, right=True) for name in ("held", "releas-\nable", "claimed", "pinned")
    ]
    pid, role, called = Column("pid", right=True), Column("role"), Column("member")
    state, on = Column("state"), Column("device")
    return [
        Table([pid, role, called, state, on, *figures_wide], wide),
        Table([pid, role, called, state, on, *figures_short], wide),
        Table([pid, called, state, on, *figures_short], narrow),
        Table([pid, called, state, on, *figures_short], _cut(narrow, 1, 18)),
    ]


def _list_members(view: Screen, seen: Look, names: dict[str, str]) -> None:
    """For a screen too narrow for a table: what is not 0, in words."""
    for member in seen.members:
        pid, role, name, state = _who(member)
        view.line(f"{pid.text} {name.text} ({role.text}, {state.text})", pid.style or "bold")
        for pool, row in _records(member, seen.pools):
            cells = _record_cells(row, dead=member.state == "dead")
            words = [
                f"{word} {cell.text}"
                for word, cell in zip(
                    ("held", "releasable", "claimed", "pinned"), cells, strict=True
                )
                if cell.text != "0"
            ]
            view.line(f"  {names[pool.key]}: {', '.join(words)}", cells[0].style)
    view.line()


def _who(member: Member) -> list[Cell]:
    style = {"dead": "bad", "unverified": "warn", "joining": "dim"}.get(member.state, "")
    name = member.label or member.program or "unnamed"
    return [
        Cell(str(member.pid), style),
        Cell(member.role, style),
        Cell(name, style or "bold"),
        Cell(member.state, style or "good"),
    ]


def _records(member: Member, pools: Sequence[Snapshot]) -> list[tuple[Snapshot, Row]]:
    return [
        (pool, row)
        for pool in pools
        for row in pool.rows
        if (row.slot, row.generation) == (member.slot, member.generation)
        and (row.held or row.claimed or row.pinned or row.pending)
    ]


def _record_cells(row: Row | None, *, dead: bool) -> list[Cell]:
    if row is None:
        return [Cell("-", "dim")] * 4
    mark, style = ("†", "bad") if dead else ("", "")
    amounts = (row.held, row.releasable, row.claimed, row.pinned)
    return [Cell(gib(n) + (mark if n else ""), style) for n in amounts]


def _accounts(seen: Look, names: dict[str, str]) -> list[str]:
    """What members have named, where they have."""
    return [
        f"{_name(member)} on {names[pool.key]}: "
        + ", ".join(f"{name} {gib(held)}" for name, held in parts.items() if held)
        for member in seen.members
        for pool, row in _records(member, seen.pools)
        if any((parts := _parts(member, row)).values())
    ]


def _parts(member: Member | None, row: Row) -> dict[str, int]:
    names = member.accounts if member is not None else ()
    return dict(zip(names, row.account_held, strict=False))


def _groups(seen: Look) -> list[str]:
    """Who hears whose stop button."""
    leaders = {m.slot: m for m in seen.live if m.leader == m.slot}
    return [
        f"{_name(leader)} leads "
        + ", ".join(_name(m) for m in seen.live if m.leader == slot and m is not leader)
        for slot, leader in leaders.items()
        if any(m.leader == slot and m is not leader for m in seen.live)
    ]


def _events(seen: Look) -> list[str]:
    words = {"ooms": "out of memory", "claims_refused": "claims refused"}
    found = []
    for member in seen.members:
        counts = [f"{getattr(member.counters, k)} {w}" for k, w in words.items()
                  if getattr(member.counters, k)]  # fmt: skip
        if counts:
            found.append(f"{_name(member)}: {', '.join(counts)}")
    return found


def _cut(rows: Sequence[Sequence[Cell]], index: int, most: int) -> list[list[Cell]]:
    def cut(cell: Cell) -> Cell:
        return cell if len(cell.text) <= most else Cell(cell.text[: most - 1] + "…", cell.style)

    return [[cut(c) if i == index else c for i, c in enumerate(row)] for row in rows]


def _notes(seen: Look) -> list[tuple[str, str]]:
    notes = []
    if seen.dead:
        notes.append(
            (
                "† of a dead process: counted until the next sweep, which any member does by "
                "itself and `memledger sweep` does now",
                "bad",
            )
        )
    over = [pool.key for pool in seen.pools if pool.figures.overcommit]
    if over:
        notes.append((f"more is held and claimed than there is: {', '.join(over)}", "bad"))
    for pool in seen.pools:
        if not pool.coherent:
            notes.append((f"{pool.key}: changed while it was read; figures may not add up", "warn"))
    if seen.findings:
        notes.append((f"{len(seen.findings)} broken invariant(s): run `memledger doctor`", "warn"))
    for path in seen.other_layouts:
        notes.append(
            (f"not in this total: processes of another memledger version, in {path}", "warn")
        )
    return notes


# ---- for programs


def to_json(seen: Look) -> dict[str, Any]:
    """What `--json` prints; see the epilog of --help."""
    dead = {(member.slot, member.generation) for member in seen.dead}
    return {
        "schema": SCHEMA,
        "path": seen.path,
        "scope": seen.scope,
        "status": seen.status,
        "reason": seen.reason,
        "layout": list(seen.layout),
        "complete": seen.status == "ok" and not seen.other_layouts,
        "devices": [_json_device(pool, dead, seen) for pool in seen.pools],
        "members": [_json_member(member) for member in seen.members],
        "findings": [finding._asdict() for finding in seen.findings],
        "other_layouts": list(seen.other_layouts),
    }


def _json_device(pool: Snapshot, dead: set[tuple[int, int]], seen: Look) -> dict[str, Any]:
    figures, reading = pool.figures, pool.reading
    members = {(member.slot, member.generation): member for member in seen.members}
    records = [
        {
            "slot": row.slot,
            "held": row.held,
            "releasable": row.releasable,
            "claimed": row.claimed,
            "pending": row.pending,
            "pinned": row.pinned,
            "headroom": row.headroom,
            "limit": row.limit,
            "dead": (row.slot, row.generation) in dead,
            "accounts": _parts(members.get((row.slot, row.generation)), row),
        }
        for row in pool.rows
    ]
    return {
        "key": pool.key,
        "aliases": list(pool.aliases),
        "kind": pool.kind,
        "unit": pool.unit,
        "coherent": pool.coherent,
        "complete": pool.complete and not seen.other_layouts,
        "total": figures.total,
        "free": figures.free,
        "available": figures.available,
        "held": figures.held,
        "releasable": figures.releasable,
        "claimed": figures.claimed,
        "pinned": figures.pinned,
        "unaccounted": figures.unaccounted,
        "overcommit": figures.overcommit,
        "reserved": figures.reserved,
        "headroom": figures.headroom,
        "dead_held": sum(row["held"] for row in records if row["dead"]),
        "reading": {
            "source": None if reading.age_s is None else reading.source,
            "scope": reading.scope,
            "total": reading.total,
            "free": reading.free,
            "reserved": reading.reserved,
            "immediate": reading.immediate,
            "soft_limit": reading.soft_limit,
            "age_s": reading.age_s,
            "reader": None if reading.age_s is None else reading.reader,
            "reason": reading.reason,
            "suspect": reading.suspect,
            "unified": reading.unified,
        },
        "records": records,
    }


def _json_member(member: Member) -> dict[str, Any]:
    names = (
        "slot", "state", "role", "label", "program", "version", "pid", "parent_pid",
        "pid_namespace", "start_ticks", "generation", "leader", "group",
    )  # fmt: skip
    fields = {name: getattr(member, name) for name in names}
    return {**fields, "counters": member.counters._asdict()}
