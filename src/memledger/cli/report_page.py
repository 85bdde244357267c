"""The page of a recording: one file that needs nothing else."""

from __future__ import annotations

import time
from collections.abc import Iterable
from html import escape

from memledger.cli import report_draw
from memledger.cli.look import gib, short_names
from memledger.cli.recording import Recording, device_tables, member_tables, total_events

_STYLE = """
body { font: 15px/1.45 system-ui, sans-serif; margin: 2rem auto; max-width: 72rem;
  padding: 0 1rem; color: #222; background: #fff; }
h1 { font-size: 1.4rem; margin: 0; } h2 { font-size: 1.1rem; margin-top: 2rem; }
p { margin: .3rem 0; } .note { color: #8a4b00; }
svg { width: 100%; height: auto; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: .25rem .8rem; text-align: right; border-bottom: 1px solid #ddd; }
th:first-child, td:first-child { text-align: left; padding-left: 0; }
td.key { word-break: break-all; }
"""


def page(found: Recording, title: str) -> bytes:
    """HTML in UTF-8."""
    begin, end = found.span
    count = max(len(samples) for samples in found.devices.values())
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(begin))
    drawing = report_draw.picture(found, "", "svg").decode("utf-8")
    drawing = drawing[drawing.index("<svg") :]
    parts = [
        f"<h1>{escape(title)}</h1>",
        f"<p>{escape(when)} UTC, {end - begin:.1f} s, {count} samples. Sizes in GiB.</p>",
        *(f'<p class="note">{escape(note)}</p>' for note in found.notes),
        f'<div class="wide">{drawing}</div>',
        "<h2>Devices</h2>",
        _devices(found),
        "<h2>Members</h2>",
        _members(found),
        "<h2>Events</h2>",
        _events(found),
    ]
    head = (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width">'
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head>\n<body>\n"
    )
    return (head + "\n".join(parts) + "\n</body></html>\n").encode("utf-8")


def _table(heads: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    head = "".join(f"<th>{escape(text)}</th>" for text in heads)
    body = "\n".join(
        "<tr>" + "".join(f"<td>{escape(text)}</td>" for text in row) + "</tr>" for row in rows
    )
    return f'<div class="wide"><table><tr>{head}</tr>\n{body}\n</table></div>'


def _devices(found: Recording) -> str:
    heads = (
        "device", "total", "held at most", "held on average", "claimed at most", "free at least",
        "unaccounted at most", "overcommit at most",
    )  # fmt: skip
    return _table(
        heads, ([row.device, *(gib(amount) for amount in row[1:])] for row in device_tables(found))
    )  # fmt: skip


def _members(found: Recording) -> str:
    names = short_names(list(found.devices))
    tables = member_tables(found)
    counted = [name for name in report_draw.EVENTS if any(name in row.events for row in tables)]
    heads = [
        "member", "pid", *(f"{names[key]}, held at most" for key in found.devices),
        *(report_draw.EVENTS[name][0] for name in counted),
    ]  # fmt: skip
    return _table(
        heads,
        (
            [
                row.who[0],
                row.who[1],
                *(gib(row.peaks.get(key, 0)) for key in found.devices),
                *(str(row.events.get(name, 0)) for name in counted),
            ]
            for row in tables
        ),
    )


def _events(found: Recording) -> str:
    counts = total_events(found)
    if not counts:
        return "<p>None was counted.</p>"
    known = {name: told[0] for name, told in report_draw.EVENTS.items()}
    return _table(
        ("event", "times"), ((known.get(name, name), str(n)) for name, n in counts.items())
    )
