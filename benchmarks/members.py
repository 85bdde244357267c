"""Other members: handles in this process, and processes of their own."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import memledger
from memledger import _native
from memledger.model import KIND_SIM, DeviceSpec, PoolSpec

ROOT = Path(__file__).resolve().parent.parent
TOTAL_BYTES = 24 << 30
KEY = "bench:card"
MEMBERS_PER_PROCESS = 60
"""One process may have 64 handles."""
REPLY_TIMEOUT_S = 60.0


def joined_device(path: str) -> memledger.Device:
    """A device as a program has it: the public class, with housekeeping, of a pool without a
    source, whose total is configured."""
    ledger = memledger.join("benchmark", path=path)
    device = memledger.Device(ledger, DeviceSpec(KEY, (PoolSpec(KEY, (), KIND_SIM),), (None,)))
    device._set_limit(TOTAL_BYTES)
    device.publish(4096)
    return device


def bare_device(path: str, label: str = "member") -> tuple[_native.Ledger, _native.Device]:
    """The same from the native classes: no thread."""
    ledger = _native.Ledger(path=path, label=label)
    device = _native.Device(ledger, ((KEY, (), KIND_SIM, 0),))
    device._set_limit(TOTAL_BYTES)
    device.publish(4096)
    return ledger, device


@contextlib.contextmanager
def segment_path() -> Iterator[str]:
    """A segment of its own, in memory where the system has a place for that."""
    where = "/dev/shm" if os.path.isdir("/dev/shm") else None
    with tempfile.TemporaryDirectory(prefix="memledger-bench-", dir=where) as directory:
        yield os.path.join(directory, "segment")


class Child:
    """A process that runs a role of child.py. Its stdin is its life: it ends when that closes."""

    def __init__(self, role: str, *arguments: object, prefix: tuple[str, ...] = ()):
        command = [*prefix, sys.executable, "-m", "benchmarks.child", role, *map(str, arguments)]
        self._process = subprocess.Popen(
            command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def reply(self) -> Any:
        """The next line that it prints, as JSON."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"a helper process ended with {self._process.wait()}")
        return json.loads(line)

    def say(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()

    def end(self) -> None:
        with contextlib.suppress(BrokenPipeError):
            assert self._process.stdin is not None
            self._process.stdin.close()
        try:
            self._process.wait(REPLY_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()


@contextlib.contextmanager
def children(*children: Child) -> Iterator[tuple[Child, ...]]:
    """Started, ready, and ended whatever happens."""
    try:
        for child in children:
            child.reply()
        yield children
    finally:
        for child in children:
            child.end()


def run_on(nth: int) -> None:
    """Binds this process to the nth of the CPUs that it may use, where the system can; with one CPU
    nothing changes."""
    if sys.platform == "linux":
        allowed = sorted(os.sched_getaffinity(0))
        if len(allowed) > nth and len(allowed) > 1:
            os.sched_setaffinity(0, {allowed[nth]})


@contextlib.contextmanager
def bound_to_first_cpu() -> Iterator[None]:
    before = os.sched_getaffinity(0) if sys.platform == "linux" else None
    run_on(0)
    try:
        yield
    finally:
        if sys.platform == "linux" and before is not None:
            os.sched_setaffinity(0, before)


@contextlib.contextmanager
def other_members(path: str, count: int) -> Iterator[None]:
    """`count` further members that have published once and are quiet now."""
    counts = [MEMBERS_PER_PROCESS] * (count // MEMBERS_PER_PROCESS)
    if count % MEMBERS_PER_PROCESS:
        counts.append(count % MEMBERS_PER_PROCESS)
    with children(*(Child("hold", path, number) for number in counts)):
        yield
