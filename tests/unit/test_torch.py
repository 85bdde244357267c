"""memledger.torch: with the real torch as far as its CPU build goes, and with a stand-in that has
torch.cuda's names, on a simulated card, for the rest. Nothing here has run on a GPU."""

from __future__ import annotations

import os
import pickle
import re
import subprocess
import sys
import threading
import warnings
import weakref
from collections.abc import Callable, Iterator
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

import memledger
import memledger.torch as adapter
from helpers.fake_nvml import Card as NvmlCard
from helpers.fake_nvml import FakeDriver, uuid
from helpers.units import GiB, MiB
from helpers.waiting import wait_until
from memledger import sim
from memledger.device import Device
from memledger.model import DeviceSpec, PoolSpec

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="no simulated cards there")

ROOT = Path(__file__).resolve().parents[2]
TOTAL = 24 * GiB
RESERVED, ALLOCATED = "reserved_bytes.all.current", "allocated_bytes.all.current"


class FakeCuda:
    """What the adapters use of torch.cuda, under its names, on a simulated card."""

    def __init__(self, card: sim.Card, devices: int = 1) -> None:
        self.allocator = sim.Allocator(card)
        self.devices = devices
        self.emptied = 0

    def is_initialized(self) -> bool:
        return True

    def device_count(self) -> int:
        return self.devices

    def memory_stats(self, device: int) -> dict[str, int]:
        if device != 0 or not self.allocator.reserved:
            return {}
        return {RESERVED: self.allocator.reserved, ALLOCATED: self.allocator.allocated}

    def empty_cache(self) -> None:
        self.emptied += 1
        self.allocator.empty_cache()


@pytest.fixture
def card(ledger: memledger.Ledger) -> memledger.Device:
    return ledger.device("sim:card", total=TOTAL)


@pytest.fixture
def cuda(card: memledger.Device) -> Iterator[FakeCuda]:
    fake = FakeCuda(sim.Card("card"))
    yield fake
    fake.allocator.card.close()


@pytest.fixture
def torch() -> Any:
    """The real package; a visible skip where there is none."""
    if find_spec("torch") is None:
        pytest.skip("torch is not installed, so nothing was tried with the real package")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own, about a numpy that is not there
        return import_module("torch")


@pytest.fixture
def cpu_torch(torch: Any) -> Any:
    if torch.cuda.is_available():
        pytest.skip("this torch has a GPU; these tests are about one that has none")
    return torch


def named(ledger: memledger.Ledger, name: str, total: int | None = TOTAL) -> memledger.Device:
    """A device of that name without any source."""
    device = Device(ledger, DeviceSpec(name, (PoolSpec(f"test:{name}"),), (None,), total))
    if total is not None:
        device._set_limit(total)
    return device


# ---- import


def test_import_costs_nothing() -> None:
    code = "import sys, memledger.torch; print('torch' in sys.modules, 'numpy' in sys.modules)"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert shown.stdout.split() == ["False", "False"], shown.stderr


# ---- publish


def test_publish_held_is_reserved_and_releasable_is_idle(
    card: memledger.Device, cuda: FakeCuda
) -> None:
    cuda.allocator.alloc(5 * GiB)
    cuda.allocator.alloc(2 * GiB).free()
    now = adapter.publish(card, index=0, backend=cuda)
    assert now == (7 * GiB, 2 * GiB)
    assert card.amounts == (7 * GiB, 2 * GiB, 0)
    assert card.available() == 24 * GiB - 5 * GiB


def test_publish_context_counts_only_once_it_is_there(
    card: memledger.Device, cuda: FakeCuda
) -> None:
    assert adapter.publish(card, context_bytes=MiB, index=0, backend=cuda) == (0, 0)
    cuda.allocator.alloc(GiB)
    assert adapter.publish(card, context_bytes=MiB, index=0, backend=cuda) == (GiB + MiB, 0)
    assert adapter.publish(card, index=0, backend=cuda) == (GiB, 0)


