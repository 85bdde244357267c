"""Members that ask each other at random, with holders that free, refuse, lie, raise, hang, die."""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import memledger
from helpers.member import plain_device
from helpers.members import Member, MemberGone
from helpers.raw import Raw
from helpers.units import GiB, MiB, seeded

Spawn = Callable[..., Member]
Until = Callable[..., Any]

MEMBERS = 8
TOTAL = 64 * GiB
BURST = 25
"""Steps of one member between two reports."""

# What runs in each member. `given` counts bytes before they are published as gone, in a file that
# outlives the process, so whatever anybody may be credited with is in it.
SCRIPT = """
import mmap, random, struct, threading, time
rng = random.Random({seed})
slot = me.info()["slot"]
with open({books!r}, "r+b") as file:
    books = mmap.mmap(file.fileno(), 0)
lock = threading.Lock()
def shrink(nbytes):
    with lock:
        held, releasable, _ = device.amounts
        nbytes = min(nbytes, releasable)
        given = struct.unpack_from("Q", books, 8 * slot)[0]
        struct.pack_into("Q", books, 8 * slot, given + nbytes)
        device.publish(held - nbytes, releasable=releasable - nbytes)
    return nbytes
def grow():
    with lock:
        size = rng.randrange(1, 4096) << 20
        if size > device.amounts[0]:
            device.publish(size, releasable=size)
moods = ["frees", "frees", "half", "refuses", "lies", "raises", "exits", "hangs", "frees and lies",
         "asks", "serves"]
mood, deadly = None, {deadly}
class Holder:
    def release_memory(self, where, size):
        now = mood or rng.choice(moods)
        if deadly and not mood and rng.random() < 0.02:
            shrink(size // 3)
            os._exit(9)
        if now == "frees": return shrink(size)
        if now == "half": return shrink(size // 2)
        if now == "lies": return size
        if now == "raises": raise RuntimeError("no")
        if now == "exits" and threading.current_thread() is not threading.main_thread():
            raise SystemExit(2)
        if now == "hangs": threading.Event().wait(rng.random() * 0.4); return shrink(size)
        if now == "frees and lies": shrink(size // 4); return size * 2
        if now == "asks": device.ask(1 << 20, 0.02)
        if now == "serves": ledger.serve(0)
        return 0
ledger._devices[device.key] = device
ledger.holders.register(Holder(), thread_safe={thread_safe}, quick={quick})
siblings = ledger.as_holder()
turns = [0]
def spin():
    while True: turns[0] += 1
if {spins}: threading.Thread(target=spin, daemon=True).start()
def burst():
    credited, states, stood = {{}}, [], 0
    for _ in range({burst}):
        step = rng.random()
        if step < 0.5:
            before = turns[0]
            result = device.ask(rng.randrange(1, 2048) << 20, rng.random() * 0.2)
            stood += turns[0] == before
            assert result.credited == sum(a.credited for a in result.members)
            for answer in result.members:
                states.append(answer.state)
                credited[answer.slot] = credited.get(answer.slot, 0) + answer.credited
        elif step < 0.6:
            siblings.release_memory(device, rng.randrange(1, 512) << 20)
        elif step < 0.7:
            ledger.pending(), ledger.free_epoch(), ledger.request_free()
        else:
            ledger.serve(rng.random() * 0.05)
        grow()
    return [credited, states, turns[0]]
"""


