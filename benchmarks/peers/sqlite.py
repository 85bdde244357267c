"""SQLite with a write-ahead log, without waiting for the disk."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator

from benchmarks.peers.peer import FIRST, Peer, Triple

UPDATE = "UPDATE member SET held = ?, releasable = ?, pinned = ? WHERE id = ?"


class Sqlite(Peer):
    name = "SQLite WAL"

    def open(self) -> None:
        self.base = sqlite3.connect(f"{self.directory}/base", isolation_level=None, timeout=5)
        self.base.execute("PRAGMA journal_mode = WAL")
        self.base.execute("PRAGMA synchronous = OFF")

    @contextlib.contextmanager
    def prepared(self, members: int) -> Iterator[list[int]]:
        self.open()
        self.base.execute("CREATE TABLE member (id INTEGER PRIMARY KEY, held, releasable, pinned)")
        rows = [(index, *FIRST) for index in range(members)]
        self.base.executemany("INSERT INTO member VALUES (?, ?, ?, ?)", rows)
        self.base.close()
        del self.base
        yield []

    def attach(self, me: int) -> None:
        self.open()
        self.me = me

    def publish(self, held: int, releasable: int, pinned: int) -> None:
        self.base.execute(UPDATE, (held, releasable, pinned, self.me))

    def read(self) -> Triple:
        query = "SELECT sum(held), sum(releasable), sum(pinned) FROM member"
        found: Triple = self.base.execute(query).fetchone()
        return found

    def enter(self, triple: Triple) -> None:
        self.base.execute("BEGIN IMMEDIATE")
        self.base.execute(UPDATE, (*triple, self.me))
