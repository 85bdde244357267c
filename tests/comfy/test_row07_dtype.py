"""Row 7: two loaders never both choose the large dtype where only one fits."""

from __future__ import annotations

from typing import Any

import pytest

from memledger import sim

GIB = 1 << 30
INFERENCE = int(0.8 * GIB) + 400 * (1 << 20)


def choose(comfy: Any, parameters: int) -> str:
    return str(comfy.mm.unet_dtype(comfy.mm.get_torch_device(), parameters).name)


def test_alone_the_choice_is_upstreams(comfy: Any, host: Any) -> None:
    upstream = 24 * GIB * 0.88 - comfy.mm.minimum_inference_memory()
    assert comfy.mm.maximum_vram_for_weights() == upstream
    assert choose(comfy, int(upstream / 2)) == "float16"
    assert choose(comfy, int(upstream / 2) + GIB) == "float8_e4m3fn"


def test_the_second_loader_sees_what_the_first_has_chosen(
    comfy: Any, host: Any, sibling: Any
) -> None:
    """A card of 24, two models of 8 G parameters: 16 and 8, not 16 and 16."""
    assert choose(comfy, 8 * GIB) == "float16"
    assert sibling.call("figures")["claimed_by_others"] == 16 * GIB + INFERENCE
    host.pledges.drop()
    sibling.call("claim", 16 * GIB)
    assert choose(comfy, 8 * GIB) == "float8_e4m3fn"


def test_the_smaller_one_is_claimed_where_it_was_chosen(
    comfy: Any, host: Any, sibling: Any
) -> None:
    sibling.call("claim", 14 * GIB)
    assert choose(comfy, 6 * GIB) == "float8_e4m3fn"
    assert sibling.call("figures")["claimed_by_others"] == 6 * GIB + INFERENCE


def test_where_neither_fits_the_smaller_one_is_chosen(comfy: Any, host: Any, sibling: Any) -> None:
    sibling.call("claim", 23 * GIB)
    assert choose(comfy, 6 * GIB) == "float8_e4m3fn"
    assert host.link.device("cuda:0").figures().own_claimed == 0


def test_held_bytes_count_and_not_what_a_sibling_could_give(
    comfy: Any, host: Any, sibling: Any
) -> None:
    sibling.run(
        "from memledger import sim\n"
        f"card = sim.Card(device.key.removeprefix('sim:')); block = card.alloc({14 * GIB})\n"
        f"device.publish({14 * GIB}, releasable={14 * GIB})"
    )
    assert comfy.mm.maximum_vram_for_weights() == 10 * GIB - INFERENCE
    assert choose(comfy, 6 * GIB) == "float8_e4m3fn"


def test_own_weights_make_room(comfy: Any, host: Any, card: sim.Card) -> None:
    """As in one process: the model that is loaded now will go."""
    torch, patcher = comfy.module("torch"), comfy.module("comfy.model_patcher").ModelPatcher
    loaded = patcher(16 * GIB, torch.device("cuda:0"), torch.device("cpu"))
    comfy.mm.load_models_gpu([loaded])
    assert choose(comfy, 8 * GIB) == "float16"
    figures = host.link.device("cuda:0").figures()
    assert (figures.own_held, figures.own_claimed) == (16 * GIB, 8 * GIB)
    assert figures.overcommit == 0


def test_models_of_one_process_share_one_pledge(comfy: Any, host: Any) -> None:
    """Two checkpoints in one prompt: alone both would be large, one after the other."""
    for parameters, pledged in ((8 * GIB, 16 * GIB), (7 * GIB, 16 * GIB), (9 * GIB, 18 * GIB)):
        assert choose(comfy, parameters) == "float16"
        assert host.link.device("cuda:0").figures().own_claimed == pledged + INFERENCE


