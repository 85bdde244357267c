"""Instructions per call, which no neighbour and no clock rate can disturb: `python
benchmarks/instructions.py`.

Each operation runs twice with different loop counts under a counter; the difference, over the
difference of the counts, is what one turn of the loop costs. The C operations are those of scan.c;
the Python ones run in the interpreter, less its own loop. `perf stat` where the processor counts,
else valgrind's callgrind.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.members import segment_path  # noqa: E402
from benchmarks.native import Unavailable, scan_program  # noqa: E402

C_OPERATIONS = ("free", "publish", "publish+free", "claim+cancel")
PYTHON_OPERATIONS = {
    "empty loop": "pass",
    "_empty()": "gpu._empty()",
    "free()": "gpu.free()",
    "claimed_by_others()": "gpu.claimed_by_others()",
    "figures()": "gpu.figures()",
    "publish(held)": "gpu.publish(8192)",
    "publish(held, releasable=, pinned=)": "gpu.publish(8192, releasable=1, pinned=1)",
    "add(held=)": "gpu.add(held=4096)",
    "try_claim + cancel": "gpu.try_claim(4096).cancel()",
}
PYTHON_LOOP = """
import sys
from benchmarks.measure import loop
from benchmarks.members import bare_device
_, gpu = bare_device(sys.argv[1])
gpu.free()
run = loop(sys.argv[2], gpu=gpu)
run(100)
run(int(sys.argv[3]))
"""
FEW, MANY = 2_000, 42_000
# What an interpreter does before it comes to the loop must be the same in both runs.
ENVIRONMENT = {**os.environ, "PYTHONHASHSEED": "0"}
TIMEOUT_S = 300


def perf(command: list[str]) -> int | None:
    """Instructions in user mode; None where the processor does not count for us."""
    if shutil.which("perf") is None:
        return None
    counted = ["perf", "stat", "-x", ",", "-e", "instructions:u", *command]
    done = subprocess.run(
        counted,
        cwd=ROOT,
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    found = re.search(r"^(\d+),[^,]*,instructions", done.stderr, re.M)
    return int(found.group(1)) if done.returncode == 0 and found else None


def callgrind(command: list[str]) -> int | None:
    if shutil.which("valgrind") is None:
        return None
    with tempfile.TemporaryDirectory() as directory:
        out = f"--callgrind-out-file={directory}/out"
        counted = ["valgrind", "--tool=callgrind", out, *command]
        done = subprocess.run(
            counted,
            cwd=ROOT,
            env=ENVIRONMENT,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
    found = re.search(r"Collected : (\d+)", done.stderr)
    return int(found.group(1)) if done.returncode == 0 and found else None


def per_turn(command: list[str]) -> tuple[float, str] | None:
    """(instructions, by which tool) of one turn of a loop whose count is the last argument."""
    for counter in (perf, callgrind):
        totals = []
        for turns in (FEW, MANY):
            with segment_path() as path:
                filled = [path if part == "PATH" else part for part in command]
                totals.append(counter([*filled, str(turns)]))
        few, many = totals
        if few is not None and many is not None:
            return (many - few) / (MANY - FEW), counter.__name__
    return None


def main() -> int:
    try:
        program = scan_program()
    except Unavailable as reason:
        print(reason, file=sys.stderr)
        return 1
    print("instructions per call, in C")
    for operation in C_OPERATIONS:
        found = per_turn([str(program), "PATH", "loop", operation])
        print(f"  {operation:36}", "not counted" if found is None else "{:8.1f}  {}".format(*found))
    print("instructions per call, from Python")
    base: float | None = None
    for name, statement in PYTHON_OPERATIONS.items():
        found = per_turn([sys.executable, "-c", PYTHON_LOOP, "PATH", statement])
        if found is None:
            print(f"  {name:36} not counted")
            continue
        base = found[0] if base is None else base
        less = found[0] - base if name != "empty loop" else found[0]
        print(f"  {name:36} {less:8.1f}  {found[1]}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
