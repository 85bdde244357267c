"""Who holds what, as JSON: what `GET /memledger/stats`, `/system_stats` and the panel show.

Reads and changes nothing. All sizes are ints of bytes; an unknown figure is None (JSON null), never
0. Labels come from other processes: whoever shows them must treat them as text.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from memledger import Device, Ledger, Member, Row, Snapshot

SCHEMA = 1
"""Raised when a field changes its meaning or goes."""

OwnDevices = Mapping[str, "Device"] | Iterable["Device"]
"""Devices that this process uses, with ComfyUI's names for them where it has any."""

_KINDS = ("device", "sim", "ram", "cgroup", "pin")
"""In the order in which people look at them."""
_SHOWN = ("total", "free", "available", "held", "releasable", "claimed", "pinned", "unaccounted")
_PART = ("held", "releasable", "claimed", "pinned")


def stats(ledger: Ledger | None, *, own_devices: OwnDevices = ()) -> dict[str, Any]:
    """Every device and member of the segment, as far as this process can see.

    own_devices: a mapping of ComfyUI's names to devices, or devices; default: those that `ledger`
    has opened. The others are found in the segment, under short names.
    Raises LedgerClosed after leave(). About 10 ms: the whole segment is copied and each member's
    lock probed. So not on an event loop's thread.

    schema           1
    status           "ok"; "degraded": see degraded_reason; "off": no ledger, and nothing else here
    scope            who shares the figures: user, path, session, private
    complete         no process of another memledger version is missing from the totals
    devices          key, name, kind, opened (by this process), total, free, available, held,
                     releasable, claimed, pinned, unaccounted, overcommitted (bytes), reserved,
                     headroom, coherent, reading {source, scope, age_s, reason},
                     members [{slot, pid, label, role, state, relation, held, releasable, claimed,
                     pinned}] of who has anything there
    members          slot, pid, label, role, state, relation (own: this process; group: it hears the
                     same stop button; other), program, version, counters
    counters         sums over the members: ooms, claims_refused, asks_sent, ...
    """
    if ledger is None:
        return off("memledger is switched off, or has not started")
    own = _own(ledger, own_devices)
    pools, members, reason, complete = _everything(ledger, own)
    names = _names(pools, own)
    related = _relations(members)
    devices = [
        _device(pool, names[pool.key], related, opened=pool.key in own, complete=complete)
        for pool in sorted(pools.values(), key=lambda pool: _order(pool, own))
    ]
    return {
        "schema": SCHEMA,
        "status": "degraded" if reason else "ok",
        "scope": ledger.scope,
        "degraded_reason": reason,
        "complete": complete,
        "devices": devices,
        "members": [_member(member, relation) for member, relation in related.values()],
        "counters": _sums(members),
    }


def off(reason: str, status: str = "off") -> dict[str, Any]:
    """What is served in place of figures. status: "off" or "error"."""
    return {"schema": SCHEMA, "status": status, "degraded_reason": reason}


def system_stats_block(ledger: Ledger, *, own_devices: OwnDevices = ()) -> dict[str, Any]:
    """The smaller block for `/system_stats`: the devices of this process, and who holds what on
    them. Same words as in stats(). About 50 us, and 10 us per member."""
    own = _own(ledger, own_devices)
    related = _relations(ledger.members())
    devices = []
    for name, pool in own.values():
        figures = pool.figures
        devices.append(
            {
                "key": pool.key,
                "name": name,
                **{field: getattr(figures, field) for field in _SHOWN},
                "overcommitted": figures.overcommit,
                "members": [
                    {"pid": member.pid, "label": _label(member), **_parts(row)}
                    for row, member, _ in _records(pool, related)
                ],
            }
        )
    return {
        "schema": SCHEMA,
        "scope": ledger.scope,
        "degraded_reason": ledger.degraded_reason,
        "devices": devices,
    }


# ---- where it comes from


_Own = dict[str, tuple[str, "Snapshot"]]
"""By key of the pool: ComfyUI's name for it and how it stands now."""
_Related = dict[tuple[int, int], tuple["Member", str]]
"""By slot and generation: the member and what it is to this process."""


