"""Whatever stands on the command line: one of the promised exit codes, and never a traceback.

In one process, since a thousand interpreters would take minutes; what only a process of its own can
show is in the other test_cli_* files.
"""

from __future__ import annotations

import contextlib
import io
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

import memledger
from helpers.units import GiB, count
from memledger.cli import main
from memledger.ledger import Ledger

OK, TROUBLE, USAGE, INTERRUPTED = 0, 1, 2, 130


def examples(short: int) -> settings:
    """So many, or many more in the long suite."""
    return settings(
        deadline=None,
        database=None,
        print_blob=True,
        max_examples=count(short, 50 * short),
        phases=(Phase.explicit, Phase.generate, Phase.shrink),
        suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    )


# What a shell can hand over: no NUL, and bytes that are no UTF-8 come as lone surrogates.
_character = st.one_of(
    st.characters(blacklist_characters="\0", blacklist_categories=("Cs",)),
    st.sampled_from("-=/%{}\x1b\n\r\t'\"\udcff\udc80\u202e²٣"),
)
text = st.text(_character, max_size=12)
number = st.one_of(
    st.integers().map(str),
    st.floats().map(str),
    st.sampled_from(["1e400", "-0", "0x10", "1_000", " 1", "1" * 5000, "٣", "inf", "nan", "1s"]),
    text,
)
# Names in the folder of the test; `make` says what stands there.
place = st.one_of(
    st.sampled_from(["good", "absent", "garbage", "empty", "folder", "link", "loop", "good/below"]),
    st.sampled_from(["a" * 300, "b/" * 400, "%s%n", "\x1b[31mred", "\udcff", "new\nline", " "]),
    text.filter(lambda name: "/" not in name and name not in ("", ".", "..")),
)
flag = st.sampled_from(["--json", "--force", "--yes", "-y", "--", "-", "--help", "--version", "-h"])


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Everything a path can lead to; nothing outside is ever named."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MEMLEDGER_TOTAL", raising=False)
    monkeypatch.setenv("MEMLEDGER_PATH", str(tmp_path / "good"))  # simulated cards lie beside it
    make(tmp_path)
    member = Ledger(label="good", role="other", path=str(tmp_path / "good"))
    yield tmp_path
    member.leave()


def make(folder: Path) -> None:
    if not (folder / "good").exists():
        keeper = Ledger(label="maker", role="other", path=str(folder / "good"))
        keeper.device("sim:card?total=24GiB").publish(held=GiB)
        keeper.leave()
    for name, content in (("garbage", os.urandom(9000)), ("empty", b"")):
        (folder / name).write_bytes(content)
        (folder / name).chmod(0o600)
    (folder / "folder").mkdir(exist_ok=True)
    for name, target in (("link", "garbage"), ("loop", "loop")):
        with contextlib.suppress(FileExistsError):
            (folder / name).symlink_to(target)


def run(folder: Path, *arguments: str) -> tuple[int, str, str]:
    """Exit code, output and errors; anything that escapes `main` fails the test."""
    os.environ["MEMLEDGER_PATH"] = str(folder / "good")
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = main(arguments)
        except SystemExit as stop:  # argparse
            code = stop.code if isinstance(stop.code, int) else -1
    assert "Traceback" not in err.getvalue()
    return code, out.getvalue(), err.getvalue()


def check(folder: Path, *arguments: str) -> None:
    code, _, errors = run(folder, *arguments)
    assert code in (OK, TROUBLE, USAGE), (code, errors)
    if code == TROUBLE and arguments[:1] != ("doctor",) and "--json" not in arguments:
        assert errors.startswith("memledger: "), (arguments, errors)


@examples(60)
@given(words=st.lists(st.one_of(text, flag, number), max_size=4))
def test_any_words_end_with_a_promised_code(folder: Path, words: list[str]) -> None:
    if words and words[0] in ("demo", "bench", "reset", "sweep", "dump", "doctor"):
        words = words[1:]
    check(folder, *words)


@examples(60)
@given(path=place, json=st.booleans(), odd=st.lists(st.one_of(flag, text), max_size=1))
def test_any_path_to_dump(folder: Path, path: str, json: bool, odd: list[str]) -> None:
    check(folder, "dump", f"--path={folder}/{path}", *(["--json"] if json else []), *odd)


@examples(60)
@given(seconds=number, json=st.booleans())
def test_any_interval_to_watch(
    folder: Path, monkeypatch: pytest.MonkeyPatch, seconds: str, json: bool
) -> None:
    """A good one goes on until Ctrl-C, which comes at once here."""

    def interrupt(_seconds: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(time, "sleep", interrupt)
    code, _, errors = run(folder, "dump", f"--watch={seconds}", *(["--json"] if json else []))
    assert code in (USAGE, INTERRUPTED), (code, errors)
    try:
        good = 0.05 <= float(seconds) <= 86400
    except ValueError:
        good = False
    assert (code == INTERRUPTED) == good


@examples(50)
@given(path=place, force=st.booleans(), yes=st.booleans())
def test_any_path_to_reset(folder: Path, path: str, force: bool, yes: bool) -> None:
    """And without --force the segment with a member in it stays, and so does what is foreign."""
    make(folder)
    member = Ledger(label="here", role="other", path=str(folder / "good"))
    words = ["reset", f"--path={folder}/{path}"]
    check(folder, *words, *(["--force"] if force else []), *(["--yes"] if yes else []))
    member.leave()
    if not force:
        assert (folder / "good").exists()
        assert (folder / "garbage").exists()
        assert (folder / "link").is_symlink()
    assert (folder / "folder").is_dir()


@examples(30)
@given(path=place, json=st.booleans())
def test_any_path_to_sweep(folder: Path, path: str, json: bool) -> None:
    check(folder, "sweep", f"--path={folder}/{path}", *(["--json"] if json else []))
    assert (folder / "garbage").stat().st_size == 9000


@examples(8)
@given(path=place, json=st.booleans())
def test_any_path_to_doctor(folder: Path, path: str, json: bool) -> None:
    check(folder, "doctor", f"--path={folder}/{path}", *(["--json"] if json else []))


@examples(40)
@given(calls=number)
def test_any_number_of_calls_to_bench(folder: Path, calls: str) -> None:
    if calls.isascii() and calls.isdigit() and len(calls) > 3:
        calls = f"x{calls}"  # a million calls are a good number, and take long
    check(folder, "bench", f"--calls={calls}")


@examples(40)
@given(seed=number, scenario=text, odd=st.one_of(flag, text))
def test_any_words_to_demo(folder: Path, seed: str, scenario: str, odd: str) -> None:
    """Always with a scenario that there is not, or it would play."""
    check(folder, "demo", f"--seed={seed}", f"--scenario=no {scenario}", odd)


def test_memledger_is_left_as_it_was(folder: Path) -> None:
    """The examples ran in this process: they left no member behind in the test's own segment."""
    run(folder, "sweep", f"--path={folder}/good")
    with memledger.join(label="after", path=folder / "good") as ledger:
        assert {member.label for member in ledger.members()} == {"good", "after"}
