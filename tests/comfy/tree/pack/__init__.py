"""A custom node for the tests: it calls a function of worker_side.py in a worker of comfy-env."""

from __future__ import annotations

import os
import sys
from typing import Any

_HERE = os.path.dirname(os.path.realpath(__file__))
_workers: list[Any] = []


def _worker() -> Any:
    from comfy_env.isolation.workers.subprocess import SubprocessWorker

    if not _workers or not _workers[0].is_alive():
        library = os.environ["MEMLEDGER_TEST_LIBRARY"]
        _workers[:] = [
            SubprocessWorker(
                sys.executable, working_dir=_HERE, sys_path=[os.getcwd(), library], name="test"
            )
        ]
    return _workers[0]


class CallInWorker:
    RETURN_TYPES: tuple[str, ...] = ()
    FUNCTION = "call"
    CATEGORY = "test"
    OUTPUT_NODE = True

    @classmethod
    def INPUT_TYPES(cls) -> dict[str, Any]:
        return {"required": {"function": ("STRING", {}), "round": ("INT", {})}}

    def call(self, function: str, round: int) -> dict[str, Any]:
        answer = _worker().call_module(module="worker_side", func=function)
        return {"ui": {"answer": [answer]}}


NODE_CLASS_MAPPINGS = {"MemledgerTestCallInWorker": CallInWorker}
