"""`memledger top`: devices and members, live. Reads the segment's file; joins only to ask."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from memledger.cli import screen, top_draw
from memledger.cli.look import Look, add_path, choose_path, look, short_names
from memledger.cli.options import missing_extra, seconds
from memledger.cli.screen import Screen

KEYS = """\
keys:
  up, down, page up/down   choose a row
  tab                      scroll the devices instead, and back
  s, S                     sort by the next, the previous column
  r                        turn the order round
  /                        show only rows with these words; escape: all again
  f, space                 freeze, go on
  a                        ask the chosen member to release on that device
  ?, h                     help
  q, Ctrl-C                quit
  Ctrl-Z                   back to the shell; `fg` goes on
"""

MEANING = """\
Each device is two lines: figures with the used share over time, and a bar.
In the bar, the letter leads to the row of a member:
  held         occupied; pinned and releasable (hatched) are parts of it
  claimed      promised to a member, not allocated yet
  unaccounted  used by somebody who is no member: the desktop, other programs
  free         the rest
"?" is unknown, never 0. Sizes are in GiB. Budgets for page-locked memory are
in `memledger dump`. Colours are the terminal's own; NO_COLOR leaves them out.
"""

ASKING = """\
It looks without being a member. Only `a` joins, for the one ask: it goes to
the chosen member alone, which answers from its holders, at its next safe
point. A member that has registered none refuses; one that never serves does
not answer, and after 2 s the ask is taken back.
"""

_EPILOG = f"""\
{MEANING}
{ASKING}
{KEYS}
exit codes: 0 ended by q, or --once has shown a frame; 1 cannot show (with
            --once: nobody has joined, no access, not a segment, another
            layout); 2 usage; 130 Ctrl-C; 143 terminated
"""


def add_parser(commands: Any) -> None:
    parser = commands.add_parser(
        "top",
        help="devices and members, live",
        description="Watch devices and members. Changes nothing, unless a member is asked "
        "to release.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--once", action="store_true", help="print one frame and end; for scripts and pipes"
    )
    parser.add_argument(
        "--interval", metavar="SECONDS", type=seconds, default=1.0,
        help="look again every SECONDS (default 1)",
    )  # fmt: skip
    parser.add_argument(
        "--sort", metavar="COLUMN", choices=[shown.name for shown in top_draw.COLUMNS],
        default="held", help="column to sort by at first (default held): "
        + ", ".join(shown.name for shown in top_draw.COLUMNS),
    )  # fmt: skip
    parser.add_argument("--filter", metavar="WORDS", default="", help="rows to show at first")
    add_path(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    path, scope = choose_path(options.path)
    if options.once:
        return _once(options, look(path, scope))
    if not (screen.is_terminal() and sys.stdin is not None and sys.stdin.isatty()):
        print("memledger: top needs a terminal; --once prints one frame", file=sys.stderr)
        return 1
    if screen.is_dumb():
        print("memledger: this terminal (TERM) cannot be drawn on; try --once", file=sys.stderr)
        return 1
    try:
        from memledger.cli.top_app import Top
    except ImportError as error:
        return missing_extra("top", "textual", error)
    app = Top(path, scope, interval_s=options.interval, sort=options.sort, words=options.filter)
    # Without the mouse, so that text can be selected as everywhere in the terminal.
    code = app.run(mouse=False)
    return app.return_code or 0 if code is None else int(code)


def _once(options: argparse.Namespace, seen: Look) -> int:
    if seen.status != "ok":
        print(screen.clean(f"memledger: {seen.reason}"), file=sys.stderr)
        return 1
    view = screen.open_screen()
    history = top_draw.History()
    history.add(seen)
    _frame(view, seen, options)
    return 0


def _frame(view: Screen, seen: Look, options: argparse.Namespace) -> None:
    tags = top_draw.Tags()
    tags.update(seen.members)
    ascii_only = screen.needs_ascii()
    pools = top_draw.shown_pools(seen)
    names = short_names([pool.key for pool in pools])
    width = min(view.width, 120)
    view.line(top_draw.title(seen), "bold")
    for pool in pools:
        for line in top_draw.device_lines(
            pool, names[pool.key], width, tags, (), ascii_only=ascii_only
        ):
            view.cells(line)
    if pools:
        view.line("".join(cell.text for cell in top_draw.legend(ascii_only=ascii_only)), "dim")
    else:
        view.line("no device has been opened yet")
    view.line()
    rows = top_draw.matching(top_draw.member_rows(seen, tags), options.filter)
    if rows:
        rows = top_draw.in_order(rows, options.sort)
        screen.show(view, top_draw.member_table(rows, view.width, tags))
    else:
        view.line("no member matches" if seen.members else "nobody is a member now")
    for text, style in top_draw.notes(seen):
        view.line(text, style)
