"""`memledger top`: what a frame says, and the live screen, driven through tmux."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from test_cli_helpers import (
    GIB,
    Member,
    command,
    dump_json,
    environment,
    on_terminal,
    one_line,
    run,
    segment,
    without_rich,
)

from helpers.tmux import Terminal
from helpers.waiting import wait_until
from memledger.cli import top_draw
from memledger.cli.look import Look, look

__all__ = ["segment", "without_rich"]

ESC = "\x1b"

_GIVING = """
import sys, memledger
label, held, releasable = sys.argv[1:4]
ledger = memledger.join(label, "worker")
gpu = ledger.device("sim:card?total=24GiB")
class Gives:
    def release_memory(self, device, size):
        held, releasable, _ = gpu.amounts
        gpu.publish(held - size, releasable=releasable - size)
        return size
ledger.holders.register(Gives(), thread_safe=True)
gpu.publish(int(held), releasable=int(releasable))
print("up", flush=True)
sys.stdin.read()
"""


@contextmanager
def giving(segment: Path, label: str, held: int, releasable: int) -> Iterator[None]:
    """A member that gives back whatever it is asked for."""
    process = subprocess.Popen(
        [sys.executable, "-c", _GIVING, label, str(held), str(releasable)],
        env=environment(segment), stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"up\n"
        yield
    finally:
        process.kill()
        process.communicate()


def bar_of(shown: str) -> str:
    return next(line for line in shown.splitlines() if re.match("a[█#]", line))


# ---- one frame


def test_once_shows_bars_and_members(segment: Path) -> None:
    with (
        Member(segment, "alpha", held=12 * GIB, releasable=3 * GIB),
        Member(segment, "beta", held=3 * GIB, claim=3 * GIB),
    ):
        shown = run("top", "--once", path=segment, COLUMNS="72")
    assert (shown.returncode, shown.stderr) == (0, "")
    assert "sim:card 24.0 GiB  free 6.0  available 9.0\n" in shown.stdout
    # 3 characters a GiB: 9 held and 3 releasable, then 3 held and 3 claimed, 6 free.
    assert bar_of(shown.stdout) == "a" + "█" * 26 + "╱" * 9 + "b" + "█" * 8 + "+" * 9 + "·" * 18  # noqa: RUF001
    assert re.search(r"^a +\d+ +alpha +live +sim:card +12\.0 +3\.0 +0 +0", shown.stdout,
                     re.M)  # fmt: skip
    assert shown.stdout.index("alpha") < shown.stdout.index("beta")


@pytest.mark.parametrize("columns", ["24", "40", "80", "120", "200"])
def test_once_keeps_to_the_width(segment: Path, columns: str) -> None:
    with Member(segment, "a label that is rather long for a table", held=GIB):
        shown = run("top", "--once", path=segment, COLUMNS=columns)
    assert shown.returncode == 0
    paths = [line for line in shown.stdout.splitlines() if str(segment) in line]
    for line in shown.stdout.splitlines():
        assert len(line) <= int(columns) or line in paths, line


def test_once_in_a_pipe_and_without_colour_has_no_control_codes(segment: Path) -> None:
    with Member(segment, "alpha", held=GIB):
        assert ESC not in run("top", "--once", path=segment).stdout
        code, plain = on_terminal("top", "--once", path=segment, NO_COLOR="1")
        assert code == 0
        assert not re.search(r"\x1b\[[0-9;]*3[0-7]", plain)
        assert ESC in on_terminal("top", "--once", path=segment)[1]


def test_once_in_ascii_where_the_terminal_can_show_no_more(segment: Path) -> None:
    with Member(segment, "alpha", held=12 * GIB, releasable=6 * GIB):
        shown = run("top", "--once", path=segment, COLUMNS="48", LC_ALL="C")
    assert shown.stdout.isascii()
    assert "a" + "#" * 11 + "/" * 12 + "." * 24 in shown.stdout


def test_once_works_without_rich(segment: Path, without_rich: str) -> None:
    with Member(segment, "alpha", held=12 * GIB):
        shown = run("top", "--once", path=segment, COLUMNS="48", PYTHONPATH=without_rich)
    assert shown.returncode == 0
    assert "a" + "█" * 23 + "·" * 24 in shown.stdout


def test_once_filters_and_sorts(segment: Path) -> None:
    with Member(segment, "alpha", held=GIB), Member(segment, "beta", held=2 * GIB):
        by_name = run("top", "--once", "--sort", "member", path=segment).stdout
        only = run("top", "--once", "--filter", "BET", path=segment).stdout
    assert by_name.index("alpha") < by_name.index("beta")
    assert "beta" in only
    assert "alpha" not in only


@pytest.mark.parametrize("content", [None, b"hello, this is a text file\n" * 400])
def test_once_without_a_ledger_exits_1_with_one_line(segment: Path, content: bytes | None) -> None:
    if content is not None:
        segment.write_bytes(content)
    shown = run("top", "--once", path=segment)
    assert (shown.returncode, shown.stdout) == (1, "")
    one_line(shown.stderr)


def test_live_without_a_terminal_exits_1_and_names_once(segment: Path) -> None:
    shown = run("top", path=segment)
    assert shown.returncode == 1
    assert "--once" in one_line(shown.stderr)


def test_live_without_textual_names_the_extra(segment: Path, tmp_path: Path) -> None:
    (tmp_path / "textual.py").write_text("raise ModuleNotFoundError('no textual here')\n")
    code, shown = on_terminal("top", path=segment, PYTHONPATH=str(tmp_path))
    assert code == 1
    assert "'memledger-shm[top]'" in shown
    assert "Traceback" not in shown


# ---- parts


def _seen(segment: Path) -> Look:
    return look(str(segment), "path")


def test_sorting_by_each_column_orders_and_reverses(segment: Path) -> None:
    with (
        Member(segment, "alpha", held=GIB, claim=3 * GIB),
        Member(segment, "beta", held=3 * GIB, releasable=GIB),
        Member(segment, "gamma", held=2 * GIB, releasable=2 * GIB),
    ):
        seen = _seen(segment)
    tags = top_draw.Tags()
    tags.update(seen.members)
    rows = top_draw.member_rows(seen, tags)
    for shown in top_draw.COLUMNS:
        there = top_draw.in_order(rows, shown.name)
        back = top_draw.in_order(rows, shown.name, reverse=True)
        values = [top_draw._value(entry, shown.name) for entry in there]
        assert values == sorted(values, reverse=shown.number), shown.name
        assert [top_draw._value(entry, shown.name) for entry in back] == values[::-1], shown.name
    assert [entry.name for entry in top_draw.in_order(rows, "held")] == ["beta", "gamma", "alpha"]


def test_tags_stay_with_their_member_when_others_come_and_go(segment: Path) -> None:
    tags = top_draw.Tags()
    with Member(segment, "alpha") as alpha, Member(segment, "beta") as beta:
        tags.update(_seen(segment).members)
        before = {m.pid: tags.of(m.slot, m.generation) for m in _seen(segment).members}
        alpha.kill()
        wait_until(lambda: all(m.pid != alpha.pid for m in _seen(segment).members))
        with Member(segment, "gamma"):
            seen = _seen(segment)
            tags.update(seen.members)
            after = {m.pid: tags.of(m.slot, m.generation) for m in seen.members}
    assert after[beta.pid] == before[beta.pid]
    assert len(set(after.values())) == len(after) == 2


def test_spark_shows_the_newest_and_leaves_unknown_blank() -> None:
    assert top_draw.spark([0.0, None, 0.5, 1.0], 10, ascii_only=False) == "▁ ▅█"
    assert top_draw.spark([0.0, None, 0.5, 1.0], 2, ascii_only=True) == "=#"
    assert top_draw.spark([0.5], 0, ascii_only=True) == ""


def test_bar_of_an_overcommitted_device_fits_and_says_so(segment: Path) -> None:
    with Member(segment, "alpha", held=20 * GIB), Member(segment, "beta", held=16 * GIB):
        shown = run("top", "--once", path=segment, COLUMNS="72")
    assert "overcommit 12.0" in shown.stdout
    assert bar_of(shown.stdout) == "a" + "█" * 39 + "b" + "█" * 31


# ---- live


def test_live_on_80x24_sorts_filters_freezes_helps_and_leaves_a_clean_terminal(
    segment: Path,
) -> None:
    with (
        Member(segment, "alpha", held=12 * GIB),
        Member(segment, "beta", held=3 * GIB, releasable=2 * GIB) as beta,
        Terminal(environment(segment)) as terminal,
    ):
        terminal.start(*command("top", "--interval", "0.2"))
        shown = terminal.see("beta")
        assert "held▼" in shown
        assert shown.index("alpha") < shown.index("beta")
        assert "sim:card 24.0 GiB  free 9.0  available 11.0" in shown
        assert all(len(line) <= 80 for line in shown.splitlines())

        terminal.type("s")
        shown = terminal.see("releas.▼")
        assert shown.index("beta") < shown.index("alpha")
        terminal.type("r")
        terminal.see(lambda text: "releas.▲" in text and text.index("alpha") < text.index("beta"))

        terminal.type("?")
        terminal.see("turn the order round")
        terminal.key("Escape")
        terminal.see("? help")

        terminal.type("/")
        terminal.see("words that a row must have")
        terminal.type("bet")
        terminal.see(lambda text: "filter: bet (1 rows)" in text and "alpha" not in text)
        terminal.key("Escape")
        terminal.see(lambda text: "filter:" not in text and "alpha" in text)

        terminal.type("f")
        terminal.see("frozen")
        beta.kill()
        wait_until(lambda: len(dump_json(segment)["members"]) == 1, step_s=0.2)
        assert "beta" in terminal.screen()
        terminal.type("f")
        terminal.see(lambda text: "frozen" not in text and "beta" not in text)

        assert not terminal.is_clean()
        terminal.key("C-c")
        terminal.see("ended with 130")
        assert terminal.is_clean()
        assert "memledger" not in terminal.screen().replace(str(segment), "")


def test_live_asks_the_chosen_member_alone_and_leaves_at_once(segment: Path) -> None:
    """The other one has more to give, and would: an ask that is not directed goes to it first."""
    with (
        giving(segment, "giver", 4 * GIB, 3 * GIB),
        giving(segment, "other", 10 * GIB, 10 * GIB),
        Terminal(environment(segment)) as terminal,
    ):
        terminal.start(*command("top", "--interval", "0.2", "--filter", "giver"))
        terminal.see("giver")
        terminal.type("a")
        terminal.see(lambda text: "It can release 3.0 GiB" in " ".join(text.split()))
        terminal.type("\n")
        terminal.see("giver: released 3.0 GiB")
        seen = dump_json(segment)
        names = {m["slot"]: m["label"] for m in seen["members"]}
        held = {names[r["slot"]]: r["held"] for r in seen["devices"][0]["records"]}
        assert held == {"giver": GIB, "other": 10 * GIB}
        assert sorted(names.values()) == ["giver", "other"]
        terminal.type("q")
        terminal.see("ended with 0")
        assert terminal.is_clean()


def test_live_waits_for_a_ledger_and_cleans_up_when_terminated(segment: Path) -> None:
    with Terminal({**environment(segment), "NO_COLOR": "1"}) as terminal:
        terminal.start("sh", "-c", 'echo $$ > "$0"; exec "$@"', str(segment) + ".pid",
                       *command("top", "--interval", "0.2"))  # fmt: skip
        terminal.see("no process has joined")
        with Member(segment, "alpha", held=GIB):
            shown = terminal.see("alpha", colours=True)
            coloured = re.compile(r"\x1b\[(?:\d+;)*(?:3[0-8]|4[0-8]|9[0-7]|10[0-7])[;m]")
            assert not coloured.search(shown)  # neither named colours nor numbered ones
            pid = int(Path(f"{segment}.pid").read_text())
            subprocess.run(["kill", f"-{int(signal.SIGTERM)}", str(pid)], check=True)
            terminal.see("ended with 143")
            assert terminal.is_clean()
