"""Names that are missing, ledgers that fail: ComfyUI does what it does without us, and says so."""

from __future__ import annotations

from typing import Any

import pytest

from memledger import LedgerError, sim

GIB = 1 << 30

MM = "comfy.model_management"
NAMES = [
    # module, name, behaviour that reports it
    (MM, "get_free_memory", "free"),
    (MM, "get_torch_device", "free"),
    (MM, "get_total_memory", "vae"),
    (MM, "load_models_gpu", "loads"),
    (MM, "current_loaded_models", "loads"),
    (MM, "minimum_inference_memory", "loads"),
    (MM, "free_memory", "asks"),
    (MM, "soft_empty_cache", "asks"),
    (MM, "maximum_vram_for_weights", "dtype"),
    (MM, "unet_dtype", "dtype"),
    (MM, "should_use_fp16", "dtype"),
    (MM, "should_use_bf16", "dtype"),
    (MM, "OOM_EXCEPTION", "oom"),
    (MM, "is_oom", "oom"),
    ("comfy.model_patcher", "ModelPatcher.get_free_memory", "patcher"),
    ("comfy.samplers", "_calc_cond_batch_multigpu", "multigpu"),
    ("comfy.samplers", "calc_cond_batch", "steps"),
    ("comfy.sd", "VAE.decode", "vae"),
    ("comfy.sd", "VAE.encode", "vae"),
    ("comfy.sd", "VAE.decode_tiled", "vae"),
    ("comfy.sd", "VAE", "vae"),
    ("execution", "execute", "nodes"),
    ("execution", "PromptExecutor.execute", "nodes"),
    ("execution", "PromptExecutor", "nodes"),
]


def remove(comfy: Any, module: str, path: str) -> bool:
    """False: this generation does not have it anyway."""
    *owners, name = path.split(".")
    owner = comfy.module(module)
    for part in owners:
        owner = getattr(owner, part)
    if name not in vars(owner):
        return False
    delattr(owner, name)
    return True


def work(comfy: Any) -> list[Any]:
    """What a prompt calls, as outcomes: values, or the kind of error."""
    mm, sd = comfy.mm, comfy.module("comfy.sd")
    torch, patchers = comfy.module("torch"), comfy.module("comfy.model_patcher")
    samplers, execution = comfy.module("comfy.samplers"), comfy.module("execution")
    cuda, cpu = torch.device("cuda:0"), torch.device("cpu")
    model, other = (patchers.ModelPatcher(4 * GIB, cuda, cpu) for _ in range(2))
    latent = torch.empty(8, device="cuda:0")

    def out_of_memory() -> None:
        raise torch.cuda.OutOfMemoryError("Tried to allocate 1.00 GiB")

    def decode(vae: Any) -> Any:
        vae.decode(sd.Samples(3, 4, 64, 64))
        return vae.batches, vae.tiled

    def tiles() -> Any:
        failing = sd.VAE(model, GIB)
        failing.during = out_of_memory
        return decode(failing)

    def prompt() -> Any:
        executor = execution.PromptExecutor(None)
        executor.execute([lambda: mm.load_models_gpu([other])], "prompt-1")
        return executor.success, other.loaded_size()

    calls = [
        lambda: mm.get_free_memory(),
        lambda: mm.get_free_memory(cuda, torch_free_too=True),
        lambda: mm.get_total_memory(cuda),
        lambda: (mm.load_models_gpu([model], memory_required=GIB), model.loaded_size()),
        lambda: model.get_free_memory(cuda),
        lambda: [str(each) for each in mm.free_memory(10 * GIB, cuda)],
        lambda: decode(sd.VAE(model, GIB)),
        lambda: sd.VAE(model, GIB).encode(sd.Samples(3, 64, 64, 3)),
        lambda: sd.VAE(model, GIB).decode_tiled(sd.Samples(3, 4, 64, 64)),
        tiles,
        lambda: samplers.calc_cond_batch(samplers.Model(GIB, model), [1, 2], latent, None, {}),
        lambda: mm.unet_dtype(cuda, 4 * GIB).name,
        lambda: mm.should_use_fp16(cuda, 4 * GIB),
        prompt,
        lambda: len(mm.free_memory(1e30, cuda)),
        lambda: mm.soft_empty_cache(),
        lambda: mm.get_free_memory(cuda),
    ]
    return [_outcome(call) for call in calls]


def _outcome(call: Any) -> Any:
    try:
        return call()
    except Exception as error:
        return type(error).__name__


def without_us(comfy: Any, card: sim.Card, *removed: str) -> list[Any]:
    comfy.load_all()
    if removed:
        remove(comfy, *removed)
    outcomes = work(comfy)
    comfy.forget()
    card.close()
    return outcomes


@pytest.mark.parametrize(("module", "name", "behaviour"), NAMES)
def test_without_a_name_comfyui_does_what_it_did(
    comfy: Any, card: sim.Card, module: str, name: str, behaviour: str
) -> None:
    expected = without_us(comfy, card, module, name)
    comfy.load_all()
    there = remove(comfy, module, name)
    context = comfy.start_host()
    assert work(comfy) == expected
    said = context.status[behaviour] + " ".join(context.lacks.get(behaviour, ()))
    assert name.split(".")[-1] in said, "whether it is this generation or this test that has it not"
    assert there or context.status[behaviour] != "on" or context.lacks[behaviour]
    assert name.split(".")[-1] in context.describe()


@pytest.mark.parametrize("module", ["comfy.samplers", "comfy.sd", "comfy.model_patcher"])
def test_without_a_module_the_rest_is_on(comfy: Any, card: sim.Card, module: str) -> None:
    import sys

    comfy.load_all()
    del sys.modules[module]
    host = comfy.module("memledger_comfy.host")
    host.start_late()
    context = host.context()
    gone = {name for name, why in context.status.items() if module in why}
    assert gone
    assert {"free", "loads", "asks", "oom"} <= {n for n, w in context.status.items() if w == "on"}


