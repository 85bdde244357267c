"""`memledger reset` and `memledger sweep`: what they take away, and what they leave alone."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from test_cli_helpers import (
    GIB,
    Member,
    dump_json,
    on_terminal,
    one_line,
    run,
    segment,
    without_rich,
)

__all__ = ["segment", "without_rich"]


def _corrupt(path: Path) -> bytes:
    """A segment that has lost its header, made by random bytes."""
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    with Member(path, held=GIB):
        size = path.stat().st_size
    content = random.Random(seed).randbytes(size)
    path.write_bytes(content)
    return content


# ---- reset


def test_reset_is_refused_while_a_member_lives_and_done_with_force(segment: Path) -> None:
    with Member(segment, "keeper", held=GIB) as member:
        before = segment.stat().st_ino
        result = run("reset", "--yes", path=segment)
        assert result.returncode == 1
        assert f"keeper (pid {member.pid})" in one_line(result.stderr)
        assert segment.stat().st_ino == before
        forced = run("reset", "--yes", "--force", path=segment)
        assert forced.returncode == 0
        assert f"removed {segment}" in forced.stdout
        assert not segment.exists() or segment.stat().st_ino != before


def test_reset_sees_a_live_member_of_a_segment_whose_bytes_are_noise(segment: Path) -> None:
    """The members' locks are looked at, not what the file says about members."""
    segment = segment.with_name("memledger-v1-0")
    with Member(segment, held=GIB) as member:
        member.stop()  # or it would find the noise and put a new file there
        with open(segment, "r+b") as file:
            file.write(b"\xa5" * 8192)
        result = run("reset", "--yes", path=segment)
        assert result.returncode == 1
        assert "refused: processes are members" in one_line(result.stderr)
        assert segment.exists()
    assert run("reset", "--yes", path=segment).returncode == 0
    assert not segment.exists()


def test_reset_removes_a_corrupt_segment_that_nobody_has_open(segment: Path) -> None:
    segment = segment.with_name("memledger-v1-0")
    _corrupt(segment)
    assert run("dump", path=segment).returncode == 1
    result = run("reset", path=segment)
    assert (result.returncode, result.stderr) == (0, "")
    assert "broken or foreign" in result.stdout
    assert not segment.exists()


def test_reset_removes_a_sound_segment_of_the_dead(segment: Path) -> None:
    with Member(segment, held=2 * GIB) as member:
        member.kill()
    result = run("reset", path=segment)
    assert result.returncode == 0
    assert "1 dead" in result.stdout
    assert "2.0 GiB" in result.stdout
    assert not segment.exists()


def test_reset_refuses_a_file_that_is_no_segment(segment: Path) -> None:
    """A mistyped --path must not cost somebody a file."""
    segment.write_text("my thesis\n" * 1000)
    result = run("reset", "--yes", path=segment)
    assert result.returncode == 1
    assert "does not look like a segment" in one_line(result.stderr)
    assert segment.read_text().startswith("my thesis")
    assert run("reset", "--yes", "--force", path=segment).returncode == 0
    assert not segment.exists()


def test_reset_of_a_directory_or_a_link_is_refused(segment: Path) -> None:
    segment.mkdir()
    assert "is a directory" in one_line(run("reset", "--force", path=segment).stderr)
    target = segment.with_name("target")
    target.write_text("precious")
    link = segment.with_name("memledger-v1-0")
    link.symlink_to(target)
    assert run("reset", "--yes", path=link).returncode == 1
    assert run("reset", "--yes", "--force", path=link).returncode == 0
    assert target.read_text() == "precious"


def test_reset_without_segment_has_nothing_to_do(segment: Path) -> None:
    result = run("reset", path=segment)
    assert (result.returncode, result.stderr) == (0, "")
    assert "nothing to reset" in result.stdout


@pytest.mark.parametrize(("answer", "code", "stays"), [("n\n", 1, True), ("y\n", 0, False)])
def test_reset_on_a_terminal_asks(segment: Path, answer: str, code: int, stays: bool) -> None:
    with Member(segment) as member:
        member.kill()
    ended, shown = on_terminal("reset", path=segment, answer=answer)
    assert "[y/N]" in shown
    assert (ended, segment.exists()) == (code, stays)


def test_reset_on_a_terminal_with_yes_does_not_ask(segment: Path) -> None:
    with Member(segment) as member:
        member.kill()
    ended, shown = on_terminal("reset", "--yes", path=segment)
    assert "[y/N]" not in shown
    assert (ended, segment.exists()) == (0, False)


# ---- sweep


@pytest.mark.parametrize("rich", [True, False])
def test_sweep_takes_back_what_a_dead_member_left(
    segment: Path, without_rich: str, rich: bool
) -> None:
    extra = {} if rich else {"PYTHONPATH": without_rich}
    with Member(segment, "victim", held=7 * GIB) as victim:
        victim.kill()
        assert dump_json(segment)["devices"][0]["held"] == 7 * GIB
        result = run("sweep", path=segment, **extra)
    assert (result.returncode, result.stderr) == (0, "")
    assert f"took back victim (pid {victim.pid}): 7.0 GiB on sim:card" in result.stdout
    seen = dump_json(segment)
    assert seen["members"] == []
    assert all(device["held"] == 0 for device in seen["devices"])


def test_sweep_never_touches_a_live_or_stopped_member(segment: Path) -> None:
    with Member(segment, "alive", held=2 * GIB), Member(segment, "stopped", held=GIB) as stopped:
        stopped.stop()
        result = run("sweep", path=segment)
        seen = dump_json(segment)
    assert result.returncode == 0
    assert "no dead member among 2" in result.stdout
    assert seen["devices"][0]["held"] == 3 * GIB


def test_sweep_without_segment_makes_none(segment: Path) -> None:
    result = run("sweep", path=segment)
    assert result.returncode == 0
    assert "nothing to sweep" in result.stdout
    assert not segment.exists()


def test_sweep_of_a_corrupt_segment_exits_1_and_leaves_it(segment: Path) -> None:
    content = _corrupt(segment)
    result = run("sweep", path=segment)
    assert result.returncode == 1
    one_line(result.stderr)
    assert segment.read_bytes() == content
