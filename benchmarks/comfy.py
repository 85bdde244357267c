"""What the ComfyUI integration costs per sampler step: `python -m benchmarks.comfy` (`make
bench-comfy`).

The doubles of the tests stand for ComfyUI, in both generations; their card answers at once, so that
what is measured is ComfyUI's own code and ours. The functions that the integration has wrapped are
put back and wrapped again in turns, in one process, and the difference is what it costs. A step is
what a sampler does between two calls of the network: size the batch, report progress, look whether
the user has interrupted. Four times a second a step publishes; that step is measured by itself.

--quick        a tiny run, to see that everything works; its figures mean nothing
"""

from __future__ import annotations

import argparse
import importlib
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

from benchmarks.measure import human_ns
from benchmarks.members import ROOT, segment_path
from benchmarks.report import machine

GENERATIONS = ("old", "new")
GIB = 1 << 30
STEP_TARGET_NS = 20_000


def modules(generation: str) -> None:
    """This process becomes that generation of ComfyUI, with the adapters of ours."""
    doubles = ROOT / "tests/comfy/doubles"
    sys.path[:0] = [
        str(doubles / generation), str(doubles / "common"), str(ROOT / "comfy_integration"),
    ]  # fmt: skip
    # A checker must not look for these beside the real torch.
    for name in ("model_management", "model_patcher", "samplers", "sd", "utils"):
        importlib.import_module(f"comfy.{name}")
    importlib.import_module("execution")


def answer_at_once() -> None:
    """The card's figures without the simulation behind them."""
    cuda = importlib.import_module("torch.cuda")
    info = (20 * GIB, 24 * GIB)
    stats = dict(importlib.import_module("torch").cuda.memory_stats(0))
    cuda.mem_get_info = lambda *_: info
    cuda.memory_stats = lambda *_: stats


class Switch:
    """Takes the wrappers out and puts them back, as `Wraps.undo` and `install` do."""

    def __init__(self, context: Any) -> None:
        self._wraps = list(context.wraps._all)

    def out(self) -> None:
        for wrap in reversed(self._wraps):
            if wrap.inherited:
                delattr(wrap.owner, wrap.name)
            else:
                setattr(wrap.owner, wrap.name, wrap.original)

    def back(self) -> None:
        for wrap in self._wraps:
            setattr(wrap.owner, wrap.name, wrap.wrapper)


def calls(context: Any) -> dict[str, Callable[[], object]]:
    """Each looks its function up as ComfyUI does, wrapped or not."""
    mm, samplers = context.mm, context.module("comfy.samplers")
    torch, utils = (importlib.import_module(name) for name in ("torch", "comfy.utils"))
    patcher_type = context.module("comfy.model_patcher").ModelPatcher
    device = torch.device("cuda", 0)
    patcher = patcher_type(GIB, device, torch.device("cpu"))
    model = samplers.Model(GIB, patcher)
    model.apply_model = lambda *_: None  # the network itself
    x = type("X", (), {"device": device})()
    bar = utils.ProgressBar(1 << 60)

    def step() -> None:
        samplers.calc_cond_batch(model, (1, 2), x, 0.5, {})
        bar.update(1)
        mm.throw_exception_if_processing_interrupted()

    def publishing_step() -> None:
        context.publisher._next = 0.0
        step()

    found: dict[str, Callable[[], object]] = {
        "get_free_memory(cuda:0)": lambda: mm.get_free_memory(device),
        "get_free_memory(cpu)": lambda: mm.get_free_memory(torch.device("cpu")),
    }
    if hasattr(patcher_type, "get_free_memory"):
        found["ModelPatcher.get_free_memory"] = lambda: patcher.get_free_memory(device)
    return {**found, "a step": step, "a step that publishes": publishing_step}


def per_call(call: Callable[[], object], turns: int) -> float:
    begin = time.perf_counter()
    for _ in range(turns):
        call()
    return (time.perf_counter() - begin) / turns * 1e9


def compare(context: Any, rounds: int, turns: int) -> dict[str, tuple[float, float, float]]:
    """(upstream, with ours, median of the differences) in ns; the first two from the best round."""
    switch, found = Switch(context), {}
    for name, call in calls(context).items():
        call()
        pairs = []
        for _ in range(rounds):
            switch.out()
            without = per_call(call, turns)
            switch.back()
            pairs.append((without, per_call(call, turns)))
        least = [min(column) for column in zip(*pairs, strict=True)]
        found[name] = (least[0], least[1], statistics.median(b - a for a, b in pairs))
    return found


def one_generation(generation: str, rounds: int, turns: int) -> None:
    """In a process of its own."""
    from memledger import sim

    name = f"bench-comfy-{os.getpid()}"
    url = f"sim:{name}?total=24GiB"
    os.environ.update(COMFY_DOUBLE_CARDS=url, MEMLEDGER_COMFY_DEVICES=f"cuda:0={url}")
    with segment_path() as path:
        os.environ["MEMLEDGER_PATH"] = path
        modules(generation)
        host = importlib.import_module("memledger_comfy.host")
        try:
            host.start_early()
            host.start_late()
            context = host.context()
            answer_at_once()
            found = compare(context, rounds, turns)
            context.link.ledger.leave()
        finally:
            sim.remove(name)
    print("\n" + "".join(f"{cell:{width}}" for cell, width in zip(HEAD, WIDTHS, strict=True)))
    print(generation)
    for call, (without, with_ours, median) in found.items():
        added = with_ours - without
        cells = ("", *(human_ns(ns) for ns in (without, with_ours, added, median)))
        figures = "".join(f"{cell:>{w}}" for cell, w in zip(cells, (0, *WIDTHS[1:]), strict=True))
        print(f"  {call:{WIDTHS[0] - 2}}{figures}  {verdict(call, without, added)}".rstrip())


HEAD = ("in ComfyUI of the generation", "  upstream", " with ours", "     added", "    median")
WIDTHS = (34, 10, 10, 10, 10)


def verdict(call: str, without: float, added: float) -> str:
    if call.startswith("a step"):
        return "met: under 20 us" if added < STEP_TARGET_NS else "MISSED: 20 us or more"
    if call == "get_free_memory(cpu)":
        return "met" if added <= without else "MISSED: more than upstream's own cost"
    return ""  # upstream's own cost is the driver's, and there is none here


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Measure the ComfyUI integration's overhead.")
    parser.add_argument("--quick", action="store_true", help="a tiny run that shows nothing rots")
    parser.add_argument("--generation", choices=GENERATIONS, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.generation:
        one_generation(options.generation, *((2, 20) if options.quick else (60, 500)))
        return 0
    print("\n".join(f"{name:8}{value}" for name, value in machine().items()), flush=True)
    quick = ["--quick"] if options.quick else []
    for generation in GENERATIONS:
        command = [sys.executable, "-m", "benchmarks.comfy", "--generation", generation, *quick]
        done = subprocess.run(command, cwd=ROOT, check=False)
        if done.returncode:
            return done.returncode
    return 0


if __name__ == "__main__":
    sys.exit(main())
