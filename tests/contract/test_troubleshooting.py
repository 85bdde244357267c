"""docs/troubleshooting.md names everything that the code can say is wrong."""

from __future__ import annotations

import ast
import inspect
import re
from pathlib import Path

import pytest

import memledger
from memledger import device, errors, model, sim
from memledger import ledger as ledger_module
from memledger.cli import doctor

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/troubleshooting.md").read_text(encoding="utf-8")


def rules_of_the_core() -> set[str]:
    """What stands behind "not a segment of ours": the rule that was broken."""
    found: set[str] = set()
    for path in (ROOT / "csrc").rglob("*.c"):
        text = path.read_text(encoding="utf-8")
        found |= set(re.findall(r'OS_FOREIGN, "([^"]+)"', text))
        found |= set(re.findall(r'error->call = "(header|size|lock kind)"', text))
    return found


def subjects_to_look_at() -> set[str]:
    """First words of doctor's lines with the state "look", where they are literal."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(inspect.getsource(doctor))):
        if not (isinstance(node, ast.Call) and getattr(node.func, "id", "") == "Check"):
            continue
        state, subject = node.args[:2]
        if '"look"' in ast.unparse(state).replace("'", '"') and isinstance(subject, ast.Constant):
            found.add(str(subject.value))
    return found


EXCEPTIONS = [
    *(name for name in errors.__all__),
    *(
        f"sim.{name}"
        for name, kind in vars(sim).items()
        if isinstance(kind, type)
        and issubclass(kind, Exception)
        and kind.__module__ == sim.__name__
    ),
]


@pytest.mark.parametrize("name", EXCEPTIONS)
def test_each_exception_is_on_the_page(name: str) -> None:
    assert f"`{name}`" in PAGE or f"`memledger.{name}`" in PAGE


@pytest.mark.parametrize("text", [*ledger_module._STATUS_TEXT.values()])
def test_each_degraded_reason_is_on_the_page(text: str) -> None:
    assert f"`{text}" in PAGE


def test_each_rule_that_a_segment_can_break_is_on_the_page() -> None:
    rules = rules_of_the_core()
    assert {"owner", "mode", "size", "header"} <= rules
    assert {rule for rule in rules if f": {rule}`" not in PAGE} == set()


@pytest.mark.parametrize("reason", [reason for reason in model.REASONS if reason])
def test_each_reason_of_a_reading_is_on_the_page(reason: str) -> None:
    assert f"| `{reason}` |" in PAGE


@pytest.mark.parametrize("reason", [reason for reason in device._REASONS.values() if reason])
def test_each_reason_of_a_refusal_is_on_the_page(reason: str) -> None:
    assert f"`{reason}`" in PAGE


def test_each_line_of_doctor_that_asks_for_something_is_on_the_page() -> None:
    subjects = subjects_to_look_at()
    assert {"segment", "join", "members"} <= subjects
    assert {subject for subject in subjects if f"| `{subject}` |" not in PAGE} == set()


def test_public_exceptions_are_those_of_errors() -> None:
    assert {name for name in errors.__all__ if not hasattr(memledger, name)} == set()
