"""What people and tools look at: members, rows, a whole pool at one moment. Immutable."""

from __future__ import annotations

from typing import Any, NamedTuple

from memledger._native import Figures
from memledger.model import KINDS, Reading

_READING_FIELDS = (
    "source", "total", "free", "reserved", "immediate", "soft_limit", "reason", "flags", "age_s",
    "reader", "scope",
)  # fmt: skip


class Counters(NamedTuple):
    """Events that a member has counted since it joined."""

    ooms: int = 0
    claims_refused: int = 0
    asks_sent: int = 0
    asks_answered: int = 0
    asks_declined: int = 0
    interrupts_ignored: int = 0


class Member(NamedTuple):
    """A process that has joined. `pid` is the one in its own `pid_namespace`."""

    slot: int
    state: str
    """live, joining, dead (proven; the next sweep takes it), unverified (could not look: counts)"""
    role: str
    label: str
    program: str
    version: str
    pid: int
    parent_pid: int
    pid_namespace: int
    start_ticks: int
    generation: int
    token: int
    joined_ns: int
    """CLOCK_BOOTTIME of the machine"""
    leader: int | None = None
    """slot of the leader whose group it is in"""
    group: int = 0
    counters: Counters = Counters()
    accounts: tuple[str, ...] = ()
    """names of its accounts; Row.accounts has their bytes"""


class Row(NamedTuple):
    """One member's record in a pool, all in bytes."""

    slot: int
    generation: int
    held: int
    releasable: int
    pinned: int
    claimed: int
    pending: int
    headroom: int
    limit: int | None
    account_held: tuple[int, ...] = ()
    """held of the member's named accounts, in the order of Member.accounts; a second late"""


class Snapshot(NamedTuple):
    """A pool at one moment. `coherent`: proved to be a consistent cut; False when tries ran out.
    `figures` are those of an onlooker: its own held is 0, so free and budget are the same."""

    key: str
    aliases: tuple[str, ...]
    kind: str
    unit: int
    """bytes that claims are rounded up to"""
    figures: Figures
    reading: Reading
    rows: tuple[Row, ...]
    coherent: bool
    complete: bool


def reading_from(fields: dict[str, Any]) -> Reading:
    """`fields` as the native module gives them. A reading that was never taken has age None."""
    values = {name: fields[name] for name in _READING_FIELDS}
    values["source"] = values["source"] or "none"
    if not fields["sequence"]:
        values["age_s"] = None
    return Reading(**values)


def member_from(fields: dict[str, Any]) -> Member:
    """`fields` as the native module gives them."""
    counters = Counters(*fields["counters"][: len(Counters._fields)])
    names = tuple(name for name in fields["accounts"] if name)
    return Member(**{**fields, "counters": counters, "accounts": names})


def snapshot_from(fields: dict[str, Any]) -> Snapshot:
    """`fields` as the native module gives them."""
    figures: Figures = fields["figures"]
    return Snapshot(
        key=fields["key"],
        aliases=tuple(fields["aliases"]),
        kind=KINDS[fields["kind"]],
        unit=1 << fields["shift"],
        figures=figures,
        reading=reading_from(fields["reading"]),
        rows=tuple(Row(**row) for row in fields["rows"]),
        coherent=fields["coherent"],
        complete=figures.complete,
    )
