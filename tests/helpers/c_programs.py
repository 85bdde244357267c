"""Builds C programs of the tests outside tests/c/run.py, with its compiler line."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "c"))

import run as c_tests  # noqa: E402

WRAP = [f"-Wl,--wrap={name}" for name in c_tests.WRAPPED]


def build(
    source: str,
    output: Path,
    *,
    root: Path = ROOT,
    help_too: bool = True,
    flags: tuple[str, ...] = (),
) -> Path:
    """Compiles `source` (a path in the tree) with the core of `root`, as it is shipped: -O2 and
    without kill points, unless `flags` say otherwise. `help_too`: it uses core_help.h."""
    program = c_tests.Program("none")
    system = [path for path in c_tests.sources(program) if Path(path).parent.name in ("os", "core")]
    sources = [ROOT / source, *map(Path, system)]
    sources += [ROOT / "tests/c/kill_points.c"] if help_too else []
    line = ["gcc", "-std=c11", "-g", "-O2", *c_tests.WARNINGS, "-Wno-missing-prototypes"]
    line += ["-Wl,-z,now", "-pthread", *(WRAP if help_too else ()), *flags]
    line += [f"-I{root / 'csrc'}", f"-I{ROOT / 'tests/c'}"]
    line += [str(path).replace(f"{ROOT}/csrc", f"{root}/csrc") for path in sources]
    subprocess.run([*line, "-o", str(output)], check=True, timeout=300)
    return output
