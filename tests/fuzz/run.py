"""Hostile bytes by libFuzzer: builds fuzz_segment.c with clang and runs it.

    python tests/fuzz/run.py [--seconds 20] [--seed N] [--corpus FOLDER] [INPUT ...]

With INPUT (what a failed run left), only those. With --corpus, what is found new is kept there; the
inputs in tests/fuzz/corpus always go first. Exit code: 0 nothing was found; 77 no clang here.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(ROOT / "tests/c"))
from platforms import core_sources  # noqa: E402

SKIPPED = 77
LONGEST_INPUT = 64 * 12
"""As many changes as the target takes, of 12 bytes each."""
INPUT_SECONDS = 20
"""One input that takes longer hangs."""


def build(folder: Path) -> tuple[Path | None, str]:
    """The program, or None and why not."""
    output = folder / "fuzz_segment"
    line = ["clang", "-std=c11", "-g", "-O1", "-Wall", "-Wextra", "-Werror", "-pthread"]
    line += ["-fno-omit-frame-pointer", "-fsanitize=fuzzer,address,undefined"]
    line += ["-fno-sanitize-recover=undefined", f"-I{ROOT / 'csrc'}"]
    line += ["-Wl,--wrap=os_now_ns", "-Wl,--wrap=os_sleep_ns"]
    line += [str(HERE / "fuzz_segment.c"), *map(str, core_sources("linux")), "-o", str(output)]
    done = subprocess.run(line, capture_output=True, text=True, timeout=300, check=False)
    if done.returncode == 0:
        return output, ""
    return None, done.stderr[-2000:]


def command(program: Path, options: argparse.Namespace, new: Path) -> list[str]:
    line = [str(program), "-detect_leaks=0", f"-timeout={INPUT_SECONDS}", "-rss_limit_mb=1500"]
    if options.inputs:
        return [*line, *options.inputs]
    line += [f"-seed={options.seed}", f"-max_total_time={options.seconds}"]
    line += [f"-max_len={LONGEST_INPUT}", "-len_control=0", "-print_final_stats=1"]
    line += [f"-artifact_prefix={new.parent}/"]
    return [*line, str(new), str(HERE / "corpus")]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=int, default=20)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1, 1 << 31))
    parser.add_argument("--corpus", metavar="FOLDER")
    parser.add_argument("inputs", nargs="*", metavar="INPUT")
    options = parser.parse_args()
    if shutil.which("clang") is None:
        print("skipped: no clang")
        return SKIPPED
    with tempfile.TemporaryDirectory(prefix="ml-fuzz-", dir="/dev/shm") as name:
        folder = Path(name)
        program, problem = build(folder)
        if program is None:
            print(problem)
            # Without the compiler's runtime library, which is a package of its own.
            return SKIPPED if "libclang_rt" in problem else 1
        new = Path(options.corpus) if options.corpus else folder / "new"
        new.mkdir(parents=True, exist_ok=True)
        place = folder / "segments"
        place.mkdir()
        print(f"seed {options.seed}, {options.seconds} s", flush=True)
        asan = {"ASAN_OPTIONS": "detect_leaks=0:quarantine_size_mb=16"}
        return subprocess.run(
            command(program, options, new),
            env={**os.environ, **asan, "FUZZ_FOLDER": str(place)},
            stdin=subprocess.DEVNULL,
            timeout=options.seconds + 300,
            check=False,
        ).returncode


if __name__ == "__main__":
    sys.exit(main())
