"""Doubles of both generations in this process, a card, a ledger of the test's own."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from memledger import sim

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
ADAPTERS = ROOT / "comfy_integration"
GENERATIONS = ("old", "new")
_OURS = ("comfy", "comfy_execution", "execution", "nodes", "server", "torch", "generations")
_OURS += ("comfy_aimdo", "comfy_env", "comfy_extras", "memledger_comfy", "app", "folder_paths")


def paths(generation: str) -> list[str]:
    """What a process needs on its sys.path to be that generation of ComfyUI, with our adapters."""
    doubles = HERE / "doubles"
    return [str(doubles / generation), str(doubles / "common"), str(ADAPTERS)]


def _forget_modules() -> None:
    for name in list(sys.modules):
        if name.partition(".")[0] in _OURS:
            del sys.modules[name]


@pytest.fixture
def card(segment: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[sim.Card]:
    """A card of 24 GiB, which the doubles' torch calls cuda:0, beside a segment of the test's."""
    name = f"comfy-{os.getpid()}-{os.urandom(3).hex()}"
    url = f"sim:{name}?total=24GiB"
    monkeypatch.setenv("COMFY_DOUBLE_CARDS", url)
    monkeypatch.setenv("MEMLEDGER_COMFY_DEVICES", f"cuda:0={url}")
    opened = sim.open_url(url.removeprefix("sim:"))
    yield opened
    opened.close()
    sim.remove(name)


class ComfyUI:
    """One generation's modules in this process."""

    def __init__(self, generation: str) -> None:
        self.generation = generation

    def module(self, name: str) -> Any:
        return importlib.import_module(name)

    @property
    def mm(self) -> Any:
        return self.module("comfy.model_management")

    @property
    def paths(self) -> list[str]:
        """For a process of its own that is to be this generation."""
        return paths(self.generation)

    def load_all(self) -> None:
        """As at the moment when custom nodes are loaded."""
        for name in ("model_management", "model_patcher", "samplers", "sd", "utils"):
            self.module(f"comfy.{name}")
        self.module("execution")

    def forget(self) -> None:
        """As before the first import."""
        _forget_modules()

    def start_host(self) -> Any:
        """Both entry points, in ComfyUI's order. Returns the context, or None where it is off."""
        host: ModuleType = self.module("memledger_comfy.host")
        host.start_early()
        self.load_all()
        host.start_late()
        return host.context()


@pytest.fixture(params=GENERATIONS)
def comfy(
    request: pytest.FixtureRequest,
    card: sim.Card,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[ComfyUI]:
    """The doubles of each generation in turn; everything is undone and forgotten afterwards."""
    _forget_modules()
    for path in reversed(paths(request.param)):
        monkeypatch.syspath_prepend(path)
    yield ComfyUI(request.param)
    host = sys.modules.get("memledger_comfy.host")
    if host is not None:
        host.stop()
    _forget_modules()


@pytest.fixture
def host(comfy: ComfyUI) -> Any:
    """The context of a host that has loaded everything."""
    return comfy.start_host()


@pytest.fixture
def model(comfy: ComfyUI, host: Any) -> Callable[[int], Any]:
    """model(nbytes) -> a patcher for cuda:0."""
    torch, patchers = comfy.module("torch"), comfy.module("comfy.model_patcher")
    return lambda size: patchers.ModelPatcher(size, torch.device("cuda:0"), torch.device("cpu"))


@pytest.fixture
def sibling(spawn: Any, card: sim.Card) -> Any:
    """Another member that has the card open (its verbs: helpers/member.py)."""
    member = spawn("sibling")
    member.call("open", card_url(card))
    return member


def card_url(card: sim.Card) -> str:
    return os.environ["COMFY_DOUBLE_CARDS"].split(";")[0]


BOOTSTRAP = ADAPTERS / "memledger_comfy" / "bootstrap.py"


@pytest.fixture
def worker(comfy: ComfyUI, spawn: Any) -> Any:
    """Starts a process that the bootstrap makes a worker: worker() -> Member. It has the host's
    environment as it is then, and ComfyUI's modules of the same generation; `context` and `mm` in
    it are ours and ComfyUI's."""

    def start(*, modules: bool = True, bootstrap: Path = BOOTSTRAP, **options: Any) -> Any:
        env = {"PYTHONPATH": os.pathsep.join(paths(comfy.generation)[:2]), **options.pop("env", {})}
        member = spawn(join=False, flags=(str(bootstrap),), env=env, **options)
        member.run("from memledger_comfy import worker; context = worker.context()")
        if modules:
            member.run("import comfy.model_management as mm, comfy.utils")
        return member

    return start
