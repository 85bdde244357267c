"""`memledger reset`: the one way out of a segment that is broken."""

from __future__ import annotations

import argparse
import os
import stat
import sys
from typing import Any

from memledger import _native
from memledger.cli import screen
from memledger.cli.look import Look, add_path, choose_path, gib, look

_EPILOG = """\
The file is removed; members that are still in it notice within seconds, meet
in a new one, and carry their figures over. It refuses while a process is a
member, or where that cannot be told, unless --force is given; and with a file
that does not look like a segment at all.

exit codes: 0 removed, or there was nothing; 1 refused or failed; 2 usage;
            130 interrupted
"""


def add_parser(commands: Any) -> None:
    parser = commands.add_parser(
        "reset",
        help="remove a broken segment",
        description="Remove the segment's file, where no process is a member of it.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--force", action="store_true", help="even with members, or a foreign file")
    parser.add_argument("--yes", "-y", action="store_true", help="do not ask on a terminal")
    add_path(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    path, scope = choose_path(options.path)
    seen = look(path, scope)
    view = screen.open_screen()
    try:
        file = os.lstat(path)
    except FileNotFoundError:
        view.line(f"nothing to reset: there is no segment at {path}")
        return 0
    refusal = _refusal(seen, file, force=options.force)
    if refusal:
        return _complain(refusal)
    what = _describe(seen, file)
    if not options.yes and sys.stdin is not None and sys.stdin.isatty() and not _agreed(path, what):
        return _complain("not removed")
    status, code, call = _native.unlink_segment(path)
    if code:
        return _complain(f"not removed: {call}: {os.strerror(code)} ({path})")
    view.line(f"removed {path} ({what})", "good")
    if seen.live:
        view.line("its members move to a new segment within seconds")
    return 0 if status == 0 else 1


def _refusal(seen: Look, file: os.stat_result, *, force: bool) -> str | None:
    if stat.S_ISDIR(file.st_mode):
        return f"{seen.path} is a directory"
    if force:
        return None
    if not stat.S_ISREG(file.st_mode):
        return f"{seen.path} is not a regular file; --force removes it"
    owned = _native.has_live_members(seen.path)
    if owned or (owned is None and seen.live):
        pids = ", ".join(f"{m.label or 'unnamed'} (pid {m.pid})" for m in seen.live)
        return f"refused: processes are members of {seen.path}{': ' + pids if pids else ''}"
    if owned is None:
        return f"refused: cannot tell whether a process is a member of {seen.path}; see --force"
    if seen.status == "foreign" and not looks_like_a_segment(seen.path):
        return f"refused: {seen.path} does not look like a segment of memledger; see --force"
    return None


def looks_like_a_segment(path: str) -> bool:
    """By its name or its first bytes, broken or not: what reset removes without --force."""
    if os.path.basename(path).startswith("memledger-v"):
        return True
    try:
        with open(path, "rb") as file:
            return file.read(8) == b"memlgr1\0"
    except OSError:
        return False


def _describe(seen: Look, file: os.stat_result) -> str:
    held = sum(row.held + row.claimed for pool in seen.pools for row in pool.rows)
    state = {"ok": "sound", "foreign": "broken or foreign"}.get(seen.status, seen.status)
    members = f"{len(seen.live)} live and {len(seen.dead)} dead members, {gib(held)} GiB"
    return f"{file.st_size} bytes, {state}" + (f", {members}" if seen.status == "ok" else "")


def _agreed(path: str, what: str) -> bool:
    print(screen.clean(f"remove {path} ({what})? [y/N] "), end="", flush=True, file=sys.stderr)
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def _complain(text: str) -> int:
    print(screen.clean(f"memledger: {text}"), file=sys.stderr)
    return 1
