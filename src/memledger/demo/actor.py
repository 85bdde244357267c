"""A process of the demo: how it decides, claims, allocates and logs, with or without the ledger."""

from __future__ import annotations

import json
import os
import queue
import sys
import threading
import time
from typing import Any, NamedTuple, Protocol

import memledger
from memledger.asks import Holder
from memledger.demo import policy
from memledger.demo.log import Log, Request, request_event
from memledger.demo.policy import Checkpoint, Figures, Step
from memledger.sim import Block, Card, OutOfMemory

CARD = "demo"
PUMP_S = 0.1
_SERVE_S = 0.02
_ASK_S = 15.0
_QUIET_S = 5.0
_TRIES = 20


class Promise(Protocol):
    """Bytes that a process has said it will take."""

    def publish(self, held: int) -> None: ...
    def settle(self, held: int) -> None: ...
    def cancel(self) -> None: ...


class Memory(Protocol):
    """Where figures come from and where decisions go. This is all that differs between the
    runs."""

    def figures(self) -> Figures: ...

    def free_now(self) -> int:
        """The free figure as it stands, for one who only looks."""
        ...

    def promise(self, sizes: list[int]) -> tuple[int, Promise]:
        """For the first of `sizes` that fits; raises ClaimRefused."""
        ...

    def wait_for(self, nbytes: int) -> Promise:
        """The same, once it fits."""
        ...

    def publish(self, held: int, releasable: int = 0) -> None: ...

    def make_room(self, nbytes: int) -> Given:
        """Have others give back what `nbytes` are short of."""
        ...

    def offer(self, holder: Holder) -> None:
        """Others may have that asked for memory."""
        ...

    def serve(self) -> None:
        """A safe point: answer those who ask; waits some milliseconds for the first."""
        ...


class Given(NamedTuple):
    """What others gave back, in bytes; verified: what the device's readings confirm of it."""

    state: str
    credited: int = 0
    verified: int | None = None


class _NoPromise:
    def __init__(self, memory: Memory) -> None:
        self._memory = memory

    def publish(self, held: int) -> None:
        self._memory.publish(held)

    settle = publish

    def cancel(self) -> None:
        pass


class DriverMemory:
    """A program of today: it asks the driver what is free, and takes it."""

    def __init__(self, card: Card) -> None:
        self._card = card

    def figures(self) -> Figures:
        free, held = self._card.free(), self._card.held_by_me()
        return Figures(free=free, budget=free + held, held=held)

    def free_now(self) -> int:
        return self._card.free()

    def promise(self, sizes: list[int]) -> tuple[int, Promise]:
        return 0, _NoPromise(self)

    def wait_for(self, nbytes: int) -> Promise:
        while self.figures().free < nbytes:
            time.sleep(0.005)
        return _NoPromise(self)

    def publish(self, held: int, releasable: int = 0) -> None:
        pass

    def make_room(self, nbytes: int) -> Given:
        return Given("nobody to ask")

    def offer(self, holder: Holder) -> None:
        pass

    def serve(self) -> None:
        time.sleep(_SERVE_S)


