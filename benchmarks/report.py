"""Runs the benchmarks and prints their table: `python benchmarks/report.py`.

--quick        a tiny run, to see that everything works; its figures mean nothing
--json PATH    keep pytest-benchmark's JSON there
--from PATH    only print the table of such a file
-k EXPRESSION  only these tests, as pytest takes it
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import platform
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent


def cpu_model() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def git_commit() -> str:
    try:
        done = subprocess.run(
            ["git", "rev-parse", "--short=12", "HEAD"],
            cwd=ROOT, capture_output=True, text=True, check=False,
        )  # fmt: skip
    except OSError:
        return "unknown"
    return done.stdout.strip() or "unknown"


def digest() -> str:
    """Of the C sources: a commit does not say whether the tree was clean."""
    total = hashlib.sha256()
    for source in sorted((ROOT / "csrc").rglob("*.[ch]")):
        total.update(source.read_bytes())
    return total.hexdigest()[:12]


def machine() -> dict[str, str]:
    virtual = "hypervisor" in _cpu_flags()
    load = (
        " ".join(f"{value:.1f}" for value in os.getloadavg()) if hasattr(os, "getloadavg") else ""
    )
    return {
        "cpu": cpu_model() + (", virtual" if virtual else ""),
        "cores": str(os.cpu_count()),
        "kernel": f"{platform.system()} {platform.release()}",
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "commit": git_commit(),
        "csrc": digest(),
        "load": load,
    }


def _cpu_flags() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return ""
    return next((line for line in lines if line.startswith("flags")), "")


def run(json_path: Path, quick: bool, keyword: str) -> int:
    """The benchmarks' own exit status; their output is shown when they fail."""
    command = [
        sys.executable, "-m", "pytest", "benchmarks", "-q", "--benchmark-disable-gc",
        f"--benchmark-json={json_path}", f"--benchmark-storage={json_path.parent}",
        "-p", "no:cacheprovider",
    ]  # fmt: skip
    command += ["--quick"] if quick else []
    command += ["-k", keyword] if keyword else []
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        print(done.stdout, done.stderr, sep="\n", file=sys.stderr)
    return done.returncode


FIELDS = ("group", "name", "value", "unit", "ratio", "middle", "against", "target", "met", "note")


def rows_of(report: dict[str, Any]) -> list[dict[str, Any]]:
    found = []
    for benchmark in report["benchmarks"]:
        for row in benchmark["extra_info"].get("rows", ()):
            found.append(dict(zip(FIELDS, row, strict=True)))
    return sorted(found, key=lambda row: int(row["group"].split(" ", 1)[0]))


HEAD = ("", "", "ratio", "median", "to", "target", "")
NOTE_INDENT = 6


def cells(row: dict[str, Any]) -> tuple[str, ...]:
    ratio, middle = ("" if row[key] is None else f"{row[key]:.2f}x" for key in ("ratio", "middle"))
    verdict = {True: "met", False: "MISSED", None: ""}[row["met"]]
    value = f"{row['value']:,.{0 if row['value'] >= 100 else 1}f} {row['unit']}"
    return (f"  {row['name']}", value, ratio, middle, row["against"], row["target"], verdict)


def aligned(line: tuple[str, ...], widths: list[int]) -> str:
    """Text to the left, numbers to the right."""
    parts = (
        cell.rjust(width) if column in (1, 2, 3) else cell.ljust(width)
        for column, (cell, width) in enumerate(zip(line, widths, strict=True))
    )
    return "  ".join(parts).rstrip()


def table(rows: list[dict[str, Any]]) -> str:
    lines = [cells(row) for row in rows]
    widths = [max(map(len, column)) for column in zip(HEAD, *lines, strict=True)]
    text = [aligned(HEAD, widths)]
    group = ""
    for row, line in zip(rows, lines, strict=True):
        if row["group"] != group:
            group = row["group"]
            text += ["", group.split(" ", 1)[1]]
        text.append(aligned(line, widths))
        if row["note"]:
            text += textwrap.wrap(
                row["note"],
                100,
                initial_indent=" " * NOTE_INDENT,
                subsequent_indent=" " * NOTE_INDENT,
            )
    return "\n".join(text)


def show(report: dict[str, Any]) -> None:
    about = report.get("memledger_machine") or machine()
    print("\n".join(f"{name:8}{value}" for name, value in about.items()))
    print()
    print(table(rows_of(report)))


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Measure memledger's speed and print it.")
    parser.add_argument("--quick", action="store_true", help="a tiny run that shows nothing rots")
    parser.add_argument("--json", type=Path, metavar="PATH", help="keep the JSON there")
    parser.add_argument("--from", type=Path, dest="source", metavar="PATH", help="only print it")
    parser.add_argument("-k", default="", dest="keyword", help="only these, as pytest takes it")
    options = parser.parse_args(arguments)
    if options.source:
        show(json.loads(options.source.read_text(encoding="utf-8")))
        return 0
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "benchmarks.json"
        about = machine()
        status = run(path, options.quick, options.keyword)
        if status or not path.exists():
            return status or 1
        report = json.loads(path.read_text(encoding="utf-8"))
        report["memledger_machine"] = about
        report["memledger_rows"] = rows_of(report)
        if options.json:
            options.json.write_text(json.dumps(report, indent=1), encoding="utf-8")
        show(report)
    return 0


if __name__ == "__main__":
    sys.exit(main())
