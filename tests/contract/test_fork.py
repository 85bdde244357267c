"""Every way of making a child: it is a member of its own or none, and its parent's slot, claims and
life are its parent's."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from helpers import pythons
from helpers.members import Member
from helpers.units import GiB, MiB, count
from helpers.waiting import wait_until

TOTAL = 24 * GiB
pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")


@pytest.fixture
def pair(spawn: Any) -> tuple[Member, Member]:
    """(viewer, parent); the parent holds 4 GiB and claims 1."""
    viewer: Member = spawn("viewer", total=TOTAL)
    parent: Member = spawn("parent", total=TOTAL)
    parent.publish(4 * GiB, GiB, GiB)
    parent.call("claim", GiB)
    return viewer, parent


def unharmed(viewer: Member, parent: Member, members: int = 2) -> None:
    """The parent's figures are what they were."""
    viewer.call("sweep")
    figures = viewer.figures()
    assert (figures["held"], figures["claimed"]) == (4 * GiB, GiB)
    assert (figures["releasable"], figures["pinned"]) == (GiB, GiB)
    assert parent.figures()["own_held"] == 4 * GiB
    assert parent.figures()["own_claimed"] == GiB
    assert len(viewer.call("members")) == members
    parent.publish(4 * GiB, GiB, GiB)
    assert viewer.run("ledger._check()") == []


ENDS = {
    "sys.exit": "sys.exit(0)",
    "os._exit": "os._exit(0)",
    "killed": "os.kill(os.getpid(), 9)",
    "leave": "ledger.leave(); os._exit(0)",
    "leave before use": "ledger.leave(); os._exit(0)",
    "exec": "os.execvp('true', ['true'])",
    "abort": "os.abort()",
}
USES = {
    "nothing": "pass",
    "reads": "device.free(); device.figures()",
    "publishes": "device.publish(1 << 30); assert device.figures().held == 5 << 30",
    "claims": "c = device.try_claim(1 << 30); assert c; c.settle(1 << 29)",
    "touches the parent's claim": "claims[1].settle(5 << 29)",
    "drops the parent's claim": "claims.clear(); me.claims = {}",
    "joins": "import memledger\n    l = memledger.join(label='child')\n"
    "    assert len(l.members()) == 3",
}


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("use", USES)
def test_fork_child_that_uses_and_ends_in_any_way_leaves_the_parent_alone(
    pair: tuple[Member, Member], use: str, end: str
) -> None:
    viewer, parent = pair
    code = "pass" if end == "leave before use" else USES[use]
    status = parent.run(
        f"""
child = os.fork()
if child == 0:
    {code}
    {ENDS[end]}
os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
"""
    )
    assert status == {"killed": -9, "abort": -6}.get(end, 0)
    unharmed(viewer, parent)


def test_fork_child_starts_with_nothing_of_its_parents(pair: tuple[Member, Member]) -> None:
    viewer, parent = pair
    result = parent.run(
        """
ready, tell = os.pipe()
child = os.fork()
if child == 0:
    import json
    claim = claims[1]
    found = [list(device.amounts), device.figures().own_held, device.figures().own_claimed,
             claim.ended, device.claimed_by_others(), device.figures().held]
    os.write(tell, json.dumps(found).encode())
    os._exit(0)
os.close(tell)
os.waitpid(child, 0)
import json
json.loads(os.read(ready, 4096))
"""
    )
    assert result == [[0, 0, 0], 0, 0, True, GiB, 4 * GiB]
    unharmed(viewer, parent)


def test_fork_inherited_claim_published_through_carries_no_figure_of_the_parent(
    pair: tuple[Member, Member],
) -> None:
    """What is not given "stays as it was": in the child that is nothing, not the parent's."""
    viewer, parent = pair
    rows = parent.run(
        f"""
ready, tell = os.pipe()
child = os.fork()
if child == 0:
    claims[1].settle({GiB})
    os.write(tell, repr(sorted((r.held, r.releasable, r.pinned)
                               for r in device.snapshot().rows if r.held)).encode())
    os._exit(0)
os.close(tell)
os.waitpid(child, 0)
os.read(ready, 4096).decode()
"""
    )
    assert rows == repr([(GiB, 0, 0), (4 * GiB, GiB, GiB)])
    unharmed(viewer, parent)


