"""docs/cases.md and the tests say the same."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
IDS = re.compile(r"^\| ([BC]\d\d) \|", re.M)


def page() -> str:
    return (ROOT / "docs" / "cases.md").read_text(encoding="utf-8")


def ids_of_tests() -> set[str]:
    """Ids that names of test functions begin with; C-ids only where cases are."""
    found: set[str] = set()
    for path in ROOT.glob("tests/**/test_*.py"):
        kinds = "bc" if path.parent.name == "cases" else "b"
        text = path.read_text(encoding="utf-8")
        found |= {i.upper() for i in re.findall(rf"^def test_([{kinds}]\d\d)_", text, flags=re.M)}
    return found


def test_each_case_in_the_docs_has_a_test_with_its_id_or_names_one() -> None:
    text = page()
    ids = IDS.findall(text)
    assert len(ids) == len(set(ids)), "an id is given twice"
    assert len(ids) > 40
    tests = ids_of_tests()
    for line in text.splitlines():
        if match := IDS.match(line):
            case = match.group(1)
            named = re.findall(r"`(?:test_\w+|tests/[\w/.]+)`", line)
            assert case in tests or (case.startswith("C") and (named or "same tests" in line)), case
            assert len(line.split(" | ")) == 4, f"{case}: four columns"


def test_each_id_in_the_tests_is_in_the_docs() -> None:
    missing = ids_of_tests() - set(IDS.findall(page()))
    assert not missing


def test_each_file_of_tests_of_cases_tests_one() -> None:
    for path in ROOT.glob("tests/cases/test_*.py"):
        assert re.match(r"test_b\d\d_", path.name), path.name
        assert re.search(r"^def test_b\d\d_", path.read_text(encoding="utf-8"), flags=re.M)
