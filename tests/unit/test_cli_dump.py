"""`memledger dump`: what it says of each state of a segment, and how it looks."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from test_cli_helpers import (
    GIB,
    WATCHDOG_S,
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

__all__ = ["segment", "without_rich"]

ESC = "\x1b"


# ---- segments that say nothing


def test_dump_without_segment_exits_1_and_makes_none(segment: Path) -> None:
    result = run("dump", path=segment)
    assert result.returncode == 1
    assert result.stdout == ""
    assert "no process has joined" in one_line(result.stderr)
    assert str(segment) in result.stderr
    assert not segment.exists()


def test_dump_json_without_segment_still_prints_the_object(segment: Path) -> None:
    result = run("dump", "--json", path=segment)
    seen = json.loads(result.stdout)
    assert result.returncode == 1
    assert (seen["status"], seen["complete"], seen["devices"]) == ("absent", False, [])
    assert seen["reason"] in one_line(result.stderr)


@pytest.mark.parametrize("content", [b"", b"x", b"hello, this is a text file\n" * 400])
def test_dump_of_a_foreign_file_exits_1_with_one_line(segment: Path, content: bytes) -> None:
    segment.write_bytes(content)
    segment.chmod(0o600)
    result = run("dump", path=segment)
    assert result.returncode == 1
    assert "not" in one_line(result.stderr)
    assert segment.read_bytes() == content


def test_dump_of_a_directory_exits_1_with_one_line(segment: Path) -> None:
    segment.mkdir()
    result = run("dump", path=segment)
    assert result.returncode == 1
    one_line(result.stderr)


def test_dump_of_another_layout_names_both_versions(segment: Path) -> None:
    with Member(segment):
        image = bytearray(segment.read_bytes())
    image[12:16] = (77).to_bytes(4, "little")  # the upper half of the layout word
    segment.write_bytes(image)
    result = run("dump", path=segment)
    assert result.returncode == 1
    assert "expected 1." in one_line(result.stderr)
    assert "found 77." in result.stderr
    assert json.loads(run("dump", "--json", path=segment).stdout)["status"] == "layout"


def test_dump_of_random_bytes_never_crashes(segment: Path) -> None:
    """Hostile bytes: a whole file of noise, or noise somewhere in a good one."""
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    with Member(segment, held=GIB):
        good = segment.read_bytes()
    for attempt in range(14):
        image = bytearray(good)
        if attempt % 7 == 0:
            image = bytearray(rng.randbytes(len(good)))
        else:
            first, last = rng.choice([(64, 4096), (4096, 65536), (0, len(image) - 64)])
            for _ in range(rng.choice([1, 20, 2000])):
                at = rng.randrange(first, last)
                image[at : at + 8] = rng.choice([rng.randbytes(8), b"\xff" * 8, b"\0" * 8])
        segment.write_bytes(image)
        for options in ([], ["--json"]):
            result = run("dump", *options, path=segment, COLUMNS="80")
            assert result.returncode in (0, 1), result.stderr
            assert result.stderr == "" or one_line(result.stderr)
        for device in json.loads(result.stdout)["devices"]:
            if device["free"] is not None:
                assert 0 <= device["free"] <= device["total"]


# ---- members


def test_dump_shows_the_bytes_of_two_live_processes(segment: Path) -> None:
    with (
        Member(segment, "first", held=3 * GIB, releasable=GIB, claim=GIB) as first,
        Member(segment, "second", held=5 * GIB) as second,
    ):
        text = run("dump", path=segment, COLUMNS="80").stdout
        seen = dump_json(segment)
    by_pid = {member["pid"]: member for member in seen["members"]}
    assert {by_pid[first.pid]["label"], by_pid[second.pid]["label"]} == {"first", "second"}
    assert {member["state"] for member in seen["members"]} == {"live"}
    device = next(d for d in seen["devices"] if d["key"] == "sim:card")
    assert (device["held"], device["releasable"], device["claimed"]) == (8 * GIB, GIB, GIB)
    assert {r["slot"]: r["held"] for r in device["records"]} == {
        by_pid[first.pid]["slot"]: 3 * GIB,
        by_pid[second.pid]["slot"]: 5 * GIB,
    }
    row = next(line for line in text.splitlines() if f"{first.pid} " in line)
    assert row.split()[1:] == ["worker", "first", "live", "sim:card", "3.0", "1.0", "1.0", "0"]
    assert "24.0" in text


def test_dump_shows_a_dead_member_as_dead_and_marks_its_bytes(segment: Path) -> None:
    with Member(segment, "victim", held=7 * GIB) as victim:
        victim.kill()
        seen = dump_json(segment)
        text = run("dump", path=segment, COLUMNS="80").stdout
    assert [member["state"] for member in seen["members"]] == ["dead"]
    device = seen["devices"][0]
    assert device["dead_held"] == 7 * GIB
    assert [record["dead"] for record in device["records"]] == [True]
    row = next(line for line in text.splitlines() if f"{victim.pid} " in line)
    assert "dead" in row
    assert "7.0†" in row
    assert "† of a dead process" in text


def test_dump_lists_live_members_of_another_layout_as_not_in_this_total(segment: Path) -> None:
    ours = segment.with_name("memledger-v1-0")
    theirs = segment.with_name("memledger-v99-0")
    with Member(ours), Member(theirs):
        seen = dump_json(ours)
        text = run("dump", path=ours).stdout
    assert seen["other_layouts"] == [str(theirs)]
    assert seen["complete"] is False
    assert all(device["complete"] is False for device in seen["devices"])
    assert f"not in this total: processes of another memledger version, in {theirs}" in text


def test_dump_changes_nothing_in_the_segment(segment: Path) -> None:
    with Member(segment, held=GIB) as member:
        member.kill()
    before = segment.read_bytes()
    run("dump", path=segment)
    assert segment.read_bytes() == before


def test_dump_json_has_the_documented_schema(segment: Path) -> None:
    with Member(segment, held=GIB):
        seen = dump_json(segment)
    assert seen["schema"] == 1
    assert set(seen) == {
        "schema", "path", "scope", "status", "reason", "layout", "complete", "devices", "members",
        "findings", "other_layouts",
    }  # fmt: skip
    (device,) = seen["devices"]
    assert set(device) == {
        "key", "aliases", "kind", "unit", "coherent", "complete", "total", "free", "available",
        "held", "releasable", "claimed", "pinned", "unaccounted", "overcommit", "reserved",
        "headroom", "dead_held", "reading", "records",
    }  # fmt: skip
    assert set(device["reading"]) == {
        "source", "scope", "total", "free", "reserved", "immediate", "soft_limit", "age_s",
        "reader", "reason", "suspect", "unified",
    }  # fmt: skip
    assert set(device["records"][0]) == {
        "slot", "held", "releasable", "claimed", "pending", "pinned", "headroom", "limit", "dead",
        "accounts",
    }  # fmt: skip
    assert set(seen["members"][0]) == {
        "slot", "state", "role", "label", "program", "version", "pid", "parent_pid",
        "pid_namespace", "start_ticks", "generation", "leader", "group", "counters",
    }  # fmt: skip
    assert set(seen["members"][0]["counters"]) == {
        "ooms", "claims_refused", "asks_sent", "asks_answered", "asks_declined",
        "interrupts_ignored",
    }  # fmt: skip
    sizes = [device[name] for name in ("total", "free", "available", "held", "unit")]
    assert all(type(size) is int for size in sizes)
    help_text = run("dump", "--help", path=segment).stdout
    names = (*seen, *device, *device["reading"], *device["records"][0], *seen["members"][0])
    missing = [name for name in names if name not in help_text]
    assert missing == []


def test_dump_shows_accounts_groups_and_counters(segment: Path) -> None:
    """What belongs to whom, who hears whose stop button, and what went wrong."""
    code = (
        "import sys, memledger\n"
        "role = sys.argv[1]\n"
        "ledger = memledger.join(role, role, group='G')\n"
        "gpu = ledger.device('sim:card?total=24GiB')\n"
        f"gpu.account('weights').publish({3 * GIB})\n"
        f"gpu.account('cache').publish({2 * GIB})\n"
        "gpu.note_oom(1)\n"
        "ledger._tick()\n"
        "print(flush=True)\nsys.stdin.read()\n"
    )
    started: list[subprocess.Popen[str]] = []
    try:
        for role in ("host", "worker"):
            process = subprocess.Popen(
                [sys.executable, "-c", code, role], env=environment(segment), text=True,
                stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            )  # fmt: skip
            started.append(process)
            assert process.stdout is not None
            assert process.stdout.readline() == "\n"
        seen, text = dump_json(segment), run("dump", path=segment).stdout
        doctor = run("doctor", path=segment).stdout
    finally:
        for process in started:
            process.kill()
            process.communicate(timeout=WATCHDOG_S)
    host, worker = (next(m for m in seen["members"] if m["role"] == r) for r in ("host", "worker"))
    assert (host["leader"], worker["leader"]) == (host["slot"], host["slot"])
    assert host["group"] == worker["group"] != 0
    assert worker["counters"]["ooms"] == 1
    (device,) = [d for d in seen["devices"] if d["key"] == "sim:card"]
    for record in device["records"]:
        assert record["accounts"] == {"weights": 3 * GIB, "cache": 2 * GIB}
    assert f"worker ({worker['pid']}) on sim:card:" in text
    assert "weights 3.0" in text
    assert f"host ({host['pid']}) leads worker ({worker['pid']})" in text
    assert f"worker ({worker['pid']}): 1 out of memory" in text
    assert f"leads worker ({worker['pid']}) (named by the group)" in " ".join(doctor.split())


def test_dump_path_option_wins_over_the_environment(segment: Path) -> None:
    with Member(segment, held=GIB):
        other = segment.with_name("elsewhere")
        assert run("dump", "--path", str(segment), path=other).returncode == 0
        assert run("dump", "--path", str(other), path=segment).returncode == 1


# ---- looks


@pytest.mark.parametrize("columns", [40, 60, 80, 200])
@pytest.mark.parametrize("rich", [True, False])
def test_dump_stays_within_the_columns_and_shows_every_figure(
    segment: Path, without_rich: str, columns: int, rich: bool
) -> None:
    extra = {} if rich else {"PYTHONPATH": without_rich}
    label = "x" * 63
    with (
        Member(segment, label, held=3 * GIB, releasable=GIB, claim=2 * GIB),
        Member(segment, "b", held=5 * GIB),
    ):
        text = run("dump", path=segment, COLUMNS=str(columns), **extra).stdout
    lines = text.splitlines()
    # A path is never broken: it must be there to copy.
    long = [line for line in lines if len(line) > columns and str(segment) not in line]
    assert [line for line in long if label not in line] == []
    if columns >= 80:
        assert long == []
    for figure in ("24.0", "8.0", "3.0", "5.0", "2.0", "xxxxxx", "sim:card"):
        assert figure in text, figure


def test_dump_in_a_pipe_has_no_control_codes_and_cuts_nothing(segment: Path) -> None:
    label = "y" * 63
    with Member(segment, label, held=GIB):
        text = run("dump", path=segment).stdout
    assert not [c for c in text if ord(c) < 32 and c != "\n"]
    assert label in text


def test_dump_on_a_terminal_has_colours_unless_no_color(segment: Path) -> None:
    with Member(segment, held=GIB):
        code, shown = on_terminal("dump", path=segment)
        plain_code, plain = on_terminal("dump", path=segment, NO_COLOR="1")
    pytest.importorskip("rich")
    assert (code, plain_code) == (0, 0)
    assert ESC in shown
    assert ESC not in plain
    assert "sim:card" in plain


@pytest.mark.parametrize("locale", [{"LANG": "C"}, {"LC_ALL": "C"}, {"PYTHONIOENCODING": "ascii"}])
@pytest.mark.parametrize("rich", [True, False])
def test_dump_where_utf8_is_not_understood_is_ascii(
    segment: Path, without_rich: str, locale: dict[str, str], rich: bool
) -> None:
    extra = dict(locale) if rich else {**locale, "PYTHONPATH": without_rich}
    with Member(segment, "victim", held=GIB) as member:
        member.kill()
        result = run("dump", path=segment, COLUMNS="80", **extra)
    assert result.returncode == 0
    assert result.stdout.isascii()
    assert "1.0*" in result.stdout


@pytest.mark.parametrize("rich", [True, False])
def test_dump_shows_markup_and_escapes_in_labels_as_text(
    segment: Path, without_rich: str, rich: bool
) -> None:
    """A label is whatever a process wrote; it must neither colour nor move anything."""
    extra = {} if rich else {"PYTHONPATH": without_rich}
    label = f"[bold red]a[/] {ESC}[2J{ESC}]0;t\x07 :smile: \r\n\b"
    with Member(segment, label, held=GIB):
        text = run("dump", path=segment, **extra).stdout
        _, shown = on_terminal("dump", path=segment, NO_COLOR="1", COLUMNS="160", **extra)
    assert "[bold red]a[/]" in text
    assert ":smile:" in text
    assert "[bold red]a[/]" in shown
    assert not {ESC, "\x07", "\b"} & set(text + shown)
    assert ESC + "[2J" not in text


def test_clean_lets_no_control_or_hiding_character_through() -> None:
    from memledger.cli.screen import clean

    assert clean(f"a{ESC}[31mb\x9b1mc\u202ed\u200be\n\t\x7f\ud800") == "a?[31mb?1mc?d?e????"
    assert clean("é †·", ascii_only=True) == "? *-"


def test_dump_without_rich_shows_the_same_figures(segment: Path, without_rich: str) -> None:
    with Member(segment, "plain", held=3 * GIB):
        result = run("dump", path=segment, PYTHONPATH=without_rich)
    assert result.returncode == 0
    row = next(line for line in result.stdout.splitlines() if "plain" in line and "live" in line)
    assert "3.0" in row


# ---- watching, and how it ends


def _interruptible() -> None:
    # A test run in the background has SIGINT ignored, which children inherit.
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.mark.parametrize("options", [["--json"], []])
def test_watch_repeats_until_ctrl_c_and_exits_130_quietly(
    segment: Path, options: list[str]
) -> None:
    with Member(segment, held=GIB):
        process = subprocess.Popen(
            command("dump", "--watch", "0.1", *options), env=environment(segment),
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, encoding="utf-8",
            preexec_fn=_interruptible,
        )  # fmt: skip
        try:
            assert process.stdout is not None
            mark = '"schema"' if options else "sim:card"
            seen = 0
            while seen < 3:
                line = process.stdout.readline()
                assert line, "the output ended"
                seen += mark in line
                if options:
                    assert json.loads(line)["devices"][0]["held"] == GIB
            process.send_signal(signal.SIGINT)
            _, errors = process.communicate(timeout=WATCHDOG_S)
        finally:
            process.kill()
            process.wait()
    assert process.returncode == 130
    assert errors == ""


def test_watch_goes_on_where_there_is_no_segment_yet(segment: Path) -> None:
    process = subprocess.Popen(
        command("dump", "--watch", "0.1", "--json"), env=environment(segment),
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())["status"] == "absent"
        with Member(segment, held=GIB):
            for _ in range(1000):
                if json.loads(process.stdout.readline())["status"] == "ok":
                    break
            else:
                pytest.fail("the new segment was not seen")
    finally:
        process.kill()
        process.communicate()


def test_dump_into_a_pipe_that_closes_ends_without_a_traceback(segment: Path) -> None:
    with Member(segment, held=GIB):
        process = subprocess.Popen(
            command("dump", "--watch", "0.05"), env=environment(segment), stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )  # fmt: skip
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.read(10)
        process.stdout.close()
        try:
            assert process.wait(timeout=WATCHDOG_S) == 141
            assert process.stderr.read() == b""
        finally:
            process.kill()
            process.wait()
            process.stderr.close()


def test_dump_to_a_full_disk_exits_1_with_one_line(segment: Path) -> None:
    if not os.path.exists("/dev/full"):
        pytest.skip("no /dev/full")
    with Member(segment, held=GIB), open("/dev/full", "w") as full:
        result = subprocess.run(
            command("dump"), env=environment(segment), stdout=full, stderr=subprocess.PIPE,
            text=True, timeout=WATCHDOG_S,
        )  # fmt: skip
    assert result.returncode == 1
    one_line(result.stderr)


def test_dump_with_stdout_closed_from_the_start_has_no_traceback(segment: Path) -> None:
    with Member(segment, held=GIB):
        result = subprocess.run(
            ["/bin/sh", "-c", 'exec "$@" >&-', "sh", *command("dump")], env=environment(segment),
            stderr=subprocess.PIPE, text=True, timeout=WATCHDOG_S,
        )  # fmt: skip
    assert "Traceback" not in result.stderr


_READING_OFTEN = """
import memledger, random, time
gpu = memledger.join("reader").device("sim:card?total=24GiB")
gpu.publish(held=1 << 30)
print("up", flush=True)
while True:
    for _ in range(4):
        gpu.refresh(0)
    time.sleep(0.02 * random.random())
"""


def test_a_coherent_look_never_loses_a_reading_that_is_there(segment: Path) -> None:
    """A copy of the file takes milliseconds, in which readings come and go: the word that says
    which is the newest was copied, and its cell was overwritten before it was. Such a look was
    called coherent, and showed a device without a total."""
    from memledger import _native

    reader = subprocess.Popen(
        [sys.executable, "-c", _READING_OFTEN], env=environment(segment), stdout=subprocess.PIPE
    )
    try:
        assert reader.stdout is not None
        assert reader.stdout.readline() == b"up\n"
        for _ in range(15):
            _, parts = _native.read_image(segment)
            assert parts is not None
            for pool in parts["pools"]:
                assert not pool["coherent"] or pool["reading"]["sequence"]
    finally:
        reader.kill()
        reader.communicate()
