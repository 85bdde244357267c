"""What runs under the preloaded shim: an act, again and again, its n-th call of a kind failing.

    starving.py LIBRARY ACT KINDS SCOPE BURST MOST SEED

After each failure the process must go on: the same act succeeds, figures are what they were,
nothing of it is left. Prints one JSON line: how many acts, how many calls failed, what came of it,
and what was wrong. The other end is test_starved.py.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import gc
import json
import os
import random
import sys
import time
import traceback
from collections import Counter
from pathlib import Path
from typing import Any

import memledger
from helpers.member import plain_device
from helpers.raw import Raw
from memledger import _native, sim
from memledger.ledger import Ledger

KINDS = {"memory": 1, "descriptors": 2, "space": 4}
TOTAL, KEPT, OWN, MIB = 24 << 30, 2 << 30, 1 << 30, 1 << 20
CARD = "test:card"
# What a call may end with when there is no memory or descriptor for it; nothing else may come out.
ALLOWED = (MemoryError, memledger.LedgerError, OSError)
# How the interpreter itself says that it has no memory for a lock, a thread, or (3.11) a frame.
PYTHONS_OWN = (
    "can't allocate lock",
    "can't start new thread",
    "error return without exception set",
)


def module_range() -> tuple[int, int]:
    """Addresses of the native module in this process."""
    spans = [
        [int(end, 16) for end in line.split()[0].split("-")]
        for line in Path("/proc/self/maps").read_text().splitlines()
        if "_native" in line
    ]
    return min(s[0] for s in spans), max(s[1] for s in spans)


def resources() -> tuple[int, int]:
    """Descriptors and mappings of this process."""
    gc.collect()
    return len(os.listdir("/proc/self/fd")), Path("/proc/self/maps").read_text().count("\n")


class Act:
    """One act and what must hold after it. `keeper` is another process: it holds KEPT."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.number = 0
        self.join()

    def join(self) -> None:
        """Without the background thread, which would be first sometimes: its round is an act."""
        self.ledger = memledger.join(label="starved", role="host", path=self.path)
        self.ledger._housekeeping.stop()
        self.device = plain_device(self.ledger, CARD, TOTAL)
        self.device.publish(OWN)

    def prepare(self) -> None:
        pass

    def act(self) -> Any:
        raise NotImplementedError

    def settle(self) -> None:
        """With all calls working again: what the host would do next."""
        self.act()

    def wrong(self) -> list[str]:
        """What does not hold."""
        self.device.publish(OWN)
        self.ledger.sweep()
        figures = self.device.figures()
        found = []
        if (figures.own_held, figures.held, figures.free) != (OWN, OWN + KEPT, TOTAL - OWN - KEPT):
            found.append(f"figures: {figures}")
        if figures.claimed or figures.claimed_by_others:
            found.append(f"claims are left: {figures}")
        labels = sorted(m.label for m in self.ledger.members())
        if labels != ["keeper", "starved"]:
            found.append(f"members: {labels}")
        if self.ledger.degraded:
            found.append(f"degraded: {self.ledger.degraded_reason}")
        if self.ledger._check():
            found.append(f"check: {self.ledger._check()}")
        return found


class Join(Act):
    """Join, use, leave; the segment is there."""

    last: Ledger | None = None

    def target(self) -> str:
        return self.path

    def act(self) -> Any:
        ledger = self.last = Ledger(label="joiner", role="host", path=self.target())
        try:
            reason = ledger.degraded_reason
            if reason is not None:
                assert ledger.scope == "private"
                assert len(reason) > 20
            device = plain_device(ledger, CARD, TOTAL)
            device.publish(MIB)
            assert device.figures().own_held == MIB
            return reason
        finally:
            ledger.leave()

    def settle(self) -> None:
        # Where the interpreter had no memory to call leave() at all, the host calls it again.
        if self.last is not None:
            self.last.leave()
        self.act()


class First(Join):
    """Join where there is no segment yet: making one."""

    def target(self) -> str:
        return os.path.join(os.path.dirname(self.path), f"first-{self.number}")

    def prepare(self) -> None:
        self.files()
        self.number += 1

    def files(self) -> list[str]:
        """What stands in the folder beside the shared segment; removes it."""
        folder = os.path.dirname(self.path)
        names = [name for name in os.listdir(folder) if name.startswith("first-")]
        for name in names:
            os.unlink(os.path.join(folder, name))
        return names

    def wrong(self) -> list[str]:
        odd = [name for name in self.files() if name != f"first-{self.number}"]
        return super().wrong() + [f"left behind: {name}" for name in odd]


class Open(Act):
    """A device that this process has not opened, with its account."""

    def act(self) -> Any:
        device = self.ledger.device(f"sim:starved-{os.getpid()}?total=8GiB")
        reading = device.refresh(0)
        if reading.free is None:
            return f"no reading: {reading}"
        # What is there may be of an earlier handle: this one must be able to ask, too.
        if not all(pool in self.ledger._pool_sources for pool in device._pools()):
            return "no source"
        device.account("part").publish(MIB)
        device.account("part").publish(0)
        return None

    def settle(self) -> None:
        self.ledger._source_retry.clear()  # a source that failed is asked again after a second
        assert self.act() is None

    def prepare(self) -> None:
        # A handle has room for some pools only, so each try has a new one.
        self.ledger.leave()
        self.join()


class Look(Act):
    """Everything that only looks."""

    def act(self) -> Any:
        self.device.figures()
        self.device.free()
        self.device.snapshot()
        self.ledger.members()
        self.ledger._check()
        self.ledger.prompt()
        self.ledger.interrupted()
        info, parts = _native.read_image(self.path)
        assert parts is not None or info["status"] < 0
        return None if parts is not None else f"image: {info['status']}"


