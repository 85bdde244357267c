"""The free figure on a real NVIDIA GPU, beside NVML and torch: `python benchmarks/real_gpu.py`.

Three processes allocate with torch and publish what their allocator has reserved. Compared after
each step: what the ledger says is free with what NVML and torch.cuda.mem_get_info say. Then: how
much a CUDA context takes, when the bytes of a killed process come back, what a call of each costs.

--device NAME   as memledger.Ledger.device takes it (default cuda:0)
--mib N         what each process allocates in all (default 1024)
--steps N       in so many allocations (default 8)
--json          the figures as JSON

Without a driver, a GPU, nvidia-ml-py or torch it says so and does nothing. It has its own segment;
the rest of the machine should leave the GPU alone meanwhile.
"""

from __future__ import annotations

import argparse
import contextlib
import faulthandler
import importlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any, NamedTuple

PROCESSES = 3
MIB = 1 << 20
WATCHDOG_S = 300.0
COME_BACK_S = 30.0
CALLS = 20_000


class Skipped(Exception):
    """Why there is nothing to measure here."""


class Driver:
    """NVML, of one device."""

    def __init__(self, nvml: Any, key: str) -> None:
        self._nvml = nvml
        self._handle = nvml.nvmlDeviceGetHandleByUUID(key)
        self.name = nvml.nvmlDeviceGetName(self._handle)

    def free(self) -> int:
        return int(self._nvml.nvmlDeviceGetMemoryInfo(self._handle).free)


def find(device: str, load: Callable[[str], Any] = importlib.import_module) -> tuple[Any, str]:
    """(NVML, the device's key). Raises Skipped. load: how a module is found, for tests."""
    try:
        nvml = load("pynvml")
        nvml.nvmlInit()
    except ImportError:
        raise Skipped("nvidia-ml-py is not installed") from None
    except Exception as error:  # NVMLError has no base that can be named without the module
        raise Skipped(f"NVML does not start: {error}") from None
    try:
        torch = load("torch")
    except ImportError:
        raise Skipped("torch is not installed") from None
    if not torch.cuda.is_available():
        raise Skipped("torch sees no CUDA device")
    from memledger import UnknownDevice
    from memledger.readings import resolve

    try:
        key = resolve(device).key
    except UnknownDevice as error:
        raise Skipped(str(error)) from None
    if not key.startswith(("GPU-", "MIG-")):
        raise Skipped(f"{device} is {key}, which NVML does not know")
    return nvml, key


# ---- a process that allocates


def child(device: str) -> None:
    """Obeys lines on stdin, answers each with one of JSON, ends with its stdin."""
    faulthandler.dump_traceback_later(WATCHDOG_S, exit=True)
    import memledger

    torch: Any = importlib.import_module("torch")
    gpu = memledger.join(label="torch", role="worker").device(device)
    blocks: list[Any] = []

    def start() -> dict[str, int]:
        torch.empty(1, device=device)
        torch.cuda.synchronize()
        gpu.publish(held=torch.cuda.memory_reserved(device))
        return info()

    def grow(nbytes: int) -> dict[str, int]:
        with gpu.claim(nbytes) as claim:
            blocks.append(torch.empty(nbytes, dtype=torch.uint8, device=device))
            torch.cuda.synchronize()
            claim.settle(held=torch.cuda.memory_reserved(device))
        return info()

    def info() -> dict[str, int]:
        free, total = torch.cuda.mem_get_info(device)
        return {"free": free, "total": total, "held": torch.cuda.memory_reserved(device)}

    def cost() -> dict[str, float]:
        return {
            "memledger free()": ns_per_call(gpu.free),
            "torch.cuda.mem_get_info()": ns_per_call(
                lambda: torch.cuda.mem_get_info(device), CALLS // 10
            ),
        }

    orders: dict[str, Callable[..., Any]] = {"start": start, "grow": grow, "cost": cost}
    print(json.dumps("ready"), flush=True)
    for line in sys.stdin:
        order, *values = json.loads(line)
        print(json.dumps(orders[order](*values)), flush=True)


class Worker:
    def __init__(self, device: str, path: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, os.path.abspath(__file__), "--child", device],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "MEMLEDGER_PATH": path},
        )

    def reply(self) -> Any:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"a process ended with {self.process.wait()}")
        return json.loads(line)

    def do(self, order: str, *values: int) -> Any:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps([order, *values]) + "\n")
        self.process.stdin.flush()
        return self.reply()

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()


# ---- measuring


