"""multiprocessing.shared_memory with a multiprocessing.Lock."""

from __future__ import annotations

import contextlib
import multiprocessing
import struct
from collections.abc import Iterator
from multiprocessing import shared_memory

from benchmarks.peers.peer import FIRST, Peer, Triple, add_up

SLOT = struct.Struct("3q")


class SharedMemory(Peer):
    name = "shared_memory + Lock"

    @contextlib.contextmanager
    def prepared(self, members: int) -> Iterator[list[int]]:
        block = shared_memory.SharedMemory(create=True, size=SLOT.size * members)
        self.lock = multiprocessing.get_context("spawn").Lock()
        self.block, self.members = block.name, members
        block.buf[: SLOT.size * members] = SLOT.pack(*FIRST) * members
        try:
            yield []
        finally:
            block.close()
            block.unlink()

    def attach(self, me: int) -> None:
        self.memory = shared_memory.SharedMemory(name=self.block)
        self.offset = SLOT.size * me
        self.all = struct.Struct(f"{3 * self.members}q")

    def publish(self, held: int, releasable: int, pinned: int) -> None:
        with self.lock:
            SLOT.pack_into(self.memory.buf, self.offset, held, releasable, pinned)

    def read(self) -> Triple:
        with self.lock:
            numbers = self.all.unpack_from(self.memory.buf)
        return add_up(numbers)

    def enter(self, triple: Triple) -> None:
        self.lock.acquire()
        struct.pack_into("q", self.memory.buf, self.offset, triple[0])