class Crew:
    def __init__(self, spawn: Spawn, books: Path, rng: random.Random) -> None:
        self.spawn, self.books, self.rng = spawn, books, rng
        self.started = 0
        self.members = [self.new() for _ in range(MEMBERS)]
        self.credited: Counter[int] = Counter()
        self.states: Counter[str] = Counter()
        self.turns: dict[int, list[int]] = {}
        self.deaths = 0

    def new(self) -> Member:
        self.started += 1
        member = self.spawn(f"m{self.started}", total=TOTAL)
        member.run(
            SCRIPT.format(
                seed=self.rng.getrandbits(32), books=str(self.books), burst=BURST,
                deadly=self.started % 2 == 0, thread_safe=self.started % 3 != 0,
                quick=self.started % 4 == 1, spins=self.started <= 2,
            )
        )  # fmt: skip
        return member

    def burst(self) -> None:
        for member in self.members:
            # It may have died in a holder meanwhile: receiving tells.
            with contextlib.suppress(BrokenPipeError):
                member.send_run("burst()")
        # One is killed from outside too, wherever it is, and one is stopped for a while.
        killed = self.rng.choice(self.members) if self.rng.random() < 0.3 else None
        if killed is not None:
            killed.process.kill()
        stopped = self.rng.choice([m for m in self.members if m is not killed])
        try:
            stopped.stop()
        except (ChildProcessError, ProcessLookupError):
            stopped = None  # it has just died of its own
        for index, member in enumerate(self.members):
            if stopped is not None and (member is stopped or index == MEMBERS - 1):
                stopped.resume()
            try:
                credited, states, turns = member.receive(60)
            except MemberGone:
                assert member.process.poll() in (9, -9), f"hung or failed: {member.stderr()!r}"
                self.deaths += 1
                self.members[index] = self.new()
                continue
            for slot, nbytes in credited.items():
                self.credited[int(slot)] += nbytes
            self.states.update(states)
            self.turns.setdefault(member.pid, []).append(turns)

    def settle(self) -> None:
        """From now on everybody only gives."""
        for index in range(MEMBERS):
            for _ in range(5):
                try:
                    self.members[index].run(
                        f"mood = 'frees'\nledger.serve(0)\ndevice.publish({MiB}, releasable={MiB})"
                    )
                    break
                except (BrokenPipeError, MemberGone):
                    self.members[index] = self.new()


def under_fire(
    ledger: memledger.Ledger, spawn: Spawn, segment: Path, wait_until: Until, seconds: float
) -> None:
    rng = seeded("asks under fire")
    books = segment.parent / "books"
    books.write_bytes(bytes(8 * 256))
    crew = Crew(spawn, books, rng)
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        crew.burst()
    print(f"{dict(crew.states)} deaths={crew.deaths}")
    # Credit: by victim, never more than it has published as gone.
    with open(books, "rb") as file:
        given = memoryview(file.read()).cast("Q")
    for slot, nbytes in crew.credited.items():
        assert nbytes <= given[slot], f"slot {slot} is credited with more than it gave"
    assert crew.states["done"] + crew.states["partial"] > 0, "nothing was ever given"
    # A thread that never lets go of the GIL by itself went on all the time.
    for turns in crew.turns.values():
        if turns[0]:
            assert all(a < b for a, b in itertools.pairwise(turns))
    # Nothing is left over: everybody can be asked, and the words are idle in the end.
    device = plain_device(ledger, "test:card", TOTAL)
    crew.settle()
    for member in crew.members:
        member.send_run("while not os.path.exists('/proc/self/nothing'):\n    ledger.serve(0.2)")
    slots = {m.slot for m in ledger.members() if m.state != "dead"} - {ledger._info()["slot"]}
    answered: set[int] = set()

    def everybody() -> bool:
        ledger.sweep()
        result = device.ask(MEMBERS * MiB, 5)
        answered.update(a.slot for a in result.members if a.state in ("done", "partial"))
        return answered >= slots

    wait_until(everybody, what="every member answers an ask")
    with Raw(segment) as raw:
        asks = [raw.record_word(0, slot) + 10 for slot in slots]
        wait_until(lambda: all(raw[at] & 3 == 0 for at in asks), what="no word is left taken")
    for member in crew.members:
        member.kill()
    ledger.sweep()
    assert ledger._check() == []
    assert os.path.exists(segment)


@pytest.mark.watchdog(150)
def test_asks_under_fire(
    ledger: memledger.Ledger, spawn: Spawn, segment: Path, wait_until: Until
) -> None:
    """No deadlock, no credit beyond what victims published as gone, and every ask ends."""
    under_fire(ledger, spawn, segment, wait_until, 10)


@pytest.mark.long
@pytest.mark.watchdog(1700)
def test_asks_under_fire_for_long(
    ledger: memledger.Ledger, spawn: Spawn, segment: Path, wait_until: Until
) -> None:
    under_fire(ledger, spawn, segment, wait_until, 600)
