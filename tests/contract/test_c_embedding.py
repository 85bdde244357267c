"""A C program and Python members share a ledger: examples/c/join.c, built as docs/embed.md says."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import memledger
from helpers.members import Member
from helpers.units import GiB
from helpers.waiting import WATCHDOG_S, wait_until

ROOT = Path(__file__).resolve().parents[2]
STRICT = ("-Wall", "-Wextra", "-Werror")
CARD = "sim:card"


def built(command: list[str], cwd: Path = ROOT) -> str:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    for tool in ("make", "gcc", "ar"):
        if shutil.which(tool) is None:
            pytest.skip(f"no {tool}")
    folder = tmp_path_factory.mktemp("embed")
    built(["make", "embed", "-j2", f"EMBED_DIR={folder}", "CC=gcc", "EMBED_CFLAGS=-O1"])
    return folder / "libmemledger.a"


@pytest.fixture(scope="module")
def program(library: Path) -> Path:
    to = library.with_name("join")
    flags = [*STRICT, "-std=c11", "-Icsrc/include", "-pthread"]
    built(["gcc", *flags, "examples/c/join.c", str(library), "-o", str(to)])
    return to


class CMember:
    """The example, running: it goes on at a line on its standard input."""

    def __init__(self, program: Path, *arguments: str) -> None:
        self.process = subprocess.Popen(
            [str(program), *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def lines(self) -> list[str]:
        assert self.process.stdout is not None
        return [self.process.stdout.readline().strip() for _ in range(2)]

    def go_on(self) -> int:
        self.process.communicate("\n", timeout=WATCHDOG_S)
        return self.process.returncode

    def end(self) -> None:
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def start(segment: Path, program: Path) -> Iterator[Callable[[], CMember]]:
    running: list[CMember] = []

    def start() -> CMember:
        running.append(CMember(program))
        return running[-1]

    yield start
    for member in running:
        member.end()


def labels(member: Member) -> list[str]:
    return sorted(m["label"] for m in member.call("members"))


def test_c_and_python_members_see_each_other(spawn: Any, start: Callable[[], CMember]) -> None:
    python: Member = spawn("python", total=24 * GiB, key=CARD)
    python.publish(4 * GiB)
    c = start()
    # 24 less the 4 of Python and its own 1; its own claim is not taken off.
    assert c.lines() == ["claim granted", f"free {19 * GiB}"]
    assert labels(python) == ["c-program", "python"]
    figures = python.figures()
    assert figures["held"] == 5 * GiB
    assert figures["claimed_by_others"] == 2 * GiB
    assert python.free() == 17 * GiB
    assert python.call("try_claim", 18 * GiB) is None
    assert c.go_on() == 0
    assert labels(python) == ["python"]
    assert python.free() == 20 * GiB


def test_claim_of_a_c_member_is_refused_where_it_does_not_fit(
    spawn: Any, start: Callable[[], CMember]
) -> None:
    python: Member = spawn("python", total=24 * GiB, key=CARD)
    python.publish(22 * GiB)
    c = start()
    assert c.lines() == ["claim refused", f"free {GiB}"]
    assert c.go_on() == 0


def test_killed_c_members_bytes_go_away(spawn: Any, start: Callable[[], CMember]) -> None:
    python: Member = spawn("python", total=24 * GiB, key=CARD)
    c = start()
    c.lines()
    assert python.free() == 21 * GiB
    c.end()
    wait_until(lambda: python.free() == 24 * GiB, what="the dead C member's bytes are back")


def test_c_member_sweeps_and_answers_by_itself(
    spawn: Any, start: Callable[[], CMember], segment: Path
) -> None:
    """With nobody else alive the thread in ml_housekeep takes back what the dead left."""
    c = start()
    c.lines()
    python: Member = spawn("python", total=24 * GiB, key=CARD)
    python.publish(4 * GiB, releasable=GiB)
    python.kill()

    def held() -> list[int]:
        _, image = memledger._native.read_image(str(segment))
        assert image is not None
        return [row["held"] for pool in image["pools"] for row in pool["rows"] if row["held"]]

    wait_until(lambda: held() == [GiB], what="the dead Python member was swept by the C program")
    assert c.go_on() == 0


def test_c_member_without_a_holder_refuses_an_ask_at_once(
    spawn: Any, start: Callable[[], CMember]
) -> None:
    python: Member = spawn("python", total=24 * GiB, key=CARD)
    c = start()
    c.lines()
    # The example has nothing releasable; so that it is asked, the ask is sent by hand.
    slot = next(m["slot"] for m in python.call("members") if m["label"] == "c-program")
    pool = python.run("device._pools()[0]")
    python.run(f"ledger = device._ledger; sent = ledger._ask_send({pool}, {slot}, {GiB})")
    assert python.run("sent[0]") == 0
    wait_until(lambda: python.run("answer = ledger._ask_poll(sent[1]); answer[0] == 0"))
    assert python.run("answer[1:]") == ["refused", 0]
    assert c.go_on() == 0


@pytest.mark.parametrize(
    ("compiler", "standard"), [("gcc", "c11"), ("g++", "c++11"), ("clang", "c17")]
)
def test_header_stands_alone_in_c_and_cpp(compiler: str, standard: str, tmp_path: Path) -> None:
    if shutil.which(compiler) is None:
        pytest.skip(f"no {compiler}")
    source = tmp_path / ("use.cc" if "++" in compiler else "use.c")
    source.write_text(
        '#include "memledger.h"\n#include "memledger.h"\n'
        "int use(ml_ledger *ledger);\n"
        "int use(ml_ledger *ledger) { return ml_housekeep(ledger, 0) + (int)ML_BYTES_MAX % 2; }\n"
    )
    output = tmp_path / "use.o"
    flags = [*STRICT, f"-std={standard}", "-pedantic", f"-I{ROOT / 'csrc/include'}"]
    built([compiler, *flags, "-c", str(source), "-o", str(output)])
    symbols = built(["nm", "-u", str(output)]) if shutil.which("nm") else "U ml_housekeep"
    assert re.search(r"\bml_housekeep$", symbols.strip(), flags=re.M), "extern C"


STEPS = (
    "ml_ledger_tick",
    "ml_sweep_begin",
    "ml_sweep_begin_near",
    "ml_sweep_commit",
    "ml_reading_begin",
    "ml_reading_end",
    "ml_reading_settle",
    "ml_reading_local",
    "ml_request_next",
    "ml_request_answer",
    "ml_ledger_set_reader",
    "ml_ledger_wake_mark",
    "ml_ledger_wait_from",
)


def test_both_housekeepings_make_the_same_steps() -> None:
    """Python's thread reaches them through the native module, ml_housekeep directly; a step that
    only one of them makes is what members in the other language lack."""
    in_c = (ROOT / "csrc/core/housekeep.c").read_text(encoding="utf-8")
    native = "".join(
        path.read_text(encoding="utf-8") for path in sorted((ROOT / "csrc/py").glob("*.c"))
    )
    python = "".join(
        (ROOT / "src/memledger" / name).read_text(encoding="utf-8")
        for name in ("housekeeping.py", "ledger.py", "asks.py")
    )
    for step in STEPS:
        assert re.search(rf"\b{step}\b", in_c), f"ml_housekeep does not call {step}"
        assert re.search(rf"\b{step}\b", native), f"Python cannot reach {step}"
    methods = ("_tick", "_sweep_begin", "_sweep_commit", "_reading_begin", "_reading_end")
    methods += ("_reading_settle", "_reading_local", "_request_next", "_request_answer")
    methods += ("_set_reader", "_wake_mark", "_wait")
    for method in methods:
        assert f".{method}(" in python, f"the Python thread does not call {method}"


def test_library_defines_only_names_of_its_own(library: Path) -> None:
    if shutil.which("nm") is None:
        pytest.skip("no nm")
    defined = built(["nm", "-g", "--defined-only", str(library)])
    names = {line.split()[2] for line in defined.splitlines() if len(line.split()) == 3}
    header = (ROOT / "csrc/include/memledger.h").read_text(encoding="utf-8")
    declared = set(re.findall(r"\b(ml_\w+)\(", header))
    assert {name for name in names if not re.match(r"(ml|os)_", name)} == set()
    assert {name for name in declared if name not in names} == set()
