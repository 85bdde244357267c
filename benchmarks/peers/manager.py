"""A dict in a multiprocessing.Manager's process."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import struct
from collections.abc import Iterator
from itertools import chain

from benchmarks.peers.peer import FIRST, Peer, Triple, add_up


class ManagerDict(Peer):
    name = "Manager dict"

    @contextlib.contextmanager
    def prepared(self, members: int) -> Iterator[list[int]]:
        manager = multiprocessing.get_context("spawn").Manager()
        self.table = manager.dict(dict.fromkeys(range(members), FIRST))
        process = manager._process  # type: ignore[attr-defined]
        try:
            yield [process.pid]
        finally:
            if process.is_alive():
                manager.shutdown()

    def attach(self, me: int) -> None:
        self.me = me
        self.table[me] = FIRST  # connects

    def publish(self, held: int, releasable: int, pinned: int) -> None:
        self.table[self.me] = (held, releasable, pinned)

    def read(self) -> Triple:
        return add_up(tuple(chain.from_iterable(self.table.values())))

    def enter(self, triple: Triple) -> None:
        """A request of 100 bytes, of which 2 are sent."""
        connection = self.table._tls.connection  # type: ignore[attr-defined]
        os.write(connection.fileno(), struct.pack("!i", 100) + b"xx")
