"""Instructions per call have not grown. They do not depend on what else the machine does."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks import instructions
from benchmarks.native import Unavailable

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("section", instructions.COMPARED)
def test_hot_calls_take_the_stored_number_of_instructions(section: str) -> None:
    """A check was added to free(), 30 instructions and 2 ns each, and no benchmark on a busy
    machine could tell it from noise. Fewer than stored fails too, so that the file stays true."""
    try:
        reason = instructions.incomparable(section)
        if reason:
            pytest.skip(f"instructions.json was counted elsewhere: {reason}")
        found = instructions.count((section,))
    except Unavailable as missing:
        pytest.skip(str(missing))
    assert not instructions.differences(found)


@pytest.mark.parametrize(("factor", "count"), [(1.0, 0), (1.05, 0), (1.3, 1), (0.7, 1)])
def test_a_count_beyond_the_tolerance_is_named(factor: float, count: int) -> None:
    kept = instructions.stored()
    found = {section: dict(kept[section]) for section in instructions.COMPARED}
    found[instructions.IN_C]["publish"] *= factor
    lines = instructions.differences(found)
    assert len(lines) == count
    assert all("publish" in line for line in lines)
