"""Instructions per call, which no neighbour and no clock rate can disturb.

python benchmarks/instructions.py            counts and prints, beside what instructions.json says
python benchmarks/instructions.py --check    the same, and exits with 1 where they differ
python benchmarks/instructions.py --update   counts and writes instructions.json

Valgrind's callgrind counts. An operation in C (those of scan.c) runs twice with different loop
counts; the difference, over the difference of the counts, is what one turn of the loop costs. The
Python operations run one after another in one process, between two calls of getppid(), at which
callgrind dumps. They are counted twice: only while a function of the native module runs, with all
that it calls ("in the module": ours), and whole, less the loop ("whole call": with the
interpreter's part of it). What is compared is C and "in the module", and only where compiler,
interpreter and processor are those that the file was made with.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.members import segment_path  # noqa: E402
from benchmarks.native import Unavailable, compiler_name, scan_program  # noqa: E402

STORED = ROOT / "benchmarks/instructions.json"
TOLERANCE = 0.10
IN_C, IN_MODULE, WHOLE = "C", "Python, in the module", "Python, whole call"
COMPARED = (IN_C, IN_MODULE)

C_OPERATIONS = ("free", "publish", "publish+free", "claim+cancel")
PYTHON_OPERATIONS = {
    "empty loop": "pass",
    "_empty()": "gpu._empty()",
    "free()": "gpu.free()",
    "claimed_by_others()": "gpu.claimed_by_others()",
    "figures()": "gpu.figures()",
    "pending()": "ledger.pending()",
    "interrupted()": "ledger.interrupted()",
    "publish(held)": "gpu.publish(8192)",
    "publish(held, releasable=, pinned=)": "gpu.publish(8192, releasable=1, pinned=1)",
    "add(held=)": "gpu.add(held=4096)",
    "free() after a publish(held)": "gpu.publish(8192)\ngpu.free()",
    "try_claim + cancel": "gpu.try_claim(4096).cancel()",
}
PYTHON_LOOPS = """
import json, os, sys
from benchmarks.measure import loop
from benchmarks.members import bare_device
ledger, gpu = bare_device(sys.argv[1])
turns = int(sys.argv[3])
for statement in json.loads(sys.argv[2]):
    run = loop(statement, gpu=gpu, ledger=ledger)
    run(200)
    os.getppid()
    run(turns)
    os.getppid()
"""
FEW, MANY = 2_000, 42_000
PYTHON_TURNS = 2_000
# What an interpreter does before it comes to the loop must be the same in both runs.
ENVIRONMENT = {**os.environ, "PYTHONHASHSEED": "0"}
TIMEOUT_S = 300

Counts = dict[str, dict[str, float]]


def callgrind(options: list[str], command: list[str]) -> list[int]:
    """Instructions of each part that callgrind dumped, in order; the last is the program's end."""
    if shutil.which("valgrind") is None:
        raise Unavailable("no valgrind")
    with tempfile.TemporaryDirectory() as directory:
        out = f"--callgrind-out-file={directory}/out"
        done = subprocess.run(
            ["valgrind", "--tool=callgrind", out, *options, *command],
            cwd=ROOT, env=ENVIRONMENT, capture_output=True, text=True, timeout=TIMEOUT_S,
            check=False,
        )  # fmt: skip
        if done.returncode:
            raise Unavailable(f"under valgrind: {done.stderr[-400:]}")
        parts = {path.suffix[1:]: path for path in Path(directory).iterdir()}
        end = parts.pop("")
        ordered = [*(parts[number] for number in sorted(parts, key=int)), end]
        return [_total(path) for path in ordered]


def _total(path: Path) -> int:
    found = re.search(r"^(?:summary|totals): (\d+)$", path.read_text(encoding="utf-8"), re.M)
    assert found is not None, path
    return int(found.group(1))


def count_c() -> dict[str, float]:
    program = str(scan_program())
    counts = {}
    for operation in C_OPERATIONS:
        totals = []
        for turns in (FEW, MANY):
            with segment_path() as path:
                totals += callgrind([], [program, path, "loop", operation, str(turns)])
        counts[operation] = round((totals[1] - totals[0]) / (MANY - FEW), 1)
    return counts


