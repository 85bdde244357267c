"""G10 by libFuzzer: 20 seconds here, as long as you like with `SOAK_S=3600 make soak`."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

RUN = Path(__file__).with_name("run.py")
SKIPPED = 77


def fuzz(seconds: int) -> None:
    """A failure shows the seed, what went wrong, and the input in base64."""
    done = subprocess.run(
        [sys.executable, str(RUN), "--seconds", str(seconds)],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=seconds + 400, check=False,
    )  # fmt: skip
    shown = done.stdout.decode(errors="replace")
    if done.returncode == SKIPPED and os.environ.get("CI", "") in ("", "0"):
        pytest.skip(f"no libFuzzer here: {shown.strip().splitlines()[-1]}")
    assert done.returncode == 0, shown[-8000:]
    runs = re.search(r"number_of_executed_units: (\d+)", shown)
    assert runs is not None, shown[-2000:]
    print(shown.splitlines()[0], f"{runs[1]} inputs")
    assert int(runs[1]) > 100


@pytest.mark.watchdog(500)
def test_g10_no_bytes_make_an_attached_process_crash_hang_or_lie() -> None:
    fuzz(20)


@pytest.mark.long
@pytest.mark.watchdog(10_000_000)
def test_g10_no_bytes_make_an_attached_process_crash_hang_or_lie_for_hours() -> None:
    fuzz(int(os.environ.get("SOAK_S", "600")))
