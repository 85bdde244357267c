"""Builds the C core and its tests, runs them, and prints one line per program and build.

    python tests/c/run.py [--only NAME] [--build NAME] [--long] [--valgrind] [--keep]

Needs nothing but a C compiler. A build whose tool is missing is shown as skipped; with CI set in
the environment it is a failure. A program that exits with 77 has skipped itself. The builds for
other systems and CPUs are in platforms.py beside this file.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from platforms import (
    BUILDS_ELSEWHERE,
    BUILDS_ON_MACOS,
    Build,
    Program,
    check_macos,
    check_windows_module,
    core_sources,
)

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
WARNINGS = [
    *("-Wall", "-Wextra", "-Werror", "-Wshadow"),
    *("-Wstrict-prototypes", "-Wmissing-prototypes"),
]
WRAPPED = ("os_now_ns", "os_boottime_ns", "ml_record_read")  # core_help.h
SKIPPED = 77


PROGRAMS = (
    Program("test_os", core=False, tsan=True, windows=True),
    Program("test_os_segment", core=False, tsan=True),
    Program("test_os_locks", core=False, tsan=True),
    Program("test_core", kill_points=True, windows=True),
    Program("test_readings", kill_points=True, windows=True),
    Program("test_segment", kill_points=True, windows=True),
    Program("test_housekeep", kill_points=True, tsan=True),
    Program("test_free", kill_points=True),
    Program("test_kill", kill_points=True, valgrind=False, long_arguments=("all",)),
    Program(
        "test_race", tsan=True, valgrind=False, windows=True, threads=True, long_arguments=("20",)
    ),
    Program(
        "storm",
        delays=True,
        valgrind=False,
        arguments=("8",),
        long_arguments=("300",),
        patience_s=900,
    ),
)


# Most tests leave their handles without freeing them: test_free alone is looked at for leaks.
SANITIZE = ("-O1", "-fno-omit-frame-pointer", "-fsanitize=address,undefined")
ASAN = (("ASAN_OPTIONS", "detect_leaks=0"), ("UBSAN_OPTIONS", "print_stacktrace=1"))
TSAN = (("TSAN_OPTIONS", "halt_on_error=1 second_deadlock_stack=1"),)
BUILDS = (
    Build("gcc", "gcc", ("-O2",)),
    Build("clang", "clang", ("-O2",)),
    Build("asan", "gcc", (*SANITIZE, "-fno-sanitize-recover"), ASAN),
    Build("tsan", "gcc", ("-O1", "-fsanitize=thread"), TSAN),
)
VALGRIND = Build("valgrind", "gcc", ("-O1",))
VALGRIND_QUICK = ("test_os", "test_core", "test_readings", "test_housekeep", "test_free")
LEAK_CHECK = ("--leak-check=full", "--show-leak-kinds=definite", "--errors-for-leak-kinds=definite")
SANITIZED = ("asan", "tsan", "valgrind")


def sources(program: Program, system: str = "linux") -> list[str]:
    """The sources of one program for an operating system."""
    found = [HERE / f"{program.name}.c", *core_sources(system, program.core)]
    found += [HERE / "kill_points.c"] if program.kill_points else []
    found += [] if program.core else [ROOT / "csrc/os/os_test.c"]
    return [str(path) for path in found]


def command(program: Program, build: Build, output: Path) -> list[str]:
    """The compiler's command line."""
    line = [build.compiler, "-std=c11", "-g", *WARNINGS, *build.flags]
    line += [f"-I{ROOT / 'csrc'}", f"-I{HERE}"]
    line += ["-pthread"] if build.system != "windows" or program.threads else []
    line += ["-DML_KILL_POINTS"] if program.kill_points or program.delays else []
    line += [f"-Wl,--wrap={name}" for name in WRAPPED] if program.kill_points else []
    line += ["-DTEST_SANITIZED"] if build.name in SANITIZED else []
    line += [] if program.core else ["-DOS_TEST_HOOKS"]
    return [*line, *sources(program, build.system), *build.libraries, "-o", str(output)]


def run(line: list[str], patience_s: int, environment: dict[str, str]) -> tuple[int, str]:
    """Exit status and output; in a session of its own, so that what it stops hangs nobody up."""
    try:
        done = subprocess.run(
            line,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            timeout=patience_s,
            env=environment,
            start_new_session=True,
            check=False,
        )
    except subprocess.TimeoutExpired as late:
        output = late.stdout or b""
        return 124, output.decode(errors="replace") + f"\nno end after {patience_s} s"
    return done.returncode, done.stdout.decode(errors="replace")


