"""What the processes of the scenes do in which they move each other: ask, pin, stop.

Each function is one process. Where there is no ledger, it does as programs do today.
"""

from __future__ import annotations

import ctypes
import mmap
from typing import Any, Protocol

from memledger.demo import policy
from memledger.demo.actor import Actor, LedgerMemory
from memledger.demo.log import Request, request_event
from memledger.demo.policy import Checkpoint
from memledger.pins import PinClaim
from memledger.sim import Allocator

Result = dict[str, Any]

_TRIES = 1000


# ---- a sibling gives back


class _IdleCache:
    """A holder: gives what the allocator has idle."""

    def __init__(self, actor: Actor, allocator: Allocator) -> None:
        self._actor = actor
        self._allocator = allocator
        self.given = 0

    def release_memory(self, device: object, size: int) -> int:
        freed = self._allocator.empty_cache()
        publish_allocator(self._actor, self._allocator)
        self.given += freed
        return freed


def publish_allocator(actor: Actor, allocator: Allocator) -> None:
    reserved = allocator.reserved
    actor.memory.publish(reserved, releasable=reserved - allocator.allocated)


def keeper(actor: Actor, *, model_bytes: int, earlier_bytes: int) -> Result:
    """Has a model, and keeps the memory of an earlier one in its allocator's cache, as torch does.
    Looks at each safe point whether somebody asks for it."""
    allocator = Allocator(actor.card)
    holder = _IdleCache(actor, allocator)
    actor.memory.offer(holder)
    allocations = {}
    for what, nbytes in (("model", model_bytes), ("earlier", earlier_bytes)):
        load = actor.decide_load(f"{actor.name}/{what}", Checkpoint(nbytes, dtypes=("fp8",)))
        allocations[what] = allocator.alloc(nbytes)
        if load.promise is not None:
            load.promise.settle(held=allocator.reserved)
    actor.peak = actor.card.used()
    allocations["earlier"].free()
    with actor.log.in_order():
        publish_allocator(actor, allocator)
        actor.log.write(request_event(Request("free", actor.name, f"{actor.name}/earlier")))
    actor.meet("ready")
    actor.meet("loaded", serving=True)
    return actor.result(given_bytes=holder.given, held_bytes=allocator.reserved)


def asker(actor: Actor, *, fp8_bytes: int) -> Result:
    """Wants to load what does not fit beside the keeper's idle cache. Has the others make room, if
    it knows any; then tries in any case, as nothing would come of waiting."""
    checkpoint = Checkpoint(fp8_bytes, dtypes=("fp8",))
    actor.meet("ready")
    seen = actor.memory.figures().free
    given = actor.memory.make_room(policy.load_bytes(checkpoint, "fp8"))
    load = actor.decide_load(f"{actor.name}/model", checkpoint)
    promise = load.promise or actor.no_promise()
    loaded = actor.take(fp8_bytes, promise) is not None
    promise.settle(held=actor.card.held_by_me())
    actor.meet("loaded")
    return actor.result(loaded=loaded, free_bytes=seen, ask=given._asdict())


# ---- pins


class _Pins(Protocol):
    """Where a process gets leave to page-lock. Bytes, all in whole blocks."""

    def try_pin(self, nbytes: int) -> bool: ...
    def settle(self, pinned: int) -> None: ...


class _OwnCeiling:
    """A program of today: it knows what it has pinned itself."""

    def __init__(self, ceiling_bytes: int) -> None:
        self._left = ceiling_bytes

    def try_pin(self, nbytes: int) -> bool:
        fits = nbytes <= self._left
        self._left -= nbytes if fits else 0
        return fits

    def settle(self, pinned: int) -> None:
        pass


class _LedgerPins:
    """A member: one budget with all others. `claims` False is --break-pins: it looks at the budget
    and takes, and tells the others afterwards."""

    def __init__(self, memory: LedgerMemory, budget_bytes: int, *, claims: bool) -> None:
        self._ram = memory.ledger.device("ram")
        self._ram.pin_ceiling(budget_bytes)
        self._claims = claims
        self._claim: PinClaim | None = None

    def try_pin(self, nbytes: int) -> bool:
        if not self._claims:
            return (self._ram.pin_budget() or 0) >= nbytes
        # None also where the others' tries were in the way: then there is room left to try for.
        for _ in range(_TRIES):
            self._claim = self._ram.try_pin(nbytes)
            if self._claim is not None or (self._ram.pin_budget() or 0) < nbytes:
                break
        return self._claim is not None

    def settle(self, pinned: int) -> None:
        claim, self._claim = self._claim, None
        if claim is not None:
            claim.settle(pinned)
        else:
            self._ram.pinned(pinned)