def test_publish_for_an_account_is_its_part(card: memledger.Device, cuda: FakeCuda) -> None:
    card.publish(3 * GiB)
    cuda.allocator.alloc(GiB)
    adapter.publish(card.account("torch"), index=0, backend=cuda)
    assert card.figures().own_held == 4 * GiB


def test_publish_index_is_that_of_the_name(ledger: memledger.Ledger, cuda: FakeCuda) -> None:
    cuda.allocator.alloc(GiB)
    for name, held in (("cuda:0", GiB), ("cuda", GiB), ("hip:0", GiB), ("cuda:1", 0)):
        assert adapter.publish(named(ledger, name), backend=cuda).held == held, name


@pytest.mark.parametrize("index", [None, 0])
def test_publish_ram_is_refused(
    ledger: memledger.Ledger, cuda: FakeCuda, index: int | None
) -> None:
    ram = ledger.device("ram")
    with pytest.raises(memledger.UnknownDevice, match="no allocator statistics for CPU tensors"):
        adapter.publish(ram, index=index, backend=cuda)
    assert ram.amounts == (0, 0, 0)


@pytest.mark.parametrize("name", ["GPU-00000000-1111", "cuda:one", "xpu:0"])
def test_publish_name_that_is_not_torchs_is_refused(
    ledger: memledger.Ledger, cuda: FakeCuda, name: str
) -> None:
    with pytest.raises(memledger.UnknownDevice, match="pass index="):
        adapter.publish(named(ledger, name), backend=cuda)


# ---- pump


