"""No call of the public API keeps anything: descriptors, mappings, threads, memory of C or Python.

Each call is repeated in rounds of the same length. A leak grows in every one of them, so a call
fails only if each round ends above the one before; what a first round still fills (caches, arenas)
does not count. The C heap is asked for its bytes in use, which is exact: one byte kept per call
shows.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import inspect
import itertools
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import memledger
import memledger.torch as adapter
from helpers import units
from memledger import _native, sim

MIB = 1 << 20
ROUNDS = 5
CALLS = 500
SLOW_CALLS = 60

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="counts what /proc shows")


_MALLINFO = (
    *("arena", "ordblks", "smblks", "hblks", "hblkhd"),
    *("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"),
)


class _Mallinfo(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in _MALLINFO]


def _heap_bytes() -> int:
    """Bytes that the C heap has given out; 0 where the C library does not say."""
    mallinfo = getattr(ctypes.CDLL(None), "mallinfo2", None)
    if mallinfo is None:
        return 0
    mallinfo.restype = _Mallinfo
    info = mallinfo()
    return int(info.uordblks + info.hblkhd)


class Usage(NamedTuple):
    descriptors: int
    mappings: int
    address_kib: int
    """Mappings that touch are shown as one, so their number does not tell."""
    threads: int
    heap_bytes: int
    python_blocks: int


def usage() -> Usage:
    gc.collect()
    return Usage(
        len(os.listdir("/proc/self/fd")),
        Path("/proc/self/maps").read_text().count("\n"),
        int(Path("/proc/self/statm").read_text().split()[0]) * 4,
        threading.active_count(),
        _heap_bytes(),
        sys.getallocatedblocks(),
    )


def growth(call: Callable[[], object], calls: int, rounds: int = ROUNDS) -> dict[str, list[int]]:
    """By resource that ended every round higher than the one before: its values."""
    for _ in range(3):
        call()
    seen = [usage()]
    for _ in range(rounds):
        for _ in range(calls):
            call()
        seen.append(usage())
    grown = {}
    for name, values in zip(Usage._fields, zip(*seen, strict=True), strict=True):
        # What the measuring itself leaves between two looks is some 15 blocks.
        least = {
            "address_kib": 4 * calls,
            "heap_bytes": 1024,
            # Caches of the interpreter fill up slowly; what is kept by each call is a block each.
            "python_blocks": max(calls * 3 // 4, 40),
        }.get(name, 1)
        if all(after - before >= least for before, after in itertools.pairwise(values)):
            grown[name] = list(values)
    return grown


class Api:
    """What the calls below work on."""

    def __init__(self, ledger: memledger.Ledger, card: str) -> None:
        self.ledger = ledger
        self.card = card
        self.gpu = ledger.device(card)
        self.ram = ledger.device("ram")
        self.account = self.gpu.account("leaks")
        self.job = ledger.job("a job")


class _Nothing:
    def release_memory(self, device: object, size: int) -> int:
        return 0


def _refused(call: Callable[[], object]) -> None:
    with pytest.raises(memledger.ClaimRefused):
        call()


def _window(gpu: memledger.Device) -> None:
    with gpu.window(0.001):
        pass


def _delta(gpu: memledger.Device) -> None:
    with gpu.delta():
        pass


def _pin(ram: memledger.Device) -> None:
    claim = ram.try_pin(4096)
    assert claim is not None
    claim.cancel()
    ram.pinned(0)


def _settled_pin(ram: memledger.Device) -> None:
    claim = ram.try_pin(4096)
    assert claim is not None
    assert claim.checked
    claim.settle(4096)
    ram.pinned(0)


def _claim_with(api: Api, act: Callable[[Any], object]) -> None:
    with api.gpu.claim(MIB) as claim:
        act(claim)
        claim.publish(0)


CALLS_OF: dict[str, Callable[[Api], object]] = {
    "Account.add": lambda a: a.account.add(held=0),
    "Account.claim": lambda a: a.account.claim(MIB).cancel(),
    "Account.claim_first": lambda a: a.account.claim_first([1 << 60, MIB])[1].cancel(),
    "Account.publish": lambda a: a.account.publish(0),
    "Account.try_claim": lambda a: a.account.try_claim(MIB).cancel(),
    "Claim.cancel": lambda a: a.gpu.claim(MIB).cancel(),
    "Claim.publish": lambda a: _claim_with(a, lambda claim: claim.publish(4096)),
    "Claim.renew": lambda a: _claim_with(a, lambda claim: claim.renew(5.0)),
    "Claim.resize": lambda a: _claim_with(a, lambda claim: claim.resize(2 * MIB)),
    "Claim.settle": lambda a: a.gpu.claim(MIB).settle(0),
    "Device.account": lambda a: a.gpu.account("leaks"),
    "Device.add": lambda a: a.gpu.add(held=0),
    "Device.ask": lambda a: a.gpu.ask(MIB, 0.0),
    "Device.available": lambda a: a.gpu.available(),
    "Device.budget": lambda a: a.gpu.budget(),
    "Device.claim": lambda a: _refused(lambda: a.gpu.claim(1 << 60)),
    "Device.claim_first": lambda a: a.gpu.claim_first([MIB])[1].cancel(),
    "Device.claimed_by_others": lambda a: a.gpu.claimed_by_others(),
    "Device.delta": lambda a: _delta(a.gpu),
    "Device.figures": lambda a: repr(a.gpu.figures()),
    "Device.floor": lambda a: a.ram.floor(0),
    "Device.free": lambda a: a.gpu.free(),
    "Device.headroom": lambda a: a.gpu.headroom(0),
    "Device.learn_limit": lambda a: a.ram.learn_limit(None),
    "Device.note_oom": lambda a: a.gpu.note_oom(),
    "Device.pin_budget": lambda a: a.ram.pin_budget(),
    "Device.pin_ceiling": lambda a: a.ram.pin_ceiling(1 << 30),
    "Device.pinned": lambda a: _settled_pin(a.ram),
    "Device.publish": lambda a: a.gpu.publish(MIB, releasable=1, pinned=0),
    "Device.refresh": lambda a: a.gpu.refresh(0),
    "Device.snapshot": lambda a: a.gpu.snapshot(),
    "Device.total": lambda a: a.gpu.total(),
    "Device.try_claim": lambda a: (a.gpu.try_claim(1 << 60), a.gpu.try_claim(MIB)),
    "Device.try_pin": lambda a: _pin(a.ram),
    "Device.wait_clear": lambda a: a.gpu.wait_clear(0.0),
    "Device.window": lambda a: _window(a.gpu),
    "Ledger.as_holder": lambda a: a.ledger.as_holder().release_memory(a.gpu, MIB),
    "Ledger.device": lambda a: (a.ledger.device(a.card), a.ledger.device("ram")),
    "Ledger.devices": lambda a: a.ledger.devices(),
    "Ledger.free_epoch": lambda a: a.ledger.free_epoch(),
    "Ledger.interrupted": lambda a: a.ledger.interrupted(),
    "Ledger.job": lambda a: a.ledger.job("another").interrupted(),
    "Ledger.members": lambda a: a.ledger.members(),
    "Ledger.pending": lambda a: a.ledger.pending(),
    "Ledger.prompt": lambda a: a.ledger.prompt(),
    "Ledger.prompt_begin": lambda a: (a.ledger.prompt_begin("p"), a.ledger.prompt()),
    "Ledger.prompt_end": lambda a: a.ledger.prompt_end("p"),
    "Ledger.request_free": lambda a: a.ledger.request_free(scope="all"),
    "Ledger.serve": lambda a: a.ledger.serve(0.0),
    "Ledger.sweep": lambda a: a.ledger.sweep(),
    "holders.register": lambda a: a.ledger.holders.register(_Nothing())(),
    "Job.interrupt": lambda a: a.job.interrupt(),
    "Job.interrupted": lambda a: a.job.interrupted(),
    "format_size": lambda a: memledger.format_size(12345678),
    "join": lambda a: memledger.join(),
    "parse_size": lambda a: memledger.parse_size("24GiB"),
}
SLOW = {"Device.ask", "Device.refresh", "Device.delta", "Ledger.sweep", "Device.window"}
ELSEWHERE = {"Ledger.leave": "test_joining_and_leaving_keeps_nothing"}


def public_api() -> set[str]:
    """Functions of the package and public methods of the classes that it names."""
    found = {"holders.register", "Job.interrupt", "Job.interrupted"}
    for name in memledger.__all__:
        value = getattr(memledger, name)
        if inspect.isclass(value) and issubclass(
            value, (memledger.Ledger, memledger.Device, memledger.Account, memledger.Claim)
        ):
            found |= {
                f"{name}.{method}"
                for method in dir(value)
                if not method.startswith("_") and callable(getattr(value, method))
            }
        elif inspect.isfunction(value):
            found.add(name)
    return found


def test_every_public_call_has_a_leak_test() -> None:
    assert public_api() == set(CALLS_OF) | set(ELSEWHERE)


@pytest.fixture
def api(ledger: memledger.Ledger) -> Any:
    name = f"leaks-{os.getpid()}"
    # A host leads itself, so that the group's calls have somebody to write to.
    host = memledger.Ledger(label="leaks", role="host", path=ledger.path)
    yield Api(host, f"sim:{name}?total=8GiB")
    host.leave()
    sim.remove(name)


@pytest.mark.parametrize("name", sorted(CALLS_OF))
def test_a_call_keeps_nothing(api: Api, name: str) -> None:
    calls = SLOW_CALLS if name in SLOW else CALLS
    grown = growth(lambda: CALLS_OF[name](api), calls)
    assert not grown, f"after rounds of {calls} calls of {name}: {grown}"


def test_growth_finds_what_is_kept() -> None:
    """The measure itself: one small object per call, one descriptor, one thread's worth of heap."""
    kept: list[Any] = []
    assert "python_blocks" in growth(lambda: kept.append(bytes(40)), CALLS)
    assert "descriptors" in growth(lambda: kept.append(os.open("/dev/null", os.O_RDONLY)), 3)
    for fd in (k for k in kept if isinstance(k, int)):
        os.close(fd)
    if _heap_bytes():
        assert "heap_bytes" in growth(lambda: kept.append(ctypes.create_string_buffer(600)), CALLS)


