"""Nodes that the tests run in a worker of comfy-env or of pyisolate, beside the doubles."""

from __future__ import annotations

import os
import sys
import time
from typing import Any

WATCHDOG_S = 30.0
_kept: list[Any] = []


def tell() -> dict[str, Any]:
    """What this worker knows of the ledger."""
    worker = sys.modules.get("memledger_comfy.worker")
    context = worker.context() if worker is not None else None
    if context is None or context.link.ledger is None:
        return {"joined": False}
    ledger = context.link.ledger
    return {
        "joined": True,
        "scope": ledger.scope,
        "why": ledger.degraded_reason,
        "leader": ledger.leader_reason,
        "prompt": ledger.prompt(),
        "pid": os.getpid(),
        "status": context.status,
        "library": os.path.dirname(sys.modules["memledger"].__file__ or ""),
        "path": sys.path,
    }


def load(nbytes: int) -> int:
    """Load a model of that size and keep it; how many are loaded then."""
    import comfy.model_management as mm
    import comfy.model_patcher as patchers
    import torch

    model = patchers.ModelPatcher(nbytes, torch.device("cuda", 0), torch.device("cpu"))
    _kept.append(model)
    mm.load_models_gpu([model])
    return len(mm.current_loaded_models)


def promise(nbytes: int) -> None:
    """Claim that much and do not take it."""
    account = sys.modules["memledger_comfy.worker"].context().link.account("cuda:0")
    _kept.append(account.claim(nbytes))


def steps(flag: str, until: str) -> str:
    """Make the file `flag`, then report progress until there is a file `until`."""
    import comfy.utils

    _touch(flag)
    bar = comfy.utils.ProgressBar(1 << 20)
    return _repeat(lambda: bar.update(1), until)


def checks(flag: str, until: str) -> str:
    """The same, but that it only ever asks whether it is interrupted."""
    import comfy.model_management as mm

    _touch(flag)
    return _repeat(mm.throw_exception_if_processing_interrupted, until)


def steps_after_a_free(flag: str) -> int:
    """Report progress until the group is asked to free, and some more; models loaded then."""
    import comfy.model_management as mm
    import comfy.utils

    ledger = sys.modules["memledger_comfy.worker"].context().link.ledger
    _touch(flag)
    bar, deadline = comfy.utils.ProgressBar(1 << 20), time.monotonic() + WATCHDOG_S
    while not ledger.pending() & 4 and time.monotonic() < deadline:
        bar.update(1)
    for _ in range(10):
        bar.update(1)
    return len(mm.current_loaded_models)


def check_in_releases() -> None:
    """From now on whatever unloads models looks for an interrupt, as ComfyUI's operations do."""
    import comfy.model_management as mm

    unload = mm.unload_all_models

    def unload_all_models() -> None:
        mm.throw_exception_if_processing_interrupted()
        unload()

    mm.unload_all_models = unload_all_models


def _touch(path: str) -> None:
    with open(path, "w", encoding="utf-8"):
        pass


def _repeat(call: Any, until: str) -> str:
    deadline = time.monotonic() + WATCHDOG_S
    while time.monotonic() < deadline:
        if os.path.exists(until):
            return "ended"
        call()
        time.sleep(0.002)
    return "barked"


class Node:
    """The same for comfy-env, which calls methods."""

    def tell(self) -> dict[str, Any]:
        return tell()

    def load(self, nbytes: int) -> int:
        return load(nbytes)

    def promise(self, nbytes: int) -> None:
        promise(nbytes)

    def steps(self, flag: str, until: str) -> str:
        return steps(flag, until)

    def steps_after_a_free(self, flag: str) -> int:
        return steps_after_a_free(flag)

    def check_in_releases(self) -> None:
        check_in_releases()

    def checks(self, flag: str, until: str) -> str:
        return checks(flag, until)

    def evaluate(self, source: str) -> Any:
        import comfy.model_management as mm

        return eval(source, {"mm": mm, "sys": sys})
