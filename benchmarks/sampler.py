"""What memledger costs in a denoising loop: `python -m benchmarks.sampler` (`make bench-sampler`).

A small network with torch on the CPU makes 50 steps. In the other half of the loops every step also
sizes its batch by free(), looks whether it is interrupted, and publishes what it holds. Two loops
take turns at every step, so that clock rate and neighbours are the same for both. A step takes
milliseconds, so the difference is mostly noise, and the three calls are timed by themselves, too.

--quick        a tiny run, to see that everything works; its figures mean nothing
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import memledger
from benchmarks.members import joined_device, other_members, segment_path
from benchmarks.report import machine

STEPS = 50
MIB = 1 << 20
CONDS = 2
"""Conditions per step, which run as one batch where they fit."""
EACH_BYTES = 64 * MIB


def network(torch: Any) -> Any:
    """Two levels down and up again, with skips, as a UNet has them."""
    nn = torch.nn

    class Unet(nn.Module):  # type: ignore[misc]
        def __init__(self, width: int = 24) -> None:
            super().__init__()

            def block(before: int, after: int, stride: int = 1) -> Any:
                conv = nn.Conv2d(before, after, 3, padding=1, stride=stride)
                return nn.Sequential(conv, nn.GroupNorm(4, after), nn.SiLU())

            self.enter, self.down = block(5, width), block(width, 2 * width, 2)
            self.middle = block(2 * width, 2 * width)
            self.up = nn.Upsample(scale_factor=2)
            self.leave = nn.Conv2d(3 * width, 4, 3, padding=1)

        def forward(self, x: Any, sigma: float) -> Any:
            noise = torch.full_like(x[:, :1], sigma)
            first = self.enter(torch.cat((x, noise), 1))
            deep = self.middle(self.down(first))
            return self.leave(torch.cat((first, self.up(deep)), 1))

    return Unet().eval()


class Ledger:
    """What a sampler does with memledger at every step."""

    def __init__(self, device: memledger.Device, held: int) -> None:
        self.device, self.ledger, self.held = device, device._ledger, held

    def batch(self) -> int:
        """The largest that fits, by the free figure."""
        free = self.device.free()
        for parts in range(1, CONDS + 1):
            conds = CONDS // parts
            if free is not None and conds * EACH_BYTES * 1.5 < free:
                return conds
        return 1

    def step(self, index: int) -> int:
        conds = self.batch()
        if self.ledger.interrupted():
            raise KeyboardInterrupt
        # Never the same twice, so that every free() of every member has to look again.
        self.device.publish(self.held + 4096 * (index % 8), releasable=4096, pinned=0)
        return conds


class Denoising:
    """One loop, a step at a time."""

    def __init__(self, torch: Any, unet: Any, each_step: Callable[[int], int], steps: int) -> None:
        self._torch, self._unet, self._each_step, self._steps = torch, unet, each_step, steps
        torch.manual_seed(1)
        self._x = torch.randn(1, 4, 32, 32)

    def step(self, index: int) -> float:
        """Seconds."""
        begin = time.perf_counter()
        with self._torch.inference_mode():
            waiting = CONDS
            while waiting:
                conds = min(self._each_step(index), waiting)
                x_in = self._x.expand(conds, -1, -1, -1)
                change = self._unet(x_in, 1.0 - index / self._steps).mean(0, keepdim=True)
                self._x = self._x - change / self._steps
                waiting -= conds
        return time.perf_counter() - begin


def alone(call: Callable[[int], int], steps: int, rounds: int) -> float:
    """Seconds per step of the three calls by themselves, a Python call round them included."""
    best = float("inf")
    for _ in range(rounds):
        begin = time.perf_counter()
        for index in range(steps):
            call(index)
        best = min(best, time.perf_counter() - begin)
    return best / steps


def measure(rounds: int, steps: int) -> None:
    import torch

    torch.set_num_threads(1)
    unet = network(torch)
    held = sum(p.numel() * p.element_size() for p in unet.parameters())
    with segment_path() as path, other_members(path, 7):
        device = joined_device(path)
        ours = Ledger(device, held)
        kinds: dict[str, Callable[[int], int]] = {"without": lambda _: CONDS, "with": ours.step}
        times: dict[str, list[float]] = {name: [] for name in kinds}
        for number in range(rounds + 1):
            loops = {name: Denoising(torch, unet, call, steps) for name, call in kinds.items()}
            for index in range(steps):
                # The order changes, so that neither always runs behind the other.
                for name in sorted(kinds, reverse=bool(index % 2)):
                    took = loops[name].step(index)
                    if number:  # the first loop warms up
                        times[name].append(took)
        calls = alone(ours.step, 50 * steps, rounds)
        device._ledger.leave()
    show(times, calls, torch.__version__, steps)


def show(times: dict[str, list[float]], calls: float, version: str, steps: int) -> None:
    ratios = [b / a for a, b in zip(times["without"], times["with"], strict=True)]
    without, with_it = (statistics.median(times[name]) for name in ("without", "with"))
    least = min(times["with"]) / min(times["without"])
    low, _, high = statistics.quantiles(ratios, n=4)
    print(
        f"torch   {version}, 1 thread; {len(ratios)} pairs of steps, {steps} to a loop; 8 members\n"
    )
    print(f"a step without memledger, median            {without * 1e6:10.1f} us")
    print(f"a step with memledger, median               {with_it * 1e6:10.1f} us")
    print(f"with / without, median of the pairs         {statistics.median(ratios):10.4f}")
    print(f"  the middle half of the pairs              {low:.4f} to {high:.4f}: what noise does")
    print(f"  from the least time of each               {least:10.4f}")
    print(f"the calls of one step by themselves         {calls * 1e6:10.2f} us")
    print("  free() and the batch's size, interrupted(), publish()")
    print(f"  as a share of the step                    {calls / without * 100:10.4f} %")


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Measure memledger in a denoising loop.")
    parser.add_argument("--quick", action="store_true", help="a tiny run that shows nothing rots")
    options = parser.parse_args(arguments)
    try:
        import torch  # noqa: F401
    except ImportError:
        print("this needs torch: make bench-sampler installs it", file=sys.stderr)
        return 1
    print("\n".join(f"{name:8}{value}" for name, value in machine().items()))
    measure(*((2, 3) if options.quick else (60, STEPS)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
