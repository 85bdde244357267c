"""Compiles scan.c with the compiler found here, together with the core's own sources."""

from __future__ import annotations

import functools
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.members import ROOT, segment_path

FLAGS = ("-std=c11", "-O2", "-fno-strict-aliasing", "-fvisibility=hidden")
"""Those of the build that change the code made."""
WARM_UP_S = 120


class Unavailable(Exception):
    """Why there is no such program here."""


def find_compiler() -> str:
    compiler = os.environ.get("CC") or shutil.which("cc") or shutil.which("gcc")
    if compiler is None or sys.platform == "win32":
        raise Unavailable("no C compiler found")
    return compiler


@functools.cache
def compiler_name() -> str:
    """Such as "gcc 12": what the machine code depends on."""
    asked = [find_compiler(), "-dM", "-E", "-x", "c", os.devnull]
    done = subprocess.run(asked, capture_output=True, text=True, check=False)
    macros = dict(re.findall(r"^#define (\w+) (.*)$", done.stdout, re.M))
    clang = macros.get("__clang_major__")
    return f"clang {clang}" if clang else f"gcc {macros.get('__GNUC__', '?')}"


def core_sources() -> list[Path]:
    own = "os_darwin.c" if sys.platform == "darwin" else "os_linux.c"
    system = [ROOT / "csrc/os" / own, ROOT / "csrc/os/os_fork.c"]
    return [*(ROOT / "csrc/core").glob("*.c"), *system, *(ROOT / "csrc/os").glob("os_posix*.c")]


@functools.cache
def scan_program() -> Path:
    compiler = find_compiler()
    directory = tempfile.TemporaryDirectory(prefix="memledger-bench-")
    _kept.append(directory)
    program = Path(directory.name) / "scan"
    command = [compiler, *FLAGS, "-I", str(ROOT / "csrc"), str(ROOT / "benchmarks/scan.c")]
    command += [*map(str, core_sources()), "-pthread", "-o", str(program)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise Unavailable(f"scan.c does not compile: {done.stderr[:400]}")
    return program


_kept: list[tempfile.TemporaryDirectory[str]] = []


def run_scan(mode: str, what: str | int, number: int) -> dict[str, float]:
    """What scan.c prints."""
    with segment_path() as path:
        command = [str(scan_program()), path, mode, str(what), str(number)]
        out = subprocess.run(
            command, capture_output=True, text=True, timeout=WARM_UP_S, check=False
        )
    if out.returncode:
        raise Unavailable(out.stderr.strip() or f"scan ended with {out.returncode}")
    pairs = (line.split() for line in out.stdout.splitlines())
    return {key: float(value) for key, value in pairs}