def _join_and_leave(path: Path) -> None:
    handle = memledger.join(label="again", path=path)
    device = handle.device("ram")
    device.publish(MIB)
    device.account("part").publish(1)
    claim = device.try_claim(MIB)
    assert claim is not None
    handle.leave()


@pytest.mark.watchdog(600)
def test_joining_and_leaving_keeps_nothing(segment: Path) -> None:
    grown = growth(lambda: _join_and_leave(segment), units.count(500, 100_000) // ROUNDS)
    assert not grown


@pytest.mark.watchdog(600)
def test_claims_keep_nothing(ledger: memledger.Ledger) -> None:
    gpu = ledger.device("ram")

    def claims() -> None:
        for _ in range(1000):
            claim = gpu.try_claim(4096)
            assert claim is not None
            claim.cancel()

    assert not growth(claims, units.count(100_000, 1_000_000) // 1000 // ROUNDS)


def test_a_join_that_fails_keeps_nothing(segment: Path) -> None:
    """A process has room for so many handles; one more is refused, after much of it was made."""
    handles: list[_native.Ledger] = []

    def join() -> None:
        with contextlib.suppress(MemoryError):
            while True:
                handles.append(_native.Ledger(path=segment, label="one of many"))

    join()
    most = len(handles)
    try:
        assert most > 200
        assert not growth(join, 20)
        assert len(handles) == most
    finally:
        for handle in handles:
            handle._leave()


# ---- the simulated card, and torch through a stand-in on one


class Sim:
    """A card, an allocator on it, and a device of the ledger with the stand-in for torch.cuda."""

    def __init__(self, ledger: memledger.Ledger, name: str) -> None:
        self.ledger = ledger
        self.url = f"{name}?total=8GiB"
        self.card = sim.open_url(self.url)
        self.allocator = sim.Allocator(self.card)
        self.gpu = ledger.device(f"sim:{self.url}")
        self.backend = _Cuda(self.allocator)
        self.holder = adapter.empty_cache_holder(self.gpu, index=0, backend=self.backend)


class _Cuda:
    def __init__(self, allocator: sim.Allocator) -> None:
        self._allocator = allocator

    def is_initialized(self) -> bool:
        return True

    def device_count(self) -> int:
        return 1

    def memory_stats(self, device: int) -> dict[str, int]:
        return {
            "reserved_bytes.all.current": self._allocator.reserved,
            "allocated_bytes.all.current": self._allocator.allocated,
        }

    def empty_cache(self) -> None:
        self._allocator.empty_cache()


def _allocate(s: Sim, act: Callable[[sim.Allocation], object]) -> None:
    with s.allocator.alloc(MIB) as allocation:
        act(allocation)


def _block(s: Sim, act: Callable[[sim.Block], object]) -> None:
    block = s.card.alloc(MIB)
    act(block)
    block.free()


def _give_back(s: Sim) -> None:
    s.card.alloc(MIB)  # a block without an owner stays until its bytes are given back
    s.card.give_back(MIB)


def _pump(s: Sim) -> None:
    with s.gpu.claim(MIB) as claim, adapter.pump(claim, s.gpu, index=0, backend=s.backend):
        pass


SIM_CALLS: dict[str, Callable[[Sim], object]] = {
    "Allocation.free": lambda s: s.allocator.alloc(MIB).free(),
    "Allocation.poll": lambda s: _allocate(s, lambda a: a.poll()),
    "Allocation.wait": lambda s: _allocate(s, lambda a: a.wait(1.0)),
    "Allocator.alloc": lambda s: _allocate(s, lambda a: a.landed),
    "Allocator.empty_cache": lambda s: (s.allocator.alloc(MIB).free(), s.allocator.empty_cache()),
    "Allocator.free": lambda s: s.allocator.free(s.allocator.alloc(MIB)),
    "Block.free": lambda s: s.card.alloc(MIB).free(),
    "Block.poll": lambda s: _block(s, lambda b: b.poll()),
    "Block.wait": lambda s: _block(s, lambda b: b.wait(1.0)),
    "Card.alloc": lambda s: _block(s, lambda b: b.landed),
    "Card.close": lambda s: (s.card.alloc(MIB), s.card.close()),
    "Card.foreign": lambda s: s.card.foreign(MIB),
    "Card.foreign_bytes": lambda s: s.card.foreign_bytes(),
    "Card.free": lambda s: s.card.free(),
    "Card.give_back": _give_back,
    "Card.held_by_me": lambda s: s.card.held_by_me(),
    "Card.holders": lambda s: s.card.holders(),
    "Card.read": lambda s: s.card.read(),
    "Card.used": lambda s: s.card.used(),
    "existing": lambda s: sim.existing(),
    "open_url": lambda s: sim.open_url(s.url),
    "remove": lambda s: sim.remove("there-is-none"),
    "torch.EmptyCacheHolder.release_memory": lambda s: s.holder.release_memory(s.gpu, MIB),
    "torch.amounts": lambda s: adapter.amounts(s.gpu, index=0, backend=s.backend),
    "torch.context_allowance": lambda s: adapter.context_allowance(
        s.gpu, index=0, backend=s.backend
    ),
    "torch.empty_cache_holder": lambda s: adapter.empty_cache_holder(
        s.gpu, index=0, backend=s.backend
    ),
    "torch.max_memory": lambda s: adapter.max_memory(
        s.ledger, devices={0: s.gpu}, backend=s.backend
    ),
    "torch.publish": lambda s: adapter.publish(s.gpu, index=0, backend=s.backend),
    "torch.pump": _pump,
}
SIM_SLOW = {"torch.pump"}


def module_api(module: Any, prefix: str = "") -> set[str]:
    """Functions and public methods of what a module names. Protocols and tuples keep nothing."""
    found = set()
    for name in module.__all__:
        value = getattr(module, name)
        if inspect.isclass(value):
            if issubclass(value, (tuple, Exception)) or getattr(value, "_is_protocol", False):
                continue
            methods = {m: getattr(value, m) for m in dir(value) if not m.startswith("_")}
            found |= {f"{prefix}{name}.{m}" for m, member in methods.items() if callable(member)}
        elif callable(value):
            found.add(prefix + name)
    return found


def test_every_public_call_of_sim_and_torch_has_a_leak_test() -> None:
    assert module_api(sim) | module_api(adapter, "torch.") == set(SIM_CALLS)


@pytest.fixture
def simulated(ledger: memledger.Ledger) -> Any:
    name = f"leaks-{os.getpid()}"
    yield Sim(ledger, name)
    sim.remove(name)


@pytest.mark.parametrize("name", sorted(SIM_CALLS))
def test_a_call_of_sim_or_torch_keeps_nothing(simulated: Sim, name: str) -> None:
    calls = SLOW_CALLS if name in SIM_SLOW else CALLS
    grown = growth(lambda: SIM_CALLS[name](simulated), calls)
    assert not grown, f"after rounds of {calls} calls of {name}: {grown}"
