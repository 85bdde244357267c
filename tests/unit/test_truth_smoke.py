"""The benchmark of the figure's error runs, measures both ways of settling, and leaves nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from benchmarks import real_gpu, truth  # noqa: E402

WATCHDOG_S = 90
GIB = truth.GIB


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the benchmark puts its files."""
    return tmp_path_factory.mktemp("truth")


@pytest.fixture(scope="module")
def quick(place: Path) -> dict[str, Any]:
    if sys.platform != "linux":
        pytest.skip("simulated cards and stopped processes are tried on Linux only")
    done = subprocess.run(
        [sys.executable, str(ROOT / "benchmarks" / "truth.py"), "--quick", "--json"],
        capture_output=True,
        text=True,
        timeout=WATCHDOG_S,
        env={**os.environ, "TMPDIR": str(place)},
    )
    # 1: a bound is broken, which a busy machine can do in a run this short.
    assert done.returncode in (0, 1), done.stderr
    result: dict[str, Any] = json.loads(done.stdout)
    assert bool(result["broken"]) == bool(done.returncode)
    return result


def test_truth_quick_run_has_all_fields_of_both_runs(quick: dict[str, Any]) -> None:
    assert set(quick["runs"]) == {"drained", "settled at the end"}
    assert {"seed", "seconds", "pause", "total_bytes", "machine", "broken"} <= set(quick)
    for run in quick["runs"].values():
        assert set(run) == set(truth.Result._fields)
        assert run["samples"] > 50
        assert run["readings"] > 5
        for share in ("exact", "within", "within_moved", "within_moved_3", "high_share"):
            assert 0 <= run[share] <= 1
        assert run["exact"] <= run["within"] <= run["within_moved"] + run["high_share"]
        assert {"foreign", "death", "killed", "stopped", "continued"} <= set(run["events"])
        assert 0 <= run["low_bytes"] <= quick["total_bytes"]


def test_truth_control_is_seldom_right_to_one_percent(quick: dict[str, Any]) -> None:
    drained, control = quick["runs"]["drained"], quick["runs"]["settled at the end"]
    assert drained["within"] > control["within"]
    assert drained["low_bytes"] > 0


def test_truth_quick_run_leaves_no_file_and_no_process(place: Path, quick: dict[str, Any]) -> None:
    assert quick
    assert not list(place.iterdir())
    assert str(place) not in _command_lines()


def _command_lines() -> str:
    lines = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            lines.append(path.read_bytes().replace(b"\0", b" ").decode(errors="replace"))
        except OSError:
            continue
    return "\n".join(lines)


# ---- what the samples are judged by, on samples made by hand


def a_sample(t_s: float, **fields: int) -> truth.Sample:
    zeros = dict.fromkeys(truth.Sample._fields, 0)
    true_free = truth.TOTAL_BYTES - fields.get("foreign", 0) - fields.get("high", 0)
    made = zeros | {"free": true_free, "read_free": truth.TOTAL_BYTES} | fields
    return truth.Sample(**(made | {"t": int(t_s * 1e9)}))


def run_of(frees: list[int], foreign: list[int]) -> truth.Result:
    """Samples each 10 ms, all of one reading that was taken when the other program had nothing."""
    samples = [
        a_sample(1 + n / 100, free=free, foreign=other, sequence=1)
        for n, (free, other) in enumerate(zip(frees, foreign, strict=True))
    ]
    events = [
        {"kind": "begin", "t": 0.9},
        {"kind": "reading", "t": 0.99, "began": 0.98, "free": truth.TOTAL_BYTES, "foreign": 0},
        {"kind": "end", "t": 100.0},
    ]
    return truth.judge(samples, events)


def test_judge_figures_that_are_right_break_nothing() -> None:
    result = run_of([truth.TOTAL_BYTES] * 50, [0] * 50)
    assert result.exact == result.within == result.within_moved == 1
    assert truth.broken_bounds(result) == []


def test_judge_foreign_growth_is_allowed_for_one_period_only() -> None:
    for grown, broken in ((20, False), (60, True)):
        foreign = [0] * 10 + [GIB] * grown + [0] * 10
        result = run_of([truth.TOTAL_BYTES] * len(foreign), foreign)
        assert result.high is not None
        assert result.high.cause == "foreign growth"
        assert result.high.bytes == GIB
        assert bool(truth.broken_bounds(result)) is broken


