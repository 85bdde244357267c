"""G1, G2, G3, G4: reading never waits, and what is read belongs together."""

from __future__ import annotations

import inspect
import signal
import time
from pathlib import Path
from typing import Any

import pytest

import memledger
from helpers.member import plain_device
from helpers.members import Member
from helpers.raw import Raw
from helpers.system import linux_only
from helpers.units import GiB, count, seeded
from helpers.waiting import wait_until

TOTAL = 24 * GiB

FLAT_OUT = """
def flat_out(flag):
    i = 0
    while os.path.exists(flag):
        for _ in range(500):
            i += 1
            device.publish(i, releasable=i, pinned=i)
            claim = device.try_claim(i % 4096 + 1)
            if claim is not None:
                claim.cancel()
    device.publish(0)
    return i
"""


def start_writing(member: Member, flag: Any) -> None:
    member.run(FLAT_OUT)
    member.send_run(f"flat_out({str(flag)!r})")


def test_g1_reads_go_on_with_writers_stopped_anywhere(
    spawn: Any, segment: Any, ledger: Any
) -> None:
    """Writers that are stopped at random instants inside publish and claim; every read method must
    return. Fails by the watchdog."""
    rng = seeded("g1")
    flag = segment.with_name("busy")
    flag.touch()
    writers = [spawn(f"w{i}", total=TOTAL) for i in range(2)]
    for writer in writers:
        start_writing(writer, flag)
    device = plain_device(ledger, "test:card", TOTAL)
    own = 0
    for i in range(count(150, 5000)):
        for writer in writers:
            writer.stop()
        for _ in range(5):
            figures = device.figures()
            assert figures.held == figures.pinned + own  # pinned of own is 0
            assert device.free() is not None
            assert device.available() is not None
            assert device.budget() is not None
            assert device.claimed_by_others() >= 0
            snapshot = device.snapshot()
            # Stopped in the middle of a publish or not: the last complete copy.
            for row in snapshot.rows:
                if row.slot != ledger._info()["slot"]:
                    assert row.held == row.releasable == row.pinned
            if i % 7 == 0:
                own = rng.randrange(GiB)
                device.publish(own)
            if i % 11 == 0:
                claim = device.try_claim(GiB)
                assert claim is not None, "a claim that fits is granted, whoever is stopped where"
                claim.cancel()
        assert len(ledger.members()) == 3
        for writer in writers:
            writer.resume()
        # Let them run to some other instruction; how far does not matter.
        end = time.monotonic() + rng.random() * 0.002
        while time.monotonic() < end:
            pass
    flag.unlink()
    for writer in writers:
        assert writer.receive(60) > 0


def test_g1_reads_go_on_after_writers_were_killed_anywhere(
    spawn: Any, segment: Any, ledger: Any
) -> None:
    device = plain_device(ledger, "test:card", TOTAL)
    flag = segment.with_name("busy")
    flag.touch()
    rng = seeded("g1 kill")
    for _ in range(count(15, 500)):
        writer = spawn("w", total=TOTAL)
        start_writing(writer, flag)
        end = time.monotonic() + rng.random() * 0.01
        while time.monotonic() < end:
            device.figures()
        writer.kill()
        for row in device.snapshot().rows:
            assert row.held == row.releasable == row.pinned
        ledger.sweep()
        figures = device.figures()
        assert (figures.held, figures.claimed, figures.free) == (0, 0, TOTAL)
        assert ledger._check() == []


def test_g2_snapshot_is_a_cut_with_writers_flat_out(spawn: Any, segment: Any) -> None:
    """Two accounts' worth of bytes go from one to the other inside one process; a mixed record
    would show them twice or not at all."""
    flag = segment.with_name("busy")
    flag.touch()
    mover: Member = spawn("mover", total=TOTAL)
    reader: Member = spawn("reader", total=TOTAL)
    mover.run("device.publish(1 << 30, releasable=0, pinned=1 << 30)")
    mover.send_run(
        f"""
moves = 0
while os.path.exists({str(flag)!r}):
    for i in range(1, 500):
        n = i << 20
        device.publish(n, releasable=n // 2, pinned=n)
        moves += 1
device.publish(1 << 30, pinned=1 << 30)
moves
"""
    )
    mixed, coherent, incoherent = reader.run(
        f"""
mixed, told = 0, [0, 0]
seen = set()
while len(seen) < 100 or sum(told) < {count(20_000, 1_000_000)}:
    s = device.snapshot()
    told[s.coherent] += 1
    for r in s.rows:
        if r.held or r.pinned:
            seen.add(r.held)
            mixed += not (r.held == r.pinned and r.releasable in (r.held // 2, 0))
    f = device.figures()
    mixed += f.held != f.pinned
[mixed, told[1], told[0]]
""",
        watchdog_s=600,
    )
    flag.unlink()
    assert mover.receive(60) > 0
    assert mixed == 0
    assert coherent > 0, f"no cut was coherent in {incoherent} tries"


