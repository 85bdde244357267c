"""Row 25: where a prompt begins and ends, for every worker of the group."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

GIB = 1 << 30


@pytest.fixture
def executor(comfy: Any) -> Any:
    comfy.start_host()
    return comfy.module("execution").PromptExecutor(None)


def seen(worker: Any) -> Any:
    """(sequence, id, active) as the worker sees it."""
    return worker.run("context.link.ledger.prompt()")


def test_a_worker_sees_the_prompt_while_it_runs(executor: Any, worker: Any) -> None:
    inside = worker()
    assert seen(inside) is None
    during: list[Any] = []
    executor.execute([lambda: during.append(seen(inside))], "a-1")
    executor.execute([lambda: during.append(seen(inside))], prompt_id="a-2")
    assert during == [[1, "a-1", True], [2, "a-2", True]]
    assert executor.success
    assert seen(inside) == [2, "a-2", False]


def test_a_prompt_that_fails_has_ended_too(comfy: Any, executor: Any, worker: Any) -> None:
    inside = worker()

    def fail() -> None:
        raise RuntimeError("the node's")

    executor.execute([fail], "b-1")
    assert not executor.success
    assert seen(inside) == [1, "b-1", False]

    class Stop(BaseException):
        pass

    def stop() -> None:
        raise Stop

    with pytest.raises(Stop):
        executor.execute([stop], "b-2")
    assert seen(inside) == [2, "b-2", False]


def test_the_async_form_alone_is_a_prompt_as_well(executor: Any, worker: Any) -> None:
    inside = worker()
    during: list[Any] = []
    asyncio.run(executor.execute_async([lambda: during.append(seen(inside))], "c-1", {}, []))
    assert during == [[1, "c-1", True]]
    assert seen(inside) == [1, "c-1", False]


def test_a_broken_ledger_costs_no_prompt(comfy: Any, executor: Any) -> None:
    comfy.module("memledger_comfy.host").context().link.ledger.leave()
    ran: list[int] = []
    executor.execute([lambda: ran.append(1)], "d-1")
    assert ran == [1]
    assert executor.success


def test_a_worker_keeps_the_hosts_headroom_free(comfy: Any, executor: Any, worker: Any) -> None:
    if comfy.generation == "old":
        pytest.skip("the old generation has no headroom")
    memory = comfy.module("comfy.memory_management")
    inside = worker()
    adopted = "worker.boundary(); import comfy.memory_management as m; m.RAM_CACHE_HEADROOM"
    assert inside.run(adopted) == 0
    during: list[int] = []

    def node() -> None:
        memory.set_ram_cache_release_state(None, GIB)
        during.append(inside.run(adopted))

    executor.execute([node], "e-1")
    assert during == [GIB]
    memory.set_ram_cache_release_state(None, 0)
    assert inside.run(adopted) == 0


def test_without_the_name_it_is_off_by_name(comfy: Any) -> None:
    executor = comfy.module("execution").PromptExecutor
    del executor.execute, executor.execute_async
    assert comfy.start_host().status["prompt"] == "this ComfyUI has no PromptExecutor.execute"
