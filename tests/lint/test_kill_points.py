"""Every store into the segment has a kill point, and every kill point is reached by a test.
The rule stands in csrc/core/kill.h."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from test_source import CSRC, ROOT, code_of

CORE = sorted([*(CSRC / "core").glob("*.c"), *(CSRC / "core").glob("*.h")])
STORE = re.compile(r"\bml_(?:store_\w+|exchange_\w+|fetch_\w+|cas_\w+|bit_set|bit_clear)\(([^,;]*)")
POINT = re.compile(r'ML_KILL_POINT\("([^"]*)"\)')
NOT_SHARED = re.compile(
    r"lock$|&ledger->(?!seat)|&device->|&pool->(?:due|own_reading_ns)$|&ml_view_slot\(private_view|"
    r"&kept->|&keeper->"
)
"""Words of this process: the handle's, a device's cache, two of a local pool, the private view, and
what housekeep.c keeps."""
HELPERS = {("core.h", "bitmap")}
"""ml_bit_set and ml_bit_clear: their callers have the point."""


def plain_code_of(path: Path) -> str:
    """Without what the preprocessor takes."""
    return re.sub(r"^\s*#(?:[^\n]*\\\n)*[^\n]*$", "", code_of(path), flags=re.M)


def is_shared(path: Path, target: str) -> bool:
    if any(path.name == name and target.startswith(f"&{word}") for name, word in HELPERS):
        return False
    return not NOT_SHARED.match(target.strip())


def stores(path: Path) -> list[tuple[int, int, str]]:
    """Where each statement with stores into the segment begins, how many it has, and its text."""
    code = plain_code_of(path)
    found = []
    for match in re.finditer(r"[^;{}]+", code):
        text = match.group()
        if re.search(r"\bml_\w+\((?:const )?ml_u64 \*", text):
            continue  # the head of a function
        count = sum(is_shared(path, target) for target in STORE.findall(text))
        if count:
            found.append((match.start() + len(text) - len(text.lstrip()), count, text.strip()))
    return found


def before(code: str, at: int) -> str:
    """The statement that ends before `at`."""
    head = code[:at].rstrip()
    return re.split(r"[;{}]", head[:-1])[-1].strip() if head.endswith(";") else ""


@pytest.mark.parametrize("path", CORE, ids=lambda path: path.name)
def test_each_store_into_the_segment_has_a_point_before_it(path: Path) -> None:
    code = plain_code_of(path)
    for at, count, text in stores(path):
        assert count == 1, f"{path.name}: one store per statement: {text}"
        assert before(code, at) == 'ML_KILL_POINT("")', f"{path.name}: no point before: {text}"


def test_the_rule_sees_the_stores() -> None:
    """So that a change of style cannot make it blind."""
    assert sum(len(stores(path)) for path in CORE) > 100


def test_each_name_is_used_once() -> None:
    names = [
        name
        for path in CORE
        if path.name != "kill.h"
        for name in POINT.findall(path.read_text(encoding="utf-8"))
    ]
    assert sorted(names) == sorted(set(names))


@pytest.mark.skipif(not shutil.which("gcc"), reason="no gcc to build tests/c/test_kill.c with")
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="tests/c/test_kill.c needs Linux")
def test_each_point_is_reached_by_the_kill_test(tmp_path: Path) -> None:
    sys.path.insert(0, str(ROOT / "tests" / "c"))
    import run as c_tests

    program = next(program for program in c_tests.PROGRAMS if program.name == "test_kill")
    output = tmp_path / "test_kill"
    build = c_tests.Build("gcc", "gcc", ("-O0",))
    subprocess.run(c_tests.command(program, build, output), check=True, timeout=120)
    done = subprocess.run(
        [output, "list"], capture_output=True, text=True, timeout=60, start_new_session=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    reached = {line.split()[0] for line in done.stdout.splitlines() if line[-1:].isdigit()}
    for path in CORE:
        if path.name != "kill.h":
            names = set(POINT.findall(path.read_text(encoding="utf-8")))
            assert names <= reached, f"{path.name}: never reached: {sorted(names - reached)}"


def test_each_point_that_a_test_arms_exists() -> None:
    armed = {
        name
        for path in (ROOT / "tests").rglob("*.c")
        for name in re.findall(r'kill_points_arm\("([a-z_.]+)"', path.read_text())
    }
    points = {
        name
        for path in (ROOT / "csrc").rglob("*.[ch]")
        for name in re.findall(r'ML_KILL_POINT\("([a-z_.]+)"', path.read_text())
    }
    assert armed
    assert armed <= points
