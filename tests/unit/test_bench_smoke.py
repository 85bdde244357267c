"""The benchmarks still run. What they measure is not looked at: no test asserts a time."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from benchmarks.peers.peer import FIRST  # noqa: E402
from benchmarks.peers.plot import draw  # noqa: E402
from benchmarks.peers.seqlock import Seqlock, library  # noqa: E402

WATCHDOG_S = 180.0

pytestmark = [
    pytest.mark.skipif(sys.platform == "win32", reason="the helper processes use select and mmap"),
    pytest.mark.slow,
]


def report(*arguments: str) -> str:
    return printed_by("benchmarks/report.py", *arguments)


def printed_by(*command: str) -> str:
    """What that benchmark prints. It and all that it started are ended when it hangs."""
    process = subprocess.Popen(
        [sys.executable, *command],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        out, _ = process.communicate(timeout=WATCHDOG_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        out, _ = process.communicate()
        pytest.fail(f"it did not end in {WATCHDOG_S:.0f} s:\n{out}")
    assert process.returncode == 0, out
    return out


def test_report_quick_prints_every_group_and_its_json_reads_back(tmp_path: Path) -> None:
    """A method that a benchmark calls was renamed, and nobody noticed before the next release."""
    pytest.importorskip("pytest_benchmark")
    path = tmp_path / "benchmarks.json"
    printed = report("--quick", "--json", str(path))
    kept = json.loads(path.read_text(encoding="utf-8"))
    groups = {row["group"] for row in kept["memledger_rows"]}
    assert len(groups) >= 8, groups
    for group in groups:
        assert group.split(" ", 1)[1] in printed
    assert kept["memledger_machine"]["commit"]
    assert report("--from", str(path)) == printed


def test_scale_quick_prints_every_part(tmp_path: Path) -> None:
    path = tmp_path / "scale.json"
    printed = printed_by("-m", "benchmarks.scale", "--quick", "--json", str(path))
    kept = json.loads(path.read_text(encoding="utf-8"))
    for part in ("members", "devices", "writers"):
        assert len(kept[part]) >= 2, part
        assert f"\n{part}" in printed
    assert "per one more" in printed


def test_peers_quick_measure_and_kill(tmp_path: Path) -> None:
    """Two of the peers: one that a killed process leaves torn, and memledger, which it does not."""
    path = tmp_path / "peers.json"
    only = [f"--only={name}" for name in ("memledger figures()", "flock + JSON")]
    printed = printed_by("-m", "benchmarks.peers.run", "--quick", *only, "--json", str(path))
    kept = json.loads(path.read_text(encoding="utf-8"))
    assert not [row for row in kept["rows"] if "failed" in row], printed
    seen = {(row["peer"], row["seen"]) for row in kept["crashes"]}
    assert seen == {("memledger figures()", "recovers"), ("flock + JSON file", "torn")}, printed


def test_peers_seqlock_sums_what_is_published(tmp_path: Path) -> None:
    with Seqlock(str(tmp_path)).prepared(3):
        peer = Seqlock(str(tmp_path))
        peer.members, peer.library = 3, library()
        peer.attach(1)
        peer.publish(5, 4, 3)
        assert peer.sums() == (2 * FIRST[0] + 5, 2 * FIRST[1] + 4, 2 * FIRST[2] + 3)


def test_peers_plot_is_drawn_from_kept_figures(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    call = {"p50": 100, "p99": 200, "p999": 300}
    rows = [
        {"peer": name, "members": 8, "writers": writers, "read": call, "publish": call}
        for name in ("memledger free()", "a peer")
        for writers in (0, 2)
    ]
    about = {"cpu": "a CPU", "cores": "2", "commit": "abc"}
    draw({"machine": about, "rows": rows}, tmp_path / "peers.svg")
    assert "<svg" in (tmp_path / "peers.svg").read_text(encoding="utf-8")


def test_comfy_quick_prints_both_generations() -> None:
    printed = printed_by("-m", "benchmarks.comfy", "--quick")
    assert "\nold\n" in printed
    assert "\nnew\n" in printed
    assert printed.count("a step that publishes") == 2


def test_sampler_quick_runs() -> None:
    pytest.importorskip("torch")
    assert "with / without" in printed_by("-m", "benchmarks.sampler", "--quick")