class LedgerMemory:
    """A member: it reads the shared figures, and claims before it takes."""

    def __init__(self, name: str, role: str, group: str | None) -> None:
        self.ledger = ledger = memledger.join(label=name, role=role, group=group)
        if ledger.degraded:
            raise RuntimeError(f"the ledger is not shared: {ledger.degraded_reason}")
        self._gpu = ledger.device(f"sim:{CARD}")

    def figures(self) -> Figures:
        """Where the ledger says that bytes are unaccounted, a reading was taken while somebody's
        bytes landed; there are no foreign programs here. The figure is on the safe side then, but
        the oracle knows no such moments: so ask the driver anew until it has passed."""
        deadline = time.monotonic() + _QUIET_S
        figures = self._gpu.figures()
        while figures.unaccounted and time.monotonic() < deadline:
            time.sleep(0.005)
            self._gpu.refresh(max_age_s=0)
            figures = self._gpu.figures()
        if figures.free is None or figures.budget is None:
            raise RuntimeError(f"no figures: {figures.reason}")
        return Figures(free=figures.free, budget=figures.budget, held=figures.own_held)

    def free_now(self) -> int:
        free = self._gpu.free()
        if free is None:
            raise RuntimeError(f"no figures: {self._gpu.figures().reason}")
        return free

    def promise(self, sizes: list[int]) -> tuple[int, Promise]:
        return self._gpu.claim_first(sizes)

    def wait_for(self, nbytes: int) -> Promise:
        return self._gpu.claim(nbytes, timeout=30.0)

    def publish(self, held: int, releasable: int = 0) -> None:
        self._gpu.publish(held=held, releasable=releasable)

    def make_room(self, nbytes: int) -> Given:
        missing = nbytes - self.figures().free
        if missing <= 0:
            return Given("not needed")
        result = self._gpu.ask(missing, timeout=_ASK_S)
        return Given(result.state, result.credited, result.verified)

    def offer(self, holder: Holder) -> None:
        self.ledger.holders.register(holder)

    def serve(self) -> None:
        self.ledger.serve(timeout=_SERVE_S)


class ClaimlessMemory(LedgerMemory):
    """--break-claims: reads and publishes, but claims nothing. The run must fail."""

    def promise(self, sizes: list[int]) -> tuple[int, Promise]:
        return 0, _NoPromise(self)

    def wait_for(self, nbytes: int) -> Promise:
        while self.figures().free < nbytes:
            time.sleep(0.005)
        return _NoPromise(self)


class AsklessMemory(LedgerMemory):
    """--break-asks: asks nobody for anything. The run must fail."""

    def make_room(self, nbytes: int) -> Given:
        return Given("asks nobody")


class Load:
    """A load that was decided: dtype None means that there was no room."""

    def __init__(self, subject: str, checkpoint: Checkpoint) -> None:
        self.subject = subject
        self.checkpoint = checkpoint
        self.dtype: str | None = None
        self.promise: Promise | None = None
        self.blocks: list[Block] = []


