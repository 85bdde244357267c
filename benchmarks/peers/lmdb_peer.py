"""LMDB, without waiting for the disk."""

from __future__ import annotations

import contextlib
import importlib.util
import struct
from collections.abc import Iterator

from benchmarks.peers.peer import FIRST, Peer, Triple, add_up

SLOT = struct.Struct("3q")


class Lmdb(Peer):
    name = "LMDB"

    @classmethod
    def unavailable(cls) -> str | None:
        return None if importlib.util.find_spec("lmdb") else "lmdb is not installed"

    def open(self) -> None:
        import lmdb

        self.environment = lmdb.open(
            f"{self.directory}/lmdb", map_size=1 << 24, sync=False, metasync=False, writemap=True
        )

    @contextlib.contextmanager
    def prepared(self, members: int) -> Iterator[list[int]]:
        self.open()
        with self.environment.begin(write=True) as change:
            for index in range(members):
                change.put(index.to_bytes(2, "big"), SLOT.pack(*FIRST))
        self.environment.close()
        del self.environment
        yield []

    def attach(self, me: int) -> None:
        self.open()
        self.key = me.to_bytes(2, "big")

    def publish(self, held: int, releasable: int, pinned: int) -> None:
        with self.environment.begin(write=True) as change:
            change.put(self.key, SLOT.pack(held, releasable, pinned))

    def read(self) -> Triple:
        with self.environment.begin() as view:
            joined = b"".join(view.cursor().iternext(keys=False))
        return add_up(struct.unpack(f"{len(joined) // 8}q", joined))

    def enter(self, triple: Triple) -> None:
        self.change = self.environment.begin(write=True)
        self.change.put(self.key, SLOT.pack(*triple))