def _own(ledger: Ledger, own_devices: OwnDevices) -> _Own:
    if isinstance(own_devices, Mapping):
        pairs = list(own_devices.items())
    else:
        pairs = [(device.name, device) for device in own_devices]
    if not pairs:
        pairs = [(device.name, device) for device in ledger.devices()]
    own: _Own = {}
    for name, device in pairs:
        pool = device.snapshot()
        title = str(name).partition("?")[0]
        if pool.kind == "ram":  # ComfyUI calls it cpu
            title = "ram"
        elif pool.kind == "cgroup":  # the machine's RAM has a pool of its own
            title = "ram of this container"
        own.setdefault(pool.key, (title, pool))  # two names of one card: the first one counts
    return own


def _everything(
    ledger: Ledger, own: _Own
) -> tuple[dict[str, Snapshot], tuple[Member, ...], str | None, bool]:
    """Pools by key, members, why it is less than everything, and whether it is complete.

    The own devices were read through the handle, which alone knows a reading that is only this
    process's; what nobody here has opened is read from the segment's file."""
    from memledger.cli.look import look

    pools: dict[str, Snapshot] = {}
    members = ledger.members()
    reason = ledger.degraded_reason
    complete = ledger.scope != "private"
    if complete:
        seen = look(ledger.path, ledger.scope)
        if seen.status == "ok":
            pools = {pool.key: pool for pool in seen.pools}
            complete = not seen.other_layouts
        else:
            reason, complete = reason or seen.reason, False
    pools.update((key, pool) for key, (_, pool) in own.items())
    return pools, members, reason, complete


def _names(pools: Mapping[str, Snapshot], own: _Own) -> dict[str, str]:
    from memledger.cli.look import short_names

    names = short_names(list(pools))
    for key, (name, _) in own.items():
        names[key] = name
        if f"pin:{key}" in names:
            names[f"pin:{key}"] = f"pin {name}"
    return names


def _order(pool: Snapshot, own: _Own) -> tuple[int, bool, str]:
    kind = _KINDS.index(pool.kind) if pool.kind in _KINDS else len(_KINDS)
    return kind, pool.key not in own, pool.key


def _relations(members: Iterable[Member]) -> _Related:
    from memledger.groups import own_pid_namespace

    members = list(members)
    here = (os.getpid(), own_pid_namespace())
    own = next((m for m in members if (m.pid, m.pid_namespace) == here and m.state != "dead"), None)

    def relation(member: Member) -> str:
        if member is own:
            return "own"
        follows = own is not None and own.leader is not None and member.leader == own.leader
        return "group" if follows else "other"

    return {(m.slot, m.generation): (m, relation(m)) for m in members}


# ---- shapes


def _device(
    pool: Snapshot, name: str, related: _Related, *, opened: bool, complete: bool
) -> dict[str, Any]:
    figures, reading = pool.figures, pool.reading
    return {
        "key": pool.key,
        "name": name,
        "kind": pool.kind,
        "opened": opened,
        **{field: getattr(figures, field) for field in _SHOWN},
        "overcommitted": figures.overcommit,
        "reserved": figures.reserved,
        "headroom": figures.headroom,
        "coherent": pool.coherent,
        "complete": pool.complete and complete,
        "reading": {
            "source": figures.source,
            "scope": figures.scope,
            "age_s": None if reading.age_s is None else round(reading.age_s, 3),
            "reason": figures.reason or reading.reason,
        },
        "members": [
            {
                "slot": row.slot,
                "pid": member.pid,
                "label": _label(member),
                "role": member.role,
                "state": member.state,
                "relation": relation,
                **_parts(row),
            }
            for row, member, relation in _records(pool, related)
        ],
    }


def _records(pool: Snapshot, related: _Related) -> list[tuple[Row, Member, str]]:
    return [
        (row, *related[row.slot, row.generation])
        for row in pool.rows
        if (row.slot, row.generation) in related and (row.held or row.claimed or row.pinned)
    ]


def _parts(row: Row) -> dict[str, int]:
    return {field: getattr(row, field) for field in _PART}


def _label(member: Member) -> str:
    return member.label or member.program


def _member(member: Member, relation: str) -> dict[str, Any]:
    return {
        "slot": member.slot,
        "pid": member.pid,
        "label": _label(member),
        "role": member.role,
        "state": member.state,
        "relation": relation,
        "program": member.program,
        "version": member.version,
        "counters": member.counters._asdict(),
    }


def _sums(members: Iterable[Member]) -> dict[str, int]:
    sums: dict[str, int] = {}
    for member in members:
        if member.state != "dead":
            for name, count in member.counters._asdict().items():
                sums[name] = sums.get(name, 0) + count
    return sums
