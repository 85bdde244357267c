"""How times become figures. No assertion on a time is made here or anywhere else."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from itertools import repeat
from typing import Any, NamedTuple

Loop = Callable[[int], None]


def loop(statement: str, **names: object) -> Loop:
    """A function of n that runs `statement` n times, with `names` as its local variables. Each has
    its own code object, so that the interpreter's inline caches see one call only."""
    parameters = "".join(f", {name}={name}" for name in names)
    body = statement.replace("\n", "\n        ")
    source = (
        f"def run(n, repeat=repeat{parameters}):\n    for _ in repeat(None, n):\n        {body}\n"
    )
    scope: dict[str, Any] = {"repeat": repeat, **names}
    exec(source, scope)
    run: Loop = scope["run"]
    return run


class Row(NamedTuple):
    """One line of the table."""

    group: str
    name: str
    value: float
    """In `unit`."""
    unit: str = "ns"
    ratio: float | None = None
    """To what `against` says; from the least disturbed rounds or runs."""
    middle: float | None = None
    """Median of the same ratio over the rounds or runs."""
    against: str = ""
    target: str = ""
    """As the design states it, "" when there is none."""
    met: bool | None = None
    note: str = ""


class Figures(NamedTuple):
    """Of one call beside its controls."""

    ns: float
    """From the least time of each loop: noise only ever adds."""
    ratio: float
    """The same, to an empty call."""
    middle: float
    """Median of the rounds' own ratios: how far the other can be trusted."""


def row_with_ratio(
    group: str, name: str, figures: Figures, limit: float | None, note: str = ""
) -> Row:
    target = "" if limit is None else f"<= {limit:g}x"
    met = None if limit is None else figures.ratio <= limit
    return Row(
        group,
        name,
        figures.ns,
        "ns",
        figures.ratio,
        figures.middle,
        "empty call",
        target,
        met,
        note,
    )


class Paired:
    """A call beside its controls: in every round all four loops run one after the other, so that
    the clock rate and the neighbours are the same for all.

    call: the loop to measure, of which `calls` per turn count.
    base: what the loop does beside these calls: subtracted. An empty loop where nothing is.
    empty, bare: `Device._empty()` in a loop, and the loop alone.
    """

    def __init__(self, call: Loop, device: Any, *, base: Loop | None = None, calls: int = 1):
        self.call = call
        self.calls = calls
        self._bare = loop("pass")
        self._base = base or self._bare
        self._empty = loop("gpu._empty()", gpu=device)
        self.controls: list[tuple[float, float, float]] = []

    def control(self, turns: int) -> None:
        clock = time.perf_counter
        times = []
        for run in (self._bare, self._base, self._empty):
            begin = clock()
            run(turns)
            times.append(clock() - begin)
        self.controls.append((times[0], times[1], times[2]))

    def figures(self, times: Sequence[float], turns: int) -> Figures:
        """`times`: of the call's loop in the last rounds, in seconds."""
        controls = self.controls[-len(times) :]
        least = [min(column) for column in zip(*controls, strict=True)]
        empty = max(least[2] - least[0], 1e-12)
        call = max(min(times) - least[1], 0.0) / self.calls
        own = [
            (total - base) / self.calls for total, (_, base, _) in zip(times, controls, strict=True)
        ]
        rounds = [
            mine / (nothing - bare)
            for mine, (bare, _, nothing) in zip(own, controls, strict=True)
            if nothing > bare
        ]
        scale = 1e9 / turns
        middle = statistics.median(rounds) if rounds else call / empty
        return Figures(call * scale, call / empty, middle)


class Spread(NamedTuple):
    """Percentiles of single calls, in ns, the clock included."""

    calls: int
    p50: int
    p99: int
    p999: int
    max: int
    above: int
    """Calls above 20 us."""


ABOVE_NS = 20_000


def spread(samples: Sequence[int]) -> Spread:
    ordered = sorted(samples)
    count = len(ordered)
    p50, p99, p999 = (ordered[min(count - 1, count * part // 1000)] for part in (500, 990, 999))
    return Spread(count, p50, p99, p999, ordered[-1], sum(ns > ABOVE_NS for ns in ordered))


def time_each(call: Callable[[], object], count: int, at_most_s: float) -> list[int]:
    """Nanoseconds of each of `count` calls; fewer where they would take longer than `at_most_s`."""
    clock = time.perf_counter_ns
    end = clock() + int(at_most_s * 1e9)
    samples = []
    for _ in repeat(None, count):
        begin = clock()
        call()
        after = clock()
        samples.append(after - begin)
        if after > end:
            break
    return samples


def human_ns(ns: float) -> str:
    if ns < 1000:
        return f"{ns:.0f} ns"
    return f"{ns / 1000:.1f} us" if ns < 1_000_000 else f"{ns / 1_000_000:.1f} ms"
