"""`memledger report`: what `memledger record` has written, as a picture or a page."""

from __future__ import annotations

import argparse
import os
import sys
from typing import Any

from memledger.cli import recording, screen
from memledger.cli.options import missing_extra

_KINDS = ("html", "png", "svg")

_EPILOG = """\
Per device: what each member holds, stacked (hatched: could be released), then
what is claimed, then what is unaccounted, below the line of the total. Under
them, what has happened: deaths, out of memory, refused claims, asks. The page
has the figures as tables too, and needs nothing but itself: no network, no
script. A long recording is drawn from 1500 samples a device, the fullest of
each stretch; the tables are of all.

exit codes: 0 written; 1 FILE is no recording or cannot be read, the output
            cannot be written, or matplotlib is missing; 2 usage
"""


def add_parser(commands: Any) -> None:
    parser = commands.add_parser(
        "report",
        help="draw what was recorded",
        description="Draw a recording as a page (HTML) or a picture (PNG, SVG).",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("file", metavar="FILE", help="what `memledger record` has written")
    parser.add_argument(
        "-o", "--output", metavar="OUT", type=_output, action="append",
        help="file to write, .html, .png or .svg; may be given more than once (default: FILE "
        "with .html for its ending)",
    )  # fmt: skip
    parser.add_argument(
        "--device", metavar="NAME", action="append",
        help="only devices whose key contains NAME; may be given more than once",
    )  # fmt: skip
    parser.add_argument("--title", metavar="TEXT", help="heading (default: the name of FILE)")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    try:
        found = recording.read(options.file)
    except recording.BadRecording as error:
        return _complain(str(error))
    except OSError as error:
        return _complain(f"cannot read {options.file}: {error.strerror}")
    for name in options.device or ():
        if not any(name in key for key in found.devices):
            there = ", ".join(found.devices)
            return _complain(f"no device in {options.file} is called {name}: there is {there}")
    if options.device:
        chosen = {
            key: samples
            for key, samples in found.devices.items()
            if any(name in key for name in options.device)
        }
        found = found._replace(devices=chosen)
    for note in found.notes:
        print(f"memledger: {note}", file=sys.stderr)
    try:
        from memledger.cli import report_draw, report_page
    except ImportError as error:
        return missing_extra("report", "matplotlib", error)
    title = options.title or os.path.basename(options.file)
    for name in options.output or [os.path.splitext(options.file)[0] + ".html"]:
        if name.lower().endswith(".html"):
            data = report_page.page(found, title)
        else:
            data = report_draw.picture(found, title, name.lower().rpartition(".")[2])
        try:
            with open(name, "wb") as file:
                file.write(data)
        except OSError as error:
            return _complain(f"cannot write {name}: {error.strerror}")
        print(screen.clean(name))
    return 0


def _output(text: str) -> str:
    if text.lower().rpartition(".")[2] not in _KINDS or "." not in text:
        raise argparse.ArgumentTypeError(
            f"expected a name that ends in .{', .'.join(_KINDS)}, got {text!r}"
        )
    return text


def _complain(text: str) -> int:
    print(screen.clean(f"memledger: {text}"), file=sys.stderr)
    return 1
