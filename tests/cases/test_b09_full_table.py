"""B09: the table of slots is full."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import memledger
from helpers.members import Member
from helpers.raw import OVERFLOW_COUNT, Raw
from helpers.units import GiB
from helpers.waiting import wait_until

CREATE = (
    "import memledger.ledger as m\n"
    "ledger = m.Ledger(label='{label}', role='other', path=None, slots=4)"
)


def small(spawn: Any, label: str) -> Member:
    """A member of a segment with four slots (made by whoever comes first)."""
    member: Member = spawn(join=False)
    member.run(CREATE.format(label=label))
    member.run("me.ledger = ledger")
    member.open_plain("test:card", 24 * GiB)
    return member


def test_b09_fifth_of_four_is_degraded_and_still_reads(spawn: Any, segment: Path) -> None:
    four = [small(spawn, str(i)) for i in range(4)]
    four[0].publish(6 * GiB)
    fifth = small(spawn, "fifth")
    assert fifth.run("ledger.degraded")
    assert "full" in fifth.run("ledger.degraded_reason")
    assert fifth.run("ledger.scope") == "path"
    assert fifth.figures()["held"] == 6 * GiB
    assert fifth.free() == 18 * GiB
    assert len(fifth.call("members")) == 4
    with Raw(segment) as raw:
        assert raw[OVERFLOW_COUNT] == 1
    # Nobody can see what it promises itself, so it says that nothing was checked.
    assert fifth.run("c = device.claim(2 << 30); [c.checked, c.open]") == [False, 2 * GiB]
    fifth.run("c.settle(1 << 30)")
    assert fifth.figures()["own_held"] == GiB


def test_b09_slot_that_falls_free_is_taken_at_the_next_retry(spawn: Any) -> None:
    four = [small(spawn, str(i)) for i in range(4)]
    fifth = small(spawn, "fifth")
    fifth.publish(2 * GiB)
    assert four[0].figures()["held"] == 0
    four[3].kill()
    wait_until(lambda: not fifth.run("ledger.degraded"), 60, "the fifth registers")
    assert four[0].figures()["held"] == 2 * GiB
    assert sorted(m["label"] for m in four[0].call("members")) == ["0", "1", "2", "fifth"]


def test_b09_four_dead_make_room_at_once(spawn: Any) -> None:
    four = [small(spawn, str(i)) for i in range(4)]
    for member in four:
        member.publish(GiB)
        member.kill()
    fifth = small(spawn, "fifth")
    assert not fifth.run("ledger.degraded")
    fifth.call("sweep")
    assert fifth.figures()["held"] == 0
    assert [m["label"] for m in fifth.call("members")] == ["fifth"]


def test_b09_full_default_table_never_raises_into_the_host(spawn: Any) -> None:
    starter: Member = spawn(join=False)
    outcome = starter.run(
        """
import signal, memledger
told, tell = os.pipe()
pids = []
for i in range(258):
    pid = os.fork()
    if pid == 0:
        try:
            ledger = memledger.join(label=str(i))
            device = plain_device(ledger, "test:card", 24 << 30)
            device.publish(1 << 20)
            ok = device.free() is not None
            os.write(tell, b"u" if ledger.degraded else b"." if ok else b"?")
        except BaseException:
            os.write(tell, b"!")
        while True:
            signal.pause()
    pids.append(pid)
got = b""
while len(got) < len(pids):
    got += os.read(told, 4096)
for pid in pids:
    os.kill(pid, signal.SIGKILL)
for pid in pids:
    os.waitpid(pid, 0)
got.decode()
""",
        watchdog_s=100,
    )
    assert sorted(outcome) == ["."] * 256 + ["u"] * 2
    ledger = memledger.join(label="afterwards")
    assert not ledger.degraded
    ledger.sweep()
    assert len(ledger.members()) == 1