def _broken(*_: Any, **__: Any) -> Any:
    raise LedgerError("injected")


FAILING = [
    *[("device", name) for name in ("claimed_by_others", "figures", "wait_clear", "ask")],
    *[("device", name) for name in ("note_oom", "account", "budget", "free")],
    *[("account", name) for name in ("publish", "try_claim", "claim", "claim_first")],
    *[("ledger", name) for name in ("pending", "serve", "device", "members")],
    *[("holders", name) for name in ("register",)],
]


@pytest.mark.parametrize(("where", "name"), FAILING)
def test_a_ledger_call_that_fails_costs_a_line(
    comfy: Any,
    card: sim.Card,
    where: str,
    name: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    expected = without_us(comfy, card)
    context = comfy.start_host()
    device = context.link.device("cuda:0")
    owner = {
        "device": type(device),
        "account": type(device.account("x")),
        "ledger": type(context.link.ledger),
        "holders": type(context.link.ledger.holders),
    }[where]
    with monkeypatch.context() as patch:
        patch.setattr(owner, name, _broken, raising=False)
        caplog.clear()
        assert work(comfy) == expected
        work(comfy)
        lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == len(set(lines)), "one line per kind"
    assert not context.serving._working


def test_a_ledger_that_was_left(comfy: Any, card: sim.Card) -> None:
    expected = without_us(comfy, card)
    context = comfy.start_host()
    context.link.ledger.leave()
    assert work(comfy) == expected


def test_a_ledger_that_has_no_such_device(
    comfy: Any, card: sim.Card, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = without_us(comfy, card)
    monkeypatch.setenv("MEMLEDGER_COMFY_DEVICES", "cuda:0=nonsense:1")
    context = comfy.start_host()
    assert context.link.device("cuda:0") is None
    assert work(comfy) == expected


def test_alone_nothing_is_decided_otherwise(comfy: Any, card: sim.Card) -> None:
    """One process in a ledger decides as one without."""
    expected = without_us(comfy, card)
    comfy.start_host()
    assert work(comfy) == expected
    assert work(comfy)[3:-2] == expected[3:-2]


def test_a_reload_is_wrapped_again(comfy: Any, card: sim.Card, sibling: Any) -> None:
    import importlib

    context = comfy.start_host()
    sibling.call("claim", 6 * GIB)
    for _ in range(2):
        importlib.reload(comfy.mm)
        assert comfy.mm.get_free_memory() == 18 * GIB
    assert {"free", "loads", "oom"} <= {n for n, w in context.status.items() if w == "on"}
    context.undo()
    assert comfy.mm.get_free_memory() == 24 * GIB


@pytest.mark.parametrize("first", [True, False])
def test_another_pack_wraps_the_same_function(comfy: Any, sibling: Any, first: bool) -> None:
    comfy.load_all()
    mm = comfy.mm

    def pack() -> None:
        plain = mm.get_free_memory
        mm.get_free_memory = lambda *args, **kwargs: plain(*args, **kwargs) - GIB

    if first:
        pack()
    context = comfy.start_host()
    if not first:
        pack()
    sibling.call("claim", 6 * GIB)
    assert mm.get_free_memory() == 17 * GIB
    context.reinstall()
    assert mm.get_free_memory() == 17 * GIB
    context.undo()
    assert mm.get_free_memory() == 23 * GIB


def test_a_pack_that_copied_the_name_is_reached(
    comfy: Any, sibling: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    import sys
    from types import ModuleType

    comfy.load_all()
    pack = ModuleType("a_pack")
    pack.get_free_memory = comfy.mm.get_free_memory  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "a_pack", pack)
    comfy.start_host()
    sibling.call("claim", 6 * GIB)
    assert pack.get_free_memory() == 18 * GIB  # type: ignore[attr-defined]


class TestUpstreamsRegistry:
    """The day ComfyUI has MemoryHolder: tested with a registry of our own."""

    @pytest.fixture
    def registry(self, comfy: Any) -> list[Any]:
        comfy.load_all()
        holders: list[Any] = []
        comfy.mm.register_memory_holder = holders.append
        comfy.mm.unregister_memory_holder = holders.remove
        return holders

    def test_all_siblings_are_one_holder(
        self, comfy: Any, registry: list[Any], sibling: Any
    ) -> None:
        context = comfy.start_host()
        sibling.publish(8 * GIB, 8 * GIB)
        sibling.run(
            "from holders import Gives\n"
            "holder = Gives(device); ledger.holders.register(holder, thread_safe=True)"
        )
        assert context.status["holder"] == "on"
        assert len(registry) == 1
        context.reinstall()
        assert len(registry) == 1
        device = comfy.mm.get_torch_device()
        asked = 0
        while not asked:  # it answers within its bound, the sibling a little later
            asked = registry[0].release_memory(device, GIB)
        assert asked >= GIB
        calls = sibling.run("holder.calls")
        comfy.mm.free_memory(30 * GIB, device)
        assert sibling.run("holder.calls") == calls, "ComfyUI asks, so we do not"
        context.undo()
        assert registry == []

    def test_its_errors_are_ours(
        self, comfy: Any, registry: list[Any], caplog: pytest.LogCaptureFixture
    ) -> None:
        context = comfy.start_host()
        context.link.ledger.leave()
        assert registry[0].release_memory(comfy.mm.get_torch_device(), GIB) == 0
        assert registry[0].release_memory("meta", GIB) == 0
        assert registry[0].release_memory(object(), -5) == 0
