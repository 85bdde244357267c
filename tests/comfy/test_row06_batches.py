"""Row 6: batches of samplers and VAEs, sized as one process would have sized them."""

from __future__ import annotations

import os
from typing import Any

import pytest

from memledger import sim

GIB = 1 << 30
MIB = 1 << 20


def _has(sibling: Any, nbytes: int, releasable: int = 0) -> None:
    sibling.run(
        "from memledger import sim\n"
        f"card = sim.Card(device.key.removeprefix('sim:')); block = card.alloc({nbytes})\n"
        f"device.publish({nbytes}, releasable={releasable})"
    )


class TestSamplers:
    def sample(self, comfy: Any, patcher: Any, each: int) -> list[int]:
        samplers = comfy.module("comfy.samplers")
        latent = comfy.module("torch").empty(8, device="cuda:0")
        ran: list[int] = samplers.calc_cond_batch(
            samplers.Model(each, patcher), [1, 2, 3, 4], latent, None, {}
        )
        return ran

    def test_a_batch_leaves_room_for_what_siblings_were_promised(
        self, comfy: Any, model: Any, sibling: Any
    ) -> None:
        patcher = model(GIB)
        assert self.sample(comfy, patcher, 2 * GIB) == [4]
        comfy.mm.soft_empty_cache()
        sibling.call("claim", 16 * GIB)
        assert self.sample(comfy, patcher, 2 * GIB) == [2, 2]

    def test_steps_publish_and_cost_no_driver_call(
        self, comfy: Any, host: Any, model: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        steps: list[int] = []
        monkeypatch.setattr(host.publisher, "step", lambda: steps.append(1))
        self.sample(comfy, model(GIB), MIB)
        assert steps == [1]

    def test_own_pages_first_make_up_for_what_was_promised(
        self, comfy: Any, host: Any, model: Any, sibling: Any, card: sim.Card
    ) -> None:
        """Free 2, promised 5, pages 8: 5 may be taken. By ComfyUI's own sum it would be 8."""
        if comfy.generation == "old":
            pytest.skip("the old generation has no pager")
        pages = comfy.module("comfy_aimdo.model_vbar").pages
        patcher, device = model(GIB), comfy.mm.get_torch_device()
        sibling.call("claim", 5 * GIB)
        card.foreign(22 * GIB)
        pages[0] = 8 * GIB
        assert patcher.get_free_memory(device) == 5 * GIB
        pages[0] = 0
        assert patcher.get_free_memory(device) == 64 * MIB
        with host.link.raw():
            assert patcher.get_free_memory(device) == 2 * GIB

    def test_several_cards_count_pages_too(
        self, comfy: Any, host: Any, model: Any, sibling: Any
    ) -> None:
        if comfy.generation == "old":
            pytest.skip("the old generation has one card")
        samplers, torch = comfy.module("comfy.samplers"), comfy.module("torch")
        comfy.module("comfy_aimdo.model_vbar").pages[0] = 8 * GIB
        device, latent = torch.device("cuda:0"), torch.empty(8, device="cuda:0")
        sibling.call("claim", 20 * GIB)
        ran = samplers.calc_cond_batch(
            samplers.Model(3 * GIB), [1, 2, 3, 4], latent, None, {"multigpu_clones": [device]}
        )
        # free 24 - 20 + 8 = 12 GiB; two conds want 9, four 18.
        assert ran == [2]
        assert comfy.mm.get_free_memory(device) == 4 * GIB - 8


class TestVae:
    def vae(self, comfy: Any, patcher: Any, each: int) -> Any:
        return comfy.module("comfy.sd").VAE(patcher, each)

    def samples(self, comfy: Any, *shape: int) -> Any:
        return comfy.module("comfy.sd").Samples(*shape)

    @pytest.mark.parametrize("method", ["decode", "encode"])
    def test_the_batch_is_claimed_before_it_is_sized(
        self, comfy: Any, host: Any, model: Any, sibling: Any, method: str
    ) -> None:
        vae = self.vae(comfy, model(GIB), 2 * GIB)
        seen: list[int] = []
        vae.during = lambda: seen.append(sibling.call("figures")["claimed_by_others"])
        shape = (8, 4, 64, 64) if method == "decode" else (8, 64, 64, 3)
        assert getattr(vae, method)(self.samples(comfy, *shape)) == [8]
        assert seen == [16 * GIB]
        figures = host.link.device("cuda:0").figures()
        assert figures.own_claimed == 0
        assert host.serving._working == 0

    def test_the_weights_that_are_loaded_first_have_their_room(
        self, comfy: Any, host: Any, model: Any, sibling: Any
    ) -> None:
        sibling.call("claim", 15 * GIB)
        vae = self.vae(comfy, model(2 * GIB), 2 * GIB)
        seen: list[int] = []
        vae.during = lambda: seen.append(host.publisher.claimed("cuda:0"))
        # 9 are free, 2 of them are the weights': three samples fit, and four would not.
        assert vae.decode(self.samples(comfy, 8, 4, 64, 64)) == [3, 3, 2]
        assert seen[0] == 4 * GIB

    def test_two_that_decode_share_the_card(
        self, comfy: Any, host: Any, model: Any, sibling: Any
    ) -> None:
        sibling.call("claim", 14 * GIB)
        vae = self.vae(comfy, model(GIB), 2 * GIB)
        seen: list[Any] = []
        vae.during = lambda: seen.append(host.link.device("cuda:0").figures())
        assert vae.decode(self.samples(comfy, 8, 4, 64, 64)) == [4, 4]
        assert seen[0].own_claimed == 8 * GIB
        assert all(figures.overcommit == 0 for figures in seen)

    def test_a_decode_that_does_not_fit_asks_siblings(
        self, comfy: Any, host: Any, model: Any, sibling: Any
    ) -> None:
        _has(sibling, 20 * GIB, releasable=20 * GIB)
        sibling.run(
            "from holders import Gives\n"
            "class Card(Gives):\n"
            "    def release_memory(self, asked, size):\n"
            "        block.free()\n"
            "        return super().release_memory(asked, 20 << 30)\n"
            "ledger.holders.register(Card(device), thread_safe=True)"
        )
        vae = self.vae(comfy, model(GIB), 8 * GIB)
        seen: list[int] = []
        patches = vae.patcher.model_patches_models  # asked for where the load begins
        vae.patcher.model_patches_models = lambda: (
            seen.append(host.publisher.claimed("cuda:0")) or patches()
        )
        assert vae.decode(self.samples(comfy, 1, 4, 64, 64)) == [1]
        assert seen[0] == 8 * GIB
        assert not vae.tiled

    def test_tiles_take_their_share_of_what_there_is(
        self, comfy: Any, host: Any, model: Any, sibling: Any
    ) -> None:
        if comfy.generation == "old":
            pytest.skip("the old generation's tiles have a fixed size")
        _has(sibling, 14 * GIB)
        vae = self.vae(comfy, model(GIB), 20 * GIB)
        vae.decode(self.samples(comfy, 1, 4, 64, 64))
        assert vae.tiled
        # 24 - 14 - 1 (its own weights) are free; 0.8 of the card would be 19.2.
        assert 8 * GIB < vae.budget <= 9 * GIB
        assert comfy.mm.get_total_memory() == 24 * GIB, "elsewhere it is the card's"

    def test_a_claim_is_not_made_twice_where_tiles_follow(
        self, comfy: Any, host: Any, model: Any
    ) -> None:
        vae = self.vae(comfy, model(GIB), 2 * GIB)
        seen: list[int] = []

        def used(shape: Any, dtype: Any) -> int:
            seen.append(host.publisher.claimed("cuda:0"))
            return 2 * GIB

        vae.memory_used_decode = used
        vae._tiles = lambda samples, used: vae.decode_tiled(samples)
        vae.during = _no_memory(comfy)
        vae.decode(self.samples(comfy, 1, 4, 64, 64))
        assert seen == [0, 2 * GIB, 2 * GIB]

    def test_the_interrupt_passes_and_the_claim_goes(
        self, comfy: Any, host: Any, model: Any
    ) -> None:
        vae = self.vae(comfy, model(GIB), 2 * GIB)
        interrupt = comfy.mm.InterruptProcessingException

        def stop() -> None:
            raise interrupt

        vae.during = stop
        with pytest.raises(interrupt):
            vae.decode(self.samples(comfy, 1, 4, 64, 64))
        assert host.link.device("cuda:0").figures().own_claimed == 0
        assert host.serving._working == 0


def _no_memory(comfy: Any) -> Any:
    def fail() -> None:
        raise comfy.module("torch").cuda.OutOfMemoryError("Tried to allocate 2.00 GiB")

    return fail


def test_on_windows_what_siblings_hold_is_missing_too(
    comfy: Any, host: Any, sibling: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = comfy.module("memledger_comfy.adapter.row06_free")
    monkeypatch.setattr(row, "sees_itself_alone", True)
    sibling.publish(6 * GIB)  # says so; the card's own figure does not show it
    sibling.call("claim", 2 * GIB)
    assert comfy.mm.get_free_memory() == 16 * GIB


def test_a_device_without_an_index_is_the_current_one(comfy: Any, host: Any, sibling: Any) -> None:
    sibling.call("claim", 6 * GIB)
    assert comfy.mm.get_free_memory(comfy.module("torch").device("cuda")) == 18 * GIB
    assert set(host.link.devices()) - {"cpu"} == {"cuda:0"}


def test_a_device_that_the_ledger_does_not_know_is_upstreams(
    comfy: Any, card: sim.Card, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MEMLEDGER_COMFY_DEVICES", "cuda:0=nonsense:7")
    comfy.start_host()
    caplog.clear()
    for _ in range(3):
        assert comfy.mm.get_free_memory() == card.free()
    assert os.environ["MEMLEDGER_COMFY_DEVICES"] == "cuda:0=nonsense:7"
    assert not caplog.records, "said once, at start"
