"""B04, B11: joining, leaving and sweeping at once, killed at any moment."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

from helpers.members import Member
from helpers.raw import JOINING, Raw
from helpers.units import GiB, count, seeded
from helpers.waiting import wait_until

FORK_STORM = """
import random, signal, time

def storm(kind, rounds, seed):
    # Children join and leave, or sweep, in a loop, and are killed at random moments.
    import memledger
    rng = random.Random(seed)
    errors = 0
    for _ in range(rounds):
        pids = []
        for _ in range(4):
            pid = os.fork()
            if pid == 0:
                try:
                    while True:
                        ledger = memledger.join(label="storm")
                        if ledger.degraded:
                            os._exit(3)
                        device = plain_device(ledger, "test:card", None)
                        device.publish(1 << 30)
                        ledger.sweep()
                        ledger.leave()
                except BaseException:
                    import traceback
                    traceback.print_exc()
                    os._exit(4)
            pids.append(pid)
        time.sleep(rng.uniform(0.005, 0.03))
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        for pid in pids:
            status = os.waitpid(pid, 0)[1]
            errors += not os.WIFSIGNALED(status)
    return errors
"""


def test_b04_killed_anywhere_in_join_and_sweep_others_go_on(spawn: Any, segment: Path) -> None:
    """The C suite kills at every store; this kills at random instants, from outside."""
    rng = seeded("b04")
    watcher: Member = spawn("watcher", total=24 * GiB)
    storms = [spawn(join=False) for _ in range(2)]
    for storm in storms:
        storm.run(FORK_STORM)
        storm.send_run(f"storm('all', {count(10, 200)}, {rng.getrandbits(32)})")
    for storm in storms:
        assert storm.receive(300) == 0, "a joiner met an error"
    watcher.call("sweep")
    watcher.publish(2 * GiB)
    assert watcher.figures()["held"] == 2 * GiB
    assert [m["label"] for m in watcher.call("members")] == ["watcher"]
    newcomer = spawn("newcomer", total=24 * GiB)
    newcomer.publish(GiB)
    assert watcher.figures()["held"] == 3 * GiB
    assert newcomer.run("ledger._check()") == []
    with Raw(segment) as raw:
        assert len(raw.slots_in_use()) == 2


def test_b04_many_concurrent_joins_all_succeed(spawn: Any) -> None:
    starter: Member = spawn(join=False)
    wanted = count(60, 200)
    found = starter.run(
        f"""
import signal, memledger
go, let = os.pipe()
told, tell = os.pipe()
pids = []
for i in range({wanted}):
    pid = os.fork()
    if pid == 0:
        os.close(let)
        os.read(go, 1)          # all at once, when the writer closes
        ledger = memledger.join(label=f"j{{i}}")
        os.write(tell, b"d" if ledger.degraded else b".")
        while True:
            signal.pause()
    pids.append(pid)
os.close(go); os.close(let)
got = b""
while len(got) < {wanted}:
    got += os.read(told, 4096)
members = memledger.join(label="starter").members()
for pid in pids:
    os.kill(pid, signal.SIGKILL)
for pid in pids:
    os.waitpid(pid, 0)
[got.decode(), len(members)]
""",
        watchdog_s=90,
    )
    assert found == ["." * wanted, wanted + 1]


def test_b04_signals_during_join_are_no_error(spawn: Any) -> None:
    member: Member = spawn(join=False)
    rounds = count(100, 1000)
    degraded = member.run(
        f"""
import signal, memledger
hits = 0
def on_alarm(number, frame):
    global hits
    hits += 1
signal.signal(signal.SIGALRM, on_alarm)
signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
degraded = []
for _ in range({rounds}):
    ledger = memledger.join(label="alarmed")
    plain_device(ledger, "test:card", 24 << 30).publish(1 << 30)
    if ledger.degraded:
        degraded.append(ledger.degraded_reason)
    ledger.sweep()
    ledger.leave()
while not hits:
    pass
signal.setitimer(signal.ITIMER_REAL, 0)
degraded
""",
        watchdog_s=90,
    )
    assert degraded == []


def test_b11_sweeps_race_with_joins_without_errors(spawn: Any) -> None:
    """Real processes of their own: loops of join and leave, a killer, and two sweepers."""
    rng = seeded("b11")
    survivor: Member = spawn("survivor", total=24 * GiB)
    survivor.publish(GiB)
    sweepers = [spawn(f"sweeper{i}", total=24 * GiB) for i in range(2)]
    storm: Member = spawn(join=False)
    storm.run(FORK_STORM)
    for sweeper in sweepers:
        sweeper.run("import threading; halt = threading.Event()")
        sweeper.run(
            "def loop():\n    while not halt.is_set():\n        ledger.sweep()\n"
            "thread = threading.Thread(target=loop); thread.start()"
        )
    assert storm.run(f"storm('b11', {count(10, 400)}, {rng.getrandbits(32)})", 300) == 0
    for sweeper in sweepers:
        sweeper.run("halt.set(); thread.join()")
    survivor.call("sweep")
    assert sorted(m["label"] for m in survivor.call("members")) == [
        "survivor", "sweeper0", "sweeper1",
    ]  # fmt: skip
    assert survivor.figures()["held"] == GiB
    assert survivor.run("ledger._check()") == []


def test_b11_a_slot_left_joining_is_reclaimed(spawn: Any, segment: Path) -> None:
    """A process killed while joining leaves the state "joining" and no lock."""
    a: Member = spawn("a", total=24 * GiB)
    with Raw(segment) as raw:
        raw[raw.slot_word(1)] = (7 << 8) | JOINING
        wait_until(lambda: raw.slot_state(1) == 0, what="housekeeping takes the slot back")
    b: Member = spawn("b", total=24 * GiB)
    assert b.call("info")["slot"] == 1
    assert b.call("info")["generation"] > 7
    assert sorted(m["label"] for m in a.call("members")) == ["a", "b"]


def test_b11_join_and_leave_in_one_process_again_and_again(segment: Path) -> None:
    code = (
        "import memledger\n"
        "for i in range(200):\n"
        "    with memledger.join(label=str(i)) as ledger:\n"
        "        assert not ledger.degraded, ledger.degraded_reason\n"
        "        assert len(ledger.members()) == 1\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=90)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
