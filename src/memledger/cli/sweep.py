"""`memledger sweep`: take back what dead members left, now."""

from __future__ import annotations

import argparse
import contextlib
import sys
import time
from typing import Any

from memledger.cli import screen
from memledger.cli.look import Look, add_path, choose_path, gib, look, short_names
from memledger.errors import LedgerError
from memledger.views import Member

_WAIT_S = 2.0

_EPILOG = """\
Every member does this by itself, within two periods of at most a second. It is
needed only where no member lives that could.

exit codes: 0 swept, or there was nothing to sweep; 1 the segment cannot be
            joined, or somebody dead is still there; 2 usage; 130 interrupted
"""


def add_parser(commands: Any) -> None:
    parser = commands.add_parser(
        "sweep",
        help="take back what dead members left",
        description="Join, sweep, leave, and say what was taken back.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_path(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    path, scope = choose_path(options.path)
    before = look(path, scope)
    view = screen.open_screen()
    if before.status == "absent":
        view.line(f"nothing to sweep: {before.reason}")
        return 0
    if before.status != "ok":
        print(screen.clean(f"memledger: {before.reason}"), file=sys.stderr)
        return 1
    problem = _sweep(path, before)
    after = look(path, scope)
    gone = [m for m in before.dead if not _is_in(m, after)]
    left = [m for m in before.dead if _is_in(m, after)]
    names = short_names([pool.key for pool in before.pools])
    for member in gone:
        view.line(f"took back {_what(member, before, names)}", "good")
    for member in left:
        view.line(f"still there: {_what(member, before, names)}", "bad")
    if problem:
        print(screen.clean(f"memledger: {problem}"), file=sys.stderr)
        return 1
    if not before.dead:
        view.line(f"nothing to sweep: no dead member among {len(before.members)} in {path}")
    return 1 if left else 0


def _sweep(path: str, before: Look) -> str | None:
    """Joins, sweeps and leaves; what went wrong, else None."""
    import memledger

    with memledger.join("memledger sweep", path=path) as ledger:
        if ledger.scope == "private":
            return ledger.degraded_reason
        ledger.sweep()
        # Housekeeping may be at it too; whoever is first, a look tells.
        deadline = time.monotonic() + _WAIT_S
        while time.monotonic() < deadline and any(m.state == "dead" for m in ledger.members()):
            time.sleep(0.05)
            ledger.sweep()
        for pool in before.pools:
            # Until a reading says otherwise the bytes count as unaccounted, not as free.
            if pool.kind in ("device", "ram", "sim"):
                with contextlib.suppress(LedgerError, OSError):
                    ledger.device(pool.key).refresh(0.0)
    return None


def _is_in(member: Member, seen: Look) -> bool:
    return any(m.slot == member.slot and m.generation == member.generation for m in seen.members)


def _what(member: Member, seen: Look, names: dict[str, str]) -> str:
    held = [
        f"{gib(row.held + row.claimed)} GiB on {names[pool.key]}"
        for pool in seen.pools
        for row in pool.rows
        if (row.slot, row.generation) == (member.slot, member.generation) and row.held + row.claimed
    ]
    label = member.label or member.program or "unnamed"
    return f"{label} (pid {member.pid}): {', '.join(held) or 'no bytes'}"
