"""The processes of one run, seen from their parent.

Each is an interpreter of its own that talks in JSON lines: it says what it has reached, and waits
for a "go". So every meeting point is exact, and a process that dies in front of one (which is one
of the scenarios) hangs nobody, as it would in a barrier of the operating system.

Nothing outlives a run: the children end when their stdin does, have a watchdog each, and are killed
and waited for by `close`.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

import memledger

Message = dict[str, Any]

WATCHDOG_S = 45


class StageError(Exception):
    """The demo itself did not work: a child crashed or hung. Says nothing about the ledger."""


class Cast:
    def __init__(self, directory: str) -> None:
        """directory: of the run, for the segment, the card, the log, the children's stderr."""
        self._directory = directory
        self._processes: dict[str, subprocess.Popen[str]] = {}
        self._inbox: queue.SimpleQueue[tuple[str, Message | None]] = queue.SimpleQueue()
        self._reached: dict[str, Message] = {}
        self._ended: set[str] = set()
        self._killed: set[str] = set()
        self._deadline = time.monotonic() + WATCHDOG_S
        self.results: dict[str, Message] = {}

    def start(self, name: str, role: str, **parameters: Any) -> None:
        """role: a function of roles.py or roles_together.py; it gets the parameters. Among them,
        `mode`, and `joins`: further arguments of its Actor."""
        spec = {
            "name": name,
            "role": role,
            "directory": self._directory,
            "watchdog_s": WATCHDOG_S,
            "parameters": parameters,
        }
        with open(self._stderr_path(name), "wb") as stderr:
            process = subprocess.Popen(
                [sys.executable, "-m", "memledger.demo.child", json.dumps(spec)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
                env=self._environment(),
                # A Ctrl-C is the parent's, which ends them in order.
                start_new_session=True,
            )
        self._processes[name] = process
        threading.Thread(target=self._read, args=(name, process), daemon=True).start()

    def meet(self, point: str, names: Iterable[str] | None = None) -> None:
        """Waits until each of them has reached that point or ended, then lets all go on at once."""
        names = self._living(names)
        self.wait(point, names)
        self.go(self._living(names))

    def wait(self, point: str, names: Iterable[str] | None = None) -> None:
        """Waits until each of them has reached that point or ended, and keeps them there."""
        names = list(self._processes if names is None else names)
        while True:
            open_ones = [name for name in names if name not in self._ended]
            wrong = [n for n in open_ones if self._reached.get(n, {"at": point})["at"] != point]
            if wrong:
                raise StageError(f"{wrong[0]} is at {self._reached[wrong[0]]['at']}, not {point}")
            if all(name in self._reached for name in open_ones):
                return
            self._take()

    def go(self, names: Iterable[str]) -> None:
        for name in names:
            self._reached.pop(name, None)
            stdin = self._processes[name].stdin
            assert stdin is not None
            # It may just have died; its end of file tells.
            with contextlib.suppress(OSError):
                stdin.write("go\n")
                stdin.flush()

    def has_ended(self, name: str) -> bool:
        return name in self._ended

    def until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            self._take(timeout=0.005)

    def kill(self, name: str) -> None:
        """SIGKILL, and waits until the kernel has taken the process apart."""
        self._killed.add(name)
        self._processes[name].kill()
        self._processes[name].wait()

    def finish(self) -> None:
        """Waits until all have ended and said their result."""
        while len(self._ended) < len(self._processes):
            self._take()
        for name in self._processes:
            if name not in self.results and name not in self._killed:
                raise StageError(self._obituary(name))

    def close(self) -> None:
        for process in self._processes.values():
            if process.poll() is None:
                process.kill()
        for process in self._processes.values():
            process.wait()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    with contextlib.suppress(OSError):
                        pipe.close()

    def _living(self, names: Iterable[str] | None) -> list[str]:
        names = self._processes if names is None else names
        return [name for name in names if name not in self._ended]

    def _take(self, timeout: float | None = None) -> None:
        """One message, or nothing where none comes within `timeout` seconds."""
        left = self._deadline - time.monotonic()
        if left <= 0:
            silent = [n for n in self._processes if n not in self._ended and n not in self._reached]
            raise StageError(f"no end after {WATCHDOG_S} s; still at work: {', '.join(silent)}")
        try:
            name, message = self._inbox.get(timeout=left if timeout is None else timeout)
        except queue.Empty:
            return
        if message is None:
            self._ended.add(name)
            self._reached.pop(name, None)
            if name not in self.results and name not in self._killed:
                self._processes[name].wait()
                raise StageError(self._obituary(name))
        elif "result" in message:
            self.results[name] = message["result"]
        else:
            self._reached[name] = message

    def _read(self, name: str, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        # ValueError: half a line of a killed process, or `close` was faster.
        with contextlib.suppress(ValueError):
            for line in process.stdout:
                self._inbox.put((name, json.loads(line)))
        self._inbox.put((name, None))

    def _obituary(self, name: str) -> str:
        code = self._processes[name].returncode
        with open(self._stderr_path(name), encoding="utf-8", errors="replace") as file:
            said = file.read().strip()
        return f"{name} ended with {code} and without a result" + (f":\n{said}" if said else "")

    def _stderr_path(self, name: str) -> str:
        return os.path.join(self._directory, f"{name}.stderr")

    def _environment(self) -> dict[str, str]:
        package = os.path.dirname(os.path.dirname(memledger.__file__))
        rest = os.environ.get("PYTHONPATH")
        return {
            **os.environ,
            "MEMLEDGER_PATH": os.path.join(self._directory, "segment"),
            "PYTHONPATH": package + (os.pathsep + rest if rest else ""),
        }
