"""memledger itself: one figure, all figures, and one figure when nothing has changed."""

from __future__ import annotations

import contextlib
import functools
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.members import ROOT, joined_device, other_members
from benchmarks.native import FLAGS, Unavailable, core_sources, find_compiler
from benchmarks.peers.peer import FIRST, Peer, Triple


class Figures(Peer):
    """The same work as the others: three sums over all members."""

    name = "memledger figures()"

    @contextlib.contextmanager
    def prepared(self, members: int) -> Iterator[list[int]]:
        self.path = f"{self.directory}/segment"
        with other_members(self.path, members - 1):
            yield []

    def attach(self, me: int) -> None:
        self.device = joined_device(self.path)
        self.device.publish(FIRST[0], releasable=FIRST[1], pinned=FIRST[2])

    publish_call = "gpu.publish(h, releasable=r, pinned=p)"
    read_call = "gpu.figures()"

    def names(self) -> dict[str, Any]:
        return {"gpu": self.device}

    def publish(self, held: int, releasable: int, pinned: int) -> None:
        self.device.publish(held, releasable=releasable, pinned=pinned)

    def sums(self) -> Triple:
        found = self.device.figures()
        return found.held, found.releasable, found.pinned


class Free(Figures):
    name = "memledger free()"
    read_call = "gpu.free()"


class Unchanged(Free):
    name = "memledger free(), unchanged"
    steady = True


POINTS = (
    "publish.word_up", "record.generation", "record.held", "record.releasable", "record.pinned",
    "record.claims", "record.version", "publish.change",
)  # fmt: skip
"""Before each store of a publish that grows."""


@functools.cache
def victim_program() -> Path:
    """victim.c with the core built so that it can be killed before any of its stores."""
    directory = tempfile.TemporaryDirectory(prefix="memledger-bench-")
    _kept.append(directory)
    program = Path(directory.name) / "victim"
    own = [ROOT / "benchmarks/peers/victim.c", ROOT / "tests/c/kill_points.c"]
    command = [find_compiler(), *FLAGS, "-DML_KILL_POINTS", f"-I{ROOT / 'csrc'}"]
    command += [f"-I{ROOT / 'tests/c'}", *map(str, [*own, *core_sources()])]
    command += ["-pthread", "-o", str(program)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise Unavailable(f"victim.c does not compile: {done.stderr[:400]}")
    return program


_kept: list[tempfile.TemporaryDirectory[str]] = []
