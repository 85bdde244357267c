"""The blocks of the guides run as they are written.

Per page, in order: ```python blocks with title="name.py" become files; the others are statements of
one process, and a ```text block right behind one is what it prints. Each `$` line of a ```console
block is run by a shell, and what follows is its output, "..." standing for anything. A command that
ends with & stays until `kill -9 %1`. ```sh blocks are for the reader's own machine: checked to be
shell, with `make` targets and `memledger` commands that exist. ```c blocks are compiled against the
header.
"""

from __future__ import annotations

import doctest
import os
import re
import selectors
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from helpers.waiting import WATCHDOG_S
from memledger.cli import command_line

ROOT = Path(__file__).resolve().parents[2]
PAGES = (
    "tutorial.md",
    "two-programs.md",
    "containers.md",
    "new-source.md",
    "embed.md",
    "groups.md",
    "pins.md",
)
_FENCE = re.compile(r"^```(\w+)(?: title=\"([^\"]+)\")?\n(.*?)^```$", re.S | re.M)


def blocks(page: str) -> list[tuple[str, str, str]]:
    """(language, title, text) of each."""
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    return [(m.group(1), m.group(2) or "", m.group(3)) for m in _FENCE.finditer(text)]


def assert_shown(wanted: str, got: str, what: str) -> None:
    checker = doctest.OutputChecker()
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    # A table is as wide as its widest pid.
    wanted, got = (re.sub("─+", "─", text) for text in (wanted, got))
    assert checker.check_output(wanted, got, flags), f"{what}\nexpected:\n{wanted}\ngot:\n{got}"


@pytest.fixture
def environment(segment: Path, tmp_path: Path) -> dict[str, str]:
    tools = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    return {**os.environ, "PATH": tools, "COLUMNS": "100", "NO_COLOR": "1"}


class Console:
    """Runs the commands of a page in one folder."""

    def __init__(self, folder: Path, environment: dict[str, str]) -> None:
        self.folder, self.environment = folder, environment
        self.behind: list[subprocess.Popen[bytes]] = []

    def run(self, block: str) -> None:
        for part in re.split(r"^\$ ", block, flags=re.M)[1:]:
            command, _, wanted = part.partition("\n")
            if command.endswith("&"):
                self.start(command[:-1].strip(), wanted)
            elif re.fullmatch(r"kill -9 %\d+", command):
                process = self.behind[int(command.partition("%")[2]) - 1]
                process.kill()
                process.wait(WATCHDOG_S)
            else:
                self.finish(command, wanted)

    def finish(self, command: str, wanted: str) -> None:
        done = subprocess.run(
            ["sh", "-c", command], cwd=self.folder, env=self.environment, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=WATCHDOG_S,
        )  # fmt: skip
        assert_shown(wanted, done.stdout, f"$ {command} (exit {done.returncode})")

    def start(self, command: str, wanted: str) -> None:
        process = subprocess.Popen(
            shlex.split(command), cwd=self.folder, env=self.environment, stdout=subprocess.PIPE
        )
        self.behind.append(process)
        assert process.stdout is not None
        selector = selectors.DefaultSelector()
        selector.register(process.stdout, selectors.EVENT_READ)
        got = b""
        while got.count(b"\n") < wanted.count("\n") and selector.select(WATCHDOG_S):
            chunk = os.read(process.stdout.fileno(), 4096)
            if not chunk:
                break
            got += chunk
        selector.close()
        assert_shown(wanted, got.decode(), f"$ {command} &")

    def end(self) -> None:
        for process in self.behind:
            process.kill()
            process.communicate()


@pytest.fixture
def console(tmp_path: Path, environment: dict[str, str]) -> Iterator[Console]:
    opened = Console(tmp_path, environment)
    yield opened
    opened.end()


def run_statements(
    parts: list[tuple[str, str]], folder: Path, environment: dict[str, str], page: str
) -> None:
    """(code, output or "" for any) in one process, with a mark between the outputs."""
    mark = "-- next block --"
    code = f"\nprint({mark!r})\n".join(code for code, _ in parts)
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], cwd=folder, env=environment,
        capture_output=True, text=True, timeout=WATCHDOG_S,
    )  # fmt: skip
    assert done.returncode == 0, f"{page}:\n{done.stderr}"
    assert done.stderr == "", page
    for (block, wanted), got in zip(parts, done.stdout.split(mark + "\n"), strict=True):
        if wanted:
            assert_shown(wanted, got, f"{page}: {block}")


@pytest.mark.parametrize("page", PAGES)
def test_blocks_of_the_page_run_as_written(
    page: str, tmp_path: Path, environment: dict[str, str], console: Console
) -> None:
    statements: list[tuple[str, str]] = []
    found = blocks(page)
    for index, (language, title, text) in enumerate(found):
        if language == "python" and title:
            (tmp_path / title).write_text(text, encoding="utf-8")
        elif language == "python":
            after = found[index + 1] if index + 1 < len(found) else ("", "", "")
            statements.append((text, after[2] if after[0] == "text" else ""))
        elif language == "console":
            console.run(text)
    if statements:
        run_statements(statements, tmp_path, environment, page)


@pytest.mark.parametrize("page", PAGES)
def test_shell_blocks_of_the_page_name_what_exists(page: str) -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    known = set(next(iter(command_line._parser()._subparsers._group_actions)).choices)  # type: ignore[union-attr,arg-type]
    for language, _, text in blocks(page):
        if language != "sh":
            continue
        done = subprocess.run(["sh", "-n"], input=text, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        for target in re.findall(r"\bmake (\w+)", text):
            assert re.search(rf"^{target}:", makefile, flags=re.M), target
        for command in re.findall(r"\bmemledger (\w+)", text):
            assert command in known, command


@pytest.mark.parametrize("page", [p for p in PAGES if any(b[0] == "c" for b in blocks(p))])
def test_c_blocks_of_the_page_compile(page: str, tmp_path: Path) -> None:
    if shutil.which("gcc") is None:
        pytest.skip("no gcc")
    source = tmp_path / "page.c"
    found = [text for language, _, text in blocks(page) if language == "c"]
    # A whole file that is shown is built by its own test.
    code = "\n".join(text for text in found if not text.startswith("--8<--"))
    source.write_text('#include "memledger.h"\n' + code)
    line = ["gcc", "-std=c11", "-Wall", "-Wextra", "-Werror", f"-I{ROOT / 'csrc/include'}"]
    done = subprocess.run(
        [*line, "-fsyntax-only", str(source)], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr


def test_each_page_of_the_guides_has_blocks() -> None:
    assert all(blocks(page) for page in PAGES)


def test_pages_that_no_test_runs_have_no_python() -> None:
    """A page with code belongs into PAGES, or names the test that runs it, or says why none can."""
    for path in sorted((ROOT / "docs").glob("**/*.md")):
        page = path.relative_to(ROOT / "docs").as_posix()
        text = path.read_text(encoding="utf-8")
        if page not in PAGES and "```python" in text:
            said = re.search(r"<!-- (.*tests/\S+\.py|not run: )", text)
            assert said, f"{page}: its blocks are run by no test"
