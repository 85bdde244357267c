"""Rules for the whole tree: it speaks of itself alone, and no link or name in the docs is dead."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def tracked() -> list[Path]:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=False)
    if listed.returncode != 0:
        pytest.skip("not a git checkout")
    return [
        ROOT / name
        for name in listed.stdout.decode().split("\0")
        if name and (ROOT / name).is_file()
    ]


def text_of(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        return ""


def test_no_path_of_a_machine_stands_in_the_tree() -> None:
    for path in tracked():
        found = re.findall(r"(?:/home/\w+|/root/|/Users/\w+)[\w./-]*", text_of(path))
        assert not found or path == Path(__file__).resolve(), f"{path}: {found[:3]}"


def test_nobody_is_told_to_install_the_other_project() -> None:
    for path in tracked():
        if path == Path(__file__).resolve():
            continue
        for line in text_of(path).splitlines():
            if re.search(r"pip3? install\s+(?:-\S+\s+)*[\"']?memledger(?!-shm)\b", line):
                assert "unrelated" in line or "never" in line.lower(), f"{path}: {line}"


def test_links_in_the_docs_lead_somewhere() -> None:
    for path in [ROOT / "README.md", *ROOT.glob("docs/**/*.md")]:
        for link in re.findall(r"\]\((?!https?:|#)([^)#]+)", text_of(path)):
            assert (path.parent / link).exists(), f"{path.name}: {link}"


def test_paths_named_in_the_docs_exist() -> None:
    pattern = r"`((?:csrc|src|tests|benchmarks|docs)/[\w./-]+\.(?:c|h|py|md|pml))`"
    for path in [ROOT / "README.md", *ROOT.glob("docs/**/*.md")]:
        for name in re.findall(pattern, text_of(path)):
            assert (ROOT / name).exists(), f"{path.name} names {name}"


def test_tests_named_in_the_docs_exist() -> None:
    """docs/design.md says for each guarantee which test fails without it."""
    known = "\n".join(text_of(path) for path in ROOT.glob("tests/**/*.[pc]*") if path.is_file())
    for path in [ROOT / "SECURITY.md", *ROOT.glob("docs/**/*.md")]:
        for name in re.findall(r"`(test_[a-z0-9_]+)`", text_of(path)):
            assert name in known, f"{path.name} names {name}, which no test has"


def test_importing_the_package_needs_no_third_party_module() -> None:
    code = (
        "import sys; import memledger; "
        "print([m for m in sys.modules if m.split('.')[0] in "
        "('torch','numpy','rich','psutil','pynvml','cffi') or m.startswith('memledger.cli')])"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert shown.stdout.strip() == "[]", shown.stdout + shown.stderr