def one(program: Program, build: Build, folder: Path, long: bool) -> tuple[str, str]:
    """Builds and runs; verdict and output."""
    output = folder / f"{program.name}-{build.name}{'.exe' if build.system == 'windows' else ''}"
    environment = {**os.environ, **build.variables(folder)}
    status, text = run(command(program, build, output), 300, environment)
    if status != 0:
        return "does not build", text
    arguments = program.long_arguments if long and program.long_arguments else program.arguments
    line = [*build.emulator(), str(output), *arguments]
    if build.name == "valgrind":
        options = LEAK_CHECK if program.name == "test_free" else ()
        line = ["valgrind", "-q", "--error-exitcode=9", "--trace-children=no", *options, *line]
    status, text = run(line, program.patience_s * (4 if long else 1), environment)
    if status == SKIPPED:
        return "skipped by itself", text
    return ("ok", text) if status == 0 else (f"FAILED ({status})", text)


def wanted(program: Program, build: Build) -> bool:
    """Threads are for ThreadSanitizer; what forks and stops is not for Windows."""
    if build.system == "windows":
        return program.windows
    if build.system == "macos":  # whose linker wraps nothing
        return program.windows and not program.kill_points
    if build.name == "tsan":
        return program.tsan
    if build.name == "valgrind":
        return program.valgrind
    return True


def show(build: str, program: str, verdict: str, start: float, text: str) -> bool:
    """One row, and the whole output where something is wrong; True where nothing is."""
    strict = os.environ.get("CI", "") not in ("", "0")
    good = verdict == "ok" or (verdict.startswith("skipped") and not strict)
    note = text.strip().splitlines()[-1] if text.strip() and good else ""
    seconds = time.monotonic() - start
    print(f"{build:13} {program:16} {verdict:16} {seconds:6.1f} s  {note}", flush=True)
    if not good:
        print(text.rstrip(), flush=True)
    return good


def run_build(build: Build, options: argparse.Namespace, folder: Path) -> list[bool]:
    """All programs of one build."""
    tools = [build.compiler, *build.emulator(), *(["valgrind"] * (build.name == "valgrind"))]
    missing = [tool for tool in tools if not shutil.which(tool)]
    if missing:
        return [show(build.name, "*", "skipped", time.monotonic(), f"no {missing[0]}")]
    results = []
    for program in PROGRAMS:
        all_of_them = build.name != "valgrind" or options.valgrind or options.build
        if not all_of_them and program.name not in VALGRIND_QUICK:
            continue
        if options.only in program.name and wanted(program, build):
            start = time.monotonic()
            verdict, text = one(program, build, folder, options.long)
            results.append(show(build.name, program.name, verdict, start, text))
    return results


def run_compilers(checks: Iterator[tuple[str, str, list[str]]]) -> list[bool]:
    """Builds only: there is nothing here that runs it."""
    results = []
    for name, what, line in checks:
        start = time.monotonic()
        status, text = run(line, 300, dict(os.environ))
        results.append(show(name, what, "ok" if status == 0 else "does not build", start, text))
    return results


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="programs whose name contains this")
    parser.add_argument("--build", default="", help="this build alone")
    parser.add_argument("--long", action="store_true", help="the long runs")
    parser.add_argument("--valgrind", action="store_true", help="all of them under valgrind")
    parser.add_argument("--keep", metavar="FOLDER", help="leave the programs here")
    options = parser.parse_args()
    builds = [*(BUILDS_ON_MACOS if sys.platform == "darwin" else (*BUILDS, *BUILDS_ELSEWHERE))]
    builds += [VALGRIND] if sys.platform.startswith("linux") else []
    folder = Path(options.keep or tempfile.mkdtemp(prefix="ml-c-"))
    folder.mkdir(parents=True, exist_ok=True)
    chosen = [build for build in builds if options.build in ("", build.name)]
    # Two at a time, the long ones first: most programs wait more than they compute.
    with ThreadPoolExecutor(max_workers=min(2, os.cpu_count() or 1)) as pool:
        per_build = pool.map(lambda build: run_build(build, options, folder), reversed(chosen))
    results: list[bool] = [ok for build in per_build for ok in build]
    if options.build in ("", "windows") and not options.only:
        results += run_compilers(check_windows_module(folder))
    if options.build in ("", "macos") and not options.only:
        results += run_compilers(check_macos(WARNINGS, folder))
    if not options.keep:
        shutil.rmtree(folder, ignore_errors=True)
    print(f"{len(results)} run, {results.count(False)} failed")
    return 0 if results and all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
