"""`memledger record`, and `memledger report`, which draws what it wrote."""

from __future__ import annotations

import argparse
import csv
import io
import re
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from test_cli_helpers import GIB, WATCHDOG_S, Member, command, environment, one_line, run, segment

from helpers.waiting import wait_until
from memledger.cli import record, recording
from memledger.cli.look import Look
from memledger.cli.record import COLUMNS, Events, Recorder
from memledger.cli.recording import BadRecording
from memledger.views import Member as MemberView

__all__ = ["segment"]

_COUNTING = """
import sys, memledger
ledger = memledger.join("counter")
gpu = ledger.device("sim:card?total=24GiB")
gpu.publish(held=1 << 30)
print("up", flush=True)
for line in sys.stdin:
    if line == "oom\\n":
        gpu.note_oom(1)
        gpu.note_oom(1)
    if line == "refused\\n":
        try:
            gpu.claim(100 << 30)
        except memledger.ClaimRefused:
            pass
    print("did", flush=True)
"""


class Recording:
    """`memledger record` as a process, into a file."""

    def __init__(self, segment: Path, file: Path, *options: str) -> None:
        self.file = file
        self.process = subprocess.Popen(
            command("record", str(file), "--rate", "20/s", *options), env=environment(segment),
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip

    def rows(self) -> list[dict[str, str]]:
        """What is there of whole lines."""
        if not self.file.exists():
            return []
        text = self.file.read_text()
        return list(csv.DictReader(io.StringIO(text[: text.rfind("\n") + 1])))

    def wait_for(self, wanted: Callable[[list[dict[str, str]]], bool]) -> list[dict[str, str]]:
        wait_until(lambda: wanted(self.rows()), step_s=0.05)
        return self.rows()

    def wait_for_samples(self, more: int = 2) -> None:
        there = len(self.rows())
        self.wait_for(lambda rows: len(rows) >= there + 2 * more)

    def stop(self, number: int = signal.SIGINT) -> tuple[int, str]:
        self.process.send_signal(number)
        _, told = self.process.communicate(timeout=WATCHDOG_S)
        return self.process.returncode, told

    def __enter__(self) -> Recording:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate()


def events(rows: list[dict[str, str]]) -> list[tuple[str, str, int]]:
    return [(r["event"], r["member"], int(r["count"])) for r in rows if r["row"] == "event"]


# ---- record


def test_record_for_a_time_writes_devices_and_members(segment: Path, tmp_path: Path) -> None:
    file = tmp_path / "a.csv"
    with (
        Member(segment, "alpha", held=12 * GIB, releasable=3 * GIB),
        Member(segment, "be,\nta", held=3 * GIB, claim=3 * GIB),
    ):
        shown = run("record", str(file), "--for", "0.5s", "--rate", "10/s", path=segment)
    assert (shown.returncode, shown.stdout) == (0, "")
    assert "samples in" in one_line(shown.stderr)
    found = recording.read(str(file))
    (samples,) = found.devices.values()
    assert 1 <= len(samples) <= 5  # fewer where the machine is busy
    for sample in samples:
        assert sample.figures["total"] == 24 * GIB
        assert sample.figures["free"] == 6 * GIB
        held = {who[0]: amounts["held"] for who, amounts in sample.members.items()}
        assert held == {"alpha": 12 * GIB, "be,?ta": 3 * GIB}
    assert samples[0].time < samples[-1].time


def test_record_tells_ooms_refusals_and_deaths_with_their_member(
    segment: Path, tmp_path: Path
) -> None:
    counter = subprocess.Popen(
        [sys.executable, "-c", _COUNTING], env=environment(segment), text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip
    assert counter.stdin is not None
    assert counter.stdout is not None
    try:
        assert counter.stdout.readline() == "up\n"
        for word in ("oom", "refused"):  # before the recording: none of its events
            print(word, file=counter.stdin, flush=True)
            assert counter.stdout.readline() == "did\n"
        with Member(segment, "other"), Recording(segment, tmp_path / "a.csv") as record:
            record.wait_for_samples()
            for word, name, times in (("oom", "ooms", 2), ("refused", "claims_refused", 1)):
                print(word, file=counter.stdin, flush=True)
                assert counter.stdout.readline() == "did\n"

                def told(rows: list[dict[str, str]], name: str = name, times: int = times) -> bool:
                    mine = [n for event, who, n in events(rows)
                            if (event, who) == (name, "counter")]  # fmt: skip
                    return sum(mine) >= times

                record.wait_for(told)
            counter.kill()
            counter.wait()
            rows = record.wait_for(lambda rows: any(r["event"] == "death" for r in rows))
            assert record.stop()[0] == 0
    finally:
        counter.kill()
        counter.communicate()
    assert sum(n for event, _, n in events(rows) if event == "ooms") == 2
    assert sum(n for event, _, n in events(rows) if event == "claims_refused") == 1
    assert [entry for entry in events(rows) if entry[0] == "death"] == [("death", "counter", 1)]


def _look(swept: int, **states: str) -> Look:
    """A look at members, by label, in slots of that order: "gone" has left an empty one."""
    members = tuple(
        MemberView(slot, state, "other", label, "", "", 100 + slot, 1, 1, 1, 5, 1, 1)
        for slot, (label, state) in enumerate(states.items())
        if state != "gone"
    )
    return Look("", "path", "ok", None, (1, 0), (), members, (), (), {"sweep_count": swept})


@pytest.mark.parametrize(
    ("looks", "told"),
    [
        ([_look(0, a="live"), _look(0, a="gone")], []),
        # Leaving takes a moment in which the slot looks like a dead one's.
        ([_look(0, a="live"), _look(0, a="dead"), _look(0, a="gone")], []),
        ([_look(0, a="live"), _look(1, a="gone")], ["a"]),
        ([_look(0, a="live"), _look(0, a="dead"), _look(1, a="gone")], ["a"]),
        ([_look(0, a="live"), _look(0, a="dead"), _look(0, a="dead"), _look(1, a="gone")], ["a"]),
        ([_look(0, a="dead"), _look(0, a="dead"), _look(0, a="dead")], ["a"]),
        ([_look(0, a="live", b="live"), _look(2, a="gone", b="gone")], ["a", "b"]),
        # One died and one left: nobody knows which.
        ([_look(0, a="live", b="live"), _look(1, a="gone", b="gone")], [None]),
        ([_look(0, a="live", b="dead"), _look(0, a="live", b="dead"), _look(1, a="gone", b="gone")],
         ["b"]),
        ([_look(0, a="live", b="live"), _look(0, a="live", b="dead"), _look(1, a="gone", b="gone")],
         ["b"]),
        # A segment that was made anew.
        ([_look(7, a="live"), _look(0, a="live")], []),
    ],
)  # fmt: skip
def test_deaths_are_told_once_and_leaving_is_none(
    looks: list[Look], told: list[str | None]
) -> None:
    events = Events()
    found = [event for seen in looks for event in events.since_last(seen)]
    assert {event.name for event in found} <= {"death"}
    assert [event.member and event.member.label for event in found] == told


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_record_stops_cleanly_when_told(
    segment: Path, tmp_path: Path, number: signal.Signals
) -> None:
    with Member(segment, "alpha", held=GIB), Recording(segment, tmp_path / "a.csv") as record:
        record.wait_for_samples()
        code, told = record.stop(number)
    assert code == 0
    one_line(told)
    assert record.file.read_bytes().endswith(b"\n")
    assert recording.read(str(record.file)).notes == []


def test_record_killed_leaves_a_file_that_can_be_read(segment: Path, tmp_path: Path) -> None:
    with Member(segment, "alpha", held=GIB), Recording(segment, tmp_path / "a.csv") as record:
        record.wait_for_samples(4)
        record.stop(signal.SIGKILL)
    assert recording.read(str(record.file)).devices


def test_record_waits_for_a_ledger_and_goes_on_without_it(segment: Path, tmp_path: Path) -> None:
    with Recording(segment, tmp_path / "a.csv") as record:
        assert record.process.stderr is not None
        assert select.select([record.process.stderr], [], [], WATCHDOG_S)[0]
        assert "waiting: no process has joined" in record.process.stderr.readline()
        with Member(segment, "alpha", held=GIB):
            record.wait_for_samples()
        segment.unlink()
        record.wait_for(lambda rows: ("no_ledger", "", 1) in events(rows))
        assert record.stop()[0] == 0


def test_record_to_a_pipe_that_is_closed_ends_with_141(segment: Path) -> None:
    with Member(segment, "alpha", held=GIB):
        process = subprocess.Popen(
            command("record", "-", "--rate", "20/s"), env=environment(segment),
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert process.stdout is not None
        assert process.stderr is not None
        try:
            assert process.stdout.readline() == ",".join(COLUMNS) + "\n"
            process.stdout.close()
            assert process.wait(WATCHDOG_S) == 141
            assert process.stderr.read() == ""
        finally:
            process.kill()
            process.wait()
            process.stderr.close()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
def test_record_on_a_full_disk_is_one_clear_error(segment: Path) -> None:
    with Member(segment, "alpha", held=GIB):
        shown = run("record", "/dev/full", path=segment)
    assert shown.returncode == 1
    assert "No space left on device" in one_line(shown.stderr)


def test_record_writes_the_rest_where_a_write_was_short(segment: Path) -> None:
    class Short(io.BytesIO):
        def write(self, data: Any) -> int:
            return super().write(bytes(data)[:7])

    out = Short()
    Recorder(out).begin()
    assert out.getvalue().decode() == ",".join(COLUMNS) + "\n"


def test_record_overwrites_only_when_told(segment: Path, tmp_path: Path) -> None:
    file = tmp_path / "a.csv"
    file.write_text("mine\n")
    with Member(segment, "alpha", held=GIB):
        shown = run("record", str(file), "--for", "0.1s", path=segment)
        assert shown.returncode == 1
        assert "--force" in one_line(shown.stderr)
        assert file.read_text() == "mine\n"
        assert run("record", str(file), "--for", "0.1s", "--force", path=segment).returncode == 0
    assert recording.read(str(file)).devices


def test_record_of_nothing_says_so(segment: Path, tmp_path: Path) -> None:
    shown = run("record", str(tmp_path / "a.csv"), "--for", "0.1s", path=segment)
    assert shown.returncode == 1
    assert "recorded nothing" in shown.stderr
    segment.write_bytes(b"hello, this is a text file\n" * 400)
    shown = run("record", str(tmp_path / "b.csv"), path=segment)
    assert shown.returncode == 1
    assert "nothing to record" in one_line(shown.stderr)
    assert not (tmp_path / "b.csv").exists()


@pytest.mark.parametrize(
    "options",
    [["--rate", "0/s"], ["--rate", "4/fortnight"], ["--rate", "1000/s"], ["--rate", "nan/s"],
     ["--for", "-1s"], ["--for", "soon"], ["--for", "nan"], ["--for", "3 parsecs"]],
)  # fmt: skip
def test_wrong_times_are_usage(segment: Path, options: list[str]) -> None:
    assert run("record", "x.csv", *options, path=segment).returncode == 2


# ---- reading back


def _file(tmp_path: Path, *lines: str, end: str = "\n") -> Path:
    file = tmp_path / "a.csv"
    file.write_text("\n".join([",".join(COLUMNS), *lines]) + end, newline="")
    return file


DEVICE = "{:.3f},device,sim:card,,,,{},{},{},{},0,0,0,0,0,,".format
MEMBER = "{:.3f},member,sim:card,{},{},0,,,,{},{},0,{},,,,".format
EVENT = "{:.3f},event,,alpha,7,0,,,,,,,,,,{},1".format


def _plain(tmp_path: Path, samples: int = 3) -> Path:
    lines = []
    for i in range(samples):
        lines.append(DEVICE(100 + i, 24 * GIB, 20 * GIB, 20 * GIB, 4 * GIB))
        lines.append(MEMBER(100 + i, "alpha", 7, 4 * GIB, GIB, GIB))
    return _file(tmp_path, *lines, EVENT(101, "ooms"))


def test_a_line_that_was_cut_off_is_left_out_with_a_note(tmp_path: Path) -> None:
    whole = _plain(tmp_path).read_bytes()
    start = whole.rindex(b"102.000,member")
    for cut in range(start + 1, len(whole) - len(EVENT(101, "ooms")) - 1):
        (tmp_path / "a.csv").write_bytes(whole[:cut])
        found = recording.read(str(tmp_path / "a.csv"))
        assert len(found.notes) == 1
        assert [len(s.members) for s in found.devices["sim:card"]] == [1, 1, 0]


@pytest.mark.parametrize(
    "content",
    [
        b"", b"\n", b"x", b"hello, this is a text file\n" * 40, b"\x89PNG\r\n\x1a\n" + bytes(100),
        b"\xff\xfe" * 50 + b"\n", b"a,b,c\n1,2,3\n", ",".join(COLUMNS).encode() + b"\n",
        ",".join(COLUMNS).encode() + b"\n1,device\n",
        ",".join(COLUMNS).encode() + b"\nsoon,device,d,,,,,,,,,,,,,,\n",
        ",".join(COLUMNS).encode() + b"\nnan,device,d,,,,,,,,,,,,,,\n",
        ",".join(COLUMNS).encode() + b"\n1,device,d,,,,many,,,,,,,,,,\n",
        ",".join(COLUMNS).encode() + b"\n1,member,d,m,1,1,,,,1,0,0,0,,,,\n",
        ",".join(COLUMNS).encode() + b"\n1,planet,d,m,1,1,,,,1,0,0,0,,,,\n",
    ],
)  # fmt: skip
def test_bad_empty_and_foreign_files_are_one_clear_error(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a.csv").write_bytes(content)
    with pytest.raises(BadRecording) as caught:
        recording.read(str(tmp_path / "a.csv"))
    assert "\n" not in str(caught.value)
    assert "a.csv" in str(caught.value)


def test_report_of_a_foreign_file_a_folder_and_nothing_exits_1(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("hello\n")
    for name in ("a.csv", "", "missing.csv"):
        shown = run("report", str(tmp_path / name), path=None)
        assert (shown.returncode, shown.stdout) == (1, ""), name
        one_line(shown.stderr)


def test_thinned_keeps_the_fullest_sample_and_the_last(tmp_path: Path) -> None:
    lines = [DEVICE(i, 24 * GIB, 0, 0, 20 * GIB if i == 617 else GIB) for i in range(1000)]
    (samples,) = recording.read(str(_file(tmp_path, *lines))).devices.values()
    kept = recording.thinned(samples, 50)
    assert len(kept) <= 51
    assert 617 in [sample.time for sample in kept]
    assert kept[-1] is samples[-1]
    assert [sample.time for sample in kept] == sorted(sample.time for sample in kept)


# ---- drawing


class _Outside(HTMLParser):
    """What a page would fetch, and its text."""

    def __init__(self) -> None:
        super().__init__()
        self.fetched: list[str] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag not in ("script", "link", "img", "iframe", "object"), tag
        for name, value in attrs:
            if name in ("src", "href", "xlink:href", "data") and not (value or "").startswith("#"):
                self.fetched.append(f"{tag} {name}={value}")

    def handle_data(self, data: str) -> None:
        self.text += f"{data} "


def test_report_draws_a_page_and_pictures_that_stand_alone(tmp_path: Path) -> None:
    file = _plain(tmp_path)
    outputs = [str(tmp_path / f"a.{kind}") for kind in ("html", "png", "svg")]
    options = [word for name in outputs for word in ("-o", name)]
    shown = run("report", str(file), *options, "--title", "<Tests> & more", path=None)
    assert (shown.returncode, shown.stderr) == (0, "")
    assert shown.stdout.split() == outputs

    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    drawn = ElementTree.parse(tmp_path / "a.svg").getroot()
    assert drawn.tag == "{http://www.w3.org/2000/svg}svg"

    page = _Outside()
    text = (tmp_path / "a.html").read_text(encoding="utf-8")
    page.feed(text)
    assert page.fetched == []
    assert not re.search(r"@import|url\((?!#)", text)
    assert "<svg" in text
    assert "<Tests> & more" in page.text
    table = " ".join(page.text.split())
    assert "sim:card 24.0 4.0 4.0 0 20.0 0 0" in table
    assert "alpha 7 4.0 1" in table


def test_report_survives_hostile_names_and_unknown_figures(tmp_path: Path) -> None:
    name = "$x_{1}$ <b>\u202e\\frac"
    lines = [
        "1.000,device,sim:card,,,,,,,1073741824,0,0,0,,,,",
        f"1.000,member,sim:card,{name},7,0,,,,1073741824,0,0,0,,,,",
        "9.000,device,sim:card,,,,,,,0,0,0,0,,,,",
        f"9.000,event,,{name},7,0,,,,,,,,,,never_heard_of,1",
    ]
    file = _file(tmp_path, *lines)
    shown = run("report", str(file), "-o", str(tmp_path / "a.html"), path=None)
    assert (shown.returncode, shown.stderr) == (0, "")
    text = (tmp_path / "a.html").read_text(encoding="utf-8")
    assert "<b>" not in text
    assert "?" in text


@pytest.mark.parametrize("begun", [12345.6, 16384.1, 18000.7])
def test_record_for_a_time_takes_as_many_samples_whenever_it_begins(
    begun: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The clock's size must not decide whether rounding adds one."""
    taken: list[float] = []

    class Counts(Recorder):
        def __init__(self) -> None:
            pass

        def add(self, now: float, seen: Look) -> None:
            taken.append(now)

    class NeverStopped(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            return False

    clock = argparse.Namespace(monotonic=lambda: begun, time=lambda: 1.0)
    monkeypatch.setattr(record, "time", clock)
    monkeypatch.setattr(record, "look", lambda *_: None)
    options = argparse.Namespace(rate=10, duration=0.5)
    record._samples(Counts(), "", "path", options, NeverStopped())
    assert len(taken) == 5


def test_report_of_a_name_that_the_font_lacks_says_nothing(tmp_path: Path) -> None:
    file = _file(
        tmp_path,
        "1.000,device,sim:card,,,,,,,1073741824,0,0,0,,,,",
        "1.000,member,sim:card,模型,7,0,,,,1073741824,0,0,0,,,,",
        "9.000,device,sim:card,,,,,,,0,0,0,0,,,,",
    )
    shown = run("report", str(file), "-o", str(tmp_path / "a.html"), path=None)
    assert (shown.returncode, shown.stderr) == (0, "")
    assert "模型" in (tmp_path / "a.html").read_text(encoding="utf-8")


def test_report_says_when_the_last_line_was_cut_off(tmp_path: Path) -> None:
    file = _plain(tmp_path)
    file.write_bytes(file.read_bytes()[:-5])
    shown = run("report", str(file), path=None)
    assert shown.returncode == 0
    assert "cut off" in one_line(shown.stderr)
    assert "cut off" in (tmp_path / "a.html").read_text(encoding="utf-8")


def test_report_of_chosen_devices(tmp_path: Path) -> None:
    file = _plain(tmp_path)
    assert run("report", str(file), "--device", "card", path=None).returncode == 0
    shown = run("report", str(file), "--device", "nope", path=None)
    assert shown.returncode == 1
    assert "sim:card" in one_line(shown.stderr)


def test_report_output_errors(tmp_path: Path) -> None:
    file = _plain(tmp_path)
    shown = run("report", str(file), "-o", str(tmp_path / "no" / "a.png"), path=None)
    assert shown.returncode == 1
    assert "cannot write" in one_line(shown.stderr)
    assert run("report", str(file), "-o", "a.gif", path=None).returncode == 2


def test_report_without_matplotlib_names_the_extra(tmp_path: Path) -> None:
    (tmp_path / "stub").mkdir()
    (tmp_path / "stub" / "matplotlib.py").write_text("raise ModuleNotFoundError('not here')\n")
    shown = run("report", str(_plain(tmp_path)), path=None, PYTHONPATH=str(tmp_path / "stub"))
    assert (shown.returncode, shown.stdout) == (1, "")
    assert "'memledger-shm[report]'" in one_line(shown.stderr)