def count_python(whole: bool) -> dict[str, float]:
    statements = json.dumps(list(PYTHON_OPERATIONS.values()))
    options = ["--dump-before=getppid"] + ([] if whole else ["--toggle-collect=native_*"])
    with segment_path() as path:
        command = [sys.executable, "-c", PYTHON_LOOPS, path, statements, str(PYTHON_TURNS)]
        parts = callgrind(options, command)
    # Two marks for each, and what came before the first and after the last.
    between = parts[-2 * len(PYTHON_OPERATIONS) : -1 : 2]
    counts = [total / PYTHON_TURNS for total in between]
    less = counts[0] if whole else 0.0
    return {
        name: round(count - (less if name != "empty loop" else 0.0), 1)
        for name, count in zip(PYTHON_OPERATIONS, counts, strict=True)
        if whole or name != "empty loop"
    }


def counted_with() -> dict[str, str]:
    """What a count depends on beside our sources."""
    major, minor, _ = platform.python_version_tuple()
    return {
        "compiler": compiler_name(),
        "python": f"{platform.python_implementation()} {major}.{minor}",
        "processor": platform.machine(),
    }


def count(sections: tuple[str, ...]) -> Counts:
    """Raises Unavailable where nothing can count."""
    makers = {
        IN_C: count_c,
        IN_MODULE: lambda: count_python(False),
        WHOLE: lambda: count_python(True),
    }
    return {section: makers[section]() for section in sections}


def stored() -> dict[str, dict[str, float]]:
    kept: dict[str, dict[str, float]] = json.loads(STORED.read_text(encoding="utf-8"))
    return kept


def incomparable(section: str) -> str | None:
    """Why the stored counts say nothing here; None: they do. C needs no interpreter."""
    before, now = stored()["counted with"], counted_with()
    keys = [key for key in now if key != "python" or section != IN_C]
    differing = [
        f"{key}: {before[key]}, here {now[key]}" for key in keys if before[key] != now[key]
    ]
    return "; ".join(differing) or None


def differences(found: Counts) -> list[str]:
    """One line for each count that is off by more than the tolerance, in either direction: a file
    that promises too little catches nothing."""
    lines = []
    kept = stored()
    for section in (name for name in COMPARED if name in found):
        if found[section].keys() != kept[section].keys():
            lines.append(f"{section}: other operations than in {STORED.name}; --update it")
            continue
        for name, now in found[section].items():
            before = kept[section][name]
            if now > before * (1 + TOLERANCE) + 1:
                lines.append(f"{section}: {name} takes {now} instructions, {before} before")
            elif now < before * (1 - TOLERANCE) - 1:
                lines.append(f"{section}: {name} takes {now}, {before} before: --update the file")
    return lines


def show(found: Counts) -> None:
    kept = stored() if STORED.exists() else {}
    print(*(f"{key} {value}" for key, value in counted_with().items()), sep=", ")
    for section, counts in found.items():
        print(f"instructions per call, {section:41}{'stored':>10}")
        for name, now in counts.items():
            print(f"  {name:50} {now:8.1f}  {kept.get(section, {}).get(name, '-'):>10}")


def main() -> int:
    parser = argparse.ArgumentParser(description="Count instructions per call.")
    parser.add_argument("--check", action="store_true", help="exit with 1 where a count moved")
    parser.add_argument("--update", action="store_true", help="write instructions.json")
    options = parser.parse_args()
    try:
        found = count(COMPARED if options.check else (*COMPARED, WHOLE))
    except Unavailable as reason:
        print(reason, file=sys.stderr)
        return 1
    show(found)
    if options.update:
        about = {"counted with": counted_with(), **found}
        STORED.write_text(json.dumps(about, indent=1) + "\n", encoding="utf-8")
        return 0
    reasons = {name: incomparable(name) for name in COMPARED if name in found}
    for name, reason in reasons.items():
        if reason:
            print(f"{name}: not comparable with {STORED.name}: {reason}")
    lines = differences({name: found[name] for name, reason in reasons.items() if not reason})
    print("\n".join(lines) or f"nothing else than in {STORED.name}, within {TOLERANCE:.0%}")
    return 1 if lines and options.check else 0


if __name__ == "__main__":
    sys.exit(main())
