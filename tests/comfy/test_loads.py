"""Loads, asks and answers: what is claimed, published, asked for and given back."""

from __future__ import annotations

import os
import threading
from typing import Any

import pytest

from memledger import sim

GIB = 1 << 30
MIB = 1 << 20
INFERENCE = int(0.8 * GIB) + 400 * MIB


def figures(context: Any) -> Any:
    return context.link.device("cuda:0").figures()


def during_load(model: Any, look: Any) -> None:
    """Have `look()` called in the middle of the next load of `model`."""
    plain = model.partially_load

    def partially_load(*args: Any, **kwargs: Any) -> Any:
        look("before")
        loaded = plain(*args, **kwargs)
        look("after")
        return loaded

    model.partially_load = partially_load


class TestLoads:
    def test_a_load_is_claimed_before_and_published_after(
        self, comfy: Any, host: Any, model: Any
    ) -> None:
        big, seen = model(8 * GIB), {}
        during_load(big, lambda when: seen.update({when: figures(host)}))
        comfy.mm.load_models_gpu([big])
        assert seen["before"].own_claimed == 8 * GIB + INFERENCE
        assert seen["before"].own_held == 0
        after = figures(host)
        assert (after.own_held, after.own_claimed) == (8 * GIB, 0)
        # Used until the next node: nobody is offered it.
        assert after.releasable == 0

    def test_what_has_landed_is_no_longer_promised(
        self, comfy: Any, host: Any, model: Any, wait_until: Any
    ) -> None:
        big = model(8 * GIB)

        def look(when: str) -> None:
            if when == "after":  # the pump's next round, while the load is not over
                wait_until(lambda: figures(host).own_held == 8 * GIB)
                assert figures(host).own_claimed == INFERENCE

        during_load(big, look)
        comfy.mm.load_models_gpu([big])
        assert figures(host).own_held == 8 * GIB

    def test_clones_and_what_is_loaded_are_claimed_once(
        self, comfy: Any, host: Any, model: Any
    ) -> None:
        big, seen = model(8 * GIB), []
        during_load(big, lambda when: seen.append(figures(host).own_claimed))
        comfy.mm.load_models_gpu([big, big.clone()])
        assert seen[0] == 8 * GIB + INFERENCE
        seen.clear()
        comfy.mm.load_models_gpu([big], memory_required=2 * GIB)
        assert seen[0] == 0, "nothing to load, nothing to claim"

    def test_a_load_that_fails_leaves_no_claim(
        self, comfy: Any, host: Any, model: Any, card: sim.Card
    ) -> None:
        big = model(8 * GIB)
        big.partially_load = _raises
        with pytest.raises(RuntimeError, match="broken file"):
            comfy.mm.load_models_gpu([big])
        assert figures(host).own_claimed == 0
        assert not host.serving._working

    def test_own_models_make_room_before_siblings_are_asked(
        self, comfy: Any, host: Any, model: Any, sibling: Any
    ) -> None:
        first, second = model(14 * GIB), model(12 * GIB)
        comfy.mm.load_models_gpu([first])  # in use; for a load of our own it goes all the same
        _gives(sibling, 4 * GIB)
        seen: list[Any] = []
        during_load(second, lambda when: seen.append(figures(host)))
        comfy.mm.load_models_gpu([second])
        assert sibling.run("holder.calls") == 0
        assert seen[0].own_claimed == 12 * GIB + INFERENCE
        assert seen[-1].overcommit == 0
        assert first.loaded_size() < 14 * GIB
        assert second.loaded_size() == 12 * GIB

    def test_a_load_that_does_not_fit_asks_siblings(
        self, comfy: Any, host: Any, model: Any, sibling: Any
    ) -> None:
        big, seen = model(16 * GIB), []
        _gives(sibling, 12 * GIB)
        during_load(big, lambda when: seen.append(figures(host)))
        comfy.mm.load_models_gpu([big])
        assert sibling.run("holder.calls") >= 1
        assert seen[0].own_claimed == 16 * GIB + INFERENCE
        assert big.loaded_size() == 16 * GIB
        assert figures(host).overcommit == 0

    def test_a_load_that_is_refused_goes_on_with_what_there_is(
        self, comfy: Any, host: Any, model: Any, sibling: Any
    ) -> None:
        big, seen = model(16 * GIB), []
        _has(sibling, 12 * GIB)
        during_load(big, lambda when: seen.append(figures(host)))
        comfy.mm.load_models_gpu([big])
        assert seen[0].own_claimed == 12 * GIB, "what there is, is claimed"
        assert 0 < big.loaded_size() < 12 * GIB

    def test_two_loads_at_once_do_not_pass_the_card(
        self, comfy: Any, host: Any, model: Any, sibling: Any
    ) -> None:
        sibling.call("claim", 16 * GIB)
        big = model(16 * GIB)
        comfy.mm.load_models_gpu([big])
        assert big.loaded_size() <= 8 * GIB

    def test_the_cpu_needs_no_claim(self, comfy: Any, host: Any) -> None:
        torch, patcher = comfy.module("torch"), comfy.module("comfy.model_patcher").ModelPatcher
        comfy.mm.load_models_gpu([patcher(GIB, torch.device("cpu"), torch.device("cpu"))])
        assert figures(host).own_claimed == 0

    @pytest.mark.parametrize("size", [1e30, 1e32])
    def test_everything_is_no_size(self, comfy: Any, host: Any, model: Any, size: float) -> None:
        seen: list[int] = []
        big = model(8 * GIB)
        during_load(big, lambda when: seen.append(figures(host).own_claimed))
        comfy.mm.load_models_gpu([big], memory_required=size)
        assert seen[0] == 8 * GIB + INFERENCE


