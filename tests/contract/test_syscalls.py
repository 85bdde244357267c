"""Hot calls enter the kernel not at all."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from helpers.system import linux_only, need_program
from helpers.units import count

pytestmark = linux_only

SETUP = """
import sys, os, threading
sys.path.insert(0, os.environ["TESTS"])
import memledger
from helpers.member import plain_device
ledger = memledger.join(label="traced")
device = plain_device(ledger, "test:card", 24 << 30)
device.publish(1); device.free(); device.figures(); device.try_claim(1).cancel()
ledger._housekeeping.stop()    # its own thread may enter the kernel as often as it likes
other = memledger.ledger.Ledger(label="other", role="other", path=None)
other._housekeeping.stop()
theirs = plain_device(other, "test:card", None)
n = int(os.environ["ROUNDS"])
while len(os.listdir("/proc/self/task")) > 1:   # a thread ends a little after it was joined
    pass
os.write(1, b"begin")
"""
BODIES = {
    "nothing": "for i in range(n): pass",
    "free": "for i in range(n): device.free()",
    "figures": "for i in range(n): device.figures()",
    "all reads": "for i in range(n):\n    device.available(); device.budget(); device.total()\n"
    "    device.claimed_by_others()",
    "reads after publishes of another": "for i in range(n):\n    theirs.publish(i); device.free()\n"
    "    device.figures()",
    "publish": "for i in range(n): device.publish(i, releasable=i, pinned=i)",
    "claim and cancel": "for i in range(n): device.try_claim(i).cancel()",
    "claim, drain, settle": "for i in range(n):\n    c = device.try_claim(4096)\n"
    "    c.publish(i)\n    c.settle(i)",
}


def trace(tmp_path: Path, body: str, rounds: int) -> list[str]:
    """System calls of all threads between the marks, as lines of strace."""
    strace = need_program("strace")
    log = tmp_path / "log"
    code = f"{SETUP}\n{body}\nos.write(1, b'end')\nos._exit(0)"
    done = subprocess.run(
        [strace, "-f", "-o", str(log), sys.executable, "-c", code],
        capture_output=True, text=True, timeout=100,
        env={**os.environ, "TESTS": str(Path(__file__).parents[1]), "ROUNDS": str(rounds)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout == "beginend"
    lines = log.read_text().splitlines()
    begin = next(i for i, line in enumerate(lines) if 'write(1, "begin"' in line)
    end = next(i for i, line in enumerate(lines) if 'write(1, "end"' in line)
    return lines[begin + 1 : end]


@pytest.mark.parametrize("name", [n for n in BODIES if n != "nothing"])
def test_syscalls_hot_call_makes_none(tmp_path: Path, segment: Path, name: str) -> None:
    rounds = count(1_000_000 if name in ("free", "figures") else 100_000, 1_000_000)
    calls = trace(tmp_path, BODIES[name], rounds)
    # The interpreter itself may grow its heap a few times (as "nothing" may), whatever the rounds.
    ours = [c for c in calls if not any(w in c for w in ("brk(", "mmap(", "munmap(", "madvise("))]
    assert ours == []
    assert len(calls) < 50


def test_syscalls_baseline_shows_that_the_trace_sees_any(tmp_path: Path, segment: Path) -> None:
    calls = trace(tmp_path, "for i in range(20): ledger.sweep(); os.getppid()", 1)
    assert sum("getppid" in call for call in calls) == 20
    assert trace(tmp_path, BODIES["nothing"], 100_000) == []
