"""Members and command lines as real processes, for the other test_cli_* files."""

from __future__ import annotations

import json
import os
import pty
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

WATCHDOG_S = 120
GIB = 1 << 30

_MEMBER = """
import sys, memledger
label, held, releasable, claim, device = sys.argv[1:6]
ledger = memledger.join(label, "worker")
gpu = ledger.device(device)
gpu.publish(held=int(held), releasable=int(releasable))
claim = gpu.try_claim(int(claim)) if int(claim) else None
print("up", flush=True)
sys.stdin.read()
"""


def environment(path: Path | None, **extra: str) -> dict[str, str]:
    """This process's, without what would change how output looks; `extra` in capitals."""
    drop = {
        "COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR", "LC_ALL", "LC_CTYPE", "LANG", "TERM",
        "PYTHONIOENCODING", "PYTHONUTF8", "MEMLEDGER_PATH", "MEMLEDGER_TOTAL",
    }  # fmt: skip
    env = {name: value for name, value in os.environ.items() if name not in drop}
    env.update(LANG="C.UTF-8", TERM="xterm-256color")
    if path is not None:
        env["MEMLEDGER_PATH"] = str(path)
    env.update(extra)
    return env


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "memledger", *arguments]


def run(*arguments: str, path: Path | None, **extra: str) -> subprocess.CompletedProcess[str]:
    """The command with its output in pipes."""
    return subprocess.run(
        command(*arguments), env=environment(path, **extra), stdin=subprocess.DEVNULL,
        capture_output=True, text=True, encoding="utf-8", timeout=WATCHDOG_S,
    )  # fmt: skip


def dump_json(path: Path) -> dict[str, Any]:
    result = run("dump", "--json", path=path)
    assert result.returncode == 0, result.stderr
    seen: dict[str, Any] = json.loads(result.stdout)
    return seen


def on_terminal(*arguments: str, path: Path, answer: str = "", **extra: str) -> tuple[int, str]:
    """(exit code, output) of the command with a pseudo-terminal for all three streams; `answer` is
    typed once it prints "[y/N]"."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        command(*arguments), env=environment(path, **extra), stdin=theirs, stdout=theirs,
        stderr=theirs, start_new_session=True,
    )  # fmt: skip
    os.close(theirs)
    shown, deadline = b"", time.monotonic() + WATCHDOG_S
    try:
        while time.monotonic() < deadline:
            if not select.select([ours], [], [], 0.2)[0]:
                continue
            try:
                part = os.read(ours, 65536)
            except OSError:  # Linux: the other end is closed
                break
            if not part:
                break
            shown += part
            if answer and b"[y/N]" in shown:
                os.write(ours, answer.encode())
                answer = ""
        return process.wait(timeout=WATCHDOG_S), shown.decode("utf-8", "replace")
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
        os.close(ours)


class Member:
    """A process that has joined and published, until it is ended. `device` as in Ledger.device."""

    def __init__(
        self, path: Path, label: str = "loader", *, held: int = 0, releasable: int = 0,
        claim: int = 0, device: str = "sim:card?total=24GiB",
    ) -> None:  # fmt: skip
        self.process = subprocess.Popen(
            [sys.executable, "-c", _MEMBER, label, str(held), str(releasable), str(claim), device],
            env=environment(path), stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip
        assert self.process.stdout is not None
        if not select.select([self.process.stdout], [], [], WATCHDOG_S)[0]:
            self.kill()
            pytest.fail("the member did not come up")
        assert self.process.stdout.readline() == b"up\n"

    @property
    def pid(self) -> int:
        return self.process.pid

    def kill(self) -> None:
        """Ends it as a crash would."""
        self.process.kill()
        self.process.communicate()

    def stop(self) -> None:
        self.process.send_signal(signal.SIGSTOP)

    def __enter__(self) -> Member:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()


def one_line(text: str) -> str:
    """`text`, which must be one line of ours and no traceback."""
    assert text.count("\n") == 1, text
    assert text.startswith("memledger: "), text
    return text


@pytest.fixture
def segment() -> Iterator[Path]:
    """A path of its own for a segment; nothing is there."""
    base = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    folder = tempfile.mkdtemp(prefix="memledger-test-cli-", dir=base)
    yield Path(folder) / "segment"
    shutil.rmtree(folder)


@pytest.fixture
def without_rich(tmp_path: Path) -> str:
    """A folder for PYTHONPATH in which rich cannot be imported."""
    stub = tmp_path / "stub" / "rich"
    stub.mkdir(parents=True)
    (stub / "__init__.py").write_text("raise ImportError('no rich here')\n")
    return str(stub.parent)
