"""B19, B21: threads of one process, and fields that belong together."""

from __future__ import annotations

import threading
from typing import Any

import pytest

import memledger
from helpers.member import plain_device
from helpers.members import Member
from helpers.units import GiB, count
from memledger import _native

TWO_WRITERS = """
import threading
overlap = 0
inside = 0
def write(path, step):
    global overlap, inside
    while os.path.exists(path):
        for i in range(2000):
            inside += 1
            if inside > 1:
                overlap += 1
            n = (i * step) % (1 << 30)
            device.publish(n, releasable=n, pinned=n)
            inside -= 1
def both(path):
    sys.setswitchinterval(1e-5)
    threads = [threading.Thread(target=write, args=(path, step)) for step in (1, 7)]
    for t in threads: t.start()
    for t in threads: t.join()
"""

READER = """
def read(rounds, least):
    wrong = seen = reads = 0
    last = None
    while reads < rounds or seen < least:
        reads += 1
        row = [r for r in device.snapshot().rows if r.slot == 0]
        if row:
            wrong += not (row[0].held == row[0].releasable == row[0].pinned)
            seen += row[0].held != last
            last = row[0].held
        f = device.figures()
        wrong += not (f.held == f.pinned and f.releasable in (f.held, 0))
    return [wrong, seen]
"""


def test_b19_two_threads_publish_and_every_reader_sees_whole_records(
    spawn: Any, segment: Any
) -> None:
    """`overlap` counts publishes that began while the other thread was inside one, as far as
    Python can see it; the readers go on until they have seen publishes in flight."""
    writer: Member = spawn("writer", total=24 * GiB)
    readers = [spawn(f"reader{i}", total=24 * GiB) for i in range(count(2, 4))]
    busy = segment.with_name("busy")
    busy.touch()
    writer.publish(0)
    writer.run(TWO_WRITERS)
    writer.send_run(f"both({str(busy)!r})")
    for reader in readers:
        reader.run(READER)
        reader.send_run(f"read({count(10_000, 1_000_000)}, 1000)")
    for reader in readers:
        wrong, seen = reader.receive(900)
        assert wrong == 0
        assert seen >= 1000
    busy.unlink()
    writer.receive(60)
    assert writer.run("overlap") > 0, "the two threads never overlapped: nothing was tested"
    assert writer.run("ledger._check()") == []


def test_b19_publish_from_a_signal_handler_and_housekeeping_at_once(spawn: Any) -> None:
    writer: Member = spawn("writer", total=24 * GiB)
    reader: Member = spawn("reader", total=24 * GiB)
    wrong = writer.run(
        f"""
import signal
calls = 0
def on_alarm(number, frame):
    global calls
    calls += 1
    device.publish(calls, releasable=calls, pinned=calls)
signal.signal(signal.SIGALRM, on_alarm)
signal.setitimer(signal.ITIMER_REAL, 0.0005, 0.0005)
wrong = i = 0
while calls < {count(200, 5000)}:
    i += 1
    device.publish(i, releasable=i, pinned=i)
    f = device.figures()
    wrong += not (f.held == f.pinned == f.releasable)
signal.setitimer(signal.ITIMER_REAL, 0)
wrong
""",
        watchdog_s=120,
    )
    assert wrong == 0
    assert reader.run("ledger._check()") == []


def test_b19_two_threads_claim_and_publish_and_nothing_leaks(ledger: memledger.Ledger) -> None:
    device = plain_device(ledger, "test:card", 24 * GiB)
    errors: list[BaseException] = []

    def work(account: Any) -> None:
        try:
            for i in range(count(3000, 100_000)):
                claim = account.try_claim(i % 4096 + 1)
                assert claim is not None
                if i % 3 == 0:
                    claim.cancel()
                else:
                    claim.settle(i % 1000)
        except BaseException as error:
            errors.append(error)

    threads = [
        threading.Thread(target=work, args=(device.account(name),)) for name in ("a", "b", "c")
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    figures = device.figures()
    assert figures.claimed == figures.own_claimed == 0
    assert figures.held == sum(device.account(name).amounts[0] for name in "abc")
    assert ledger._check() == []


def test_b19_claims_without_the_gil_meet_publishes_with_it(spawn: Any) -> None:
    """`claim` decides with the GIL given up, `publish` keeps it: only the handle's own lock stands
    between them. Without it a plain store wipes the other thread's claim, or a sum is lost."""
    member: Member = spawn("m", total=24 * GiB)
    viewer: Member = spawn("viewer", total=24 * GiB)
    wrong = member.run(
        f"""
import threading
sys.setswitchinterval(1e-6)
halt = threading.Event()
def publish(account):
    i = 0
    while not halt.is_set():
        i += 1
        account.publish(i % 1000, releasable=0, pinned=i % 1000)
threads = [threading.Thread(target=publish, args=(device.account(n),)) for n in "ab"]
for t in threads: t.start()
wrong = 0
for i in range({count(40_000, 1_000_000)}):
    claim = device.claim(1 << 20)
    wrong += device.figures().own_claimed != 1 << 20
    claim.cancel()
    wrong += device.figures().own_claimed != 0
halt.set()
for t in threads: t.join()
f = device.figures()
wrong += f.held != sum(device.account(n).amounts[0] for n in "ab")
[wrong, ledger._check()]
""",
        watchdog_s=300,
    )
    assert wrong == [0, []]
    assert viewer.figures()["claimed"] == 0


def test_b21_a_counter_never_reads_zero_or_goes_back(spawn: Any, segment: Any) -> None:
    writer: Member = spawn("writer", total=24 * GiB)
    reader: Member = spawn("reader", total=24 * GiB)
    busy = segment.with_name("busy")
    busy.touch()
    writer.publish(1)
    writer.send_run(
        f"i = 0\nwhile os.path.exists({str(busy)!r}):\n"
        "    for _ in range(5000):\n        i += 1\n        device.publish(i)"
    )
    back, seen = reader.run(
        f"""
last, back, seen, reads = 1, 0, 0, 0
while seen < 1000 or reads < {count(300_000, 100_000_000)}:
    now = device.figures().held
    back += now < last
    seen += now != last
    reads += 1
    last = now
[back, seen]
""",
        watchdog_s=1500,
    )
    busy.unlink()
    writer.receive()
    assert back == 0
    assert seen >= 1000


def test_b21_words_of_the_layout_are_aligned(ledger: memledger.Ledger, segment: Any) -> None:
    from helpers.raw import (
        POOL_OFFSET,
        POOL_STRIDE,
        READING_OFFSET,
        RECORD_OFFSET,
        RECORD_STRIDE,
        SLOT_OFFSET,
        SLOT_STRIDE,
        Raw,
    )

    with Raw(segment) as raw:
        for word in (SLOT_OFFSET, SLOT_STRIDE, POOL_OFFSET, POOL_STRIDE, RECORD_OFFSET,
                     RECORD_STRIDE, READING_OFFSET):  # fmt: skip
            assert raw[word] % 64 == 0
    assert _native.LAYOUT_MAJOR >= 1


@pytest.mark.skip(reason="aarch64 stress needs that CPU or qemu; it is run from the C suite")
def test_b21_aarch64_stress() -> None: ...
