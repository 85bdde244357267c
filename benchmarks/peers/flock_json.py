"""A JSON file, rewritten in place under flock."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Iterator
from itertools import chain

from benchmarks.peers.peer import FIRST, Peer, Triple, add_up


class FlockJson(Peer):
    name = "flock + JSON file"

    @contextlib.contextmanager
    def prepared(self, members: int) -> Iterator[list[int]]:
        self.path = f"{self.directory}/members.json"
        with open(self.path, "w", encoding="utf-8") as file:
            json.dump({str(index): FIRST for index in range(members)}, file)
        yield []

    def attach(self, me: int) -> None:
        self.file = os.open(self.path, os.O_RDWR)
        self.me = str(me)

    def load(self) -> dict[str, Triple]:
        found: dict[str, Triple] = json.loads(os.pread(self.file, 1 << 20, 0))
        return found

    def publish(self, held: int, releasable: int, pinned: int) -> None:
        fcntl.flock(self.file, fcntl.LOCK_EX)
        try:
            table = self.load()
            table[self.me] = (held, releasable, pinned)
            os.ftruncate(self.file, 0)
            os.pwrite(self.file, json.dumps(table).encode(), 0)
        finally:
            fcntl.flock(self.file, fcntl.LOCK_UN)

    def read(self) -> Triple:
        fcntl.flock(self.file, fcntl.LOCK_SH)
        try:
            table = self.load()
        finally:
            fcntl.flock(self.file, fcntl.LOCK_UN)
        return add_up(tuple(chain.from_iterable(table.values())))

    def enter(self, triple: Triple) -> None:
        fcntl.flock(self.file, fcntl.LOCK_EX)
        text = json.dumps({**self.load(), self.me: triple}).encode()
        os.ftruncate(self.file, 0)
        os.pwrite(self.file, text[: len(text) // 2], 0)
