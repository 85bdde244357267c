"""A segment as bytes, for tests that forge or destroy it. Offsets are read from the header, as the
product reads them; the positions inside a structure are those of docs/layout.md."""

from __future__ import annotations

import mmap
import os
import struct
from pathlib import Path
from types import TracebackType

(
    MAGIC, LAYOUT, SIZE, FINGERPRINT, LOCK_KIND, SLOT_COUNT, POOL_COUNT, SLOT_OFFSET, SLOT_STRIDE,
    POOL_OFFSET, POOL_STRIDE, RECORD_OFFSET, RECORD_STRIDE, RECORD_POOL_STRIDE, READING_OFFSET,
    READING_STRIDE, READING_POOL_STRIDE, _BOOT_A, _BOOT_B, CREATOR_PID, OVERFLOW_COUNT, SWEEP_COUNT,
) = range(22)  # fmt: skip
FREE, JOINING, LIVE, DYING = range(4)


class Raw:
    """Words of 64 bits, read and stored in place."""

    def __init__(self, path: str | Path) -> None:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            self._map = mmap.mmap(fd, os.fstat(fd).st_size)
        finally:
            os.close(fd)
        self._words = memoryview(self._map).cast("Q")

    def __enter__(self) -> Raw:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self._words.release()
        self._map.close()

    def __len__(self) -> int:
        """In words."""
        return len(self._words)

    def __getitem__(self, word: int) -> int:
        return int(self._words[word])

    def __setitem__(self, word: int, value: int) -> None:
        self._words[word] = value

    def slot_word(self, slot: int) -> int:
        """Index of a slot's state word."""
        return (self[SLOT_OFFSET] + slot * self[SLOT_STRIDE]) // 8

    def slot_state(self, slot: int) -> int:
        return self[self.slot_word(slot)] & 0xFF

    def slots_in_use(self) -> list[int]:
        return [s for s in range(self[SLOT_COUNT]) if self.slot_state(s) != FREE]

    def record_word(self, pool: int, slot: int) -> int:
        """Index of a record's first word (its version)."""
        at = self[RECORD_OFFSET] + pool * self[RECORD_POOL_STRIDE] + slot * self[RECORD_STRIDE]
        return at // 8

    def forge_sweep(self, slot: int) -> None:
        """As if somebody had taken the slot's owner for dead and swept it: next generation, free,
        all records zero."""
        for pool in range(self[POOL_COUNT]):
            at = self.record_word(pool, slot)
            for word in range(1, self[RECORD_STRIDE] // 8):
                if self[at + word]:
                    self[at + word] = 0
        at = self.slot_word(slot)
        self[at] = (((self[at] >> 8) + 1) << 8) | FREE


def forged(path: Path, copy_of: Path, **header: int) -> None:
    """A copy of a good segment under another name, with some header words changed."""
    names = {name.lower(): value for name, value in globals().items() if name.isupper()}
    data = bytearray(copy_of.read_bytes())
    for name, value in header.items():
        struct.pack_into("<Q", data, 8 * names[name], value)
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(fd, "wb") as file:
        file.write(data)
