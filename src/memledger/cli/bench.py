"""`memledger bench`: what the calls of the hot path cost here, beside an empty method."""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from itertools import repeat
from typing import Any, NamedTuple

from memledger.cli import screen
from memledger.cli.screen import Cell, Column, Table

_EPILOG = """\
Each figure is the best of several rounds, taken in turn, in one process on a
ledger of its own; a ratio says how many times an empty method of the same kind
it costs. The aims are those of the design. They are shown, never enforced: a
busy machine shows more.

exit codes: 0 measured; 1 could not; 2 usage; 130 interrupted
"""
_ROUNDS = 9
_GIB = 1 << 30


class Result(NamedTuple):
    name: str
    ns: float
    ratio: float
    aim: float | None


def add_parser(commands: Any) -> None:
    parser = commands.add_parser(
        "bench",
        help="what the hot calls cost on this machine",
        description="Measure the hot calls beside an empty method. Takes a second or two.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--json", action="store_true", help="for programs; times in nanoseconds")
    parser.add_argument(
        "--calls", type=_calls, default=20_000, metavar="N", help="calls per round (default 20000)"
    )
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    directory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="memledger-bench-", dir=directory) as folder:
        path = os.path.join(folder, "segment")
        # The simulated card lies beside the segment, so it goes with it.
        os.environ["MEMLEDGER_PATH"] = path
        results, problem = _measure(path, options.calls)
    if problem:
        print(screen.clean(f"memledger: {problem}"), file=sys.stderr)
        return 1
    if options.json:
        found = [result._asdict() for result in results]
        shown = {"schema": 1, "calls": options.calls, "rounds": _ROUNDS, "results": found}
        print(json.dumps(shown, indent=2))
        return 0
    view = screen.open_screen()
    screen.show(view, _table(results))
    return 0


def _table(results: list[Result]) -> Table:
    rows = [
        [
            Cell(result.name, "bold"),
            Cell(f"{result.ns:.0f}"),
            Cell(f"{result.ratio:.1f}", _style(result)),
            Cell("" if result.aim is None else f"≤ {result.aim:g}", "dim"),
        ]
        for result in results
    ]
    columns = [Column("call"), *(Column(c, right=True) for c in ("ns", "times empty", "aim"))]
    return Table(columns, rows)


def _style(result: Result) -> str:
    if result.aim is None:
        return ""
    return "good" if result.ratio <= result.aim else "warn"


def _calls(text: str) -> int:
    if not text.isascii() or not text.isdigit() or not 1 <= int(text) <= 100_000_000:
        raise argparse.ArgumentTypeError(f"expected 1 to 100000000, got {text!r}")
    return int(text)


def _measure(path: str, calls: int) -> tuple[list[Result], str | None]:
    import memledger

    with memledger.join("memledger bench", path=path) as ledger:
        problem = ledger.degraded_reason
        if problem:
            return [], problem
        gpu = ledger.device("sim:bench?total=24GiB")
        gpu.publish(held=_GIB)
        empty, free, publish, try_claim = gpu._empty, gpu.free, gpu.publish, gpu.try_claim

        def publish_loop() -> None:
            for _ in repeat(None, calls):
                publish(held=_GIB)

        def publish_free_loop() -> None:
            for _ in repeat(None, calls):
                publish(held=_GIB)
                free()

        def claim_loop() -> None:
            for _ in repeat(None, calls):
                claim = try_claim(_GIB)
                if claim is not None:
                    claim.cancel()

        loops: dict[str, Callable[[], None]] = {
            "empty": _loop(empty, calls),
            "free": _loop(free, calls),
            "publish": publish_loop,
            "both": publish_free_loop,
            "others": _loop(gpu.claimed_by_others, calls),
            "figures": _loop(gpu.figures, calls),
            "claim": claim_loop,
        }
        best = _best(loops, calls)
    base = best["empty"]
    changed = max(0.0, best["both"] - best["publish"])
    named = [
        ("an empty method", base, None),
        ("free(), nothing changed", best["free"], 2.0),
        ("free(), after an own publish", changed, 4.0),
        ("publish()", best["publish"], 6.0),
        ("claimed_by_others()", best["others"], 2.0),
        ("figures()", best["figures"], None),
        ("try_claim() and cancel()", best["claim"], 15.0),
    ]
    return [Result(name, round(ns, 2), round(ns / base, 2), aim) for name, ns, aim in named], None


def _loop(call: Callable[[], object], calls: int) -> Callable[[], None]:
    def loop() -> None:
        for _ in repeat(None, calls):
            call()

    return loop


def _best(loops: dict[str, Callable[[], None]], calls: int) -> dict[str, float]:
    """ns per call. The loops take turns, so that a slow moment of the machine meets all of them."""
    best = dict.fromkeys(loops, float("inf"))
    for _ in range(_ROUNDS):
        for name, loop in loops.items():
            begun = time.perf_counter_ns()
            loop()
            best[name] = min(best[name], (time.perf_counter_ns() - begun) / calls)
    return best
