"""Any program as a worker: what the bootstrap leaves as it was, and what it adds."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ADAPTERS = Path(__file__).parent.parent.parent / "comfy_integration" / "memledger_comfy"
BOOTSTRAP = ADAPTERS / "bootstrap.py"
TELL = """
import json, sys
import log
context = sys.modules["memledger_comfy.worker"].context()
print(json.dumps({
    "argv": sys.argv, "first": sys.path[0], "name": __name__, "log": log.__file__,
    "main": sys.modules["__main__"].__dict__ is globals(),
    "joined": context is not None and context.link.ledger is not None,
    "group": context is not None and context.link.ledger.leader_reason,
}))
"""

one_generation = pytest.mark.parametrize("comfy", ["new"], indirect=True)
"""What does not depend on ComfyUI's version."""


@pytest.fixture
def program(tmp_path: Path) -> Path:
    """A program with a module beside it whose name one of ours has too."""
    (tmp_path / "log.py").write_text("")
    (tmp_path / "tell.py").write_text(TELL)
    return tmp_path / "tell.py"


def run(*words: object, **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *map(str, words)], capture_output=True, text=True, timeout=60, **options
    )


def told(*words: object, **options: Any) -> dict[str, Any]:
    import json

    done = run(*words, **options)
    assert done.returncode == 0, done.stderr
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


@one_generation
def test_a_script_runs_as_it_would_alone(comfy: Any, program: Path) -> None:
    comfy.start_host()
    answer = told(BOOTSTRAP, program, "one", "-m", "--two")
    assert answer == {
        "argv": [str(program), "one", "-m", "--two"],
        "first": str(program.parent),
        "name": "__main__",
        "log": str(program.parent / "log.py"),
        "main": True,
        "joined": True,
        "group": "named by the group",
    }


@one_generation
def test_a_module_runs_as_it_would_alone(comfy: Any, program: Path) -> None:
    comfy.start_host()
    answer = told(BOOTSTRAP, "-m", "tell", "one", cwd=program.parent)
    assert answer["argv"] == [str(program), "one"]
    assert answer["first"] == str(program.parent)
    assert (answer["joined"], answer["name"], answer["main"]) == (True, "__main__", True)


@one_generation
def test_where_the_package_can_be_imported_it_is_a_module(comfy: Any, program: Path) -> None:
    comfy.start_host()
    env = {**os.environ, "PYTHONPATH": str(ADAPTERS.parent)}
    answer = told("-m", "memledger_comfy.bootstrap", program, "one", cwd=program.parent, env=env)
    assert answer["argv"] == [str(program), "one"]
    assert answer["joined"] is True


@one_generation
def test_the_programs_exit_status_is_its_own(comfy: Any, tmp_path: Path) -> None:
    comfy.start_host()
    program = tmp_path / "leave.py"
    program.write_text("raise SystemExit(7)")
    assert run(BOOTSTRAP, program).returncode == 7
    program.write_text("raise ValueError('its own')")
    done = run(BOOTSTRAP, program)
    assert done.returncode == 1
    assert done.stderr.endswith("ValueError: its own\n")


@pytest.mark.parametrize(
    "variables", [{"MEMLEDGER_COMFY": "off"}, {"MEMLEDGER_COMFY_LIBRARY": "/nowhere"}]
)
def test_without_a_ledger_the_program_runs_all_the_same(
    program: Path, variables: dict[str, str]
) -> None:
    """All is switched off, or what the host named is gone. -S: no memledger is installed there."""
    env = {**os.environ, **variables}
    done = run("-S", BOOTSTRAP, program, env=env)
    assert done.returncode == 0
    assert '"joined": false' in done.stdout
    lines = done.stderr.splitlines()
    if "MEMLEDGER_COMFY" in variables:
        assert lines == []
    else:
        assert len(lines) == 1
        assert lines[0].startswith("[memledger] off in this worker: /nowhere does not load here")


@one_generation
def test_without_a_program_it_says_how(comfy: Any) -> None:
    for words in ((), ("-m",), ("-c", "1")):
        done = run(BOOTSTRAP, *words)
        assert done.returncode == 2
        assert done.stderr.startswith("usage: ")
