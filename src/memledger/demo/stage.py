"""What a run needs and what comes of it: directories, columns, rows."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from memledger.demo.actor import CARD
from memledger.demo.cast import Cast, Message
from memledger.demo.log import Log, read_events
from memledger.demo.oracle import Disagreement, Verdict
from memledger.demo.policy import GIB
from memledger.sim import Card

BREAKS = {"claims": "claimless", "asks": "askless", "pins": "pinless", "groups": "groupless"}
"""What a scene may rest on, and the mode of a ledger's run without it, which must fail."""


@dataclass
class Run:
    """One column."""

    ooms: int
    peak_bytes: int
    time_s: float | None
    choices: dict[str, Any]
    more: dict[str, Any] = field(default_factory=dict)


@dataclass
class Row:
    """One line of a table: a label, and a cell for each run."""

    label: str
    cells: list[str]
    good: list[bool | None] = field(default_factory=list)
    """green, red, or neither; as long as `cells`, or empty"""


@dataclass
class Outcome:
    name: str
    title: str
    shown: str
    rows: list[Row]
    runs: dict[str, Run]
    columns: tuple[str, ...] = ("without ledger", "with ledger", "oracle")
    strips: list[tuple[str, str, str]] = field(default_factory=list)
    """(run, process, one character per step)"""
    strips_title: str = ""
    rests_on: str = "claims"
    """a key of BREAKS"""
    fine: str = "no OOM, every decision as the oracle's"
    disagreements: list[Disagreement] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    """why the ledger's run is not right; empty: it is"""

    @property
    def ok(self) -> bool:
        return not self.problems


class Stage:
    """Where the runs take place: each in a directory with its own segment, card and log."""

    def __init__(
        self, directory: str, seed: int, *, broken: str | None = None, keep: str | None = None
    ) -> None:
        """broken: the part (one of BREAKS) that the ledger's runs are to do without."""
        self._directory = directory
        self._keep = keep
        self._broken = broken
        self.seed = seed

    @property
    def ledger_mode(self) -> str:
        """Of the ledger's run in a scene that rests on claims."""
        return self.mode_with("claims")

    def mode_with(self, part: str) -> str:
        """Of the ledger's run in a scene that rests on that part."""
        return BREAKS[part] if part == self._broken else "ledger"

    def run(
        self,
        scenario: str,
        mode: str,
        play: Callable[[Cast, Card, Log], None],
        *,
        start: Callable[[Cast], None],
        **card: Any,
    ) -> Played:
        directory = os.path.join(self._directory, f"{scenario}-{mode}")
        os.mkdir(directory)
        log = Log(os.path.join(directory, "log.jsonl"))
        cast = Cast(directory)
        try:
            there = Card(CARD, directory=directory, **card)
            start(cast)
            began = time.monotonic()
            play(cast, there, log)
            cast.finish()
            seconds = time.monotonic() - began
            events = read_events(log.path)
        finally:
            cast.close()
            log.close()
            if self._keep is not None:
                os.makedirs(self._keep, exist_ok=True)
                shutil.copy(log.path, os.path.join(self._keep, f"{scenario}-{mode}.jsonl"))
            shutil.rmtree(directory, ignore_errors=True)
        return Played(cast.results, events, seconds)


@dataclass
class Played:
    results: dict[str, Message]
    events: list[dict[str, Any]]
    seconds: float

    def run(self, choices: dict[str, Any], **more: Any) -> Run:
        return Run(
            ooms=sum(result["ooms"] for result in self.results.values()),
            peak_bytes=max((result["peak_bytes"] for result in self.results.values()), default=0),
            time_s=self.seconds,
            choices=choices,
            more=more,
        )


def oracle_run(verdict: Verdict, choices: dict[str, Any]) -> Run:
    return Run(verdict.ooms, verdict.peak_bytes, None, choices)


def problems_of(ledger: Run, disagreements: list[Disagreement]) -> list[str]:
    problems = []
    if ledger.ooms:
        problems.append(f"{ledger.ooms} out of memory with the ledger")
    for one in disagreements[:5]:
        problems.append(f"{one.subject}: decided {one.run}, the oracle says {one.oracle}")
    if len(disagreements) > 5:
        problems.append(
            f"and {len(disagreements) - 5} more decisions that the oracle takes otherwise"
        )
    return problems


def oom_row(runs: dict[str, Run]) -> Row:
    return Row(
        "out of memory",
        [str(run.ooms) for run in runs.values()],
        [run.ooms == 0 for run in runs.values()],
    )


def size_rows(runs: dict[str, Run], total: int) -> list[Row]:
    return [
        Row(
            "peak",
            [f"{run.peak_bytes / GIB:.1f} of {total // GIB} GiB" for run in runs.values()],
        ),
        Row(
            "time",
            ["-" if run.time_s is None else f"{run.time_s:.1f} s" for run in runs.values()],
        ),
    ]
