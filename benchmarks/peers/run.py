"""Compares memledger with other ways to share three numbers per process, on the same work in one
run: `python -m benchmarks.peers.run` from the repository's root (`make bench-peers`).

--quick        a tiny run, to see that everything works; its figures mean nothing
--json PATH    keep the figures there
--from PATH    only print kept ones
--plot PATH    draw them, as SVG
--only NAME    only peers whose name contains this; may be repeated
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from benchmarks.measure import human_ns
from benchmarks.peers.crashes import killed_inside
from benchmarks.peers.kinds import PEERS
from benchmarks.peers.latency import WRITERS_AT_MOST, latency
from benchmarks.peers.memledgers import Free
from benchmarks.peers.peer import Peer
from benchmarks.report import machine

MEMBERS = (1, 2, 8, 64)
BESIDE = (2, 8, 64)
SECONDS = 1.0
SAMPLES = 50_000


def note(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def rows(kind: type[Peer], quick: bool) -> list[dict[str, Any]]:
    """One for each number of members, alone and beside writers."""
    found = []
    members = (1, 2) if quick else (1,) if kind.reads_only else MEMBERS
    count, seconds = (200, 0.05) if quick else (SAMPLES, SECONDS)
    for number in members:
        found.append({"members": number, "writers": 0, **latency(kind, number, 0, count, seconds)})
    if not kind.reads_only and not kind.steady:
        for number in (2,) if quick else BESIDE:
            writers = min(WRITERS_AT_MOST, number - 1)
            figures = latency(kind, number, writers, count, seconds)
            found.append({"members": number, "writers": writers, **figures})
    return [{"peer": kind.name, **row} for row in found]


def run(only: list[str], quick: bool) -> dict[str, Any]:
    report: dict[str, Any] = {"machine": machine(), "rows": [], "crashes": [], "missing": {}}
    for kind in PEERS:
        if only and not any(part in kind.name for part in only):
            continue
        reason = kind.unavailable()
        if reason:
            report["missing"][kind.name] = reason
            note(f"{kind.name}: {reason}")
            continue
        note(kind.name)
        report["rows"] += rows(kind, quick)
        if kind.name != Free.name and not kind.steady:  # dies as figures() does
            report["crashes"] += killed_inside(kind, quick)
    return report


# ---- the tables

PERCENTILES = ("p50", "p99", "p999")


def cells(row: dict[str, Any], call: str) -> list[str]:
    found = row.get(call)
    if found is None:
        return ["-"] * 4
    loop = human_ns(found["loop"]) if "loop" in found else "-"
    return [loop, *(human_ns(found[key]) for key in PERCENTILES)]


def latency_lines(report: dict[str, Any], members: int, beside: bool) -> list[str]:
    wanted = [
        row
        for row in report["rows"]
        if bool(row["writers"]) == beside
        and (row["members"] == members or is_only_asked(row, report))
    ]
    if not wanted:
        return []
    title = f"{members} member{'s' * (members > 1)}, "
    title += "2 others publish flat out" if beside else "nobody else"
    if beside and members == 2:
        title = "2 members, the other publishes flat out"
    lines = ["", f"{title:30}{'publish':^36}  {'read':^36}"]
    head = "".join(f"{name:>9}" for name in ("loop", "p50", "p99", "p99.9"))
    lines.append(f"{'':30}{head}  {head}")
    for row in wanted:
        if "failed" in row:
            lines.append(f"{row['peer']:30}  {row['failed']}")
            continue
        halves = (
            "".join(f"{cell:>9}" for cell in cells(row, call)) for call in ("publish", "read")
        )
        few = row["read"]["calls"]
        lines.append(
            f"{row['peer']:30}" + "  ".join(halves) + (f"  {few} calls" if few < 1000 else "")
        )
    if not beside:
        lines += [f"{name:30}  {reason}" for name, reason in report["missing"].items()]
    return lines


def is_only_asked(row: dict[str, Any], report: dict[str, Any]) -> bool:
    """Asked of the kernel or a driver: the number of members means nothing to it."""
    return {one["members"] for one in report["rows"] if one["peer"] == row["peer"]} == {1}


def crash_lines(report: dict[str, Any]) -> list[str]:
    head = f"{'killed, and then':30}{'':32}{'seen':10}{'read':31}{'publish':31}its bytes"
    lines = ["", head]
    for row in report["crashes"]:
        lines.append(
            f"{row['peer']:30}{row['killed']:32}{row['seen']:10}{row['read']:31}"
            f"{row['publish']:31}{row['bytes']}".rstrip()
        )
    return lines


def show(report: dict[str, Any]) -> None:
    print("\n".join(f"{name:8}{value}" for name, value in report["machine"].items()))
    numbers = sorted({row["members"] for row in report["rows"]})
    for beside in (False, True):
        for members in numbers:
            lines = latency_lines(report, members, beside)
            if lines:
                print("\n".join(lines))
    print("\n".join(crash_lines(report)))


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Compare memledger with its peers.")
    parser.add_argument("--quick", action="store_true", help="a tiny run that shows nothing rots")
    parser.add_argument("--json", type=Path, metavar="PATH", help="keep the figures there")
    parser.add_argument("--from", type=Path, dest="source", metavar="PATH", help="only print these")
    parser.add_argument("--plot", type=Path, metavar="PATH", help="draw them, as SVG")
    parser.add_argument("--only", action="append", default=[], metavar="NAME")
    options = parser.parse_args(arguments)
    if options.source:
        report = json.loads(options.source.read_text(encoding="utf-8"))
    else:
        report = run(options.only, options.quick)
    if options.json:
        options.json.write_text(json.dumps(report, indent=1), encoding="utf-8")
    show(report)
    if options.plot:
        from benchmarks.peers.plot import draw

        draw(report, options.plot)
    return 0


if __name__ == "__main__":
    sys.exit(main())
