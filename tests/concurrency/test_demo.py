"""The demo, played for real: each scenario, its exit code, and that it fails when it should."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from memledger.demo.log import read_events
from memledger.demo.oracle import compare
from memledger.demo.policy import GIB

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="no simulated cards there")

WATCHDOG_S = 90


def play(*arguments: str, environment: dict[str, str] | None = None) -> tuple[int, str, str]:
    done = subprocess.run(
        [sys.executable, "-m", "memledger.demo", *arguments],
        capture_output=True,
        text=True,
        timeout=WATCHDOG_S,
        env=None if environment is None else os.environ | environment,
    )
    return done.returncode, done.stdout, done.stderr


def scenario(name: str, *arguments: str, code: int = 0) -> dict[str, Any]:
    returned, out, err = play("--json", "--scenario", name, *arguments)
    assert returned == code, f"exit {returned}\n{out}\n{err}"
    (found,) = json.loads(out)["scenarios"]
    assert found["name"] == name
    return dict(found)


@pytest.fixture(autouse=True)
def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where the demo puts its files; it is empty again after each test, and no process with it in
    its arguments is left."""
    directory = tmp_path / "stage"
    directory.mkdir()
    monkeypatch.setenv("TMPDIR", str(directory))
    yield directory
    deadline = time.monotonic() + 20
    while _processes(directory) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not _processes(directory)
    assert not list(directory.iterdir())


def _processes(directory: Path) -> list[str]:
    found = []
    for pid in os.listdir("/proc") if os.path.isdir("/proc") else []:
        if pid.isdigit():
            try:
                with open(f"/proc/{pid}/cmdline", "rb") as file:
                    if os.fsencode(directory) in file.read():
                        found.append(pid)
            except OSError:
                continue
    return found


def test_loaders_with_ledger_only_one_upcasts() -> None:
    runs = scenario("loaders")["runs"]
    assert sorted(runs["without"]["choices"].values()) == ["fp16", "fp16"]
    assert runs["without"]["ooms"] >= 1
    assert sorted(runs["ledger"]["choices"].values()) == ["fp16", "fp8"]
    assert runs["ledger"]["ooms"] == 0
    assert runs["ledger"]["peak_bytes"] == 40 * GIB
    assert runs["ledger"]["races_right"] == runs["ledger"]["races"] > 0
    assert runs["oracle"]["choices"] == runs["ledger"]["choices"]


@pytest.mark.parametrize("seed", [1, 2])
def test_samplers_every_step_as_the_oracle(seed: int) -> None:
    runs = scenario("samplers", "--seed", str(seed))["runs"]
    assert runs["without"]["ooms"] >= 1
    assert runs["ledger"]["ooms"] == 0
    assert runs["ledger"]["choices"] == runs["oracle"]["choices"]
    assert len(runs["ledger"]["choices"]["sampler-a"]) == 30
    assert runs["ledger"]["images"] > 0


def test_killed_bytes_come_back_and_the_waiter_loads() -> None:
    runs = scenario("killed")["runs"]
    assert runs["without"]["ooms"] >= 1
    assert runs["ledger"]["ooms"] == 0
    assert runs["ledger"]["choices"] == {"victim": "killed", "waiter": "loaded"}
    assert runs["ledger"]["granted_after_kill_s"] >= 0


def test_slow_load_draining_keeps_the_figure_right() -> None:
    runs = scenario("slow")["runs"]
    drained, undrained, driver = runs["ledger"], runs["undrained"], runs["without"]
    assert drained["too_high_bytes"] == undrained["too_high_bytes"] == 0
    assert driver["too_high_bytes"] > 8 * GIB
    assert undrained["too_low_bytes"] > drained["too_low_bytes"]
    assert 2 * drained["mean_error_bytes"] < undrained["mean_error_bytes"]


def test_ram_with_ledger_within_the_budget() -> None:
    runs = scenario("ram")["runs"]
    assert runs["ledger"]["peak_bytes"] <= 128 << 20


def test_giveback_a_sibling_is_asked_and_the_load_succeeds() -> None:
    runs = scenario("giveback")["runs"]
    without, ledger = runs["without"], runs["ledger"]
    assert (without["ooms"], without["choices"]) == (1, {"asker": "OOM"})
    assert without["given_bytes"] == 0
    assert (ledger["ooms"], ledger["choices"]) == (0, {"asker": "loaded"})
    assert ledger["ask"] == "done"
    # Wanted 12, free 6; the keeper gave all that it had idle, and that is what is credited.
    assert ledger["free_bytes"] == without["free_bytes"] == 6 * GIB
    assert ledger["given_bytes"] == ledger["credited_bytes"] == 10 * GIB
    assert ledger["peak_bytes"] == runs["oracle"]["peak_bytes"] == 20 * GIB


