"""`memledger doctor`, `bench`, and the command line itself."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from test_cli_helpers import (
    GIB,
    WATCHDOG_S,
    Member,
    environment,
    run,
    segment,
    without_rich,
)

__all__ = ["segment", "without_rich"]


def _doctor(path: Path) -> tuple[int, dict[str, list[dict[str, Any]]]]:
    """(exit code, checks by subject)"""
    result = run("doctor", "--json", path=path)
    assert result.stderr == ""
    report = json.loads(result.stdout)
    assert report["ok"] is (result.returncode == 0)
    checks: dict[str, list[dict[str, Any]]] = {}
    for check in report["checks"]:
        checks.setdefault(check["subject"], []).append(check)
    return result.returncode, checks


def _states(checks: list[dict[str, Any]]) -> set[str]:
    return {check["state"] for check in checks}


def test_doctor_with_a_live_member_finds_its_side_well(segment: Path) -> None:
    with Member(segment, "loader", held=GIB) as member:
        _, checks = _doctor(segment)
    for subject in ("version", "segment", "locks", "join", "members", "layouts", "checker"):
        assert _states(checks[subject]) == {"ok"}, checks[subject]
    assert "OFD" in checks["locks"][0]["text"] or "flock" in checks["locks"][0]["text"]
    assert "mode 0600" in checks["segment"][0]["text"]
    (card,) = checks["sim:card"]
    assert card["state"] == "ok"
    assert f"read by loader ({member.pid})" in card["text"]
    assert "ago" in card["text"]
    assert "meminfo" in checks["ram"][0]["text"] or "psutil" in checks["ram"][0]["text"]


def test_doctor_says_in_one_line_who_follows_nobody(segment: Path) -> None:
    with Member(segment, "first"), Member(segment, "second"):
        _, checks = _doctor(segment)
    (group,) = checks["group"]
    assert group["state"] == "info"
    assert re.fullmatch(
        r"(first|second) \(\d+\), (first|second) \(\d+\) follow nobody: no host has joined",
        group["text"],
    )


def test_doctor_names_every_package_that_a_command_lacks(segment: Path) -> None:
    code = (
        "import importlib.util as u, sys; found = u.find_spec\n"
        "gone = {'rich', 'textual', 'matplotlib', 'prometheus_client', 'pynvml'}\n"
        "u.find_spec = lambda name, *a: None if name in gone else found(name, *a)\n"
        "from memledger.cli import main; sys.exit(main(['doctor', '--json']))"
    )
    line = [sys.executable, "-c", code]
    shown = subprocess.run(
        line, env=environment(segment), capture_output=True, text=True, timeout=WATCHDOG_S
    )
    (packages,) = (c for c in json.loads(shown.stdout)["checks"] if c["subject"] == "packages")
    for name in ("rich", "textual (top)", "matplotlib (report)", "prometheus_client (export)"):
        assert name in packages["text"]
    assert "nvidia-ml-py" in packages["text"]


def test_doctor_without_segment_leaves_nothing_behind(segment: Path) -> None:
    _, checks = _doctor(segment)
    assert _states(checks["segment"]) == {"info"}
    assert _states(checks["join"]) == {"ok"}
    assert list(segment.parent.iterdir()) == []


def test_doctor_leaves_the_members_as_they_were(segment: Path) -> None:
    with Member(segment, "loader", held=GIB):
        _doctor(segment)
        after = json.loads(run("dump", "--json", path=segment).stdout)
    assert [member["label"] for member in after["members"]] == ["loader"]
    assert {path.name for path in segment.parent.iterdir()} <= {
        "segment", *(p.name for p in segment.parent.glob("memledger-sim-*"))
    }  # fmt: skip


@pytest.mark.parametrize("content", [b"", b"text\n" * 1000])
def test_doctor_with_a_foreign_file_says_what_to_do(segment: Path, content: bytes) -> None:
    segment.write_bytes(content)
    segment.chmod(0o600)
    code, checks = _doctor(segment)
    assert code == 1
    assert _states(checks["segment"]) == {"look"}
    assert "memledger reset --force" in checks["segment"][0]["advice"]
    assert segment.read_bytes() == content


def test_doctor_advises_a_plain_reset_only_where_reset_would_do_it(segment: Path) -> None:
    """The advice for a broken segment, followed by reset itself."""
    with Member(segment, held=GIB):
        pass
    image = bytearray(segment.read_bytes())
    image[16:64] = b"\xff" * 48
    segment.write_bytes(image)
    _, checks = _doctor(segment)
    assert "memledger reset`" in checks["segment"][0]["advice"]
    assert run("reset", "--yes", path=segment).returncode == 0
    assert not segment.exists()


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="no /proc here")
def test_doctor_with_a_folder_that_takes_no_file_says_so() -> None:
    """root may write in /proc, by its permissions."""
    code, checks = _doctor(Path("/proc/nope"))
    assert code == 1
    assert _states(checks["segment"]) == {"look"}
    assert "/proc" in checks["segment"][0]["text"]


def test_doctor_shows_a_dead_member(segment: Path) -> None:
    with Member(segment, held=GIB) as member:
        member.kill()
    code, checks = _doctor(segment)
    assert code == 1
    assert _states(checks["members"]) == {"look"}
    assert "1 dead" in checks["members"][0]["text"]
    dead = json.loads(run("dump", "--json", path=segment).stdout)["members"]
    advice = checks["members"][0]["advice"]
    assert ("memledger sweep" in advice) == bool(dead), "advice for what is not there any more"


def test_doctor_shows_another_layout(segment: Path) -> None:
    ours, theirs = (segment.with_name(f"memledger-v{n}-0") for n in (1, 99))
    with Member(ours), Member(theirs):
        code, checks = _doctor(ours)
    assert code == 1
    assert str(theirs) in checks["layouts"][0]["text"]


def test_doctor_shows_what_the_checker_finds(segment: Path) -> None:
    """Claim words that say more than the records: what a torn segment looks like."""
    with Member(segment, held=GIB) as member:
        member.stop()
        image = segment.read_bytes()
        # The first copy of the record of 1 GiB: held stands behind the generation.
        at = image.index((1).to_bytes(8, "little") + GIB.to_bytes(8, "little")) + 8
        with open(segment, "r+b") as file:
            file.seek(at)
            file.write((3 * GIB).to_bytes(8, "little"))
        code, checks = _doctor(segment)
    assert code == 1
    assert _states(checks["checker"]) == {"look"}
    assert "invariant" in checks["checker"][0]["text"]


def test_doctor_in_a_folder_that_does_not_exist(segment: Path) -> None:
    code, checks = _doctor(segment.parent / "nowhere" / "segment")
    assert code == 1
    assert "does not exist" in checks["segment"][0]["text"]


@pytest.mark.parametrize("rich", [True, False])
@pytest.mark.parametrize("columns", [40, 80])
def test_doctor_text_stays_within_the_columns(
    segment: Path, without_rich: str, rich: bool, columns: int
) -> None:
    extra = {} if rich else {"PYTHONPATH": without_rich}
    with Member(segment, "loader", held=GIB):
        result = run("doctor", path=segment, COLUMNS=str(columns), **extra)
    assert result.stderr == ""
    assert result.stdout.count("\nok") >= 5
    long = [line for line in result.stdout.splitlines() if len(line) > columns]
    assert [line for line in long if str(segment.parent) not in line] == []


# ---- bench


def test_bench_prints_ratios_to_the_empty_method(segment: Path) -> None:
    result = run("bench", "--json", "--calls", "200", path=segment)
    assert (result.returncode, result.stderr) == (0, "")
    results = {row["name"]: row for row in json.loads(result.stdout)["results"]}
    assert results["an empty method"]["ratio"] == 1.0
    assert len(results) == 7
    assert all(row["ns"] >= 0 for row in results.values())
    assert not segment.exists()
    table = run("bench", "--calls", "200", path=segment, COLUMNS="80").stdout
    assert "times empty" in table


# ---- the command line


@pytest.mark.parametrize(
    "arguments",
    [["nonsense"], ["--path"], ["dump", "--watch", "0"], ["dump", "--watch", "nan"],
     ["dump", "--watch", "soon"], ["reset", "--maybe"], ["bench", "--calls", "-1"]],
)  # fmt: skip
def test_wrong_usage_exits_2(segment: Path, arguments: list[str]) -> None:
    result = run(*arguments, path=segment)
    assert result.returncode == 2
    assert "usage:" in result.stderr


COMMANDS = ["dump", "top", "doctor", "record", "report", "export", "sweep", "reset", "bench"]


@pytest.mark.parametrize("name", COMMANDS)
def test_help_documents_the_exit_codes_and_fits_80_columns(segment: Path, name: str) -> None:
    result = run(name, "--help", path=segment, COLUMNS="80")
    assert result.returncode == 0
    assert "exit codes:" in result.stdout
    assert [line for line in result.stdout.splitlines() if len(line) > 80] == []


def test_without_arguments_it_says_what_it_is_for_and_lists_the_commands(segment: Path) -> None:
    result = run(path=segment, COLUMNS="80")
    assert (result.returncode, result.stderr) == (0, "")
    assert "ledger of memory" in result.stdout
    for name in COMMANDS:
        assert re.search(rf"^    {name} +\w", result.stdout, flags=re.M), name
    assert [line for line in result.stdout.splitlines() if len(line) > 80] == []


def test_importing_memledger_does_not_import_the_cli(segment: Path) -> None:
    code = (
        "import sys, memledger\n"
        "with memledger.join('x') as ledger: ledger.device('ram').free()\n"
        "print([m for m in sys.modules if m.startswith(('memledger.cli', 'rich', 'argparse'))])"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], env=environment(segment), capture_output=True, text=True,
        timeout=WATCHDOG_S,
    )  # fmt: skip
    assert result.stdout.strip() == "[]", result.stderr


def test_the_console_script_is_the_module(segment: Path) -> None:
    from importlib.metadata import entry_points

    (script,) = entry_points(group="console_scripts", name="memledger")
    from memledger.cli import main

    assert script.load() is main
