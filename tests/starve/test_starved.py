"""Without memory, descriptors or room: MemoryError, or degraded with the reason. Never a crash or
a hang, nothing lost, and the process goes on.

Every allocation of the native module fails once, and once for good; then those of the interpreter
too, on the thread that calls (a seeded part of them; all in the long suite).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from helpers.members import Member
from helpers.system import linux_only, unshare
from helpers.units import GiB, count, is_long, seeded
from helpers.waiting import wait_until

HERE = Path(__file__).parent
TOTAL = 24 * GiB
FOR_GOOD = 1 << 40
pytestmark = linux_only


def starve(
    shim: Path, act: str, kind: str, scope: str, burst: int = 1, most: int = 1 << 30, seed: int = 1
) -> dict[str, Any]:
    """What starving.py says. Its interpreter takes all memory from the C library, where the shim
    stands."""
    environment = {
        **os.environ,
        "LD_PRELOAD": str(shim),
        "PYTHONMALLOC": "malloc",
        "PYTHONPATH": os.pathsep.join([str(HERE.parent), os.environ.get("PYTHONPATH", "")]),
    }
    done = subprocess.run(
        [sys.executable, "-X", "faulthandler", str(HERE / "starving.py"), str(shim), act, kind,
         scope, str(burst), str(most), str(seed)],
        env=environment, capture_output=True, text=True, timeout=count(100, 1500),
    )  # fmt: skip
    assert done.returncode == 0, f"{done.returncode}: {done.stderr[-3000:]}"
    result: dict[str, Any] = json.loads(done.stdout)
    assert not result["wrong"], "\n".join(result["wrong"])
    print(f"{act}, {kind}, {scope}: {result['acts']} acts, {result['fired']} calls failed")
    return result


@pytest.fixture
def keeper(spawn: Any) -> Member:
    """Another process, whose figures nothing here may touch."""
    member: Member = spawn("keeper", total=TOTAL)
    member.publish(2 * GiB)
    return member


# What the native module itself allocates or opens in each act: at least so many calls.
IN_C = [
    ("join", "memory", 8), ("first", "memory", 8), ("open", "memory", 1), ("look", "memory", 8),
    ("claim", "memory", 1), ("sweep", "memory", 1), ("housekeep", "memory", 1),
    ("move", "memory", 2), ("join", "descriptors", 5), ("first", "descriptors", 10),
    ("look", "descriptors", 3), ("sweep", "descriptors", 1), ("housekeep", "descriptors", 1),
    ("move", "descriptors", 2), ("join", "space", 1), ("first", "space", 8), ("move", "space", 1),
]  # fmt: skip


@pytest.mark.parametrize(("act", "kind", "least"), IN_C, ids=[f"{a}-{k}" for a, k, _ in IN_C])
def test_starved_of_any_call_in_c_the_process_goes_on(
    keeper: Member, shim: Path, act: str, kind: str, least: int
) -> None:
    """The n-th call fails, for each n."""
    check_in_c(starve(shim, act, kind, "module"), least)
    assert keeper.figures()["own_held"] == 2 * GiB


@pytest.mark.parametrize(("act", "kind", "least"), IN_C, ids=[f"{a}-{k}" for a, k, _ in IN_C])
def test_starved_for_good_from_any_call_in_c_the_process_goes_on(
    keeper: Member, shim: Path, act: str, kind: str, least: int
) -> None:
    """The n-th call fails, and all after it until the act has ended."""
    if act == "move" and not is_long():
        pytest.skip("waits for a retry after each failure; long suite")
    check_in_c(starve(shim, act, kind, "module", FOR_GOOD), least)
    assert keeper.figures()["own_held"] == 2 * GiB


def check_in_c(result: dict[str, Any], least: int) -> None:
    assert result["calls"] >= least, "the shim stands where nothing is called"
    assert result["fired"] >= result["acts"] >= least


ACTS = ("join", "first", "open", "look", "claim", "together", "sweep", "housekeep", "move")


@pytest.mark.parametrize("act", ACTS)
def test_starved_of_any_allocation_of_the_interpreter_the_process_goes_on(
    keeper: Member, shim: Path, act: str
) -> None:
    seed = seeded(f"starved {act}").getrandbits(32)
    result = starve(shim, act, "memory", "any", most=count(60, 1 << 30), seed=seed)
    # The last few may belong to the test's own calls.
    assert result["fired"] >= result["acts"] * 3 // 4 > 5
    assert keeper.figures()["own_held"] == 2 * GiB


def test_starved_of_descriptors_it_degrades_and_heals(spawn: Any, segment: Path) -> None:
    """The real limit, not a shim."""
    owner: Member = spawn("owner", total=TOTAL)
    owner.publish(4 * GiB)
    member: Member = spawn(join=False)
    member.run(
        "import memledger.ledger, memledger.sim, memledger.device, resource\n"
        "soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)\n"
        "highest = max(map(int, os.listdir('/proc/self/fd')))\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 1, hard))\n"
        "held = []\n"
        "try:\n"
        "    while True: held.append(os.dup(0))\n"
        "except OSError: pass"
    )
    assert member.join("m")["mode"] == 2
    assert os.strerror(24) in member.run("ledger.degraded_reason")
    member.open_plain("test:card", TOTAL)
    member.publish(GiB)
    assert member.free() == TOTAL - GiB
    assert not member.figures()["complete"]
    assert owner.figures()["held"] == 4 * GiB
    member.run("resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))")
    wait_until(lambda: not member.run("ledger.degraded"), 60, "it joins by itself")
    assert owner.figures()["held"] == 5 * GiB


def test_starved_after_the_join_a_member_needs_no_descriptor(spawn: Any, segment: Path) -> None:
    """Publishing, claiming and reading go on; what a sweep cannot look at stays for the next."""
    owner: Member = spawn("owner", total=TOTAL)
    victim: Member = spawn("victim", total=TOTAL)
    member: Member = spawn("m", total=TOTAL)
    victim.publish(4 * GiB)
    member.run(
        "import resource\n"
        "soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))"
    )
    member.publish(GiB)
    number = member.call("claim", GiB)
    assert owner.figures()["held"] == 5 * GiB
    member.call("settle", number, 2 * GiB)
    assert member.figures()["held"] == 6 * GiB
    assert member.call("info")["mode"] == 0
    owner.stop()
    victim.kill()
    assert member.run("ledger.sweep()") == 0, "without a descriptor nobody can be proven dead"
    assert member.figures()["own_held"] == 2 * GiB
    member.run("resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))")
    wait_until(lambda: member.figures()["held"] == 2 * GiB, what="swept once it can look again")
    owner.resume()


def test_starved_of_threads_it_works_and_has_its_thread_later(
    spawn: Any, segment: Path, shim: Path
) -> None:
    """Nothing retries, sweeps, reads or answers without the one thread of a member."""
    owner: Member = spawn("owner", total=TOTAL)
    member: Member = spawn(join=False, env={"LD_PRELOAD": str(shim)})
    member.run(
        "import ctypes, threading, memledger.ledger\n"
        f"shim = ctypes.CDLL({str(shim)!r})\n"
        "shim.starve_arm(8, ctypes.c_long(1), ctypes.c_long(1 << 40))"
    )
    assert member.join("m")["mode"] == 0
    member.open_plain("test:card", TOTAL)
    member.publish(GiB)
    assert owner.figures()["held"] == GiB
    assert member.run("shim.starve_disarm()") >= 1
    assert member.run("threading.active_count()") == 1
    member.call("members")
    assert member.run("[t.name for t in threading.enumerate()]") == ["MainThread", "memledger"]
    member.call("leave")
    assert member.run("threading.active_count()") == 1


IN_TMPFS = 'mount -t tmpfs -o size=%dk,mode=1777 tmpfs %s && exec "$@"'


def test_starved_of_room_at_each_page_it_joins_whole_or_not_at_all(
    spawn: Any, segment: Path
) -> None:
    """A file system of every size from nothing to enough: never a signal, never half a segment."""
    # ml_view_size, in KiB, and what the file system needs besides.
    probe: Member = spawn("probe")
    whole_kib = segment.stat().st_size // 1024
    probe.call("leave")
    rng = seeded("room")
    sizes = sorted(rng.sample(range(4, whole_kib, 4), count(3, 200)))
    for kib in [*sizes, whole_kib - 4, whole_kib, whole_kib + 64]:
        script = IN_TMPFS % (kib, segment.parent)
        member: Member = spawn(
            prefix=(*unshare("-m"), "sh", "-c", script, "sh"), label="m", total=TOTAL
        )
        member.publish(GiB)
        assert member.free() == TOTAL - GiB
        reason = member.run("ledger.degraded_reason")
        names = member.run(f"os.listdir({str(segment.parent)!r})")
        if reason is None:
            assert names == [segment.name]
            assert kib >= whole_kib
        else:
            assert os.strerror(28) in reason
            assert names == []
        assert member.exit() == 0
