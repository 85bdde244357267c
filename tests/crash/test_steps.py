"""A process is ended, stopped, or stopped and let go on, after each instruction of an operation.
What others then see is checked by steps.c, which prints one line per operation."""

from __future__ import annotations

import platform
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from helpers import c_programs
from helpers.units import seeded

TRACED = sys.platform.startswith("linux") and platform.machine() == "x86_64"
pytestmark = [
    pytest.mark.skipif(not TRACED, reason="single steps need Linux on x86-64"),
    pytest.mark.skipif(not shutil.which("gcc"), reason="no gcc to build tests/crash/steps.c with"),
]


@pytest.fixture(scope="module")
def steps(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return c_programs.build("tests/crash/steps.c", tmp_path_factory.mktemp("steps") / "steps")


def run(program: Path, *arguments: str, patience_s: int) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [program, *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        timeout=patience_s, start_new_session=True, check=False,
    )  # fmt: skip
    print(done.stdout)
    if done.returncode == 77:
        pytest.skip("this system does not let a process trace its own child")
    return done


@pytest.mark.watchdog(600)
def test_every_instruction_of_publish_and_claim_and_samples_of_the_rest(steps: Path) -> None:
    """Nothing that a process leaves, wherever it ends or stops, breaks an invariant, mixes two
    publishes, keeps a claim that fits from others, or stays after the sweep."""
    seed = str(seeded("steps").getrandbits(40))
    done = run(steps, "--samples", "25", "--seed", seed, patience_s=580)
    assert done.returncode == 0
    for operation in ("publish", "claim, settle"):
        row = next(line for line in done.stdout.splitlines() if line.startswith(operation))
        figures = [int(word) for word in row[len(operation) :].split() if word.isdigit()]
        instructions, kills, stops, let_go_on = figures[:4]
        assert instructions == kills == stops == let_go_on > 300, row


@pytest.mark.long
@pytest.mark.watchdog(14400)
def test_every_instruction_of_everything(steps: Path) -> None:
    assert run(steps, "--all", patience_s=14300).returncode == 0


MUTANTS = {
    "a record is published in place": (
        "record.c", "version + 1) % ML_RING_COPIES", "version * 0)", "before % ML_RING_COPIES",
        "before * 0", "publish", "stopped",
    ),
    "a claim that hinders is passed by without being aborted": (
        "claim.c", "(void)ml_cas_acq_rel((ml_u64 *)word_of(a, level, i), seen[i],",
        "(void)(seen[i] +", "", "", "claim, settle", "let go on",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MUTANTS)
def test_a_broken_core_is_noticed(name: str, tmp_path: Path) -> None:
    """So that the zeros above mean something."""
    file, old, new, old_too, new_too, operation, fate = MUTANTS[name]
    shutil.copytree(c_programs.ROOT / "csrc", tmp_path / "csrc")
    source = tmp_path / "csrc" / "core" / file
    text = source.read_text(encoding="utf-8")
    assert old in text
    assert old_too in text
    source.write_text(text.replace(old, new).replace(old_too or old, new_too or new))
    broken = c_programs.build(
        "tests/crash/steps.c", tmp_path / "steps", root=tmp_path, flags=("-Wno-error",)
    )
    done = run(broken, "--operation", operation, "--fate", fate, patience_s=100)
    assert done.returncode == 1
    assert "VIOLATION" in done.stdout