def test_a_claim_that_was_lost_in_a_race_is_a_refusal(
    comfy: Any, host: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The figure says that it fits, and a sibling is faster: only the smaller one is granted."""
    claims = comfy.module("memledger_comfy.adapter.claims")
    plain = claims.claim
    monkeypatch.setattr(claims, "claim", lambda *args: plain(*args) if args[2] < 10 * GIB else None)
    assert choose(comfy, 8 * GIB) == "float8_e4m3fn"
    assert host.link.device("cuda:0").figures().own_claimed == 8 * GIB + INFERENCE


def test_own_bytes_that_go_before_the_load_fill_the_pledge(
    comfy: Any, host: Any, sibling: Any
) -> None:
    """The old model is unloaded between the choice and the load: nobody else gets its bytes."""
    torch, patcher = comfy.module("torch"), comfy.module("comfy.model_patcher").ModelPatcher
    loaded = patcher(16 * GIB, torch.device("cuda:0"), torch.device("cpu"))
    comfy.mm.load_models_gpu([loaded])
    assert choose(comfy, 8 * GIB) == "float16"
    assert host.link.device("cuda:0").figures().own_claimed == 8 * GIB
    comfy.mm.unload_all_models()
    assert host.link.device("cuda:0").figures().own_claimed == 16 * GIB + INFERENCE
    tensor = torch.empty(2 * GIB, device="cuda:0")
    host.publisher.at_safe_point()
    assert host.link.device("cuda:0").figures().own_claimed == 16 * GIB + INFERENCE
    del tensor


def test_the_load_adopts_the_pledge(comfy: Any, host: Any, sibling: Any) -> None:
    torch, patcher = comfy.module("torch"), comfy.module("comfy.model_patcher").ModelPatcher
    assert choose(comfy, 8 * GIB) == "float16"
    with pytest.raises(Exception, match="refused"):
        sibling.call("claim", 12 * GIB)
    loaded = patcher(16 * GIB, torch.device("cuda:0"), torch.device("cpu"))
    comfy.mm.load_models_gpu([loaded])
    assert loaded.loaded_size() == 16 * GIB
    figures = host.link.device("cuda:0").figures()
    assert (figures.own_held, figures.own_claimed) == (16 * GIB, 0)
    assert host.pledges.size("cuda:0") == 0


def test_a_pledge_that_nobody_adopts_ends_with_the_prompt(comfy: Any, host: Any) -> None:
    execution = comfy.module("execution")
    kept: list[int] = []
    nodes = [
        lambda: choose(comfy, 8 * GIB),
        lambda: kept.append(host.link.device("cuda:0").figures().own_claimed),
    ]
    execution.PromptExecutor(None).execute(nodes, "prompt-1")
    assert kept == [16 * GIB + INFERENCE], "it outlives the node that chose"
    assert host.link.device("cuda:0").figures().own_claimed == 0


def test_fp32_is_asked_about_as_four_bytes(comfy: Any, host: Any, sibling: Any) -> None:
    """An older card's gate: 4 bytes a parameter, or fp16."""
    mm = comfy.mm
    plain = mm.unet_dtype.__wrapped__
    seen: list[bool] = []

    def unet_dtype(device: Any = None, model_params: int = 0, **_: Any) -> Any:
        seen.append(mm.should_use_fp16(device, model_params, manual_cast=True))

    host.wraps.undo()
    mm.unet_dtype = unet_dtype
    host.reinstall()
    mm.unet_dtype(mm.get_torch_device(), 4 * GIB)
    assert sibling.call("figures")["claimed_by_others"] == 16 * GIB + INFERENCE
    host.pledges.drop()
    sibling.call("claim", 12 * GIB)
    mm.unet_dtype(mm.get_torch_device(), 4 * GIB)
    assert seen == [False, True]
    mm.unet_dtype = plain


@pytest.mark.parametrize("parameters", [-1, 0, 10**21, 1e30])
def test_no_claim_for_what_is_no_size(comfy: Any, host: Any, parameters: float) -> None:
    choose(comfy, parameters)  # type: ignore[arg-type]
    assert host.link.device("cuda:0").figures().own_claimed == 0


def test_the_total_stays_the_cards(comfy: Any, host: Any, sibling: Any) -> None:
    sibling.call("claim", 14 * GIB)
    assert comfy.mm.get_total_memory() == 24 * GIB
