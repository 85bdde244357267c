"""Looking at a segment without joining it: what dump, doctor, sweep and reset start from."""

from __future__ import annotations

import argparse
import os
import sys
from typing import Any, NamedTuple

from memledger import _native
from memledger.ledger import degraded_text, live_foreign_layouts
from memledger.views import Member, Snapshot, member_from, snapshot_from

STATUS = {0: "ok", -4: "layout", -5: "foreign", -6: "absent"}
"""Of a look, by ML_OK or ML_ERR_*; anything else is "error"."""


_MORE_TRIES = 2


class Finding(NamedTuple):
    """A broken invariant. pool, slot: indices in the segment, None where it is not about one."""

    invariant: int
    pool: int | None
    slot: int | None
    expected: int
    actual: int
    text: str


class Look(NamedTuple):
    """A copy of a segment. status: "ok", or why there are no figures: "absent", "foreign" (not a
    segment of ours, or a broken one), "layout", "error"; `reason` says it in one line."""

    path: str
    scope: str
    status: str
    reason: str | None
    layout: tuple[int, int]
    pools: tuple[Snapshot, ...]
    members: tuple[Member, ...]
    findings: tuple[Finding, ...]
    other_layouts: tuple[str, ...]
    info: dict[str, Any]

    @property
    def live(self) -> tuple[Member, ...]:
        return tuple(m for m in self.members if m.state != "dead")

    @property
    def dead(self) -> tuple[Member, ...]:
        return tuple(m for m in self.members if m.state == "dead")


def add_path(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--path",
        metavar="FILE",
        help="the segment to use; default: MEMLEDGER_PATH, else the per-user one",
    )


def choose_path(given: str | None) -> tuple[str, str]:
    """(path, scope) that a process started here would use. An explicit path goes into this
    process's environment, so that simulated cards are looked for beside it."""
    if given:
        os.environ["MEMLEDGER_PATH"] = given
    path = os.environ.get("MEMLEDGER_PATH", "")
    if path:
        return path, "path"
    return _native.default_path() or "", "session" if sys.platform == "win32" else "user"


def look(path: str, scope: str) -> Look:
    """Reads the file at `path`; joins, maps and changes nothing. Never raises on its account."""
    if not path:
        info: dict[str, Any] = {"status": -7, "system_call": "default path", "layout": (0, 0)}
        return Look(
            path, scope, "error", "there is no default path here; give --path", (0, 0),
            (), (), (), (), info,
        )  # fmt: skip
    try:
        seen = _look(path, scope)
        for _ in range(_MORE_TRIES):
            if all(pool.coherent or pool.reading.age_s is not None for pool in seen.pools):
                break
            # This process was held up inside the copy, which then has lost a reading that is there.
            seen = _look(path, scope)
    except ValueError as error:  # a NUL in the path
        info = {"status": -7, "system_call": "", "layout": (0, 0)}
        return Look(path, scope, "error", f"{error}", (0, 0), (), (), (), (), info)
    return seen


def _look(path: str, scope: str) -> Look:
    info, parts = _native.read_image(path)
    status = STATUS.get(info["status"], "error")
    reason = None if status == "ok" else _reason(status, info)
    parts = parts or {"pools": [], "members": [], "findings": []}
    return Look(
        path=path,
        scope=scope,
        status=status,
        reason=reason,
        layout=info["layout"],
        pools=tuple(snapshot_from(pool) for pool in parts["pools"]),
        members=tuple(member_from(member) for member in parts["members"]),
        findings=tuple(_finding(finding) for finding in parts["findings"]),
        other_layouts=tuple(live_foreign_layouts(path)),
        info=info,
    )


def lasting_findings(path: str, scope: str, tries: int = 5) -> tuple[Finding, ...]:
    """Findings that every one of `tries` looks shows at the same place: a member that is inside a
    call breaks an invariant for a moment."""
    lasting: dict[tuple[int, int | None, int | None], Finding] = {}
    for attempt in range(tries):
        found = {(f.invariant, f.pool, f.slot): f for f in look(path, scope).findings}
        lasting = found if not attempt else {k: f for k, f in found.items() if k in lasting}
        if not lasting:
            break
    return tuple(lasting.values())


def _reason(status: str, info: dict[str, Any]) -> str:
    if status == "absent":
        return f"no process has joined: there is no segment at {info['path']}"
    return degraded_text(info)


def _finding(fields: dict[str, Any]) -> Finding:
    # 32 pools and 256 slots are the maxima of the layout: an index there means "none".
    pool, slot = fields["pool"], fields["slot"]
    return Finding(
        fields["invariant"], None if pool >= 32 else pool, None if slot >= 256 else slot,
        fields["expected"], fields["actual"], fields["text"],
    )  # fmt: skip


def short_names(keys: list[str]) -> dict[str, str]:
    """Names short enough for a table; the whole key where a short one would be ambiguous."""
    names = {key: short_name(key) for key in keys}
    taken = list(names.values())
    return {key: name if taken.count(name) == 1 else key for key, name in names.items()}


def short_name(key: str) -> str:
    """A pool's key as people tell it from others on one machine."""
    kind, _, rest = key.partition(":")
    if key[:4] in ("GPU-", "MIG-"):
        return key[:12]
    if kind == "ram":
        return "ram"
    if kind == "cgroup":
        return f"cgroup:{rest.rpartition(':')[2]}"
    if kind == "pin":
        return f"pin {short_name(rest)}"
    return key


def gib(nbytes: int | None) -> str:
    """Bytes as GiB for a table: "12.3"; "?" unknown; "<0.1" for little that is not nothing."""
    if nbytes is None:
        return "?"
    if nbytes == 0:
        return "0"
    tenths = (abs(nbytes) * 10 + (1 << 29)) >> 30
    if not tenths:
        return "<0.1"
    return f"{'-' if nbytes < 0 else ''}{tenths // 10}.{tenths % 10}"


def age(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    if seconds < 60:
        return f"{seconds:.1f} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.0f} h" if seconds < 2 * 86400 else f"{seconds / 86400:.0f} d"
