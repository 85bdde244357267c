"""A table of slots with a seqlock each, in C, called from Python in the cheapest way there is: what
the ledger would cost if nothing could ever die, stop or lie."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import subprocess
import sysconfig
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.native import Unavailable, find_compiler
from benchmarks.peers.peer import FIRST, Peer, Triple


@functools.cache
def library() -> str:
    directory = tempfile.TemporaryDirectory(prefix="memledger-bench-")
    _kept.append(directory)
    made = f"{directory.name}/peer_seqlock.so"
    source = Path(__file__).with_name("seqlock.c")
    command = [find_compiler(), "-std=c11", "-O2", "-shared", "-fPIC", str(source), "-o", made]
    command.append(f"-I{sysconfig.get_paths()['include']}")
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise Unavailable(f"seqlock.c does not compile: {done.stderr[:400]}")
    return made


_kept: list[tempfile.TemporaryDirectory[str]] = []


class Seqlock(Peer):
    name = "seqlock table in C"

    @classmethod
    def unavailable(cls) -> str | None:
        try:
            library()
        except Unavailable as reason:
            return str(reason)
        return None

    def load(self, me: int) -> Any:
        spec = importlib.util.spec_from_file_location("peer_seqlock", self.library)
        assert spec is not None
        assert spec.loader is not None
        module: Any = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        module.open(f"{self.directory}/table", self.members, me)
        return module

    @contextlib.contextmanager
    def prepared(self, members: int) -> Iterator[list[int]]:
        self.members, self.library = members, library()
        for index in range(members):
            self.load(index).publish(*FIRST)
        yield []

    publish_call = "table.publish(h, r, p)"
    read_call = "table.read()"

    def names(self) -> dict[str, Any]:
        return {"table": self.table}

    def attach(self, me: int) -> None:
        self.table = self.load(me)

    def publish(self, held: int, releasable: int, pinned: int) -> None:
        self.table.publish(held, releasable, pinned)

    def read(self) -> Triple:
        found: Triple = self.table.read()
        return found

    def enter(self, triple: Triple) -> None:
        self.table.enter(*triple)