def test_judge_too_high_without_a_cause_is_broken_at_once() -> None:
    frees = [truth.TOTAL_BYTES - GIB] * 20
    frees[10] = truth.TOTAL_BYTES
    result = run_of(frees, [GIB] * 20)
    # The reading is made to have seen the other program already.
    assert result.high is not None
    samples = [a_sample(1 + n / 100, free=f, foreign=GIB, sequence=1) for n, f in enumerate(frees)]
    events = [
        {"kind": "begin", "t": 0.9},
        {"kind": "reading", "t": 0.99, "began": 0.98, "free": truth.TOTAL_BYTES, "foreign": GIB},
    ]
    result = truth.judge(samples, events)
    assert [span.cause for span in result.spans] == ["unexplained"]
    assert len(truth.broken_bounds(result)) == 1


def test_judge_too_low_is_forgiven_for_two_periods_after_the_other_program_left() -> None:
    foreign = [4 * GIB] * 10 + [0] * 90
    result = run_of([truth.TOTAL_BYTES - 4 * GIB] * 100, foreign)
    # 10 samples are right, 50 lie within 0.5 s of the last that saw the other program.
    assert 0.55 <= result.within_moved <= 0.65
    assert result.low_bytes == result.low_beyond_bytes == 4 * GIB
    assert any("99 %" in text for text in truth.broken_bounds(result))


def test_truth_arguments_out_of_range_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    for argv in (["--seconds", "1"], ["--seconds", "x"], ["--pause", "0"]):
        with pytest.raises(SystemExit):
            truth.arguments(argv)
    assert "expected 2 to 3600" in capsys.readouterr().err
    assert truth.arguments(["--quick"]).seconds < truth.arguments([]).seconds


# ---- the script for a real GPU, as far as it goes without one


class NoTorch:
    class cuda:
        @staticmethod
        def is_available() -> bool:
            return False


class Nvml:
    @staticmethod
    def nvmlInit() -> None:
        pass


class BrokenNvml:
    @staticmethod
    def nvmlInit() -> None:
        raise RuntimeError("Driver Not Loaded")


@pytest.mark.parametrize(
    ("modules", "reason"),
    [
        ({}, "nvidia-ml-py is not installed"),
        ({"pynvml": BrokenNvml}, "NVML does not start: Driver Not Loaded"),
        ({"pynvml": Nvml}, "torch is not installed"),
        ({"pynvml": Nvml, "torch": NoTorch}, "torch sees no CUDA device"),
    ],
)
def test_real_gpu_missing_part_is_the_reason_for_skipping(
    modules: dict[str, Any], reason: str
) -> None:
    def load(name: str) -> Any:
        if name not in modules:
            raise ImportError(name)
        return modules[name]

    with pytest.raises(real_gpu.Skipped, match=reason):
        real_gpu.find("cuda:0", load)


def test_real_gpu_skip_is_visible_and_no_failure(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def find(device: str) -> Any:
        raise real_gpu.Skipped("no GPU here")

    monkeypatch.setattr(real_gpu, "find", find)
    assert real_gpu.main([]) == 0
    assert capsys.readouterr().out == "skipped: no GPU here\n"
    assert real_gpu.main(["--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"skipped": "no GPU here"}


def test_real_gpu_arguments_out_of_range_are_refused() -> None:
    for argv in (["--steps", "0"], ["--mib", "4", "--steps", "8"], ["--mib", "x"]):
        with pytest.raises(SystemExit):
            real_gpu.arguments(argv)
    options = real_gpu.arguments(["--device", "GPU-1", "--mib", "64", "--steps", "4"])
    assert (options.device, options.mib, options.steps) == ("GPU-1", 64, 4)


def test_real_gpu_table_shows_what_was_found() -> None:
    shown = real_gpu.table(
        {
            "gpu": "Made Up 24 GB",
            "key": "GPU-1",
            "context_bytes": [300 << 20, 301 << 20],
            "differences": [{"nvml": -(2 << 20), "torch": 1 << 20}, {"nvml": 0, "torch": 0}],
            "come_back_s": {"nvml": 0.05, "memledger": None},
            "ns_per_call": {"memledger free()": 30.0},
        }
    )
    for text in ("300, 301 MiB", "-2.0 to +0.0 MiB", "nvml: 50 ms", "not within 30 s", "30 ns"):
        assert text in shown