def test_fork_grandchildren_are_members_of_their_own(pair: tuple[Member, Member]) -> None:
    viewer, parent = pair
    parent.run(
        """
ready, tell = os.pipe()
hold, release = os.pipe()
def generation(depth):
    if depth == 4:
        return
    if os.fork() == 0:
        os.close(release) if depth == 0 else None
        device.publish(1 << 20)
        generation(depth + 1)
        os.write(tell, b".")
        os.read(hold, 1)
        os._exit(0)
generation(0)
got = b""
while len(got) < 4:
    got += os.read(ready, 16)
"""
    )
    assert viewer.figures()["held"] == 4 * GiB + 4 * MiB
    assert len(viewer.call("members")) == 6
    parent.run("os.close(release)")
    wait_until(lambda: len(viewer.call("members")) == 2, what="they all go")
    unharmed(viewer, parent)


def test_fork_double_fork_daemon_outlives_its_parent(pair: tuple[Member, Member]) -> None:
    viewer, parent = pair
    daemon = parent.run(
        """
ready, tell = os.pipe()
if os.fork() == 0:
    os.setsid()
    if os.fork():
        os._exit(0)
    import signal
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null, fd)
    device.publish(1 << 30)
    os.write(tell, str(os.getpid()).encode())
    while True:
        signal.pause()
os.wait()
int(os.read(ready, 16))
"""
    )
    try:
        assert viewer.figures()["held"] == 5 * GiB
        parent.kill()
        viewer.call("sweep")
        assert viewer.figures()["held"] == GiB
        assert viewer.figures()["claimed"] == 0
        assert sorted(m["pid"] for m in viewer.call("members")) == sorted([viewer.pid, daemon])
    finally:
        os.kill(daemon, signal.SIGKILL)
    wait_until(lambda: viewer.figures()["held"] == 0, what="the daemon's bytes go")


@pytest.mark.parametrize(
    "how",
    [
        "subprocess.run(['true'], check=True)",
        "subprocess.run(['true'], check=True, close_fds=False)",
        "subprocess.run(['true'], check=True, preexec_fn=lambda: None)",
        "subprocess.run(['true'], check=True, preexec_fn=lambda: device.publish(1))",
        "os.system('true')",
        "os.waitpid(os.posix_spawnp('true', ['true'], os.environ), 0)",
        "subprocess.run('true & exec true', shell=True, check=True)",
    ],
)
def test_fork_programs_started_in_any_way_leave_the_parent_alone(
    pair: tuple[Member, Member], how: str
) -> None:
    viewer, parent = pair
    parent.run(f"import subprocess, warnings\nwarnings.simplefilter('ignore')\n{how}\nNone")
    unharmed(viewer, parent)


@pytest.mark.parametrize("close_fds", [True, False])
@pytest.mark.parametrize("preexec", ["None", "lambda: None"])
def test_fork_program_that_outlives_its_parent_keeps_nothing_alive(
    pair: tuple[Member, Member], close_fds: bool, preexec: str
) -> None:
    viewer, parent = pair
    child = parent.run(
        "import subprocess\n"
        f"p = subprocess.Popen(['sleep', '300'], close_fds={close_fds}, preexec_fn={preexec})\n"
        "p.pid"
    )
    parent.kill()
    viewer.call("sweep")
    os.kill(child, 0)
    os.kill(child, signal.SIGKILL)
    assert viewer.figures()["held"] == 0
    assert viewer.figures()["claimed"] == 0


def test_fork_child_of_a_child_that_never_used_the_ledger(pair: tuple[Member, Member]) -> None:
    """The wiped page and the fork hooks must be right two generations down."""
    viewer, parent = pair
    status = parent.run(
        """
child = os.fork()
if child == 0:
    if os.fork() == 0:
        device.publish(1 << 30)
        assert device.figures().held == 5 << 30
        os._exit(0)
    os._exit(os.waitstatus_to_exitcode(os.wait()[1]))
os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
"""
    )
    assert status == 0
    unharmed(viewer, parent)


def test_fork_while_threads_join_leave_sweep_and_claim(pair: tuple[Member, Member]) -> None:
    """Every cold path has a lock or a descriptor that a child may inherit in the middle."""
    viewer, parent = pair
    failed = parent.run(
        f"""
import threading, warnings, memledger
warnings.simplefilter("ignore", DeprecationWarning)
halt = threading.Event()
def loop(body):
    while not halt.is_set():
        body()
def open_and_leave():
    l = memledger.ledger.Ledger(label="extra", role="other", path=None)
    plain_device(l, "test:card", None).publish(1)
    l.leave()
def wait_in_line():
    try:
        device.claim(100 << 30, 0.002)
    except memledger.ClaimRefused:
        pass
bodies = [ledger.sweep, ledger.members, open_and_leave, wait_in_line, lambda: device.snapshot()]
threads = [threading.Thread(target=loop, args=(body,)) for body in bodies]
for t in threads: t.start()
failed = 0
for i in range({count(250, 5000)}):
    child = os.fork()
    if child == 0:
        device.publish(9)
        device.try_claim(1)      # may be refused: somebody waits in line
        os._exit(0 if device.figures().own_held == 9 else 1)
    failed += os.waitpid(child, 0)[1] != 0
halt.set()
for t in threads: t.join()
failed
""",
        watchdog_s=900,
    )
    assert failed == 0
    wait_until(lambda: len(viewer.call("members")) == 2, what="all others are gone")
    unharmed(viewer, parent)


