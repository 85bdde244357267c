"""Custom nodes for the tests: one calls a function of worker_side.py in a worker of comfy-env, one
reports steps until somebody stops it."""

from __future__ import annotations

import os
import sys
import time
from typing import Any

_HERE = os.path.dirname(os.path.realpath(__file__))
_workers: list[Any] = []


def _worker() -> Any:
    from comfy_env.isolation.workers.subprocess import SubprocessWorker

    if not _workers or not _workers[0].is_alive():
        _workers[:] = [
            SubprocessWorker(sys.executable, working_dir=_HERE, sys_path=[os.getcwd()], name="test")
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


class Steps:
    RETURN_TYPES: tuple[str, ...] = ()
    FUNCTION = "run"
    CATEGORY = "test"
    OUTPUT_NODE = True

    @classmethod
    def INPUT_TYPES(cls) -> dict[str, Any]:
        return {"required": {"round": ("INT", {})}}

    def run(self, round: int) -> dict[str, Any]:
        from comfy.utils import ProgressBar

        steps = 1200
        bar = ProgressBar(steps)
        for step in range(steps):
            print(f"memledger test: step {step}", flush=True)
            bar.update_absolute(step)
            time.sleep(0.05)
        return {"ui": {"steps": [steps]}}


NODE_CLASS_MAPPINGS = {"MemledgerTestCallInWorker": CallInWorker, "MemledgerTestSteps": Steps}