def pinner(actor: Actor, *, budget_bytes: int, block_bytes: int, blocks: int, races: int) -> Result:
    """Page-locks block after block while it may, as a loader does with its staging buffers."""
    pins: _Pins = _OwnCeiling(budget_bytes)
    if isinstance(actor.memory, LedgerMemory):
        pins = _LedgerPins(actor.memory, budget_bytes, claims=actor.mode != "pinless")
    actor.meet("up")
    locked: list[mmap.mmap] = []
    pinned = really = 0
    for number in range(blocks):
        actor.meet(f"look {number}")
        with actor.log.in_order():
            may = pins.try_pin(block_bytes)
            request = Request("pin", actor.name, f"{actor.name}/{number}", nbytes=block_bytes)
            decision = block_bytes if may else 0
            actor.log.write(request_event(request) | {"decision": decision})
        actor.meet(f"pin {number}")
        if may:
            locked.append(mmap.mmap(-1, block_bytes))
            pinned += block_bytes
            really += block_bytes if _page_lock(locked[-1]) else 0
            pins.settle(pinned)
    actor.meet("end")
    return actor.result(
        pinned_bytes=pinned,
        page_locked_bytes=really,
        races=[_pin_race(actor, pins, block_bytes, number) for number in range(races)],
    )


def _pin_race(actor: Actor, pins: _Pins, block_bytes: int, number: int) -> int:
    """Everything from the start, without the lock of the log, so that the ledger alone keeps them
    apart. It is only accounted for: nothing is page-locked."""
    pins.settle(0)
    actor.meet(f"race {number}")
    pinned = 0
    while pins.try_pin(block_bytes):
        pinned += block_bytes
        pins.settle(pinned)
    actor.meet(f"raced {number}")
    return pinned


def _page_lock(block: mmap.mmap) -> bool:
    """For real, where the system allows it. It ends with the process."""
    try:
        lock = ctypes.CDLL(None, use_errno=True).mlock
    except (AttributeError, OSError, TypeError):
        return False
    address = ctypes.addressof(ctypes.c_char.from_buffer(block))
    return bool(lock(ctypes.c_void_p(address), ctypes.c_size_t(len(block))) == 0)


# ---- a stop click


class _Flag:
    """A program of today: the click sets a flag in the server's own process."""

    def begin(self, prompt: str) -> None:
        self._set = False

    def click(self, prompt: str) -> None:
        self._set = True

    def stopped(self) -> bool:
        return getattr(self, "_set", False)


class _Word:
    """A member: the interrupt word of its group."""

    def __init__(self, memory: LedgerMemory) -> None:
        self._ledger = memory.ledger

    def begin(self, prompt: str) -> None:
        if not self._ledger.prompt_begin(prompt):
            raise RuntimeError(f"leads no group: {self._ledger.leader_reason}")

    def click(self, prompt: str) -> None:
        self._ledger.job(prompt).interrupt()

    def stopped(self) -> bool:
        return self._ledger.interrupted()


def _interrupts(actor: Actor) -> _Flag | _Word:
    return _Word(actor.memory) if isinstance(actor.memory, LedgerMemory) else _Flag()


def server(actor: Actor, *, server_group: str, prompts: int, clicks_in: list[int]) -> Result:
    """Begins prompt after prompt; in those of `clicks_in` somebody clicks on stop."""
    interrupts = _interrupts(actor)
    for number in range(prompts):
        prompt = f"{actor.name}/prompt {number}"
        actor.meet(f"begin {number}")
        with actor.log.in_order():
            interrupts.begin(prompt)
            actor.log.write(request_event(Request("begin", actor.name, prompt, group=server_group)))
        actor.meet(f"begun {number}")
        if number in clicks_in:
            actor.meet(f"click {number}")
            with actor.log.in_order():
                interrupts.click(prompt)
                actor.log.write(
                    request_event(Request("stop", actor.name, prompt, group=server_group))
                )
        actor.meet(f"end {number}")
    return actor.result()


def stepper(actor: Actor, *, server_group: str, steps: list[int]) -> Result:
    """Makes the steps of its server's prompts; looks before each whether it was stopped."""
    interrupts = _interrupts(actor)
    made: list[list[bool]] = []
    actor.meet("up")
    for number, count in enumerate(steps):
        made.append([])
        for step in range(count):
            actor.meet(f"step {number}.{step}")
            request = Request(
                "turn", actor.name, f"{actor.name}/{number}.{step}", group=server_group
            )
            with actor.log.in_order():
                stopped = interrupts.stopped()
                decision = "stopped" if stopped else "made"
                actor.log.write(request_event(request) | {"decision": decision})
            made[-1].append(not stopped)
        actor.meet(f"end {number}")
    return actor.result(made=made)
