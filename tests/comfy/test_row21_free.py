"""Row 21: what the user frees in the host, the workers of its group free too."""

from __future__ import annotations

from typing import Any

import pytest

UNLOAD, CACHE = 1, 2


@pytest.fixture
def queue(comfy: Any) -> Any:
    comfy.start_host()
    return comfy.module("execution").PromptQueue(None)


def asked(worker: Any) -> int:
    """Flags of the free requests that the worker has not seen yet."""
    return int(worker.run("context.link.ledger.free_epoch()[1]"))


@pytest.mark.parametrize(
    ("flag", "expected"), [("unload_models", UNLOAD), ("free_memory", UNLOAD | CACHE)]
)
def test_a_click_reaches_the_workers_at_once(
    queue: Any, worker: Any, flag: str, expected: int
) -> None:
    inside = worker()
    queue.set_flag(flag, True)
    assert inside.run("context.link.ledger.pending() & 4") == 4
    assert asked(inside) == expected
    assert queue.get_flags(reset=False) == {flag: True}


def test_flags_that_ask_for_nothing_are_not_passed_on(queue: Any, worker: Any) -> None:
    inside = worker()
    queue.set_flag("unload_models", False)
    queue.set_flag(name="something_else", data=True)
    queue.get_flags()
    queue.get_flags(reset=False)
    assert asked(inside) == 0


def test_when_the_host_acts_the_workers_hear_it_again(queue: Any, worker: Any) -> None:
    """What a worker has loaded between the click and the end of the prompt goes too."""
    inside = worker()
    queue.set_flag("free_memory", True)
    assert asked(inside) == UNLOAD | CACHE
    queue.get_flags(reset=False)  # only looked at
    assert asked(inside) == 0
    assert queue.get_flags() == {"free_memory": True}
    assert asked(inside) == UNLOAD | CACHE


def test_a_reset_of_the_caches_is_passed_on_once(comfy: Any, queue: Any, worker: Any) -> None:
    inside = worker()
    executor = comfy.module("execution").PromptExecutor(None)
    assert asked(inside) == 0  # the constructor's own reset
    executor.reset()
    assert asked(inside) == CACHE
    queue.set_flag("free_memory", True)
    queue.get_flags()
    assert asked(inside) == UNLOAD | CACHE
    executor.reset()  # which belongs to the flags
    assert asked(inside) == 0
    executor.reset()
    assert asked(inside) == CACHE


def test_a_worker_drops_its_models_and_says_so(comfy: Any, queue: Any, worker: Any) -> None:
    inside = worker()
    inside.run(
        "import torch, comfy.model_patcher as patchers\n"
        "gpu, cpu = torch.device('cuda', 0), torch.device('cpu')\n"
        "model = patchers.ModelPatcher(2 << 30, gpu, cpu)\n"
        "mm.load_models_gpu([model])\n"
        "freed = []\n"
        "worker.on_free(lambda *what: freed.append(what))\n"
        "worker.boundary()"
    )
    assert inside.run("len(mm.current_loaded_models)") == 1
    held = "context.link.device(gpu).figures().own_held"
    assert inside.run(held) >= 2 << 30
    queue.set_flag("free_memory", True)
    assert inside.run("comfy.utils.ProgressBar(2).update(1); len(mm.current_loaded_models)") == 1
    assert inside.run("worker.boundary(); len(mm.current_loaded_models)") == 0
    assert inside.run("freed") == [[True, True]]
    assert inside.run(held) < 1 << 30


def test_switched_off_it_says_nothing(
    comfy: Any, worker: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MEMLEDGER_COMFY_FREE_REQUEST", "off")
    context = comfy.start_host()
    assert context.status["free_request"] == "MEMLEDGER_COMFY_FREE_REQUEST=off"
    inside = worker()
    comfy.module("execution").PromptQueue(None).set_flag("free_memory", True)
    assert asked(inside) == 0


def test_without_the_names_it_is_off_by_name(comfy: Any) -> None:
    queue = comfy.module("execution").PromptQueue
    del queue.set_flag, queue.get_flags
    assert comfy.start_host().status["free_request"] == "this ComfyUI has no PromptQueue.set_flag"