def test_pump_drains_while_bytes_land_and_settles(card: memledger.Device, cuda: FakeCuda) -> None:
    with card.claim(10 * GiB) as claim:
        with adapter.pump(claim, card, hz=1000, index=0, backend=cuda):
            assert card.figures().own_claimed == 10 * GiB
            for landed in (4, 6, 9):
                cuda.allocator.alloc((landed - card.amounts[0] // GiB) * GiB)
                wait_until(lambda landed=landed: claim.open == (10 - landed) * GiB)
                assert card.amounts[0] == landed * GiB
        assert claim.ended
    assert card.amounts == (9 * GiB, 0, 0)
    assert card.figures().own_claimed == 0


def test_pump_last_bytes_are_published_without_a_tick(
    card: memledger.Device, cuda: FakeCuda
) -> None:
    """At one tick in 1000 s all that is published is what the block's end does."""
    with (
        card.claim(10 * GiB) as claim,
        adapter.pump(claim, card, hz=0.001, index=0, backend=cuda),
    ):
        cuda.allocator.alloc(3 * GiB)
        cuda.allocator.alloc(GiB).free()
    assert card.amounts == (4 * GiB, GiB, 0)


def test_pump_unsettled_the_rest_stays_promised(card: memledger.Device, cuda: FakeCuda) -> None:
    claim = card.claim(10 * GiB)
    with adapter.pump(claim, card, settle=False, index=0, backend=cuda):
        cuda.allocator.alloc(3 * GiB)
    assert (card.amounts[0], claim.open) == (3 * GiB, 7 * GiB)
    claim.cancel()
    assert card.amounts[0] == 3 * GiB


def test_pump_exception_publishes_what_landed_and_the_claim_drops_the_rest(
    card: memledger.Device, cuda: FakeCuda
) -> None:
    def load() -> None:
        with (
            card.claim(10 * GiB) as claim,
            adapter.pump(claim, card, index=0, backend=cuda),
        ):
            cuda.allocator.alloc(3 * GiB)
            raise KeyError("a load")

    with pytest.raises(KeyError, match="a load"):
        load()
    assert card.amounts[0] == 3 * GiB
    assert card.figures().own_claimed == 0


def test_pump_claim_that_the_block_settled_is_left_alone(
    card: memledger.Device, cuda: FakeCuda
) -> None:
    claim = card.claim(10 * GiB)
    with adapter.pump(claim, card, index=0, backend=cuda):
        cuda.allocator.alloc(3 * GiB)
        claim.settle(held=5 * GiB)
    assert card.amounts[0] == 5 * GiB


def test_pump_expired_claim_still_publishes(card: memledger.Device, cuda: FakeCuda) -> None:
    claim = card.claim(10 * GiB, ttl=0.001)
    with adapter.pump(claim, card, hz=0.001, index=0, backend=cuda):
        wait_until(lambda: claim.expired)
        cuda.allocator.alloc(3 * GiB)
    assert card.amounts[0] == 3 * GiB


def test_pump_hung_reading_neither_holds_the_block_nor_publishes_late(
    card: memledger.Device, cuda: FakeCuda
) -> None:
    """A driver that hangs in the pump's thread: without the lock round "not over yet? publish" the
    old figure would replace the block's last one."""
    main, hangs, go_on = threading.current_thread(), threading.Event(), threading.Event()

    class Hanging(FakeCuda):
        def memory_stats(self, device: int) -> dict[str, int]:
            stats = super().memory_stats(device)
            if threading.current_thread() is not main:
                hangs.set()
                go_on.wait(60)
            return stats

    hanging = Hanging(sim.Card("card"))
    with (
        card.claim(10 * GiB) as claim,
        adapter.pump(claim, card, hz=1000, index=0, backend=hanging),
    ):
        (thread,) = [t for t in threading.enumerate() if t.name == "memledger-pump"]
        hanging.allocator.alloc(2 * GiB)
        assert hangs.wait(60)
        hanging.allocator.alloc(3 * GiB)
    assert card.amounts[0] == 5 * GiB
    go_on.set()
    thread.join(60)
    assert not thread.is_alive()
    assert card.amounts[0] == 5 * GiB


def test_pump_bad_readings_do_not_end_it(card: memledger.Device, cuda: FakeCuda) -> None:
    sick = threading.Event()
    failed = threading.Event()

    def stats(device: int) -> dict[str, int]:
        if sick.is_set():
            failed.set()
            raise RuntimeError("CUDA error")
        return FakeCuda.memory_stats(cuda, device)

    cuda.memory_stats = stats  # type: ignore[method-assign]
    with (
        card.claim(10 * GiB) as claim,
        adapter.pump(claim, card, hz=1000, index=0, backend=cuda),
    ):
        sick.set()
        assert failed.wait(60)
        sick.clear()
        cuda.allocator.alloc(3 * GiB)
        wait_until(lambda: claim.open == 7 * GiB)
    with (
        pytest.raises(RuntimeError, match="CUDA error"),
        card.claim(10 * GiB) as claim,
        adapter.pump(claim, card, hz=1000, index=0, backend=cuda),
    ):
        sick.set()
    assert card.figures().own_claimed == 0


def test_pump_refused_device_and_bad_rate(ledger: memledger.Ledger, card: memledger.Device) -> None:
    claim = card.claim(GiB)
    with (
        pytest.raises(memledger.UnknownDevice),
        adapter.pump(claim, ledger.device("ram"), backend=FakeCuda(sim.Card("card"))),
    ):
        pass
    with pytest.raises(ValueError, match="hz"), adapter.pump(claim, card, hz=0):
        pass
    assert not [t for t in threading.enumerate() if t.name == "memledger-pump"]
    claim.cancel()


# ---- the holder


def test_holder_gives_back_what_is_idle(card: memledger.Device, cuda: FakeCuda) -> None:
    holder = adapter.empty_cache_holder(card, index=0, backend=cuda)
    cuda.allocator.alloc(5 * GiB)
    cuda.allocator.alloc(2 * GiB).free()
    adapter.publish(card, index=0, backend=cuda)
    assert holder.release_memory(card, GiB) == 2 * GiB
    assert card.amounts == (5 * GiB, 0, 0)
    assert sim.Card("card").used() == 5 * GiB


def test_holder_nothing_idle_or_another_device_empties_nothing(
    ledger: memledger.Ledger, card: memledger.Device, cuda: FakeCuda
) -> None:
    holder = adapter.empty_cache_holder(card, index=0, backend=cuda)
    cuda.allocator.alloc(5 * GiB)
    assert holder.release_memory(card, GiB) == 0
    cuda.allocator.alloc(2 * GiB).free()
    assert holder.release_memory(ledger.device("ram"), GiB) == 0
    assert holder.release_memory("ram", GiB) == 0
    assert holder.release_memory(card, 0) == 0
    assert cuda.emptied == 0
    adapter.publish(card, index=0, backend=cuda)
    assert holder.release_memory("sim:card", GiB) == 2 * GiB


def test_holder_counts_only_what_was_published(card: memledger.Device, cuda: FakeCuda) -> None:
    """What nobody had heard of cannot be credited."""
    holder = adapter.empty_cache_holder(card, index=0, backend=cuda)
    cuda.allocator.alloc(2 * GiB).free()
    assert holder.release_memory(card, GiB) == 0
    assert cuda.emptied == 1
    assert card.amounts[0] == 0


def test_holder_of_ram_is_refused(ledger: memledger.Ledger) -> None:
    with pytest.raises(memledger.UnknownDevice):
        adapter.empty_cache_holder(ledger.device("ram"))


def test_holder_answers_a_sibling(card: memledger.Device, spawn: Callable[..., Any]) -> None:
    """Two processes: this one asks, the other's torch gives its idle cache."""
    other = spawn("torch user")
    other.run(
        "import memledger.torch as ml\nfrom memledger import sim\n"
        f"sys.path[:0] = [{str(ROOT / 'tests')!r}, {str(ROOT / 'tests/unit')!r}]\n"
        "from test_torch import FakeCuda\n"
        "gpu = ledger.device('sim:card'); cuda = FakeCuda(sim.Card('card'))\n"
        f"cuda.allocator.alloc({5 * GiB}); cuda.allocator.alloc({10 * GiB}).free()\n"
        "ledger.holders.register(ml.empty_cache_holder(gpu, index=0, backend=cuda),"
        " quick=True, thread_safe=True)\n"
        "ml.publish(gpu, index=0, backend=cuda)"
    )
    assert card.try_claim(12 * GiB) is None
    result = card.ask(3 * GiB, timeout=30)
    assert (result.state, result.credited) == ("done", 10 * GiB)
    card.claim(12 * GiB, timeout=30).cancel()


# ---- the first claim


def test_context_allowance_only_where_there_is_none(card: memledger.Device, cuda: FakeCuda) -> None:
    assert adapter.context_allowance(card, index=0, backend=cuda) == adapter.CONTEXT_BYTES
    assert adapter.context_allowance(card, context_bytes=5, index=0, backend=cuda) == 5
    cuda.allocator.alloc(GiB)
    assert adapter.context_allowance(card, index=0, backend=cuda) == 0


# ---- max_memory


def test_max_memory_is_what_may_be_taken_now(
    ledger: memledger.Ledger, card: memledger.Device, cuda: FakeCuda
) -> None:
    cuda.allocator.alloc(4 * GiB)
    adapter.publish(card, index=0, backend=cuda)
    other = named(ledger, "cuda:1", 8 * GiB)
    claim = card.claim(6 * GiB)
    limits = adapter.max_memory(ledger, devices={0: card, 1: other}, backend=cuda)
    # On the second there is no context yet.
    assert limits.pop(0) == 14 * GiB
    assert limits.pop(1) == 8 * GiB - adapter.CONTEXT_BYTES
    assert list(limits) == ["cpu"]
    assert limits["cpu"] > 0
    assert "cpu" not in adapter.max_memory(ledger, devices={0: card}, cpu=False, backend=cuda)
    claim.cancel()


def test_max_memory_never_below_zero(ledger: memledger.Ledger, cuda: FakeCuda) -> None:
    small = named(ledger, "cuda:0", MiB)
    assert adapter.max_memory(ledger, devices={0: small}, cpu=False, backend=cuda) == {0: 0}


def test_max_memory_unknown_figure_raises(ledger: memledger.Ledger, cuda: FakeCuda) -> None:
    dark = named(ledger, "cuda:0", None)
    with pytest.raises(memledger.LedgerError, match=r"cuda:0 is unknown"):
        adapter.max_memory(ledger, devices={0: dark}, backend=cuda)


def test_max_memory_integrated_gpu_counts_the_ram_once(
    ledger: memledger.Ledger, cuda: FakeCuda
) -> None:
    ram = ledger.device("ram")
    levels = (PoolSpec("test:igpu"), *ram._spec.levels)
    sources = (None, *ram._spec.sources)
    igpu = Device(ledger, DeviceSpec("cuda:0", levels, sources))
    igpu._set_limit(8 * GiB)
    assert list(adapter.max_memory(ledger, devices={0: igpu}, backend=cuda)) == [0]


# ---- the real package


def test_real_torch_has_what_the_backend_is(torch: Any) -> None:
    for name in ("is_initialized", "device_count", "memory_stats", "empty_cache"):
        assert callable(getattr(torch.cuda, name)), name


def test_real_torch_statistics_have_these_names(
    torch: Any, monkeypatch: pytest.MonkeyPatch, ledger: memledger.Ledger
) -> None:
    """torch's own memory_reserved and memory_allocated look for the same names in the same
    statistics."""
    stats = {RESERVED: 7 * GiB, ALLOCATED: 5 * GiB}
    monkeypatch.setattr(torch.cuda.memory, "memory_stats", lambda device=None: stats)
    monkeypatch.setattr(torch.cuda, "memory_stats", lambda device=None: stats)
    reserved, allocated = torch.cuda.memory_reserved(0), torch.cuda.memory_allocated(0)
    assert (reserved, allocated) == (7 * GiB, 5 * GiB)
    assert adapter.amounts(named(ledger, "cuda:0")) == (reserved, reserved - allocated)


def test_real_torch_without_a_gpu_holds_nothing(cpu_torch: Any, ledger: memledger.Ledger) -> None:
    gpu = named(ledger, "cuda:0")
    assert adapter.publish(gpu, context_bytes=GiB) == (0, 0)
    assert adapter.context_allowance(gpu) == adapter.CONTEXT_BYTES
    assert adapter.empty_cache_holder(gpu).release_memory(gpu, GiB) == 0
    with gpu.claim(GiB) as claim, adapter.pump(claim, gpu):
        pass
    assert (gpu.amounts, claim.ended) == ((0, 0, 0), True)
    assert not cpu_torch.cuda.is_initialized()


def test_real_torch_cpu_device_is_refused(torch: Any, ledger: memledger.Ledger) -> None:
    with pytest.raises(memledger.UnknownDevice, match="CPU tensors"):
        adapter.publish(ledger.device(torch.device("cpu")))


def test_real_torch_max_memory_without_a_gpu(cpu_torch: Any, ledger: memledger.Ledger) -> None:
    limits = adapter.max_memory(ledger)
    assert list(limits) == ["cpu"]
    assert 0 < limits["cpu"] <= (ledger.device("ram").total() or 0)


def test_real_accelerate_takes_the_map(
    cpu_torch: Any, ledger: memledger.Ledger, cuda: FakeCuda
) -> None:
    """It places as many layers on the device as the ledger says there is room for."""
    if find_spec("accelerate") is None:
        pytest.skip("accelerate is not installed, so no map was handed to it")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        accelerate = import_module("accelerate")
        with accelerate.init_empty_weights():
            layers = [cpu_torch.nn.Linear(256, 256, bias=False) for _ in range(8)]
            model = cpu_torch.nn.Sequential(*layers)
        layer_bytes = 256 * 256 * 4
        device = named(ledger, "cuda:0", 16 * layer_bytes)
        device.publish(12 * layer_bytes)  # 4 are free; accelerate keeps one for the largest layer
        limits = adapter.max_memory(ledger, devices={0: device}, context_bytes=0, backend=cuda)
        assert accelerate.utils.get_max_memory(dict(limits)) == limits
        placed = accelerate.infer_auto_device_map(model, max_memory=limits)
    assert list(placed.values()) == [0] * 3 + ["cpu"] * 5


def test_real_torch_catches_the_simulators_out_of_memory(
    torch: Any, card: memledger.Device, cuda: FakeCuda
) -> None:
    for theirs in (torch.OutOfMemoryError, torch.cuda.OutOfMemoryError, RuntimeError):
        with pytest.raises(theirs) as caught:
            cuda.allocator.alloc(TOTAL + 1)
        assert isinstance(caught.value, sim.OutOfMemory)
        assert "out of memory" in str(caught.value)
        again = pickle.loads(pickle.dumps(caught.value))
        assert isinstance(again, theirs)
        assert again.wanted == TOTAL + 1


class Storages:
    """A backend of real tensors: reserved are the storages that are alive, allocated the same."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._live: dict[int, int] = {}

    def empty(self, nbytes: int) -> Any:
        tensor = self._torch.empty(nbytes, dtype=self._torch.uint8)
        key = tensor.untyped_storage().data_ptr()
        self._live[key] = tensor.untyped_storage().nbytes()
        weakref.finalize(tensor, self._live.pop, key)
        return tensor

    def is_initialized(self) -> bool:
        return True

    def device_count(self) -> int:
        return 1

    def memory_stats(self, device: int) -> dict[str, int]:
        live = sum(tuple(self._live.values()))
        return {RESERVED: live, ALLOCATED: live}

    def empty_cache(self) -> None:
        pass


def test_real_torch_tensors_drain_a_claim(torch: Any, card: memledger.Device) -> None:
    storages = Storages(torch)
    tensors = []
    with (
        card.claim(64 * MiB) as claim,
        adapter.pump(claim, card, hz=1000, index=0, backend=storages),
    ):
        for number in range(1, 5):
            tensors.append(storages.empty(8 * MiB))
            wait_until(lambda number=number: claim.open == (64 - 8 * number) * MiB)
        tensors.pop()
    assert card.amounts == (24 * MiB, 0, 0)
    tensors.clear()
    assert adapter.publish(card, index=0, backend=storages) == (0, 0)


# ---- the page


def blocks() -> str:
    page = (ROOT / "docs/torch.md").read_text(encoding="utf-8")
    return "\n".join(re.findall(r"```python\n(.*?)```", page, flags=re.S))


def test_docs_blocks_run_as_written(torch: Any, segment: Path, tmp_path: Path) -> None:
    """On a driver of our own, so that there is a "cuda:0"."""
    if find_spec("pynvml") is None:
        pytest.skip("nvidia-ml-py is not installed, so there is no cuda:0 to run the blocks with")
    driver = FakeDriver(tmp_path, NvmlCard(uuid(0)))
    shown = subprocess.run(
        [sys.executable, "-c", blocks()],
        env=os.environ | driver.env(),
        capture_output=True,
        text=True,
        timeout=110,
    )
    assert shown.returncode == 0, shown.stderr
    held, limits = shown.stdout.splitlines()
    assert held == "0 0" or torch.cuda.is_available()
    assert re.fullmatch(r"\{0: \d+, 'cpu': \d+\}", limits)


def test_page_says_what_was_not_run_on_a_gpu() -> None:
    assert "not run on a GPU" in (ROOT / "docs/torch.md").read_text(encoding="utf-8")
