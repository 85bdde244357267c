"""Roles of helper processes: `python -m benchmarks.child ROLE ARGUMENTS`; they answer in JSON."""

from __future__ import annotations

import json
import mmap
import os
import select
import sys
import threading
import time
from collections.abc import Callable, Mapping
from itertools import repeat

from benchmarks.measure import spread, time_each

GIB = 1 << 30


def say(answer: object) -> None:
    print(json.dumps(answer), flush=True)


def stdin_is_closed() -> bool:
    return bool(select.select([sys.stdin], [], [], 0)[0])


def hold(path: str, count: str) -> None:
    from benchmarks.members import bare_device

    members = [bare_device(path) for _ in range(int(count))]
    say(len(members))
    sys.stdin.read()


def write(path: str, counts: str, index: str) -> None:
    """Publishes flat out, and counts in word `index` of the file `counts` how often, so that the
    reader knows whether this process had a CPU. Never on the reader's."""
    from benchmarks.members import bare_device, run_on

    run_on(1)
    _, device = bare_device(path)
    where, done = 8 * int(index), 0
    with open(counts, "r+b") as file, mmap.mmap(file.fileno(), 4096) as count:
        say("ready")
        while not stdin_is_closed():
            for _ in repeat(None, 200):
                for _ in repeat(None, 10):
                    device.publish(8192)
                    device.publish(4096)
                done += 20
                count[where : where + 8] = done.to_bytes(8, "little")


def publish_for(path: str, seconds: str) -> None:
    """Publishes flat out once told to go, on whatever CPU it gets, and says how often."""
    from benchmarks.members import bare_device

    _, device = bare_device(path)
    say("ready")
    sys.stdin.readline()
    cpu, begin, done = time.process_time(), time.perf_counter(), 0
    end = begin + float(seconds)
    while time.perf_counter() < end:
        for _ in repeat(None, 100):
            device.publish(8192)
            device.publish(4096)
        done += 200
    took = time.perf_counter() - begin
    say({"done": done, "seconds": took, "cpu_s": time.process_time() - cpu})


def answer(path: str, count: str, turns: str) -> None:
    """Publishes once from each of `count` members whenever byte 0 of the file `turns` is 1, and
    sets it to 0."""
    from benchmarks.members import bare_device

    devices = [bare_device(path)[1] for _ in range(int(count))]
    with open(turns, "r+b") as file, mmap.mmap(file.fileno(), 4096) as turn:
        say("ready")
        idle = size = 0
        while True:
            if turn[0] != 1:
                idle += 1
                if idle % 10_000 == 0 and stdin_is_closed():
                    return
                continue
            size = size % 8 + 1
            for device in devices:
                device.publish(size * 4096)
            turn[0] = 0


def victim(path: str, how: str) -> None:
    """Holds something releasable, and gives a page for each ask: on a thread that waits in serve(),
    on the housekeeping thread, or ("deaf") never."""
    from benchmarks.members import joined_device

    device = joined_device(path)

    class Holder:
        def release_memory(self, _: object, size: int) -> int:
            left = device.amounts[0] - size
            device.publish(left, releasable=left)
            return size

    device.publish(GIB, releasable=GIB)
    ledger = device._ledger
    ledger._devices[device.key] = device  # as if Ledger.device() had opened it
    ledger.holders.register(Holder(), thread_safe=how == "housekeeping")
    say("ready")
    # Never filled up again: bytes that come back while an ask is answered would not be credited.
    while not stdin_is_closed():
        if how == "serve":
            ledger.serve(0.05)
        else:
            time.sleep(0.02)


def claim(path: str, seconds: str, cpu: str) -> None:
    """Claims and cancels flat out, once told to go."""
    from benchmarks.members import joined_device, run_on

    run_on(int(cpu))
    device = joined_device(path)
    say("ready")
    sys.stdin.readline()
    clock = time.perf_counter_ns
    begun = clock()
    end = begun + int(float(seconds) * 1e9)
    samples, missed, now = [], 0, begun
    while now < end:
        before = clock()
        granted = device.try_claim(GIB)
        now = clock()
        samples.append(now - before)
        if granted is None:
            missed += 1
        else:
            granted.cancel()
    say({"missed": missed, "seconds": (now - begun) / 1e9, **spread(samples)._asdict()})


