"""Rows 14, 31 and 33: captures, cached hook weights, and clones on another card."""

from __future__ import annotations

from typing import Any

import pytest

from memledger import sim

MIB = 1 << 20
GIB = 1 << 30


class TestWindows:
    def test_a_capture_is_a_window_that_siblings_see(self, comfy: Any, sibling: Any) -> None:
        torch = comfy.module("torch")
        comfy.start_host()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            assert sibling.run("device.wait_clear(0.0)") is False
        assert sibling.run("device.wait_clear(0.0)") is True

    def test_a_capture_that_fails_closes_its_window(self, comfy: Any, sibling: Any) -> None:
        torch = comfy.module("torch")
        comfy.start_host()
        with pytest.raises(ZeroDivisionError), torch.cuda.graph(torch.cuda.CUDAGraph()):
            _ = 1 / 0
        assert sibling.run("device.wait_clear(0.0)") is True

    def test_the_class_is_still_the_class(self, comfy: Any) -> None:
        torch = comfy.module("torch")
        plain = torch.cuda.graph
        context = comfy.start_host()
        assert issubclass(torch.cuda.graph, plain)
        assert torch.cuda.graph is not plain
        context.undo()
        assert torch.cuda.graph is plain

    def test_a_capture_works_without_a_ledger(self, comfy: Any) -> None:
        torch = comfy.module("torch")
        context = comfy.start_host()
        context.link.ledger.leave()
        done = []
        with torch.cuda.graph(torch.cuda.CUDAGraph()):
            done.append(1)
        assert done == [1]

    def test_what_a_capture_keeps_is_not_releasable(self, comfy: Any, card: sim.Card) -> None:
        torch = comfy.module("torch")
        if comfy.generation == "new":
            prefetch = comfy.module("comfy.model_prefetch")
        context = comfy.start_host()
        context.link.device("cuda:0")
        pools = context.publisher._parts["windows"]
        with torch.cuda.graph(torch.cuda.CUDAGraph()):
            kept = torch.empty(512 * MIB, device="cuda:0")
        assert pools("cuda:0").releasable == -512 * MIB
        del kept
        if comfy.generation == "new":
            prefetch.cleanup_prefetch_queues()
            assert pools("cuda:0") is None


class TestHooks:
    def patcher(self, comfy: Any) -> Any:
        torch = comfy.module("torch")
        patcher = comfy.module("comfy.model_patcher")
        return patcher.ModelPatcher(GIB, torch.device("cuda", 0), torch.device("cpu"))

    def on_card(self, patcher: Any) -> int:
        kept = [tensor for tensor, _ in patcher.hook_backup.values()]
        return sum(t.nbytes for t in kept if t.device.type == "cuda")

    def test_the_cache_takes_the_card_where_nobody_else_wants_it(
        self, comfy: Any, card: sim.Card
    ) -> None:
        comfy.load_all()
        comfy.start_host()
        patcher = self.patcher(comfy)
        patcher.patch_hooks([256 * MIB] * 8)
        assert self.on_card(patcher) == 2 * GIB

    def test_the_cache_leaves_what_a_sibling_was_promised(
        self, comfy: Any, card: sim.Card, sibling: Any
    ) -> None:
        comfy.load_all()
        context = comfy.start_host()
        sibling.call("claim", 20 * GIB)
        patcher = self.patcher(comfy)
        patcher.patch_hooks([256 * MIB] * 16)
        minimum = comfy.mm.minimum_inference_memory() * 2
        assert self.on_card(patcher) <= 4 * GIB - minimum + 64 * MIB
        assert context.link.device("cuda:0").figures().own_claimed == 0

    def test_the_cache_stops_where_no_claim_follows(
        self, comfy: Any, card: sim.Card, sibling: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Row 6 is off, so the counter starts with the whole card: the claim alone bounds it."""
        monkeypatch.setenv("MEMLEDGER_COMFY_FREE", "off")
        comfy.load_all()
        context = comfy.start_host()
        sibling.call("claim", 20 * GIB)
        patcher = self.patcher(comfy)
        patcher.patch_hooks([256 * MIB] * 24)
        assert 0 < self.on_card(patcher) <= 4 * GIB
        assert context.link.device("cuda:0").figures().own_claimed == 0

    def test_copies_are_releasable_when_the_model_is_idle(self, comfy: Any) -> None:
        comfy.load_all()
        context = comfy.start_host()
        patcher = self.patcher(comfy)
        comfy.mm.load_models_gpu([patcher])
        patcher.patch_hooks([256 * MIB] * 4)
        part = context.publisher._parts["hooks"]
        assert part("cuda:0") is None
        comfy.mm.current_loaded_models[0].currently_used = False
        assert part("cuda:0").releasable == GIB
        patcher.clean_hooks()
        assert part("cuda:0") is None


class TestClones:
    @pytest.fixture
    def two_cards(self, comfy: Any, card: sim.Card, monkeypatch: pytest.MonkeyPatch) -> Any:
        import os

        if comfy.generation == "old":
            pytest.skip("the old generation makes no deep clones")
        second = f"sim:{os.urandom(4).hex()}?total=8GiB"
        cards = os.environ["COMFY_DOUBLE_CARDS"]
        monkeypatch.setenv("COMFY_DOUBLE_CARDS", f"{cards};{second}")
        devices = os.environ["MEMLEDGER_COMFY_DEVICES"]
        monkeypatch.setenv("MEMLEDGER_COMFY_DEVICES", f"{devices},cuda:1={second}")
        yield second
        sim.remove(second.partition("?")[0].removeprefix("sim:"))

    def test_a_clone_is_claimed_on_its_card_while_it_is_made(
        self, comfy: Any, two_cards: str, sibling: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        comfy.load_all()
        patcher_module = comfy.module("comfy.model_patcher")
        torch = comfy.module("torch")
        claimed = []
        sibling.call("open", two_cards)
        original = patcher_module.ModelPatcher.partially_load

        def look(self: Any, device: Any, *args: Any) -> Any:
            claimed.append(sibling.run("device.claimed_by_others()"))
            return original(self, device, *args)

        monkeypatch.setattr(patcher_module.ModelPatcher, "partially_load", look)
        context = comfy.start_host()
        model = patcher_module.ModelPatcher(2 * GIB, torch.device("cuda", 0), torch.device("cpu"))
        clone = model.deepclone_multigpu(new_load_device=torch.device("cuda", 1))
        assert claimed == [2 * GIB]
        assert clone.loaded_size() == 2 * GIB
        assert sibling.run("device.claimed_by_others()") == 0
        assert context.link.device("cuda:1").figures().own_claimed == 0

    def test_a_clone_that_does_not_fit_is_upstreams_to_decide(
        self, comfy: Any, two_cards: str, sibling: Any
    ) -> None:
        comfy.load_all()
        comfy.start_host()
        torch, patcher_module = comfy.module("torch"), comfy.module("comfy.model_patcher")
        sibling.call("open", two_cards)
        sibling.call("claim", 7 * GIB)
        model = patcher_module.ModelPatcher(2 * GIB, torch.device("cuda", 0), torch.device("cpu"))
        assert model.deepclone_multigpu(torch.device("cuda", 1)).loaded_size() == 2 * GIB