def test_g2_reader_that_is_overtaken_in_the_middle_mixes_nothing(spawn: Any, segment: Path) -> None:
    """A reader is stopped at random instants until the writer has come round to the copy that it
    was reading."""
    flag = segment.with_name("busy")
    flag.touch()
    writer: Member = spawn("writer", total=TOTAL)
    reader: Member = spawn("reader", total=TOTAL)
    start_writing(writer, flag)
    reader.send_run(
        f"""
mixed = reads = 0
while os.path.exists({str(flag)!r}):
    for _ in range(500):
        f = device.figures()
        mixed += f.held != f.pinned or f.releasable not in (f.held, 0)
        reads += 1
[mixed, reads]
"""
    )
    with Raw(segment) as raw:
        version = raw.record_word(0, 0)
        wait_until(lambda: raw[version] > 100, what="the writer publishes")
        for _ in range(count(400, 50_000)):
            reader.stop()
            before = raw[version]
            while raw[version] < before + 16:
                pass  # the test's watchdog ends this
            reader.resume()
    flag.unlink()
    mixed, reads = reader.receive(60)
    writer.receive(60)
    assert mixed == 0
    assert reads > 1000


def test_g2_bytes_moved_by_claims_are_never_counted_twice(spawn: Any, segment: Any) -> None:
    """claim n, settle held n, publish 0, again and again: held + claimed is 0 or n, never 2n, in
    every coherent cut and in every figure."""
    flag = segment.with_name("busy")
    flag.touch()
    n = 64 << 20
    mover: Member = spawn("mover", total=TOTAL)
    reader: Member = spawn("reader", total=TOTAL)
    mover.publish(0)
    mover.send_run(
        f"""
while os.path.exists({str(flag)!r}):
    for _ in range(300):
        c = device.try_claim({n})
        c.settle({n})
        device.publish(0)
"""
    )
    wrong, states = reader.run(
        f"""
wrong, states, reads = 0, set(), 0
while len(states) < 3 or reads < {count(30_000, 1_000_000)}:
    reads += 1
    s = device.snapshot()
    for r in s.rows:
        if r.slot == 0:
            states.add((r.held, r.claimed))
            wrong += r.held + r.claimed not in (0, {n})
    f = device.figures()
    wrong += f.held + f.claimed not in (0, {n})
    wrong += not {TOTAL - n} <= f.free <= {TOTAL}
[wrong, len(states)]
""",
        watchdog_s=600,
    )
    flag.unlink()
    mover.receive(60)
    assert wrong == 0
    assert states == 3


def test_g3_publishing_takes_the_joined_handle_and_nothing_else() -> None:
    """No method that publishes takes a pid, a slot, a token or another member."""
    allowed = {
        "publish": {"held", "releasable", "pinned"},
        "add": {"held", "releasable", "pinned"},
        "try_claim": {"nbytes", "replacing", "ttl"},
    }
    for name, parameters in allowed.items():
        for kind in (memledger.Device, memledger.Account):
            text = inspect.getdoc(getattr(kind, name)) or ""
            inside = text[text.index("(") + 1 : text.index(")")]
            found = {p.split("=")[0].strip() for p in inside.split(",")} - {"*"}
            assert found == parameters
    for joined in (memledger.Device, memledger.Account, memledger.Ledger):
        public = [n for n in dir(joined) if not n.startswith("_")]
        assert not [n for n in public if "slot" in n or "pid" in n]


def test_g3_another_processes_handle_cannot_be_passed_on(spawn: Any) -> None:
    import pickle

    ledger = memledger.join(label="x")
    device = plain_device(ledger, "test:card", TOTAL)
    claim = device.claim(1)
    for thing in (ledger, device, device.account("a"), claim):
        with pytest.raises(Exception, match=r"pickle|weakref|serial"):
            pickle.dumps(thing)
    claim.cancel()


def test_g3_inherited_handle_publishes_to_the_childs_own_slot(spawn: Any) -> None:
    parent: Member = spawn("parent", total=TOTAL)
    parent.publish(4 * GiB)
    rows = parent.run(
        f"""
child = os.fork()
if child == 0:
    device.publish({GiB})
    rows = sorted(r.held for r in device.snapshot().rows if r.held)
    os._exit(0 if rows == [{GiB}, {4 * GiB}] else 1)
os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
"""
    )
    assert rows == 0
    assert parent.figures()["own_held"] == 4 * GiB


@linux_only
@pytest.mark.parametrize("stopped_in", ["join", "sweep", "claim"])
def test_g4_a_member_stopped_anywhere_hinders_nobody(
    spawn: Any, segment: Any, stopped_in: str
) -> None:
    """Stopped at random instants of a loop; meanwhile another joins, opens a new pool, publishes,
    claims, sweeps and leaves. The pool table may make it wait to a deadline; nothing may hang."""
    rng = seeded("g4")
    body = {
        "join": "l = memledger.join(label='loop'); plain_device(l, f'test:{i % 5}', 1 << 34)"
        ".publish(1); l.leave()",
        "sweep": "ledger.sweep()",
        "claim": "c = device.try_claim(1 << 20); c and c.cancel()",
    }[stopped_in]
    loop: Member = spawn("loop", total=TOTAL, join=stopped_in != "join")
    loop.run("import memledger")
    loop.send_run(f"i = 0\nwhile True:\n    i += 1\n    {body}")
    for i in range(count(25, 500)):
        loop.stop()
        ledger = memledger.join(label="other")
        assert not ledger.degraded
        device = plain_device(ledger, "test:card", TOTAL)
        device.publish(GiB)
        claim = device.try_claim(TOTAL - 2 * GiB)
        assert claim is not None, "a claim that fits"
        claim.cancel()
        assert ledger.sweep() == 0
        plain_device(ledger, f"test:new{i % 3}", TOTAL).publish(1)
        ledger.leave()
        loop.resume()
        end = time.monotonic() + rng.random() * 0.003
        while time.monotonic() < end:
            pass
    loop.signal(signal.SIGKILL)