class TestAsks:
    def test_free_memory_asks_for_what_is_short(
        self, comfy: Any, host: Any, sibling: Any, card: sim.Card
    ) -> None:
        _gives(sibling, 20 * GIB)
        device = comfy.mm.get_torch_device()
        assert comfy.mm.free_memory(10 * GIB, device) == []
        assert sibling.run("device.amounts[0]") == 14 * GIB
        assert card.free() == 10 * GIB

    def test_free_memory_asks_nobody_when_it_has_enough(
        self, comfy: Any, host: Any, sibling: Any
    ) -> None:
        _gives(sibling, 8 * GIB)
        for enough in (10 * GIB, 1e30, 1e32, float("inf")):
            comfy.mm.free_memory(enough, comfy.mm.get_torch_device())
        assert sibling.run("holder.calls") == 0

    def test_promised_bytes_are_not_free(self, comfy: Any, host: Any, sibling: Any) -> None:
        _gives(sibling, 4 * GIB)
        sibling.call("claim", 12 * GIB)
        comfy.mm.free_memory(10 * GIB, comfy.mm.get_torch_device())
        assert sibling.run("device.amounts[0]") == 2 * GIB

    def test_pages_of_the_pager_are_not_asked_for(
        self, comfy: Any, host: Any, model: Any, sibling: Any
    ) -> None:
        if comfy.generation == "old":
            pytest.skip("the old generation has no pager")
        _gives(sibling, 4 * GIB)
        own = comfy.module("comfy.model_patcher").ModelPatcherDynamic(
            12 * GIB, *(model(1).load_device, model(1).offload_device)
        )
        comfy.mm.load_models_gpu([own])
        comfy.mm.free_memory(16 * GIB, own.load_device, for_dynamic=True)
        assert sibling.run("holder.calls") == 0

    def test_one_load_waits_no_longer_than_one_ask(
        self, comfy: Any, host: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The siblings' figures say much, and nobody answers: three places would ask."""
        asked: list[float] = []
        device = host.link.device("cuda:0")
        clock = iter(range(10_000))
        serving = host.serving
        monkeypatch.setattr(
            "memledger_comfy.serving.time.monotonic", lambda: next(clock) * serving_step
        )
        serving_step = 0.1
        monkeypatch.setattr(
            type(device), "ask", lambda self, nbytes, timeout: asked.append(timeout) or _Nothing()
        )
        before = serving.start_asking()
        for _ in range(5):
            serving.ask("cuda:0", GIB)
        serving.limit_asks(before)
        assert len(asked) == 1
        assert asked[0] <= 0.15


class TestAnswers:
    def test_an_idle_process_answers_by_itself(
        self, comfy: Any, host: Any, model: Any, sibling: Any, card: sim.Card
    ) -> None:
        big = model(8 * GIB)
        comfy.mm.load_models_gpu([big])
        _node_ends(comfy, host)
        assert figures(host).releasable == 8 * GIB
        assert sibling.run(f"device.ask({6 * GIB}, 30).credited") >= 6 * GIB
        assert big.loaded_size() <= 2 * GIB
        assert card.free() >= 22 * GIB

    def test_a_working_process_answers_at_a_safe_point(
        self, comfy: Any, host: Any, model: Any, sibling: Any
    ) -> None:
        unused, used = model(4 * GIB), model(4 * GIB)
        answered: list[int] = []

        def node() -> None:
            comfy.mm.load_models_gpu([unused])
            comfy.mm.load_models_gpu([used])
            sibling.send_run(f"device.ask({8 * GIB}, 60).credited")
            samplers = comfy.module("comfy.samplers")
            each = samplers.Model(MIB, used)
            latent = comfy.module("torch").empty(8, device="cuda:0")
            while unused.loaded_size():
                samplers.calc_cond_batch(each, [1, 2], latent, None, {})
            answered.append(used.loaded_size())

        executor = _prompt(comfy, node)
        assert executor.success, executor.error
        assert answered == [4 * GIB], "what the node works with stays"
        assert sibling.receive() >= 4 * GIB

    def test_another_thread_answers_nothing_while_one_works(
        self, comfy: Any, host: Any, model: Any, sibling: Any, wait_until: Any
    ) -> None:
        comfy.mm.load_models_gpu([model(4 * GIB)])
        host.publisher.in_use = False
        host.publisher.at_safe_point()
        host.serving.begin()
        sibling.send_run(f"device.ask({GIB}, 60).credited")
        wait_until(lambda: host.link.ledger.pending() & 1)
        for answers in (False, True):
            if answers:
                host.serving.at_safe_point()
            else:
                thread = threading.Thread(target=host.serving.at_safe_point)
                thread.start()
                thread.join(30)
            assert bool(host.link.ledger.pending() & 1) is not answers
        host.serving.end()
        assert sibling.receive() >= GIB

    def test_work_waits_for_an_answer_that_is_being_given(
        self, comfy: Any, host: Any, model: Any, sibling: Any
    ) -> None:
        """The ledger's thread unloads while the prompt thread would load: never both."""
        small = model(4 * GIB)
        comfy.mm.load_models_gpu([small])
        _node_ends(comfy, host)
        inside, go, order = threading.Event(), threading.Event(), []

        def slowly(name: str, size: int) -> None:
            inside.set()
            go.wait(30)
            order.append("given")

        host.serving.add("cache", slowly)
        sibling.send_run(f"device.ask({GIB}, 60).credited")
        assert inside.wait(30)
        worker = threading.Thread(target=lambda: (host.serving.begin(), order.append("works")))
        worker.start()
        go.set()
        worker.join(30)
        assert order == ["given", "works"]
        host.serving.end()
        sibling.receive()

    def test_idle_cache_is_given_while_this_process_asks(
        self, comfy: Any, host: Any, sibling: Any, spawn: Any, wait_until: Any
    ) -> None:
        """Two that wait for each other both get what is idle."""
        tensor = comfy.module("torch").empty(6 * GIB, device="cuda:0")
        del tensor
        host.publisher.publish("cuda:0")
        slow = spawn("slow")
        slow.call("open", os.environ["COMFY_DOUBLE_CARDS"])
        _has(slow, GIB, releasable=GIB)
        slow.run("from holders import Gives; ledger.holders.register(Gives(device))")
        host.serving.begin()
        sibling.send_run(f"device.ask({6 * GIB}, 60).credited")
        wait_until(lambda: host.link.ledger.pending() & 1)
        host.serving.ask("cuda:0", GIB)  # waits for the slow one, in vain
        host.serving.end()
        assert sibling.receive() == 6 * GIB

    def test_soft_empty_cache_publishes(self, comfy: Any, host: Any) -> None:
        torch = comfy.module("torch")
        tensor = torch.empty(6 * GIB, device="cuda:0")
        host.publisher.at_safe_point()
        del tensor
        host.publisher.at_safe_point()
        assert figures(host)[4:6] == (6 * GIB, 6 * GIB)
        comfy.mm.soft_empty_cache()
        assert figures(host)[4:6] == (0, 0)


class TestPublisher:
    def test_the_pager_and_torch_are_not_added(self, comfy: Any, host: Any, model: Any) -> None:
        if comfy.generation == "old":
            pytest.skip("the old generation has no pager")
        control = comfy.module("comfy_aimdo.control")
        pages = comfy.module("comfy_aimdo.model_vbar").pages
        small = model(4 * GIB)
        comfy.mm.load_models_gpu([small])
        control.usage, pages[0] = 9 * GIB, 3 * GIB
        assert host.publisher.measure("cuda:0") == (9 * GIB, 3 * GIB)
        control.usage = 2 * GIB
        assert host.publisher.measure("cuda:0") == (4 * GIB, 3 * GIB)
        # Of several cards the one figure says nothing: what is loaded here counts.
        control.devctxs, control.usage = [1, 2], 9 * GIB
        assert host.publisher.measure("cuda:0") == (4 * GIB, 3 * GIB)

    def test_a_context_counts_once_it_is_there(self, comfy: Any, host: Any) -> None:
        from memledger.torch import CONTEXT_BYTES

        figures_module = comfy.module("memledger_comfy.adapter.figures")
        real = type("Real", (), {"key": "GPU-1", "account": None})
        host.link._devices["cuda:1"] = real
        assert figures_module._context_bytes(host, "cuda:1", 0) == 0
        assert figures_module._context_bytes(host, "cuda:1", 1) == CONTEXT_BYTES
        assert figures_module._context_bytes(host, "cuda:0", 1) == 0, "a simulated card has none"
        del host.link._devices["cuda:1"]

    def test_rows_add_parts(self, comfy: Any, host: Any) -> None:
        part = comfy.module("memledger_comfy.publisher").Part
        tensor = comfy.module("torch").empty(GIB, device="cuda:0")
        host.publisher.contribute("a", lambda name: part(5, -3) if name == "cuda:0" else None)
        host.publisher.contribute("a", lambda name: part(7, 2) if name == "cuda:0" else None)
        host.publisher.contribute("b", lambda name: part(1))
        assert host.publisher.measure("cuda:0") == (GIB + 8, 2)
        del tensor

    def test_steps_publish_four_times_a_second(
        self, comfy: Any, host: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        now, published = [100.0], []
        monkeypatch.setattr("memledger_comfy.publisher.time.monotonic", lambda: now[0])
        monkeypatch.setattr(host.publisher, "at_safe_point", lambda: published.append(now[0]))
        for _ in range(100):
            host.publisher.step()
            now[0] += 0.0625
        assert len(published) == 25

    def test_a_claim_of_another_package_in_this_process_is_left_alone(
        self, comfy: Any, host: Any
    ) -> None:
        device = host.link.device("cuda:0")
        device.publish(3 * GIB)
        host.publisher.at_safe_point()
        assert figures(host).own_held == 3 * GIB

    def test_the_pump_ends_with_the_last_claim(self, host: Any, wait_until: Any) -> None:
        account = host.link.account("cuda:0")
        for _ in range(2):
            claim = account.claim(GIB)
            host.publisher.open_claim("cuda:0", claim)
            host.publisher.close_claim("cuda:0", claim)
            wait_until(lambda: host.publisher._pump is None)
        assert not [t for t in threading.enumerate() if t.name == "memledger-comfy-pump"]


class TestBoundaries:
    def test_a_prompt_is_work_and_its_end_is_idle(self, comfy: Any, host: Any, model: Any) -> None:
        seen = []
        big = model(4 * GIB)

        def load() -> None:
            comfy.mm.load_models_gpu([big])
            seen.append((host.serving._working, figures(host).releasable))

        def next_node() -> None:
            seen.append((host.serving._working, figures(host).releasable))

        executor = _prompt(comfy, load, next_node)
        assert executor.success
        assert seen == [(1, 0), (1, 4 * GIB)]
        assert host.serving._working == 0

    def test_a_prompt_that_fails_ends_all_the_same(self, comfy: Any, host: Any) -> None:
        executor = _prompt(comfy, _raises)
        assert not executor.success
        assert host.serving._working == 0


class _Nothing:
    credited = 0


def _raises(*_: Any, **__: Any) -> Any:
    raise RuntimeError("broken file")


def _prompt(comfy: Any, *nodes: Any) -> Any:
    execution = comfy.module("execution")
    executor = execution.PromptExecutor(None)
    executor.execute(list(nodes), "prompt-1")
    return executor


def _node_ends(comfy: Any, context: Any) -> None:
    comfy.module("memledger_comfy.adapter.nodes").boundary(context)


def _has(sibling: Any, nbytes: int, releasable: int = 0) -> None:
    """The sibling really has `nbytes` of the card, and says so."""
    sibling.run(
        "from memledger import sim\n"
        f"card = sim.Card(device.key.removeprefix('sim:')); block = card.alloc({nbytes})\n"
        f"device.publish({nbytes}, releasable={releasable})"
    )


def _gives(sibling: Any, nbytes: int) -> None:
    """The same, and it gives them back when asked, on its ledger's thread."""
    _has(sibling, nbytes, releasable=nbytes)
    sibling.run(
        "from holders import Gives\n"
        "class Card(Gives):\n"
        "    def release_memory(self, asked, size):\n"
        "        given = super().release_memory(asked, size)\n"
        "        global block\n"
        "        block.free()\n"
        "        block = card.alloc(self.device.amounts[0]) if self.device.amounts[0] else block\n"
        "        return given\n"
        "holder = Card(device)\n"
        "ledger.holders.register(holder, thread_safe=True)"
    )