def ns_per_call(call: Callable[[], object], count: int = CALLS) -> float:
    begun = time.perf_counter_ns()
    for _ in range(count):
        call()
    return (time.perf_counter_ns() - begun) / count


class Difference(NamedTuple):
    """What the ledger says is free less what the others say, in bytes."""

    nvml: int
    torch: int


def measure(options: argparse.Namespace, nvml: Any, key: str) -> dict[str, Any]:
    import memledger

    driver = Driver(nvml, key)
    workers: list[Worker] = []
    with tempfile.TemporaryDirectory(prefix="memledger-gpu-") as directory:
        path = os.path.join(directory, "segment")
        ledger = memledger.join(label="benchmark", path=path)
        try:
            gpu = ledger.device(options.device)
            workers = [Worker(options.device, path) for _ in range(PROCESSES)]
            for worker in workers:
                worker.reply()
            contexts = []
            for worker in workers:
                before = driver.free()
                held = worker.do("start")["held"]
                contexts.append(before - driver.free() - held)
            gpu.refresh(0)
            differences = []
            for _ in range(options.steps):
                for worker in workers:
                    theirs = worker.do("grow", options.mib * MIB // options.steps)
                    # Without a refresh: this is the figure that a member would decide by.
                    free = gpu.free() or 0
                    differences.append(Difference(free - driver.free(), free - theirs["free"]))
            costs = workers[0].do("cost")
            costs["NVML memory info"] = ns_per_call(driver.free, CALLS // 10)
            return {
                "gpu": driver.name,
                "key": key,
                "context_bytes": contexts,
                "differences": [one._asdict() for one in differences],
                "come_back_s": come_back(workers[-1], driver, gpu, options.mib * MIB),
                "ns_per_call": costs,
            }
        finally:
            for worker in workers:
                worker.end()
            ledger.leave()


def come_back(worker: Worker, driver: Driver, gpu: Any, nbytes: int) -> dict[str, float | None]:
    """Seconds from SIGKILL until NVML and the ledger show nine tenths of its bytes free again;
    None: not within 30 s."""
    probes: dict[str, Callable[[], int]] = {
        "nvml": driver.free,
        "memledger": lambda: gpu.free() or 0,
    }
    before = {name: probe() for name, probe in probes.items()}
    seconds: dict[str, float | None] = dict.fromkeys(probes)
    begun = time.monotonic()
    worker.process.kill()
    while None in seconds.values() and time.monotonic() < begun + COME_BACK_S:
        for name, probe in probes.items():
            if seconds[name] is None and probe() - before[name] >= nbytes * 9 // 10:
                seconds[name] = time.monotonic() - begun
        time.sleep(0.002)
    return seconds


def table(found: dict[str, Any]) -> str:
    lines = [f"{found['gpu']}  {found['key']}"]
    contexts = ", ".join(f"{n / MIB:.0f}" for n in found["context_bytes"])
    lines.append(f"a context takes       {contexts} MiB")
    for name in ("nvml", "torch"):
        values = [one[name] for one in found["differences"]]
        lines.append(
            f"ledger less {name:5}     {min(values) / MIB:+.1f} to {max(values) / MIB:+.1f} MiB "
            f"over {len(values)} steps"
        )
    for name, seconds in found["come_back_s"].items():
        shown = "not within 30 s" if seconds is None else f"{seconds * 1000:.0f} ms"
        lines.append(f"bytes of a killed process are back in {name}: {shown}")
    for name, ns in found["ns_per_call"].items():
        lines.append(f"{name:26} {ns:10,.0f} ns per call")
    return "\n".join(lines)


def arguments(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="The free figure on a real NVIDIA GPU.")
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--mib", type=int, default=1024, help="per process (1024)")
    parser.add_argument("--steps", type=int, default=8, help="in so many allocations (8)")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parsed = parser.parse_args(argv)
    if not 1 <= parsed.steps <= 1000 or not parsed.steps <= parsed.mib <= 1 << 20:
        parser.error("--steps: expected 1 to 1000; --mib: at least one for each step, below 2^20")
    return parsed


def main(argv: list[str] | None = None) -> int:
    options = arguments(argv)
    if options.child:
        child(options.child)
        return 0
    try:
        nvml, key = find(options.device)
    except Skipped as reason:
        print(json.dumps({"skipped": str(reason)}) if options.json else f"skipped: {reason}")
        return 0
    # A driver may hang where no signal of Python's gets through.
    faulthandler.dump_traceback_later(WATCHDOG_S, exit=True)
    found = measure(options, nvml, key)
    print(json.dumps(found, indent=1) if options.json else table(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
