"""B18: a child never overwrites, frees or keeps alive its parent's slot.

tests/contract/test_fork.py has the other ways of making a child."""

from __future__ import annotations

from typing import Any

from helpers.members import Member
from helpers.system import linux_only
from helpers.units import GiB, count

TOTAL = 24 * GiB


def test_b18_child_is_a_member_of_its_own_and_its_exit_frees_only_its_own(spawn: Any) -> None:
    viewer: Member = spawn("viewer", total=TOTAL)
    parent: Member = spawn("parent", total=TOTAL)
    parent.publish(4 * GiB)
    parent.run(
        f"""
ready, tell = os.pipe()
wait, go = os.pipe()
child = os.fork()
if child == 0:
    os.close(go)
    device.publish({GiB})
    os.write(tell, b"x")
    os.read(wait, 1)
    sys.exit(0)     # the inherited atexit hooks run
os.close(wait)
os.read(ready, 1)
"""
    )
    assert viewer.figures()["held"] == 5 * GiB
    assert len(viewer.call("members")) == 3
    assert parent.figures()["own_held"] == 4 * GiB
    code = parent.run("os.close(go); os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])")
    assert code == 0
    viewer.call("sweep")
    assert viewer.figures()["held"] == 4 * GiB
    assert len(viewer.call("members")) == 2
    assert parent.call("info")["rejoin_count"] <= 1


@linux_only
def test_b18_child_of_a_raw_clone_leaves_the_parents_slot_alone(spawn: Any) -> None:
    """No libc, so no fork handlers: only the wiped page tells the child what it is."""
    viewer: Member = spawn("viewer", total=TOTAL)
    parent: Member = spawn("parent", total=TOTAL)
    parent.publish(4 * GiB)
    status = parent.run(
        f"""
import ctypes, platform, signal
number = {{"x86_64": 56, "aarch64": 220}}[platform.machine()]
libc = ctypes.CDLL(None, use_errno=True)
child = libc.syscall(number, int(signal.SIGCHLD), 0, 0, 0, 0)
if child == 0:
    device.publish({GiB})
    held = device.figures().held
    os._exit(0 if held == 5 * {GiB} else 1)
os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
"""
    )
    assert status == 0
    viewer.call("sweep")
    assert viewer.figures()["held"] == 4 * GiB
    assert parent.figures()["own_held"] == 4 * GiB


def test_b18_forks_while_a_thread_publishes_and_claims_never_hang(spawn: Any) -> None:
    parent: Member = spawn("parent", total=TOTAL)
    failed = parent.run(
        f"""
import threading, warnings
warnings.simplefilter("ignore", DeprecationWarning)   # 3.12 warns about exactly what is tested
halt = threading.Event()
def work():
    while not halt.is_set():
        device.publish(1 << 20, releasable=1 << 10)
        claim = device.try_claim(1 << 20)
        if claim is not None:
            claim.settle(1 << 21)
threads = [threading.Thread(target=work) for _ in range(2)]
for t in threads: t.start()
failed = 0
for i in range({count(400, 10_000)}):
    child = os.fork()
    if child == 0:
        if i % 4 == 0:
            device.publish(3)
            claim = device.try_claim(5)
            claim.cancel()
        os._exit(0 if device.figures().own_held == (3 if i % 4 == 0 else 0) else 1)
    failed += os.waitpid(child, 0)[1] != 0
halt.set()
for t in threads: t.join()
device.publish(0)
failed
""",
        watchdog_s=900,
    )
    assert failed == 0
    parent.call("sweep")
    assert parent.figures()["held"] == parent.figures()["claimed"] == 0
    assert len(parent.call("members")) == 1
    assert parent.run("ledger._check()") == []


def test_b18_dead_parents_bytes_go_though_its_child_lives(spawn: Any) -> None:
    viewer: Member = spawn("viewer", total=TOTAL)
    parent: Member = spawn("parent", total=TOTAL)
    parent.publish(4 * GiB)
    child = parent.run(
        """
import signal
child = os.fork()
if child == 0:
    while True:
        signal.pause()
child
"""
    )
    parent.kill()
    viewer.call("sweep")
    assert viewer.figures()["held"] == 0
    assert [m["label"] for m in viewer.call("members")] == ["viewer"]
    import os

    os.kill(child, 0)  # it did outlive its parent; the fixture ends its session
    os.kill(child, 9)
