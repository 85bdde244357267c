"""Options and fixtures of the benchmarks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest

from benchmarks.measure import Loop, Paired, Row, row_with_ratio
from benchmarks.members import segment_path


class Size(NamedTuple):
    """How much is done. `quick` only shows that everything still runs."""

    quick: bool
    rounds: int
    turns: int
    singles: int
    """Calls that are timed one by one."""
    seconds: float


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--quick", action="store_true", help="a tiny run; its figures mean nothing")


@pytest.fixture(scope="session")
def size(pytestconfig: pytest.Config) -> Size:
    if pytestconfig.getoption("--quick"):
        return Size(True, 3, 200, 300, 0.1)
    return Size(False, 150, 5000, 1_000_000, 2.0)


@pytest.fixture
def path() -> Iterator[str]:
    with segment_path() as where:
        yield where


@pytest.fixture
def rows(benchmark: Any) -> list[Row]:
    """What the test puts here stands in the JSON and in the table."""
    collected: list[Row] = []
    benchmark.extra_info["rows"] = collected
    return collected


@pytest.fixture
def once(benchmark: Any) -> Callable[[Callable[[], None]], None]:
    """Runs a measurement that times its own parts."""

    def run(measurement: Callable[[], None]) -> None:
        benchmark.pedantic(measurement, rounds=1, iterations=1)

    return run


@pytest.fixture
def paired(benchmark: Any, rows: list[Row], size: Size) -> Callable[..., None]:
    """Measures a loop beside its controls: pytest-benchmark times the loop, and before each of its
    rounds the controls run.

    base, calls: as Paired has them."""

    def run(
        group: str,
        name: str,
        call: Loop,
        device: Any,
        *,
        limit: float | None = None,
        base: Loop | None = None,
        calls: int = 1,
        note: str = "",
    ) -> None:
        pair = Paired(call, device, base=base, calls=calls)
        benchmark.pedantic(
            pair.call,
            args=(size.turns,),
            setup=lambda: pair.control(size.turns),
            rounds=size.rounds,
            iterations=1,
            warmup_rounds=min(10, size.rounds),
        )
        if benchmark.stats is None:  # --benchmark-disable
            return
        figures = pair.figures(list(benchmark.stats.stats.data), size.turns)
        rows.append(row_with_ratio(group, name, figures, limit, note))

    return run
