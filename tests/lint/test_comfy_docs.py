"""docs/comfyui.md names every switch and variable of the code, and only tests that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CODE = ROOT / "comfy_integration"
DOC = (ROOT / "docs" / "comfyui.md").read_text(encoding="utf-8")
TESTS = ROOT / "tests" / "comfy"
ROWS = ["6", "7", "8", "14", "19", "21", "25", "31", "32", "33", "34", "39", "41", "hook"]


def sources() -> list[str]:
    return [path.read_text(encoding="utf-8") for path in CODE.rglob("*.py")]


def behaviours() -> set[str]:
    adapters = (CODE / "memledger_comfy" / "adapter").glob("*.py")
    named = (re.search(r'^NAME = "(\w+)"', path.read_text("utf-8"), re.M) for path in adapters)
    return {found.group(1) for found in named if found is not None}


def test_every_behaviour_has_its_switch_in_the_docs() -> None:
    assert len(behaviours()) > 20
    missing = {name for name in behaviours() if f"`{name}`" not in DOC}
    assert not missing


def test_every_variable_is_in_the_table() -> None:
    table = DOC.partition("## Switches")[2].partition("\n## ")[0]
    listed = set(re.findall(r"^\| `(\w+)` \|", table, re.M))
    # PREFIX + "_DEVICES" is written in parts.
    used = {name for text in sources() for name in re.findall(r"\bMEMLEDGER_[A-Z_]*[A-Z]\b", text)}
    assert "MEMLEDGER_COMFY_LIBRARY" in used
    assert used <= listed
    for name in listed:
        assert name in used or any(name in text for text in sources())


@pytest.mark.parametrize("row", ROWS)
def test_every_row_says_all_that_it_should(row: str) -> None:
    line = next(line for line in DOC.splitlines() if line.startswith(f"| {row} |"))
    cells = [cell.strip() for cell in line.strip("|").split("|")]
    assert len(cells) == 6
    assert all(cells), "row, switch, what ComfyUI does, what we change, tests, what is left"


def test_every_test_and_file_that_is_named_exists() -> None:
    files = set(re.findall(r"`(tests/comfy/[\w/]+\.py)`", DOC))
    assert len(files) > 10
    assert all((ROOT / name).is_file() for name in files)
    defined = {
        name
        for path in TESTS.rglob("test_*.py")
        for name in re.findall(r"def (test_\w+)\(", path.read_text(encoding="utf-8"))
    }
    named = set(re.findall(r"`(test_\w+)`", DOC))
    assert len(named) > 30
    assert named <= defined, named - defined
