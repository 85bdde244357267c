"""Processes for tests: started, talked to over pipes, and always reaped."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from helpers.waiting import WATCHDOG_S

SCRIPT = Path(__file__).with_name("member.py")


class RemoteError(Exception):
    """An exception that the member's verb raised. kind: its class's name."""

    def __init__(self, kind: str, text: str, free: int | None = None) -> None:
        self.kind, self.text, self.free = kind, text, free
        super().__init__(f"{kind}: {text}")


class MemberGone(AssertionError):
    """The member ended, or hangs, in the middle of a command."""


class Member:
    """A process that joins and obeys. See helpers/member.py for the verbs.

    prefix: words before the interpreter, such as ("unshare", "--pid", ...); then `process.pid` is
    that of the first word's process, and `pid` what the member calls itself.
    """

    def __init__(
        self,
        python: str = sys.executable,
        flags: tuple[str, ...] = (),
        package: str | Path | None = None,
        env: dict[str, str] | None = None,
        prefix: tuple[str, ...] = (),
        watchdog_s: float = WATCHDOG_S,
        **popen: Any,
    ) -> None:
        self.watchdog_s = watchdog_s
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  closed in reap()
        self._buffer = b""
        argv = [*prefix, python, *flags, str(SCRIPT)]
        if package is not None:
            argv += ["--package", str(package)]
        # A session of its own: a stopped process in an orphaned group brings SIGHUP on the group.
        self.process = subprocess.Popen(
            argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors,
            env={**os.environ, **(env or {})}, start_new_session=True, **popen,
        )  # fmt: skip
        self._selector = selectors.DefaultSelector()
        assert self.process.stdout is not None
        self._selector.register(self.process.stdout, selectors.EVENT_READ)
        try:
            self.pid: int = self.receive()
        except BaseException:
            self.reap()
            raise

    # ---- talking

    def send(self, verb: str, *args: Any, **kwargs: Any) -> None:
        """Without waiting for the answer; `receive` fetches it."""
        self._write(json.dumps({"call": verb, "args": args, "kwargs": kwargs}))

    def send_run(self, source: str) -> None:
        self._write(json.dumps({"run": source}))

    def receive(self, watchdog_s: float | None = None) -> Any:
        """The next answer. Raises RemoteError for an exception over there, MemberGone when none
        comes."""
        line = self._line(watchdog_s or self.watchdog_s)
        reply = json.loads(line)
        if "error" in reply:
            raise RemoteError(reply["error"], reply["text"], reply["free"])
        return reply["ok"]

    def call(self, verb: str, *args: Any, **kwargs: Any) -> Any:
        self.send(verb, *args, **kwargs)
        return self.receive()

    def run(self, source: str, watchdog_s: float | None = None) -> Any:
        """Execute `source` over there; the value of its last expression."""
        self.send_run(source)
        return self.receive(watchdog_s)

    def _write(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line.encode() + b"\n")
        self.process.stdin.flush()

    def _line(self, watchdog_s: float) -> bytes:
        assert self.process.stdout is not None
        deadline = time.monotonic() + watchdog_s
        while b"\n" not in self._buffer:
            if not self._selector.select(max(0.0, deadline - time.monotonic())):
                raise MemberGone(f"no answer in {watchdog_s} s; stderr: {self.stderr()!r}")
            chunk = os.read(self.process.stdout.fileno(), 1 << 16)
            if not chunk:
                code = self.process.wait(self.watchdog_s)
                raise MemberGone(f"ended with {code}; stderr: {self.stderr()!r}")
            self._buffer += chunk
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line

    # ---- shorthands

    def join(self, label: str = "", **kwargs: Any) -> dict[str, Any]:
        info: dict[str, Any] = self.call("join", label, **kwargs)
        return info

    def open_plain(self, key: str, total: int | None = None, **kwargs: Any) -> None:
        self.call("open_plain", key, total, **kwargs)

    def publish(self, held: int, releasable: int = 0, pinned: int = 0) -> None:
        self.call("publish", held, releasable, pinned)

    def free(self) -> int | None:
        value: int | None = self.call("free")
        return value

    def figures(self) -> dict[str, Any]:
        figures: dict[str, Any] = self.call("figures")
        return figures

    def become(self, uid: int) -> None:
        """Go on as another user. What it will need is imported before, since that user may not be
        able to read the interpreter's files."""
        self.run(
            "import memledger, memledger.sim, memledger.device, memledger.readings.simulated, "
            "memledger.readings.machine, memledger.readings.meminfo\n"
            "import tempfile, traceback\n"
            f"os.setgroups([]); os.setgid({uid}); os.setuid({uid})"
        )

    def stderr(self) -> str:
        self._errors.seek(0)
        return self._errors.read().decode(errors="replace")

    # ---- life and death

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def stop(self) -> None:
        """SIGSTOP, and wait until it stands still."""
        self.signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self.process.pid, os.WSTOPPED | os.WNOWAIT)

    def resume(self) -> None:
        self.signal(signal.SIGCONT)

    def kill(self) -> None:
        """SIGKILL, and reap it."""
        self.process.kill()
        self.process.wait(self.watchdog_s)

    def exit(self) -> int:
        """Let it end as a program ends, atexit and all; its exit status."""
        self._write("exit")
        return self.process.wait(self.watchdog_s)

    def reap(self) -> None:
        if self.process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                # The whole session, so that what it forked goes too.
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait(self.watchdog_s)
        self._selector.close()
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                with contextlib.suppress(BrokenPipeError):
                    stream.close()
        self._errors.close()