def _beside_a_spinning_thread(
    calls: Mapping[str, Callable[[], object]], count: int, at_most_s: float
) -> None:
    stop = threading.Event()

    def spin() -> None:
        number = 0
        while not stop.is_set():
            for _ in repeat(None, 1000):
                number += 1

    thread = threading.Thread(target=spin)
    thread.start()
    answers = {}
    for name, call in calls.items():
        answers[name] = spread(time_each(call, count, at_most_s))._asdict()
    stop.set()
    thread.join()
    say(answers)


def spin(path: str, count: str, at_most_s: str) -> None:
    from benchmarks.members import bare_device

    _, device = bare_device(path)
    calls = {"_empty()": device._empty, "free()": device.free}
    _beside_a_spinning_thread(calls, int(count), float(at_most_s))


def spin_ffi(path: str, count: str, at_most_s: str) -> None:
    """The same figure through cffi, which gives the interpreter's lock up round each call."""
    from benchmarks.members import KEY, TOTAL_BYTES
    from memledger import _ffi

    ffi, lib = _ffi.ffi, _ffi.lib
    keep = [ffi.new("char[]", path.encode()), ffi.new("char[]", KEY.encode())]
    options = ffi.new("ml_join_options *", {"path": keep[0]})
    ledger, device = ffi.new("ml_ledger **"), ffi.new("ml_device **")
    level = ffi.new("ml_pool_spec *", {"key": keep[1], "kind": lib.ML_KIND_SIM})
    if lib.ml_ledger_join(options, ledger) or lib.ml_device_open(ledger[0], level, 1, device):
        raise RuntimeError("cannot join through cffi")
    lib.ml_device_set_limit(device[0], TOTAL_BYTES)
    handle, out, free = device[0], ffi.new("uint64_t *"), lib.ml_device_free
    _beside_a_spinning_thread(
        {"through cffi": lambda: free(handle, out)}, int(count), float(at_most_s)
    )


def reads(path: str, count: str) -> None:
    """Reads between two system calls that a tracer can tell."""
    from benchmarks.members import bare_device

    _, device = bare_device(path)
    device.free(), device.figures()
    os.access("/memledger-benchmark-begin", os.F_OK)
    for _ in repeat(None, int(count)):
        device.free()
        device.figures()
    os.access("/memledger-benchmark-end", os.F_OK)
    say("done")


def _private_kib(leave_out: str) -> int:
    total, counts = 0, True
    with open("/proc/self/smaps", encoding="utf-8") as lines:
        for line in lines:
            first = line.split(None, 1)[0]
            if not first.endswith(":"):
                counts = leave_out not in line
            elif counts and first in ("Private_Clean:", "Private_Dirty:"):
                total += int(line.split()[1])
    return total


def memory(path: str) -> None:
    """KiB of private memory: before the import, after it, after joining, after some use."""
    _private_kib(path)  # its own buffers exist now
    steps = [_private_kib(path)]
    import memledger
    from memledger.model import DeviceSpec, PoolSpec

    steps.append(_private_kib(path))
    ledger = memledger.join("benchmark", path=path)
    steps.append(_private_kib(path))
    device = memledger.Device(ledger, DeviceSpec("bench", (PoolSpec("bench:card"),), (None,)))
    device._set_limit(24 * GIB)
    for _ in range(1000):
        device.free(), device.figures()
        device.publish(8192)
    with device.claim(1 << 20):
        pass
    steps.append(_private_kib(path))
    say(steps)
    ledger.leave()


def join_time(path: str) -> None:
    """Milliseconds of the first join in this process."""
    import memledger

    begin = time.perf_counter()
    ledger = memledger.join("benchmark", path=path)
    took = time.perf_counter() - begin
    say(took * 1e3)
    ledger.leave()


ROLES: dict[str, Callable[..., None]] = {
    role.__name__: role
    for role in (
        hold,
        write,
        publish_for,
        answer,
        victim,
        claim,
        spin,
        spin_ffi,
        reads,
        memory,
        join_time,
    )
}

if __name__ == "__main__":
    ROLES[sys.argv[1]](*sys.argv[2:])
