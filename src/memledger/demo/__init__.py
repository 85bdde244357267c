"""`memledger demo`: real processes on a simulated card, without the ledger, with it, and as one
process would have decided."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import threading
from collections.abc import Iterator
from types import FrameType
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from memledger.demo.stage import Outcome

__all__ = ["main"]

_OK, _WRONG, _STAGE, _INTERRUPTED, _READER_GONE = 0, 1, 3, 130, 141


def main(argv: list[str]) -> int:
    """0: the ledger's runs had no OOM and agree with the oracle. 1: they do not. 2: bad arguments.
    3: the demo could not be played here. 130: interrupted. 141: nobody reads on."""
    from memledger.demo.scenarios import SCENARIOS

    arguments = _parser(list(SCENARIOS)).parse_args(argv)
    if arguments.list:
        for name, play in SCENARIOS.items():
            print(f"{name:<10} {play.__doc__}")
        return _OK
    from memledger.demo.cast import StageError
    from memledger.sim import SimError

    seed = arguments.seed if arguments.seed is not None else random.SystemRandom().randrange(10**6)
    try:
        with _signals_end_it(), _directory() as directory:
            return _play(arguments, seed, directory)
    except KeyboardInterrupt:
        print("interrupted; nothing is left behind", file=sys.stderr)
        return _INTERRUPTED
    except BrokenPipeError:
        # The reader has seen enough; the interpreter's own flush at exit must not complain.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _READER_GONE
    except (StageError, SimError) as error:
        print(f"memledger demo: {error} (seed {seed})", file=sys.stderr)
        return _STAGE


def _parser(names: list[str]) -> argparse.ArgumentParser:
    from memledger.demo.stage import BREAKS

    parser = argparse.ArgumentParser(
        prog="memledger demo",
        description="Plays scenes with real processes on a simulated card: without the ledger, "
        "with it, and as one process would have decided (the oracle). Touches no GPU and not your "
        "ledger. Exits with 1 if the ledger's run goes out of memory or decides otherwise.",
    )
    parser.add_argument("--list", action="store_true", help="list the scenarios and exit")
    parser.add_argument(
        "--scenario", action="append", choices=names, metavar="NAME", help="only this; repeatable"
    )
    parser.add_argument("--json", action="store_true", help="one JSON object for machines")
    parser.add_argument("--seed", type=int, help="of the sibling's loads; printed if not given")
    parser.add_argument("--keep-log", metavar="DIR", help="copy the logs of all runs there")
    breaks = parser.add_mutually_exclusive_group()
    for part in BREAKS:
        breaks.add_argument(
            f"--break-{part}",
            dest="broken",
            action="store_const",
            const=part,
            help=f"play the ledger's runs without {part}: those that rest on them must then fail",
        )
    return parser


def _play(arguments: argparse.Namespace, seed: int, directory: str) -> int:
    from memledger.demo.render import Renderer
    from memledger.demo.scenarios import SCENARIOS
    from memledger.demo.stage import Stage

    stage = Stage(directory, seed, broken=arguments.broken, keep=arguments.keep_log)
    names = dict.fromkeys(arguments.scenario or SCENARIOS)
    if arguments.json:
        outcomes = [SCENARIOS[name](stage) for name in names]
        print(json.dumps(_as_json(outcomes, seed), indent=2))
        return _OK if all(outcome.ok for outcome in outcomes) else _WRONG
    renderer = Renderer(sys.stdout)
    renderer.text(
        "Real processes on a simulated card. Three columns: as programs do it today (the driver's "
        "free figure), with the ledger, and what one process would have decided with the same "
        f"policy (the oracle). Seed {seed}."
    )
    renderer.text()
    outcomes = []
    for number, name in enumerate(names, 1):
        with renderer.playing(name):
            outcomes.append(SCENARIOS[name](stage))
        if arguments.broken == outcomes[-1].rests_on:
            outcomes[-1].columns = tuple(
                f"{arguments.broken} left out" if column == "with ledger" else column
                for column in outcomes[-1].columns
            )
        renderer.outcome(number, outcomes[-1])
    wrong = [outcome.name for outcome in outcomes if not outcome.ok]
    if wrong:
        renderer.text(f"The ledger was WRONG in: {', '.join(wrong)} (seed {seed}).", "bold red")
        return _WRONG
    if len(outcomes) == 1:
        return _OK
    ooms = sum(outcome.runs["without"].ooms for outcome in outcomes)
    renderer.text(
        f"In all: {ooms} times out of memory without the ledger, 0 with it, and each decision that "
        "has an oracle as one process would have taken it.",
        "bold",
    )
    return _OK


def _as_json(outcomes: list[Outcome], seed: int) -> dict[str, object]:
    return {
        "seed": seed,
        "ok": all(outcome.ok for outcome in outcomes),
        "scenarios": [
            {
                "name": outcome.name,
                "title": outcome.title,
                "ok": outcome.ok,
                "problems": outcome.problems,
                "disagreements": [one._asdict() for one in outcome.disagreements],
                "runs": {
                    key: {
                        "ooms": run.ooms,
                        "peak_bytes": run.peak_bytes,
                        "time_s": run.time_s,
                        "choices": run.choices,
                        **run.more,
                    }
                    for key, run in outcome.runs.items()
                },
            }
            for outcome in outcomes
        ],
    }


@contextlib.contextmanager
def _directory() -> Iterator[str]:
    """For the segments, cards and logs of this demo; a user's ledger is not touched. In memory,
    unless TMPDIR says where."""
    memory = "/dev/shm"
    usable = os.path.isdir(memory) and os.access(memory, os.W_OK | os.X_OK)
    where = memory if usable and not os.environ.get("TMPDIR") else None
    path = tempfile.mkdtemp(prefix="memledger-demo-", dir=where)
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


_ENDING = tuple(
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)
)


@contextlib.contextmanager
def _signals_end_it() -> Iterator[None]:
    """SIGTERM and SIGHUP leave as Ctrl-C does: through every `finally`, which no second one cuts
    short."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, _interrupt) for number in _ENDING}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _interrupt(number: int, frame: FrameType | None) -> NoReturn:
    for each in _ENDING:
        signal.signal(each, signal.SIG_IGN)
    raise KeyboardInterrupt
