"""G5: a dead member's bytes go away by themselves, and a live one's never do."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

import memledger
from helpers.member import plain_device
from helpers.members import Member
from helpers.units import GiB, count, seeded
from helpers.waiting import wait_until

TOTAL = 24 * GiB


@pytest.mark.parametrize("how", ["SIGKILL", "SIGSEGV", "SIGTERM", "_exit", "exec", "clean"])
def test_g5_dead_members_bytes_go_without_anybody_asking(spawn: Any, how: str) -> None:
    """No sweep() here and, but for "clean", no atexit: the viewer's housekeeping alone."""
    viewer: Member = spawn("viewer", total=TOTAL)
    dying: Member = spawn("dying", total=TOTAL, quiet=how != "SIGSEGV")
    dying.publish(4 * GiB, 2 * GiB, GiB)
    dying.call("claim", 2 * GiB)
    assert viewer.figures()["held"] == 4 * GiB
    assert viewer.figures()["claimed"] == 2 * GiB
    if how.startswith("SIG"):
        dying.signal(getattr(signal, how))
        dying.process.wait(30)
    elif how == "_exit":
        dying.send_run("os._exit(0)")
        dying.process.wait(30)
    elif how == "exec":
        dying.send_run("os.execvp('sleep', ['sleep', '60'])")
    else:
        dying.exit()
    wait_until(lambda: viewer.figures()["held"] == 0, what="the dead one's bytes go")
    figures = viewer.figures()
    assert (figures["claimed"], figures["releasable"], figures["pinned"]) == (0, 0, 0)
    assert figures["free"] == TOTAL
    assert [m["label"] for m in viewer.call("members")] == ["viewer"]


def test_g5_stopped_members_bytes_stay(spawn: Any) -> None:
    viewer: Member = spawn("viewer", total=TOTAL)
    stopped: Member = spawn("stopped", total=TOTAL)
    dying: Member = spawn("dying", total=TOTAL)
    stopped.publish(4 * GiB)
    stopped.call("claim", 2 * GiB)
    dying.publish(GiB)
    stopped.stop()
    dying.kill()
    # The dead one's going proves that housekeeping has swept while the other was stopped.
    wait_until(lambda: viewer.figures()["held"] == 4 * GiB, what="the dead one's bytes go")
    assert viewer.figures()["claimed"] == 2 * GiB
    viewer.call("sweep")
    assert viewer.figures()["held"] == 4 * GiB
    assert len(viewer.call("members")) == 2
    stopped.resume()
    assert stopped.figures()["own_held"] == 4 * GiB


def test_g5_zombie_is_dead(spawn: Any) -> None:
    """Its pid still answers to kill(pid, 0)."""
    viewer: Member = spawn("viewer", total=TOTAL)
    dying: Member = spawn("dying", total=TOTAL)
    dying.publish(4 * GiB)
    os.kill(dying.process.pid, signal.SIGKILL)
    os.waitid(os.P_PID, dying.process.pid, os.WEXITED | os.WNOWAIT)
    viewer.call("sweep")
    assert viewer.figures()["held"] == 0
    os.kill(dying.process.pid, 0)


def test_g5_main_thread_gone_others_live_is_alive(spawn: Any) -> None:
    """The process is alive while any thread runs, though /proc calls it a zombie."""
    viewer: Member = spawn("viewer", total=TOTAL)
    half: Member = spawn("half", total=TOTAL)
    half.publish(4 * GiB)
    half.send_run(
        """
import ctypes, threading, time
threading.Thread(target=time.sleep, args=(60,)).start()
ctypes.CDLL(None).syscall(60 if os.uname().machine == "x86_64" else 93, 0)   # exit of this thread
"""
    )
    stat = Path(f"/proc/{half.process.pid}/stat")
    wait_until(
        lambda: stat.read_text().rpartition(")")[2].split()[0] == "Z", what="the main thread ends"
    )
    assert viewer.call("sweep") == 0
    assert viewer.figures()["held"] == 4 * GiB


def test_g5_closing_all_descriptors_does_not_kill_a_member(spawn: Any) -> None:
    """What a daemon does at its start; a lock on a descriptor would be lost."""
    viewer: Member = spawn("viewer", total=TOTAL)
    closing: Member = spawn("closing", total=TOTAL)
    closing.publish(4 * GiB)
    closing.run(
        "def is_pipe(n):\n"
        "    path = f'/proc/self/fd/{n}'\n"
        "    return os.path.exists(path) and 'pipe:' in os.readlink(path)\n"
        "keep = {0, 1, 2} | {int(n) for n in os.listdir('/proc/self/fd') if is_pipe(n)}\n"
        "for fd in range(3, 4096):\n"
        "    if fd not in keep:\n"
        "        try: os.close(fd)\n"
        "        except OSError: pass"
    )
    assert viewer.call("sweep") == 0
    assert viewer.figures()["held"] == 4 * GiB
    closing.publish(5 * GiB)
    assert viewer.figures()["held"] == 5 * GiB
    closing.kill()
    viewer.call("sweep")
    assert viewer.figures()["held"] == 0


def test_g5_random_deaths_and_stops_leave_exactly_the_living(spawn: Any) -> None:
    rng = seeded("g5")
    viewer: Member = spawn("viewer", total=TOTAL)
    living: dict[int, tuple[Member, int]] = {}
    stopped: set[int] = set()
    for i in range(count(40, 1000)):
        step = rng.random()
        awake = [k for k in living if k not in stopped]
        if step < 0.4 or not awake:
            member = spawn(f"m{i}", total=TOTAL)
            held = rng.randrange(1, 1 << 30)
            member.publish(held)
            living[i] = (member, held)
        elif step < 0.7:
            key = rng.choice(list(living))
            stopped.discard(key)
            living.pop(key)[0].kill()
        elif step < 0.85:
            key = rng.choice(awake)
            living[key][0].stop()
            stopped.add(key)
        else:
            for key in stopped:
                living[key][0].resume()
            stopped.clear()
        viewer.call("sweep")
        assert viewer.figures()["held"] == sum(held for _, held in living.values())
        assert len(viewer.call("members")) == 1 + len(living)


def test_g5_last_members_death_is_swept_by_the_next_joiner(spawn: Any) -> None:
    alone: Member = spawn("alone", total=TOTAL)
    alone.publish(4 * GiB)
    alone.call("claim", 4 * GiB)
    alone.kill()
    ledger = memledger.join(label="next")
    device = plain_device(ledger, "test:card", TOTAL)
    # Before it refuses, it sweeps.
    claim = device.claim(TOTAL)
    assert claim.checked
    assert device.figures().held == 0
