"""What the processes of the demo do. Each function is one process; its result goes to scenarios.py.

None of them knows whether there is a ledger.
"""

from __future__ import annotations

import mmap
import statistics
import time
from typing import Any

import memledger
from memledger.demo import policy
from memledger.demo.actor import PUMP_S, Actor
from memledger.demo.policy import Checkpoint, Step
from memledger.readings import ram_source

Result = dict[str, Any]


def loader(actor: Actor, *, fp8_bytes: int, activation_bytes: int, races: int) -> Result:
    """Loads a checkpoint in the best dtype that fits, and makes an image with it."""
    checkpoint = Checkpoint(fp8_bytes, activation_bytes)
    actor.meet("decide")
    load = actor.decide_load(f"{actor.name}/model", checkpoint)
    actor.meet("load")
    loaded = (
        load.dtype is not None
        and actor.take_part(load, policy.weights_bytes(checkpoint, load.dtype))
        and actor.take_part(load, activation_bytes)
    )
    if load.promise is not None:
        load.promise.settle(held=actor.card.held_by_me())
    if not loaded:
        return actor.result(dtype=load.dtype, loaded=False)
    actor.meet("unload")
    actor.free(load.subject, load.blocks)
    return actor.result(
        dtype=load.dtype,
        loaded=True,
        races=[_race(actor, checkpoint, number) for number in range(races)],
    )


def _race(actor: Actor, checkpoint: Checkpoint, number: int) -> str:
    """The same decision without the lock of the log, so that the ledger alone keeps the two
    apart."""
    sizes = [policy.load_bytes(checkpoint, dtype) for dtype in checkpoint.dtypes]
    actor.meet(f"race {number}")
    index, promise = actor.memory.promise(sizes)
    actor.meet(f"raced {number}")
    promise.cancel()
    actor.meet(f"over {number}")
    return checkpoint.dtypes[index]


def sampler(actor: Actor, *, model_bytes: int, image_bytes: int, most: int, steps: int) -> Result:
    """Chooses the batch of each step from what is free. A step that meets the end of the card is
    lost."""
    model = actor.decide_load(f"{actor.name}/model", Checkpoint(model_bytes, dtypes=("fp8",)))
    actor.take_part(model, model_bytes)
    step = Step(image_bytes, most)
    batches: list[int | None] = []
    for number in range(steps):
        subject = f"{actor.name}/step {number}"
        actor.meet(f"load {number}")
        actor.meet(f"read {number}")
        batch, promise = actor.decide_step(subject, step)
        actor.meet(f"take {number}")
        block = actor.take(policy.step_bytes(step, batch), promise) if promise else None
        lost = bool(batch) and block is None
        batches.append(None if lost else batch)
        time.sleep(0.01)
        actor.meet(f"free {number}")
        if promise is not None:
            promise.settle(held=actor.card.held_by_me())
        actor.free(subject, [block] if block else [])
    actor.meet("end")
    actor.free(model.subject, model.blocks)
    return actor.result(batches=batches)


def sibling(actor: Actor, *, loads: list[dict[str, int]], parts: int, steps: int) -> Result:
    """Loads checkpoints beside the samplers, a part of the file per step, and frees them again."""
    dtypes: list[str | None] = []
    load = None
    for number in range(steps):
        actor.meet(f"load {number}")
        for plan in loads:
            if plan["from_step"] == number:
                load = actor.decide_load(
                    f"{actor.name}/model {number}", Checkpoint(plan["fp8_bytes"])
                )
                dtypes.append(load.dtype)
            elif plan["until_step"] == number and load is not None:
                if load.promise is not None:
                    load.promise.settle(held=actor.card.held_by_me())
                actor.free(load.subject, load.blocks)
                load = None
        actor.meet(f"read {number}")
        actor.meet(f"take {number}")
        if load is not None and load.dtype is not None and len(load.blocks) < parts:
            nbytes = policy.load_bytes(load.checkpoint, load.dtype) // parts
            if not actor.take_part(load, nbytes):
                dtypes[-1] = "OOM"
                load = None
        actor.meet(f"free {number}")
    actor.meet("end")
    return actor.result(dtypes=dtypes)


def victim(actor: Actor, *, fp8_bytes: int, first_bytes: int) -> Result:
    """Is killed in the middle of its load."""
    checkpoint = Checkpoint(fp8_bytes, dtypes=("fp8",))
    load = actor.decide_load(f"{actor.name}/model", checkpoint)
    ok = actor.take_part(load, first_bytes)
    actor.meet("half loaded")
    ok = ok and actor.take_part(load, fp8_bytes - first_bytes)
    if not ok:
        return actor.result(loaded=False)
    actor.meet("loaded")
    return actor.result(loaded=True)


