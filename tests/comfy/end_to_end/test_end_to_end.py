"""A host and two workers on one simulated card decide as one process would have.

Each scenario holds a load in the middle, with most of its bytes still to come, and lets a sibling
decide then: that is where processes that see only the card go wrong, as the runs without memledger
show. The doubles are ComfyUI; the oracle is its formulas over exact figures.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from comfy.conftest import paths  # type: ignore[import-not-found]
from helpers.waiting import wait_until
from memledger import sim

from .oracle import GIB, Oracle

HERE = str(Path(__file__).parent)
CARD = 24 * GIB
LEFT = 3 * GIB // 2
HOST = """
from memledger_comfy import host
host.start_early()
import comfy.model_management, comfy.model_patcher, comfy.samplers, comfy.sd, comfy.utils, execution
host.start_late()
context = host.context()
"""
WORKER = "from memledger_comfy import worker; context = worker.start()\n"
PLAY = "import play; me = play.Process(context)"


class Players:
    """Processes by name: "host" and workers. `off`: each for itself, without memledger."""

    def __init__(self, spawn: Any, generation: str, *, off: bool, late: bool) -> None:
        self.off = off
        self._env = {"PYTHONPATH": os.pathsep.join([*paths(generation), HERE])}
        if off:
            self._env["MEMLEDGER_COMFY"] = "off"
        self._all: dict[str, Any] = {}
        group = {}
        for name in ("host", "one", "two"):
            player = spawn(join=False, quiet=False, env={**self._env, **group})
            player.run((HOST if name == "host" else WORKER) + PLAY)
            if late:
                player.run("play.publish_late(1.0, context.serving)")
            if name == "host" and not off:
                group = {"MEMLEDGER_GROUP": player.run("context.link.ledger.group")}
            self._all[name] = player

    def __getitem__(self, name: str) -> Any:
        return self._all[name]

    def __iter__(self) -> Iterator[Any]:
        return iter(self._all.values())

    def wait_for(self, who: str, figure: str, nbytes: int) -> None:
        """Until `who` sees `nbytes` published; at once without memledger."""
        if not self.off:
            player = self._all[who]
            wait_until(lambda: player.run(f"me.{figure}()") == nbytes)

    def ooms(self) -> int:
        return sum(player.run("me.ooms") for player in self._all.values())


@pytest.fixture(params=("old", "new"))
def generation(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=("alone on the card", "foreign usage", "publishing a second late"))
def circumstance(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def own_card(segment: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[sim.Card]:
    """A card where 64 GiB land in a second."""
    name = f"e2e-{os.getpid()}-{os.urandom(3).hex()}"
    url = f"sim:{name}?total=24GiB&land=64GiB/s"
    monkeypatch.setenv("COMFY_DOUBLE_CARDS", url)
    monkeypatch.setenv("MEMLEDGER_COMFY_DEVICES", f"cuda:0={url}")
    yield sim.open_url(url.removeprefix("sim:"))
    sim.remove(name)


@pytest.fixture
def foreign(circumstance: str, own_card: sim.Card) -> int:
    nbytes = 3 * GIB if circumstance == "foreign usage" else 0
    own_card.foreign(nbytes)
    return nbytes


@pytest.fixture
def players(
    spawn: Any, generation: str, circumstance: str, own_card: sim.Card, foreign: int
) -> Players:
    return Players(spawn, generation, off=False, late="late" in circumstance)


@pytest.fixture
def apart(spawn: Any, generation: str, own_card: sim.Card) -> Players:
    """The same processes without memledger."""
    return Players(spawn, generation, off=True, late=False)


# ---- row 6: a batch is chosen while a sibling's load lands


def row06(players: Players) -> dict[str, Any]:
    players["host"].run(f"me.load('base', {4 * GIB})")
    players["one"].run(f"me.begin_load('other', {12 * GIB})")
    players.wait_for("host", "held_by_others", 3 * GIB)
    batches = players["host"].run(f"me.batches(8, {GIB})")
    loaded = players["one"].run("me.finish_load()")
    return {"batches": batches, "loaded": loaded, "ooms": players.ooms()}


def test_row06_batches_are_those_of_one_process(players: Players, foreign: int) -> None:
    oracle = Oracle(CARD, foreign)
    oracle.load("base", 4 * GIB)
    oracle.load("other", 12 * GIB)
    oracle.loading.add("other")
    expected = {"batches": oracle.batches(8, GIB), "loaded": 12 * GIB, "ooms": 0}
    assert row06(players) == expected


def test_row06_without_memledger_the_batch_is_too_large(apart: Players) -> None:
    assert row06(apart)["batches"] == [8]


# ---- row 7: two loaders choose a dtype, one while the other's load lands


def row07(players: Players) -> dict[str, Any]:
    parameters = 6 * GIB
    first = players["one"].run(f"me.dtype_and_begin_load('first', {parameters})")
    second = players["two"].run(f"me.dtype({parameters})")
    size = parameters * (2 if second == "fp16" else 1)
    first_loaded = players["one"].run("me.finish_load()")
    players.wait_for("two", "held_by_others", first_loaded)
    second_loaded = players["two"].run(f"me.load('second', {size})")
    return {
        "dtypes": [first, second],
        "loaded": [first_loaded, second_loaded],
        "ooms": players.ooms(),
    }


def test_row07_dtypes_are_those_of_one_process(players: Players, foreign: int) -> None:
    oracle = Oracle(CARD, foreign)
    first = oracle.dtype(6 * GIB)
    oracle.load("first", 12 * GIB if first == "fp16" else 6 * GIB)
    second = oracle.dtype(6 * GIB)
    assert [first, second] == ["fp16", "fp8"]
    assert row07(players) == {
        "dtypes": [first, second],
        "loaded": [12 * GIB, 6 * GIB],
        "ooms": 0,
    }


def test_row07_without_memledger_both_choose_the_large_one(apart: Players) -> None:
    assert row07(apart)["dtypes"] == ["fp16", "fp16"]


# ---- row 19: what does not fit is a sibling's idle model away from fitting


def row19(players: Players, foreign: int) -> dict[str, Any]:
    """A sibling's idle model leaves a little of the card, and a sample takes two GiB."""
    idle = CARD - foreign - LEFT
    players["two"].run(f"me.load('idle', {idle})")
    players.wait_for("host", "releasable", idle)
    players.wait_for("host", "free", LEFT)
    return {"batches": players["host"].run(f"me.decode(4, {2 * GIB})"), "ooms": players.ooms()}


