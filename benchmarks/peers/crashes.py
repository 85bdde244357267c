"""What others see when a process is killed in the middle of a publish: tried, not claimed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from typing import Any

from benchmarks.peers import memledgers
from benchmarks.peers.latency import SPAWN, START_S, process
from benchmarks.peers.peer import FIRST, Peer, Triple

WATCHDOG_S = 15.0
"""Some clients try again for seconds before they give up."""
GONE_WITHIN_S = 2.0
LATER: Triple = (8192, 2048, 1024)


def die_inside(peer: Peer, answer: Any) -> None:
    peer.attach(1)
    peer.publish(*FIRST)
    answer.send("published")
    answer.recv()
    peer.enter(LATER)
    answer.send("inside")
    time.sleep(600)


def survive(peer: Peer, channel: Any) -> None:
    """Does what it is told: one answer, or none when it hangs."""
    peer.attach(0)
    peer.publish(*FIRST)
    channel.send("ready")
    while True:
        order = channel.recv()
        try:
            if order == "publish":
                peer.publish(*FIRST)
            channel.send(("ok", peer.sums() if order == "read" else None))
        except Exception as error:
            channel.send(("fails", type(error).__name__))


def told(channel: Any, order: str) -> tuple[str, Any]:
    """("ok", value), ("fails", error) or ("hangs", None)."""
    try:
        channel.send(order)
        if not channel.poll(WATCHDOG_S):
            return "hangs", None
        found: tuple[str, Any] = channel.recv()
        return found
    except (EOFError, OSError):
        return "fails", "ended"


def plus(a: Triple, b: Triple) -> Triple:
    return a[0] + b[0], a[1] + b[1], a[2] + b[2]


POSSIBLE = {FIRST: "gone", plus(FIRST, FIRST): "old", plus(FIRST, LATER): "new"}
"""What the sums may be: without the dead one, as it was, as it was to be."""


def after_death(channel: Any) -> dict[str, str]:
    """What a survivor that hangs says about one call says it about the next one, too."""
    status, value = told(channel, "read")
    read = POSSIBLE.get(value, "torn") if status == "ok" else status
    if status == "fails":
        read = f"fails: {value}"
    if status == "hangs":
        return {"read": "hangs", "publish": "not tried", "bytes": ""}
    status, error = told(channel, "publish")
    publish = f"fails: {error}" if status == "fails" else status
    if status == "hangs" or read.startswith("fails"):
        return {"read": read, "publish": publish, "bytes": ""}
    return {"read": read, "publish": publish, "bytes": wait_until_gone(channel)}


def wait_until_gone(channel: Any) -> str:
    begin = time.monotonic()
    while time.monotonic() - begin < GONE_WITHIN_S:
        status, value = told(channel, "read")
        if status == "ok" and POSSIBLE.get(value) == "gone":
            return f"gone after {time.monotonic() - begin:.1f} s"
        time.sleep(0.02)
    return "stay"


def verdict(seen: dict[str, str]) -> str:
    """One word for the table."""
    if "hangs" in seen.values():
        return "hangs"
    if seen["read"] == "torn" or seen["read"].startswith("fails: JSON"):
        return "torn"
    if "fails" in seen["read"] or "fails" in seen["publish"]:
        return "fails"
    return "recovers"


def killed_inside(kind: type[Peer], quick: bool) -> list[dict[str, str]]:
    """One for each way to die; some of them where it is to be quick."""
    if not kind.dies_inside:
        return []
    if issubclass(kind, memledgers.Figures):
        return [inside_memledger(kind, point) for point in memledgers.POINTS[:: 4 if quick else 1]]
    found = [inside(kind, "client", "half-way through a publish")]
    if has_server(kind):
        found.append(inside(kind, "server", "the server"))
    return found


def has_server(kind: type[Peer]) -> bool:
    with tempfile.TemporaryDirectory() as where, kind(where).prepared(1) as servers:
        return bool(servers)


def inside(kind: type[Peer], who: str, what: str) -> dict[str, str]:
    with ExitStack() as stack:
        where = stack.enter_context(tempfile.TemporaryDirectory(prefix="memledger-bench-"))
        peer = kind(where)
        servers = stack.enter_context(peer.prepared(1 if kind.by_process else 2))
        channel = survivor(stack, peer)
        ours, theirs = SPAWN.Pipe()
        victim = stack.enter_context(process(die_inside, peer, theirs))
        expect(ours, "published")
        expect_sums(channel)
        if who == "client":
            ours.send("go")
            expect(ours, "inside")
            os.kill(victim.pid, signal.SIGKILL)
            victim.join()
        else:
            for pid in servers:
                os.kill(pid, signal.SIGKILL)
        seen = after_death(channel)
    return {"peer": kind.name, "killed": what, "seen": verdict(seen), **seen}


def inside_memledger(kind: type[memledgers.Figures], point: str) -> dict[str, str]:
    """The victim is C, built so that it can be ended before any store."""
    with ExitStack() as stack:
        where = stack.enter_context(
            tempfile.TemporaryDirectory(
                prefix="memledger-bench-", dir="/dev/shm" if sys.platform == "linux" else None
            )
        )
        peer = kind(where)
        stack.enter_context(peer.prepared(1))
        channel = survivor(stack, peer)
        command = [str(memledgers.victim_program()), peer.path, point]
        victim = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        stack.callback(victim.kill)
        assert victim.stdout is not None
        assert victim.stdout.readline() == b"ready\n"
        expect_sums(channel)
        victim.communicate(b"go\n", timeout=START_S)
        assert victim.returncode == -signal.SIGKILL, f"{point}: ended with {victim.returncode}"
        seen = after_death(channel)
    return {"peer": kind.name, "killed": f"before {point}", "seen": verdict(seen), **seen}


def survivor(stack: ExitStack, peer: Peer) -> Any:
    ours, theirs = SPAWN.Pipe()
    stack.enter_context(process(survive, peer, theirs))
    expect(ours, "ready")
    return ours


def expect(channel: Any, word: str) -> None:
    if not channel.poll(START_S) or channel.recv() != word:
        raise RuntimeError(f"a helper process did not say {word!r}")


def expect_sums(channel: Any) -> None:
    """Before anybody dies, what the survivor reads is both triples: else the rest means nothing."""
    status, value = told(channel, "read")
    if status != "ok" or POSSIBLE.get(value) != "old":
        raise RuntimeError(f"before the kill the survivor reads {status} {value}")
