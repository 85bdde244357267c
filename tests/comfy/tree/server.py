"""A ComfyUI server of a real tree, started on the CPU in a base directory of its own."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from helpers.waiting import wait_until

BOOT_WATCHDOG_S = 240.0
PROMPT_WATCHDOG_S = 120.0

INVERT: dict[str, Any] = {
    "1": {
        "class_type": "EmptyImage",
        "inputs": {"width": 64, "height": 64, "batch_size": 1, "color": 255},
    },
    "2": {"class_type": "ImageInvert", "inputs": {"image": ["1", 0]}},
    "3": {"class_type": "SaveImage", "inputs": {"images": ["2", 0], "filename_prefix": "test"}},
}


def tree() -> Path | None:
    """The tree that COMFYUI_PATH names, or None."""
    named = os.environ.get("COMFYUI_PATH")
    return Path(named).resolve() if named and Path(named, "main.py").is_file() else None


def python() -> str:
    """The interpreter that has what the tree's requirements.txt names."""
    return os.environ.get("COMFYUI_PYTHON") or sys.executable


def environment(segment: Path, **extra: str) -> dict[str, str]:
    """This process's, less what would change the tests."""
    dropped = ("MEMLEDGER_", "PYTHONPATH", "COMFY_ENV_")
    kept = {k: v for k, v in os.environ.items() if not k.startswith(dropped)}
    return {**kept, "MEMLEDGER_PATH": str(segment), "PYTHONUNBUFFERED": "1", **extra}


class Server:
    """packs: folders to link into custom_nodes, by name."""

    def __init__(self, base: Path, packs: dict[str, Path], env: dict[str, str]) -> None:
        root = tree()
        assert root is not None
        custom_nodes = base / "custom_nodes"
        custom_nodes.mkdir(parents=True)
        for name, folder in packs.items():
            (custom_nodes / name).symlink_to(folder, target_is_directory=True)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        argv = [
            python(), "main.py", "--cpu", "--listen", "127.0.0.1", "--port", str(self.port),
            "--disable-auto-launch", "--base-directory", str(base),
        ]  # fmt: skip
        if "--database-url" in (root / "comfy/cli_args.py").read_text(encoding="utf-8"):
            argv += ["--database-url", "sqlite:///:memory:"]
        self._log = base / "log.txt"
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                argv, cwd=root, env=env, stdout=log, stderr=log, start_new_session=True
            )
        try:
            wait_until(self._answers, BOOT_WATCHDOG_S, "the server answers", step_s=0.2)
        except BaseException:
            self.stop()
            raise

    def _answers(self) -> bool:
        assert self.process.poll() is None, f"the server ended:\n{self.log()[-3000:]}"
        try:
            self.get("/system_stats")
        except OSError:
            return False
        return True

    def log(self) -> str:
        return self._log.read_text(encoding="utf-8", errors="replace")

    def lines(self) -> list[str]:
        """What we said in ComfyUI's log."""
        return [line for line in self.log().splitlines() if "[memledger]" in line]

    def get(self, path: str) -> Any:
        with self._open(path) as answer:
            return json.load(answer)

    def post(self, path: str, value: Any) -> Any:
        with self._open(path, json.dumps(value).encode()) as answer:
            body = answer.read()
        return json.loads(body) if body else None

    def status_of(self, path: str) -> int:
        try:
            with self._open(path) as answer:
                return int(answer.status)
        except urllib.error.HTTPError as error:
            return error.code

    def _open(self, path: str, data: bytes | None = None) -> Any:
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}{path}", data)
        request.add_header("Content-Type", "application/json")
        return urllib.request.urlopen(request, timeout=60)

    def run(self, prompt: dict[str, Any]) -> dict[str, Any]:
        """Run it to its end; ComfyUI's history of it."""
        return self.history(self.post("/prompt", {"prompt": prompt})["prompt_id"])

    def history(self, number: str) -> dict[str, Any]:
        """ComfyUI's history of that prompt, once it has ended."""
        return dict(
            wait_until(
                lambda: self.get(f"/history/{number}").get(number),
                PROMPT_WATCHDOG_S, f"prompt {number} ends", step_s=0.05,
            )
        )  # fmt: skip

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(10)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait(10)