class Actor:
    """What the roles are written in."""

    def __init__(
        self,
        name: str,
        directory: str,
        mode: str,
        *,
        role: str = "worker",
        group: str | None = None,
    ) -> None:
        self.name = name
        self.card = Card(CARD, directory=directory)
        self.log = Log(os.path.join(directory, "log.jsonl"))
        self.mode = mode
        self.memory: Memory
        if mode == "without":
            self.memory = DriverMemory(self.card)
        else:
            kind = {"claimless": ClaimlessMemory, "askless": AsklessMemory}.get(mode, LedgerMemory)
            self.memory = kind(name, role, group)
        self.ooms = 0
        self.peak = 0
        self._go: queue.SimpleQueue[str] = queue.SimpleQueue()
        threading.Thread(target=self._listen, daemon=True).start()

    # ---- meeting the others

    def meet(self, point: str, *, serving: bool = False) -> None:
        """Waits there until the parent has seen all that it waits for; answering others meanwhile,
        if `serving`."""
        self.say({"at": point})
        while serving and self._go.empty():
            self.memory.serve()
        self._go.get()

    def say(self, message: dict[str, Any]) -> None:
        sys.stdout.write(json.dumps(message) + "\n")
        sys.stdout.flush()

    def _listen(self) -> None:
        for line in sys.stdin:
            self._go.put(line)
        os._exit(3)  # the parent has gone, and with it the reason to be

    # ---- deciding; the lock of the log gives the oracle its order and is explained there

    def decide_load(self, subject: str, checkpoint: Checkpoint) -> Load:
        load = Load(subject, checkpoint)
        request = Request("load", self.name, subject, checkpoint=checkpoint)
        with self.log.in_order():
            for _ in range(_TRIES):
                figures = self.memory.figures()
                dtypes = policy.dtypes_that_fit(checkpoint, figures)
                sizes = [policy.load_bytes(checkpoint, dtype) for dtype in dtypes]
                index, load.promise = self._promised(sizes)
                if load.promise is not None or not sizes:
                    break
            load.dtype = dtypes[index] if load.promise is not None else None
            self._write(request, load.dtype, figures)
        return load

    def await_load(self, subject: str, checkpoint: Checkpoint, *, fits: bool) -> Load:
        """For a load that has one dtype, and waits where that did not fit."""
        load = Load(subject, checkpoint)
        (load.dtype,) = checkpoint.dtypes
        nbytes = policy.load_bytes(checkpoint, load.dtype)
        # Outside of the lock: whoever frees what this waits for needs it.
        load.promise = self.memory.promise([nbytes])[1] if fits else self.memory.wait_for(nbytes)
        with self.log.in_order():
            self._write(
                Request("load", self.name, subject, checkpoint=checkpoint), load.dtype, None
            )
        return load

    def decide_step(self, subject: str, step: Step) -> tuple[int, Promise | None]:
        with self.log.in_order():
            for _ in range(_TRIES):
                figures = self.memory.figures()
                batch = policy.choose_batch(step, figures)
                sizes = [policy.step_bytes(step, batch)] if batch else []
                _, promise = self._promised(sizes)
                if promise is not None or not sizes:
                    break
            if promise is None:
                batch = 0
            self._write(Request("step", self.name, subject, step=step), batch, figures)
        return batch, promise

    def _promised(self, sizes: list[int]) -> tuple[int, Promise | None]:
        """A claim takes a reading of its own where the newest is old, and that one may fall into
        somebody's landing: then it is refused, and the figures are read anew."""
        if not sizes:
            return 0, None
        try:
            return self.memory.promise(sizes)
        except memledger.ClaimRefused:
            return 0, None

    def _write(self, request: Request, decision: str | int | None, figures: Figures | None) -> None:
        event = request_event(request) | {"decision": decision}
        if figures is not None:
            event["figures"] = figures._asdict()
        self.log.write(event)

    # ---- taking and giving back

    def take(self, nbytes: int, promise: Promise, *, pump_s: float = PUMP_S) -> Block | None:
        """None: out of memory. Publishes through the promise every `pump_s` seconds while bytes
        land, and when they have."""
        try:
            block = self.card.alloc(nbytes)
            due = time.monotonic()
            while not block.poll():
                self.peak = max(self.peak, self.card.used())
                if time.monotonic() >= due:
                    promise.publish(held=self.card.held_by_me())
                    due = time.monotonic() + pump_s
                time.sleep(0.005)
        except OutOfMemory:
            self.ooms += 1
            promise.publish(held=self.card.held_by_me())
            return None
        self.peak = max(self.peak, self.card.used())
        promise.publish(held=self.card.held_by_me())
        return block

    def no_promise(self) -> Promise:
        """For one who takes what nobody has promised it."""
        return _NoPromise(self.memory)

    def take_part(self, load: Load, nbytes: int) -> bool:
        """The next `nbytes` of a load. False: out of memory; the load is given up and freed."""
        if load.promise is None:
            return False
        block = self.take(nbytes, load.promise)
        if block is not None:
            load.blocks.append(block)
            return True
        load.promise.cancel()
        self.free(load.subject, load.blocks)
        return False

    def free(self, subject: str, blocks: list[Block]) -> None:
        for block in blocks:
            block.free()
        blocks.clear()
        with self.log.in_order():
            self.memory.publish(self.card.held_by_me())
            self.log.write(request_event(Request("free", self.name, subject)))

    def result(self, **more: Any) -> dict[str, Any]:
        return {"ooms": self.ooms, "peak_bytes": self.peak, **more}