def test_pins_with_ledger_exactly_one_budget() -> None:
    runs = scenario("pins")["runs"]
    budget = 8 << 20
    assert runs["without"]["peak_bytes"] == 3 * budget
    assert runs["ledger"]["peak_bytes"] == budget
    assert runs["ledger"]["choices"] == runs["oracle"]["choices"]
    assert runs["ledger"]["page_locked_bytes"] <= budget
    assert runs["ledger"]["race_bytes"] == [budget] * 5


def test_stop_reaches_the_worker_in_its_own_group_and_no_other() -> None:
    runs = scenario("stop")["runs"]
    assert runs["without"]["steps_after_click"] == {"worker-a": 7, "worker-b": 7}
    assert runs["ledger"]["steps_after_click"] == {"worker-a": 0, "worker-b": 7}
    assert runs["ledger"]["choices"] == runs["oracle"]["choices"]
    first, second = runs["ledger"]["choices"]["worker-a"]
    assert first == [True] * 5 + [False] * 7
    assert second == [True] * 4


RESTS_ON = {
    "loaders": "claims",
    "samplers": "claims",
    "killed": "claims",
    "slow": "claims",
    "ram": "claims",
    "giveback": "asks",
    "pins": "pins",
    "stop": "groups",
}


@pytest.mark.parametrize(("name", "part"), RESTS_ON.items())
def test_part_left_out_the_demo_fails(name: str, part: str) -> None:
    """A proof that cannot fail proves nothing: the same ledger run, less what it rests on, must be
    reported as wrong."""
    found = scenario(name, f"--break-{part}", code=1)
    assert found["ok"] is False
    assert found["problems"]


@pytest.mark.parametrize(("name", "part"), [("giveback", "groups"), ("stop", "asks")])
def test_other_part_left_out_the_demo_is_right(name: str, part: str) -> None:
    assert scenario(name, f"--break-{part}")["ok"] is True


def test_real_log_altered_decision_and_altered_request(tmp_path: Path) -> None:
    scenario("samplers", "--keep-log", str(tmp_path))
    events = read_events(str(tmp_path / "samplers-ledger.jsonl"))
    verdict, disagreements = compare(events, 24 * GIB)
    assert not disagreements
    at = next(i for i, event in enumerate(events) if event["kind"] == "step")
    events[at]["decision"] += 1
    altered, disagreements = compare(events, 24 * GIB)
    assert altered == verdict
    assert len(disagreements) == 1
    events[at]["decision"] -= 1
    events[at]["step"]["image_bytes"] *= 3
    assert compare(events, 24 * GIB)[1]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_nothing_is_left(number: signal.Signals, stage: Path) -> None:
    process = _started("slow")
    try:
        _until(lambda: len(_processes(stage)) == 2)
        time.sleep(0.3)
        process.send_signal(number)
        _, err = process.communicate(timeout=WATCHDOG_S)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 130, err
    assert "Traceback" not in err


def test_parent_killed_children_end(stage: Path) -> None:
    """Nobody is left to kill them: they have to see it themselves. The files stay, which only a
    parent that lives can help."""
    process = _started("slow")
    try:
        _until(lambda: len(_processes(stage)) == 2)
        time.sleep(0.3)
    finally:
        process.kill()
        process.communicate(timeout=WATCHDOG_S)
    _until(lambda: not _processes(stage))
    for left in stage.iterdir():
        shutil.rmtree(left)


def _started(name: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "memledger.demo", "--scenario", name],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def _until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WATCHDOG_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.parametrize("name", ["samplers", "giveback", "pins", "stop"])
def test_output_fits_80_columns_without_escapes(name: str) -> None:
    code, out, err = play("--scenario", name, environment={"COLUMNS": "80", "NO_COLOR": "1"})
    assert code == 0, out + err
    assert "\x1b" not in out
    assert max(map(len, out.splitlines())) <= 80


def test_list_and_bad_scenario() -> None:
    code, out, _ = play("--list")
    assert code == 0
    assert [line.split()[0] for line in out.splitlines()] == list(RESTS_ON)
    assert play("--scenario", "nonsense")[0] == 2