def test_fork_children_inherit_no_lock_and_no_descriptor(pair: tuple[Member, Member]) -> None:
    """Forked while sweeps go on: a child that lives on must keep no sweep lock, or the slot of a
    dead member could never be used again."""
    viewer, parent = pair
    pids = parent.run(
        f"""
import threading, signal
halt = threading.Event()
def sweep():
    while not halt.is_set():
        ledger.sweep()
threads = [threading.Thread(target=sweep) for _ in range(2)]
for t in threads: t.start()
pids = []
for _ in range({count(60, 250)}):
    victim = os.fork()
    if victim == 0:
        device.publish(1)
        os.kill(os.getpid(), 9)
    child = os.fork()
    if child == 0:
        while True:
            signal.pause()
    pids.append(child)
    os.waitpid(victim, 0)
halt.set()
for t in threads: t.join()
pids
""",
        watchdog_s=300,
    )
    try:
        viewer.call("sweep")
        # Every slot but the two live ones can be taken, which needs its exclusive lock.
        free = viewer.run(
            """
import memledger, memledger.ledger as m
seats = [m.Ledger(label="probe", role="other", path=None) for _ in range(60)]
slots = sorted(l._info()["slot"] for l in seats)
for l in seats: l._leave()
slots == [i for i in range(62) if i not in (0, 1)]
"""
        )
        assert free
    finally:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize("version", pythons.VERSIONS)
def test_fork_first_use_in_a_childs_exit_hook_is_no_error(
    spawn: Any, tmp_path: Path, version: str
) -> None:
    """Newer Pythons start no thread while they shut down, and the child's first use wants one."""
    python = pythons.find(version)
    if python is None:
        pytest.skip(f"no Python {version}")
    package = pythons.copy_package(tmp_path)
    parent: Member = spawn(
        "parent", total=TOTAL, python=python, flags=("-I", "-S"), package=package
    )
    errors = parent.run(
        """
import atexit, warnings
warnings.simplefilter("ignore", DeprecationWarning)
ready, tell = os.pipe()
child = os.fork()
if child == 0:
    os.close(ready)
    def hook():
        try:
            device.publish(1)
            os.write(tell, b"ok" if device.figures().own_held == 1 else b"not published")
        except BaseException as error:
            os.write(tell, repr(error).encode())
    atexit._clear()
    atexit.register(hook)
    os.dup2(os.open(os.devnull, os.O_RDWR), 0)
    sys.exit(0)
os.close(tell)
os.waitpid(child, 0)
os.read(ready, 4096).decode()
"""
    )
    assert errors == "ok"


def test_fork_ledger_of_a_child_has_housekeeping_of_its_own(pair: tuple[Member, Member]) -> None:
    """A claim with a ttl in a child that does nothing more: only its housekeeping can drop it."""
    viewer, parent = pair
    parent.run(
        """
child = os.fork()
if child == 0:
    import signal
    c = device.claim(1 << 30, ttl=0.05)
    while True:
        signal.pause()
"""
    )
    wait_until(lambda: len(viewer.call("members")) == 3)
    wait_until(lambda: viewer.figures()["claimed"] == GiB, what="the child's claim expires")
    parent.run("os.kill(child, 9); os.waitpid(child, 0)")
    unharmed(viewer, parent)


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_fork_multiprocessing_pool_of_members(spawn: Any, tmp_path: Path, method: str) -> None:
    viewer: Member = spawn("viewer", total=TOTAL)
    script = tmp_path / "pool.py"
    script.write_text(
        "import multiprocessing, sys, memledger\n"
        "def work(n):\n"
        "    d = memledger.join(label='pool').device('sim:card?total=24GiB')\n"
        "    with d.claim(1 << 20) as c:\n"
        "        c.settle(n)\n"
        "    return d.figures().own_held == n\n"
        "if __name__ == '__main__':\n"
        "    device = memledger.join(label='main').device('sim:card?total=24GiB')\n"
        "    device.publish(1 << 30)\n"
        f"    with multiprocessing.get_context({method!r}).Pool(3) as pool:\n"
        "        assert all(pool.map(work, range(1, 60)))\n"
        "    assert device.figures().own_held == 1 << 30\n"
    )
    import subprocess

    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=90)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    viewer.call("sweep")
    assert [m["label"] for m in viewer.call("members")] == ["viewer"]