def test_row19_a_sibling_makes_room_as_own_models_would(players: Players, foreign: int) -> None:
    oracle = Oracle(CARD, foreign)
    oracle.resident["idle"] = CARD - foreign - LEFT
    oracle.idle.add("idle")
    assert row19(players, foreign) == {"batches": oracle.decode(4, 2 * GIB), "ooms": 0}


def test_row19_without_memledger_it_runs_out_of_memory(apart: Players) -> None:
    assert row19(apart, 0)["batches"] == [0]  # tiles


# ---- row 34: one budget of pins; who pins more takes idle pins of others, as of its own


def row34(players: Players) -> dict[str, int]:
    for player in players:
        player.run(f"play.mm.MAX_PINNED_MEMORY = {4 * GIB}")
        player.run("context and context.publisher.at_safe_point()")
    taken = [player.run(f"me.pins(3, {GIB})") for player in players]
    pinned = [player.run("play.mm.TOTAL_PINNED_MEMORY") for player in players]
    return {"taken": sum(taken), "pinned": sum(pinned), "ooms": players.ooms()}


def test_row34_pins_stay_within_the_budget_of_one_process(
    players: Players, generation: str
) -> None:
    if generation == "old":
        pytest.skip("the old generation does not pin by budget")
    assert row34(players) == {"taken": 9, "pinned": 4 * GIB, "ooms": 0}


def test_row34_without_memledger_each_takes_the_whole(apart: Players, generation: str) -> None:
    if generation == "old":
        pytest.skip("the old generation does not pin by budget")
    assert row34(apart)["pinned"] == 9 * GIB
