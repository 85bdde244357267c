"""A hash in Redis, over a unix socket."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.peers.peer import FIRST, Peer, Triple, add_up

OWN = Path(sys.prefix) / "redis"
"""Where get_redis.sh puts Debian's package."""


def server() -> tuple[str, dict[str, str]] | None:
    """The program and its environment."""
    found = shutil.which("redis-server")
    if found:
        return found, {**os.environ}
    if (OWN / "usr/bin/redis-server").exists():
        libraries = ":".join(map(str, OWN.glob("usr/lib/*-linux-gnu*")))
        return str(OWN / "usr/bin/redis-server"), {**os.environ, "LD_LIBRARY_PATH": libraries}
    return None


class Redis(Peer):
    name = "Redis, unix socket"

    @classmethod
    def unavailable(cls) -> str | None:
        if not importlib.util.find_spec("redis"):
            return "redis is not installed"
        return None if server() else "no redis-server here"

    @contextlib.contextmanager
    def prepared(self, members: int) -> Iterator[list[int]]:
        self.socket = f"{self.directory}/redis.sock"
        found = server()
        assert found is not None
        program, environment = found
        command = [program, "--port", "0", "--unixsocket", self.socket, "--save", ""]
        process = subprocess.Popen(
            command, env=environment, cwd=self.directory, stdout=subprocess.DEVNULL
        )
        try:
            end = time.monotonic() + 20
            while not os.path.exists(self.socket) and time.monotonic() < end:
                time.sleep(0.02)
            for index in range(members):
                self.attach(index)
                self.publish(*FIRST)
            del self.client
            yield [process.pid]
        finally:
            process.kill()
            process.wait()

    def attach(self, me: int) -> None:
        import redis

        self.client = redis.Redis(unix_socket_path=self.socket)
        self.me = me

    def publish(self, held: int, releasable: int, pinned: int) -> None:
        self.client.hset("members", str(self.me), f"{held} {releasable} {pinned}")

    def read(self) -> Triple:
        return add_up(tuple(map(int, b" ".join(self.client.hvals("members")).split())))

    def enter(self, triple: Triple) -> None:
        """Half of a command is sent."""
        self.client.ping()
        self.connection = self.client.connection_pool.get_connection()
        self.connection._sock.sendall(b"*4\r\n$4\r\nHSET\r\n$7\r\nmem")
