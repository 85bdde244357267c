"""Everything at once and at random, for a while: torture.c says what, and checks it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from helpers import c_programs
from helpers.units import seeded

pytestmark = [
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="torture.c needs Linux"),
    pytest.mark.skipif(not shutil.which("gcc"), reason="no gcc to build tests/crash/torture.c"),
]

SHORT_S = 20
SOAK_S = int(os.environ.get("SOAK_S", "") or 600)


@pytest.fixture(scope="module")
def torture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return c_programs.build(
        "tests/crash/torture.c", tmp_path_factory.mktemp("torture") / "torture", help_too=False,
        flags=("-DML_KILL_POINTS",),
    )  # fmt: skip


def run(program: Path, seconds: int) -> None:
    seed = str(seeded("torture").getrandbits(40) | 1)
    done = subprocess.run(
        [program, str(seconds), seed], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        timeout=2 * seconds + 300, start_new_session=True, check=False,
    )  # fmt: skip
    print(done.stdout)
    assert done.returncode == 0, done.stdout[-2000:]
    counts = {word: n for line in done.stdout.splitlines()[-2:-1] for n, word in pairs(line)}
    for kind in ("grants", "kills", "stops", "forks", "audits"):
        assert counts[kind] >= seconds, f"too little happened: {counts}"


def pairs(line: str) -> list[tuple[int, str]]:
    """(12, "kills") of "..., 12 kills, ..."."""
    return [(int(part.split()[0]), part.split()[1]) for part in line.split(", ")]


@pytest.mark.watchdog(360)
def test_every_sum_stays_exact_whatever_happens(torture: Path) -> None:
    run(torture, SHORT_S)


@pytest.mark.long
@pytest.mark.watchdog(3 * SOAK_S + 300)
def test_every_sum_stays_exact_for_long(torture: Path) -> None:
    run(torture, SOAK_S)