def waiter(actor: Actor, *, own_bytes: int, fp8_bytes: int) -> Result:
    """Has something already, and wants to load beside the victim: at once where that seems to fit,
    else as soon as it does."""
    own = actor.decide_load(f"{actor.name}/encoder", Checkpoint(own_bytes, dtypes=("fp8",)))
    actor.take_part(own, own_bytes)
    checkpoint = Checkpoint(fp8_bytes, dtypes=("fp8",))
    actor.meet("ready")
    fits = policy.choose_dtype(checkpoint, actor.memory.figures()) is not None
    actor.meet("half loaded")
    load = actor.await_load(f"{actor.name}/model", checkpoint, fits=fits)
    granted = time.monotonic()
    loaded = actor.take_part(load, fp8_bytes)
    if load.promise is not None:
        load.promise.settle(held=actor.card.held_by_me())
    if loaded:
        actor.free(load.subject, load.blocks)
    return actor.result(loaded=loaded, fitted_at_once=fits, granted_at_s=granted)


def slow_loader(actor: Actor, *, fp8_bytes: int, drains: bool) -> Result:
    """Loads something large while `watcher` looks."""
    checkpoint = Checkpoint(fp8_bytes, dtypes=("fp8",))
    load = actor.decide_load(f"{actor.name}/model", checkpoint)
    actor.meet("load")
    loaded = False
    if load.promise is not None:
        block = actor.take(fp8_bytes, load.promise, pump_s=PUMP_S if drains else float("inf"))
        loaded = block is not None
        load.promise.settle(held=actor.card.held_by_me())
    actor.meet("look")
    return actor.result(loaded=loaded)


def watcher(actor: Actor, *, card_bytes: int, promised_bytes: int, image_bytes: int) -> Result:
    """Reads what is free all the time while the loader's bytes land, and compares it with what the
    loader will have left."""
    truth = card_bytes - promised_bytes
    actor.meet("load")
    errors, curve = [], []
    began = time.monotonic()
    while True:
        landed = actor.card.used()
        free = actor.memory.free_now()
        if landed:
            errors.append(free - truth)
            curve.append((time.monotonic() - began, free))
        if landed >= promised_bytes:
            break
        time.sleep(0.002)
    actor.meet("look")
    step = Step(image_bytes, most=64)
    actor.decide_step(f"{actor.name}/step", step)
    return actor.result(
        samples=len(errors),
        mean_error_bytes=round(statistics.fmean(abs(error) for error in errors)),
        too_high_bytes=max(0, *errors),
        too_low_bytes=max(0, *(-error for error in errors)),
        curve=curve[:: max(1, len(curve) // 60)],
    )


def ram_taker(actor: Actor, *, limit_bytes: int, block_bytes: int, rounds: int) -> Result:
    """Takes real memory of this machine, block by block, as long as there seems to be room."""
    machine = ram_source()
    ram = None
    if actor.mode != "without":
        ram = memledger.join(label=actor.name, role="worker").device("ram")
    actor.meet("up")
    floor = max(0, (machine.read().free or 0) - limit_bytes)
    headroom = 0
    actor.meet("decide")
    blocks_seen = ((machine.read().free or 0) - floor) // block_bytes
    taken: list[mmap.mmap] = []
    for number in range(rounds):
        actor.meet(f"read {number}")
        if ram is not None:
            headroom = max(headroom, _beyond(ram, limit_bytes))
            ram.headroom(headroom)
        actor.meet(f"choose {number}")
        claim = ram.try_claim(block_bytes) if ram and actor.mode == "ledger" else None
        if ram is None:
            fits = number < blocks_seen
        elif actor.mode == "ledger":
            fits = claim is not None
        else:
            fits = (ram.free() or 0) >= block_bytes
        actor.meet(f"take {number}")
        if fits:
            block = mmap.mmap(-1, block_bytes)
            for page in range(0, block_bytes, mmap.PAGESIZE):
                block[page] = 1
            taken.append(block)
        held = block_bytes * len(taken)
        if claim is not None:
            claim.settle(held=held)
        elif ram is not None:
            ram.publish(held=held)
    actor.meet("end")
    for block in taken:
        block.close()
    return actor.result(held_bytes=block_bytes * len(taken))


def _beyond(ram: memledger.Device, limit_bytes: int) -> int:
    """The headroom that leaves `limit_bytes` to all members, with what other programs use now. Only
    ever raised: what they give back is not ours."""
    total = ram.refresh(max_age_s=0.25).total
    unaccounted = ram.figures().unaccounted
    if total is None or unaccounted is None:
        raise RuntimeError("no reading of this machine's RAM")
    return max(0, total - unaccounted - limit_bytes)
