"""One call to the ledger fails, whichever it is: the prompt is what it is without us, and nothing
of ours is left behind."""

from __future__ import annotations

import contextlib
import functools
import gc
import threading
from typing import Any

import pytest

from helpers import units
from memledger import LedgerError, sim

from .test_presence import without_us, work

MIB = 1 << 20
STEP = 13
"""In the short run every thirteenth call fails; there are some 300."""


class Faults:
    """Counts the main thread's calls to the ledger's classes, and fails the one that is chosen."""

    def __init__(self, context: Any, patch: pytest.MonkeyPatch) -> None:
        self.calls = self.chosen = 0
        self.error: type[BaseException] = LedgerError
        self.failed = ""
        device = context.link.device("cuda:0")
        account, ledger = device.account("x"), context.link.ledger
        claim = account.try_claim(1)
        claim.cancel()
        for each in (device, account, claim, ledger, ledger.holders):
            for name in dir(type(each)):
                plain = getattr(type(each), name)
                if callable(plain) and not name.startswith("_"):
                    patch.setattr(type(each), name, self._counted(plain))

    def _counted(self, plain: Any) -> Any:
        @functools.wraps(plain)
        def call(*args: Any, **kwargs: Any) -> Any:
            if threading.current_thread() is not threading.main_thread():
                return plain(*args, **kwargs)
            self.calls += 1
            if self.calls == self.chosen:
                self.failed = plain.__qualname__
                raise self.error("injected")
            return plain(*args, **kwargs)

        return call

    def fail(self, number: int) -> None:
        self.calls, self.chosen, self.failed = 0, number, ""


@pytest.fixture
def faults(host: Any, monkeypatch: pytest.MonkeyPatch) -> Faults:
    return Faults(host, monkeypatch)


def settle(comfy: Any) -> None:
    gc.collect()
    loaded = comfy.mm.current_loaded_models
    loaded[:] = [entry for entry in loaded if entry.model is not None]  # as ComfyUI's own gc does
    comfy.mm.free_memory(1e30, comfy.mm.get_torch_device())
    comfy.mm.soft_empty_cache()


def outcomes(comfy: Any) -> list[Any]:
    return rounded(work(comfy))


def rounded(outcomes: list[Any]) -> list[Any]:
    """In MiB: a latent of some bytes is sometimes there still. Without the figures of what the run
    before has left."""
    return [round(each / MIB) if isinstance(each, int) else each for each in outcomes[3:-2]]


@pytest.mark.watchdog(600)
def test_whichever_call_fails(comfy: Any, card: sim.Card, request: pytest.FixtureRequest) -> None:
    expected = rounded(without_us(comfy, card))
    host = request.getfixturevalue("host")
    faults = request.getfixturevalue("faults")
    work(comfy)
    settle(comfy)
    faults.fail(0)
    work(comfy)
    total = faults.calls
    assert total > 50
    settle(comfy)
    for number in range(1, total + 1, 1 if units.is_long() else STEP):
        faults.fail(number)
        assert outcomes(comfy) == expected, faults.failed
        faults.chosen = 0
        nothing_is_left(comfy, host, faults, number)


@pytest.mark.watchdog(600)
def test_whichever_call_is_interrupted(comfy: Any, host: Any, faults: Faults) -> None:
    """As by Ctrl-C, which passes; but for what it had begun."""
    faults.error = KeyboardInterrupt
    work(comfy)
    total = faults.calls
    settle(comfy)
    for number in range(2, total + 1, 1 if units.is_long() else STEP):
        faults.fail(number)
        with contextlib.suppress(KeyboardInterrupt):
            work(comfy)
        faults.chosen = 0
        comfy.module("execution").PromptExecutor(None).execute([], "the next prompt")
        nothing_is_left(comfy, host, faults, number)


def nothing_is_left(comfy: Any, host: Any, faults: Faults, number: int) -> None:
    where = f"{faults.failed}, call {number}"
    faults.fail(0)
    settle(comfy)
    assert host.serving._working == 0, where
    assert not any(host.publisher._claims.values()), where
    assert host.link.device("cuda:0").figures().own_claimed == 0, where
    assert not host.scopes.in_vae, where
    assert not host.scopes.decoding, where
    assert not host.scopes.with_pages, where
    assert not host.link.is_raw, where
    assert getattr(host.serving._here, "until", None) is None, where
