"""What publish and read cost, each peer in a process of its own."""

from __future__ import annotations

import gc
import multiprocessing
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack, contextmanager
from itertools import cycle, islice
from typing import Any

from benchmarks.measure import spread
from benchmarks.members import run_on
from benchmarks.peers.peer import Peer

SPAWN = multiprocessing.get_context("spawn")
START_S = 120.0
TRIPLES = tuple((4096 * k, 1024 * k, 512 * k) for k in range(1, 9))
WRITERS_AT_MOST = 2


def write(peer: Peer, me: int, ready: Any, stop: Any) -> None:
    """Publishes flat out, on the second CPU."""
    run_on(1)
    peer.attach(me)
    ready.release()
    while not stop.is_set():
        for triple in TRIPLES * 5:
            peer.publish(*triple)


ONE_BY_ONE = """
def run(clock, triples, end, reads, writes{names}):
    for h, r, p in triples:
        begin = clock()
        {publish}
        writes.append(clock() - begin)
        begin = clock()
        {read}
        after = clock()
        reads.append(after - begin)
        if after > end:
            return
"""
TOGETHER = """
def run(triples, turns{names}):
    for _ in turns:
        for h, r, p in triples:
            {publish}
            {read}
"""


def compiled(template: str, peer: Peer, publish: str, read: str) -> Callable[..., None]:
    """With the two calls as the peer's users write them."""
    names = peer.names()
    parameters = "".join(f", {name}={name}" for name in names)
    scope: dict[str, Any] = dict(names)
    exec(template.format(names=parameters, publish=publish, read=read), scope)
    run: Callable[..., None] = scope["run"]
    return run


def calls(peer: Peer) -> tuple[str, str]:
    """(publish, read), where publish is nothing for a peer that is only read."""
    return "pass" if peer.reads_only or peer.steady else peer.publish_call, peer.read_call


def singles(peer: Peer, count: int, seconds: float) -> dict[str, list[int]]:
    """Nanoseconds of each call, the clock included: publish and read in turn, so that every read
    finds something new; of a peer that is only read, and of a steady one, only reads."""
    clock = time.perf_counter_ns
    publish, read = calls(peer)
    reads: list[int] = []
    writes: list[int] = []
    triples = islice(cycle(TRIPLES), count)
    run = compiled(ONE_BY_ONE, peer, publish, read)
    run(clock, triples, clock() + int(seconds * 1e9), reads, writes)
    return {"read": reads, "publish": [] if publish == "pass" else writes}


def loops(peer: Peer, seconds: float) -> dict[str, float]:
    """The same without a clock round each call, in ns: the least of the rounds. A read is what
    publish and read take together, less publish alone; both less the bare loop."""
    publish, read = calls(peer)
    bare = least(compiled(TOGETHER, peer, "pass", "pass"), seconds / 10)
    alone = least(compiled(TOGETHER, peer, publish, "pass"), seconds) if publish != "pass" else bare
    both = least(compiled(TOGETHER, peer, publish, read), seconds)
    found = {"read": max(0.0, both - alone)}
    return found if publish == "pass" else {**found, "publish": max(0.0, alone - bare)}


def least(run: Callable[..., None], seconds: float) -> float:
    """ns per triple; of at least three rounds of about 2 ms."""
    clock = time.perf_counter
    begin = clock()
    run(TRIPLES, range(1))
    turns = max(1, min(500, int(0.002 / max(clock() - begin, 1e-9))))
    end, best = clock() + seconds, float("inf")
    for number in range(1000):
        begin = clock()
        run(TRIPLES, range(turns))
        now = clock()
        best = min(best, now - begin)
        if now > end and number >= 2:
            break
    return best / turns / len(TRIPLES) * 1e9


def measure(peer: Peer, count: int, seconds: float, beside: bool, answer: Any) -> None:
    if beside:
        run_on(0)
    try:
        answer.send(measured(peer, count, seconds, beside))
    except Exception as error:  # of any library: it is what its user gets
        answer.send({"failed": f"{type(error).__name__}: {error}"})


def measured(peer: Peer, count: int, seconds: float, beside: bool) -> dict[str, Any]:
    peer.attach(0)
    gc.disable()
    found: dict[str, Any] = {
        kind: spread(samples)._asdict()
        for kind, samples in singles(peer, count, seconds).items()
        if samples
    }
    if not beside:
        for kind, ns in loops(peer, seconds / 3).items():
            found.setdefault(kind, {})["loop"] = ns
    return found


@contextmanager
def process(target: Callable[..., None], *arguments: object) -> Any:
    """Ended whatever happens."""
    one = SPAWN.Process(target=target, args=arguments, daemon=True)
    one.start()
    try:
        yield one
    finally:
        one.kill()
        one.join()


def latency(
    kind: type[Peer], members: int, writers: int, count: int, seconds: float
) -> dict[str, Any]:
    """{"read": {p50, p99, p999, loop, ...}, "publish": ...}; "failed" where it did not work."""
    directory = "/dev/shm" if sys.platform == "linux" else None
    with ExitStack() as stack:
        where = stack.enter_context(
            tempfile.TemporaryDirectory(prefix="memledger-bench-", dir=directory)
        )
        peer = kind(where)
        stack.enter_context(peer.prepared(members))
        ready, stop = SPAWN.Semaphore(0), SPAWN.Event()
        for index in range(writers):
            stack.enter_context(process(write, peer, members - 1 - index, ready, stop))
        for _ in range(writers):
            if not ready.acquire(timeout=START_S):
                return {"failed": "a writer did not start"}
        ours, theirs = SPAWN.Pipe()
        stack.enter_context(process(measure, peer, count, seconds, bool(writers), theirs))
        theirs.close()
        try:
            found: dict[str, Any] = ours.recv() if ours.poll(START_S) else {"failed": "hangs"}
        except EOFError:
            found = {"failed": "the process that measures ended"}
        stop.set()
        time.sleep(0.05)
        return found
