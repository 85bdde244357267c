"""Parses the command line, and answers for how the process ends."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from memledger.cli import bench, demo, doctor, dump, export, record, report, reset, sweep, top

OK, TROUBLE, USAGE, INTERRUPTED, PIPE_CLOSED = 0, 1, 2, 130, 141

_EPILOG = """\
exit codes:
  0    all well
  1    trouble was found, or it cannot be told (one line on stderr says why)
  2    wrong usage
  130  interrupted (Ctrl-C)
  141  whoever read the output went away

environment:
  MEMLEDGER_PATH  the segment, where --path is not given; else the per-user one
  NO_COLOR        no colours and no other styles
  COLUMNS         width to lay tables out for

examples:
  memledger dump                    who holds what, now
  memledger dump --watch            the same, again every second
  memledger dump --json | jq '.devices[] | {key, free}'
  memledger top                     the same, live
  memledger doctor                  what works here, what does not, what to do
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line (default: this process's) and return its exit code. Wrong usage exits
    with 2 by SystemExit, as argparse does."""
    _prepare_streams()
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        try:
            code = _run(arguments)
        finally:
            sys.stdout.flush()
    except KeyboardInterrupt:
        _drop_output()
        return INTERRUPTED
    except BrokenPipeError:
        _drop_output()
        return PIPE_CLOSED
    except OSError as error:
        _drop_output()
        where = f" ({error.filename})" if error.filename else ""
        print(f"memledger: {error.strerror or error}{where}", file=sys.stderr)
        return TROUBLE
    return code


def _run(arguments: list[str]) -> int:
    if arguments[:1] == ["demo"]:
        # Its options are the demo's own.
        return demo.run(arguments[1:])
    parser = _parser()
    if not arguments:
        parser.print_help()
        return OK
    options = parser.parse_args(arguments)
    return int(options.run(options))


def _parser() -> argparse.ArgumentParser:
    from memledger import __version__

    parser = argparse.ArgumentParser(
        prog="memledger",
        description="Look at, check and mend the ledger of memory that the processes of\n"
        "this machine share.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"memledger {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for command in (dump, top, doctor, record, report, export, sweep, reset, demo, bench):
        command.add_parser(commands)
    return parser


def _prepare_streams() -> None:
    """Text that the terminal cannot show becomes escapes, never an exception; a stream that was
    closed before the start swallows what is written."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115
        elif hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")


def _drop_output() -> None:
    """What is still buffered has nowhere to go; without this the interpreter complains at exit."""
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (OSError, ValueError):
        return