class Claim(Act):
    """Claims that are granted, refused, waited for in vain, and first of several."""

    def act(self) -> Any:
        with contextlib.suppress(memledger.ClaimRefused):
            self.device.claim(TOTAL, timeout=0.002)
        claim = self.device.claim(MIB, timeout=1.0, ttl=60.0)
        claim.publish(OWN)
        claim.renew(30.0)
        claim.resize(2 * MIB)
        claim.settle(OWN)
        self.device.claim_first([TOTAL, MIB])[1].cancel()
        kept = self.device.try_claim(MIB)
        del kept
        return None


class _Holder:
    def release_memory(self, device: object, size: int) -> int:
        return 0


class Together(Act):
    """Asks, holders, windows, the group's words."""

    def act(self) -> Any:
        remove = self.ledger.holders.register(_Holder())
        try:
            self.device.ask(MIB, 0.002)
            self.ledger.serve(0.0)
            with self.device.window(0.001):
                pass
            self.device.wait_clear(0.0)
            self.ledger.job("a job").interrupt()
            self.ledger.prompt_begin("a prompt")
            self.ledger.prompt_end()
            self.ledger.request_free()
            self.ledger.free_epoch()
        finally:
            remove()
        return None


class Sweep(Act):
    """A member that was killed is taken back."""

    def prepare(self) -> None:
        go, told = os.pipe()
        pid = os.fork()
        if pid == 0:
            with contextlib.suppress(BaseException):
                self.device.publish(MIB)
                os.write(told, b"x")
                time.sleep(60)
            os._exit(1)
        os.close(told)
        os.read(go, 1)
        os.close(go)
        os.kill(pid, 9)
        os.waitpid(pid, 0)

    def act(self) -> Any:
        self.ledger.sweep()
        return None


class Housekeep(Act):
    """One round of the background thread, on this one."""

    def act(self) -> Any:
        self.ledger._layouts_at = 0.0
        self.ledger._housekeep()
        return None


class Move(Act):
    """The slot was lost: the next publish joins again."""

    def prepare(self) -> None:
        with Raw(self.path) as raw:
            raw.forge_sweep(self.ledger._info()["slot"])

    def act(self) -> Any:
        self.device.publish(OWN)
        return self.ledger.degraded_reason

    def settle(self) -> None:
        for _ in range(200):
            if not self.ledger.degraded:
                return
            self.ledger._tick()
            time.sleep(0.02)


ACTS: dict[str, type[Act]] = {
    cls.__name__.lower(): cls
    for cls in (Join, First, Open, Look, Claim, Together, Sweep, Housekeep, Move)
}


def one(shim: Any, act: Act, kinds: int, n: int, burst: int) -> tuple[int, str]:
    """How many calls failed, and what came of it."""
    act.prepare()
    failed = 0
    try:
        shim.starve_arm(kinds, ctypes.c_long(n), ctypes.c_long(burst))
        try:
            reason = act.act()
        finally:
            failed = shim.starve_disarm()
        outcome = "ok" if reason is None else f"degraded: {reason}"
    except ALLOWED as error:
        shim.starve_disarm()
        outcome = f"{type(error).__name__}: {error}"
    except (RuntimeError, SystemError) as error:
        shim.starve_disarm()
        known = str(error) in PYTHONS_OWN
        outcome = repr(error) if known else "unexpected: " + traceback.format_exc()
    except Exception:
        shim.starve_disarm()
        outcome = "unexpected: " + traceback.format_exc()
    return failed, outcome


def main() -> None:
    library, name, kind, scope, burst, most, seed = sys.argv[1:8]
    shim = ctypes.CDLL(library)
    if scope == "module":
        low, high = module_range()
        shim.starve_range(ctypes.c_size_t(low), ctypes.c_size_t(high))
    path = os.environ["MEMLEDGER_PATH"]
    act = ACTS[name](path)
    one(shim, act, 0, 1, 0)
    act.settle()
    rng = random.Random(int(seed))
    act.prepare()
    shim.starve_arm(KINDS[kind], ctypes.c_long(1 << 40), ctypes.c_long(0))
    act.act()
    shim.starve_disarm()
    calls = shim.starve_seen()
    act.settle()
    wrong: list[str] = []
    points = range(1, calls + 1)
    if calls > int(most):
        points = sorted(rng.sample(points, int(most)))
    outcomes: Counter[str] = Counter()
    fired = 0
    before = resources()
    for n in points:
        faulthandler.dump_traceback_later(40, exit=True)  # who hangs, says where
        failed, outcome = one(shim, act, KINDS[kind], n, int(burst))
        fired += failed
        outcomes[outcome.split(" (")[0]] += 1
        gc.collect()
        try:
            assert not outcome.startswith("unexpected"), outcome
            act.settle()
            wrong += [f"n={n}, {outcome}: {text}" for text in act.wrong()]
        except Exception as error:
            wrong.append(f"n={n}, {outcome}: afterwards {error!r}")
        if len(wrong) > 5:
            break
    faulthandler.cancel_dump_traceback_later()
    after = resources()
    # The C heap grows by mappings of its own; what an act kept would be one for each.
    if after[0] > before[0] or after[1] - before[1] > max(len(points) // 4, 12):
        wrong.append(f"descriptors, mappings: {before} at first, {after} after {len(points)} acts")
    sim.remove(f"starved-{os.getpid()}")
    print(json.dumps({"calls": calls, "acts": len(points), "fired": fired,
                      "outcomes": outcomes, "wrong": wrong}))  # fmt: skip
    sys.stdout.flush()
    act.ledger.leave()


if __name__ == "__main__":
    main()
