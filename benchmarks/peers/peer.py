"""What every peer does: publish a triple as one member, read the sums over all members."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

Triple = tuple[int, int, int]
GONE: Triple = (0, 0, 0)
FIRST: Triple = (4096, 1024, 512)
"""What every member has published when a measurement begins."""


class Peer:
    """Pickled into each process of a measurement, so what is opened is opened in `attach`."""

    name = ""
    reads_only = False
    """Nothing can be published: a driver or the kernel is asked."""
    steady = False
    """Nothing is published between two reads."""
    by_process = False
    """A process is a member by having published, whatever its index."""
    dies_inside = True
    """There is a critical section in which a process can be killed."""

    def __init__(self, directory: str) -> None:
        self.directory = directory

    @classmethod
    def unavailable(cls) -> str | None:
        """Why this one cannot run here."""
        return None

    @contextlib.contextmanager
    def prepared(self, members: int) -> Iterator[list[int]]:
        """The store exists, and `members` have published FIRST. Yields the ids of the server's
        processes, where there are any."""
        yield []

    def attach(self, me: int) -> None:
        """Become the member of that index, in this process."""

    def publish(self, held: int, releasable: int, pinned: int) -> None:
        raise NotImplementedError

    publish_call = "peer.publish(h, r, p)"
    read_call = "peer.read()"
    """What a program would write for it, so that no layer of ours is measured with it."""

    def names(self) -> dict[str, Any]:
        """Of the two calls."""
        return {"peer": self}

    def read(self) -> object:
        """What a caller asks at every step."""
        raise NotImplementedError

    def sums(self) -> Triple:
        """The three sums, where `read` answers something else."""
        found = self.read()
        assert isinstance(found, tuple)
        return found

    def enter(self, triple: Triple) -> None:
        """Begin to publish `triple`, and stop half-way."""
        raise NotImplementedError


def add_up(numbers: tuple[int, ...]) -> Triple:
    """The three sums of held, releasable, pinned, held, ..."""
    return sum(numbers[0::3]), sum(numbers[1::3]), sum(numbers[2::3])
