"""The man pages and the reference pages say what the parsers and the C header say."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted((ROOT / "docs/man").glob("memledger.[13]"))


@pytest.fixture(scope="module")
def generate() -> ModuleType:
    spec = importlib.util.spec_from_file_location("generate", ROOT / "docs/man/generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["generate"] = module
    spec.loader.exec_module(module)
    return module


def test_pages_are_those_that_the_sources_make(generate: ModuleType) -> None:
    for path, text in generate.pages().items():
        assert path.read_text(encoding="utf-8") == text, (
            f"{path.name} is out of date: run python docs/man/generate.py"
        )


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_man_page_is_well_formed(page: Path) -> None:
    if shutil.which("mandoc") is None:
        pytest.skip("no mandoc")
    line = ["mandoc", "-Tlint", "-Wwarning", str(page)]
    done = subprocess.run(line, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr


def test_each_function_of_the_header_has_a_comment_of_its_own(generate: ModuleType) -> None:
    _, sections = generate.header()
    bare, seen = [], 0
    for section in sections:
        for entry in section.entries:
            code = re.sub(r"/\*.*?\*/|\{.*?\n\}", "", entry.code, flags=re.S)
            functions = re.findall(r"^\w[\w *]*\b(ml_\w+)\(", code, flags=re.M)
            seen += len(functions)
            bare += functions[1:] if entry.comment else functions
    assert seen > 60
    assert bare == []


def test_each_command_and_function_is_in_its_man_page(generate: ModuleType) -> None:
    one, three = (page.read_text(encoding="utf-8") for page in PAGES)
    for command in generate.commands()[1:]:
        assert f".Ss {command.name}" in one
    header = (ROOT / "csrc/include/memledger.h").read_text(encoding="utf-8")
    for name in set(re.findall(r"\b(ml_\w+)\(", re.sub(r"/\*.*?\*/", "", header, flags=re.S))):
        assert f"{name}(" in three, name
