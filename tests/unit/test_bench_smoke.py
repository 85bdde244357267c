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
WATCHDOG_S = 180.0

pytestmark = [
    pytest.mark.skipif(sys.platform == "win32", reason="the helper processes use select and mmap"),
    pytest.mark.slow,
]


def report(*arguments: str) -> str:
    """What report.py prints. It and all that it started are ended when it hangs."""
    process = subprocess.Popen(
        [sys.executable, "benchmarks/report.py", *arguments],
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
        pytest.fail(f"the report did not end in {WATCHDOG_S:.0f} s:\n{out}")
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
