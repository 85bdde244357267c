"""Device names to stable keys: the same card is the same pool in every process, a doubt is an error
that helps."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import memledger.readings.nvidia as nvidia
from memledger import model, sim
from memledger.errors import InvalidFigure, UnknownDevice
from memledger.readings import resolve
from memledger.readings.meminfo import Meminfo
from memledger.readings.nvml import NvmlSession

GIB = 1 << 30
BOOT = "0d4bbd6c-1ee5-4e0a-b1a4-3f6f3c2f7d00"


def uuid(letter: str) -> str:
    return f"GPU-{letter * 8}-1111-2222-3333-444444444444"


A, B, C, D = (uuid(letter) for letter in "abcd")


class NVMLError(Exception):
    def __init__(self, value: int) -> None:
        self.value = value
        super().__init__(str(value))


class FakeNvml:
    """Cards in NVML's order, each at its own PCI address: (uuid, model)."""

    nvmlMemory_v2 = 2

    def __init__(self, *cards: tuple[str, str], init: int = 0) -> None:
        self.cards = cards
        self.init = init
        self.init_count = 0
        self.slices: dict[str, list[str]] = {}
        self.lost: set[str] = set()
        self.memory: Any = {"total": 24 * GIB, "free": 20 * GIB, "reserved": 0}

    def nvmlInit(self) -> None:
        self.init_count += 1
        if self.init:
            raise NVMLError(self.init)

    def nvmlShutdown(self) -> None: ...

    def nvmlDeviceGetCount(self) -> int:
        return len(self.cards)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> str:
        if self.cards[index][0] in self.lost:
            raise NVMLError(15)
        return self.cards[index][0]

    def nvmlDeviceGetHandleByUUID(self, name: str) -> str:
        return name

    def nvmlDeviceGetUUID(self, handle: str) -> str:
        return handle

    def nvmlDeviceGetName(self, handle: str) -> bytes:
        return dict(self.cards)[handle].encode()

    def nvmlDeviceGetPciInfo(self, handle: str) -> Any:
        index = [card for card, _ in self.cards].index(handle)
        return SimpleNamespace(busId=f"00000000:{index + 1:02X}:00.0")

    def nvmlDeviceGetMigMode(self, handle: str) -> tuple[int, int]:
        if handle not in self.slices:
            raise NVMLError(3)
        return 1, 1

    def nvmlDeviceGetMaxMigDeviceCount(self, handle: str) -> int:
        return 7

    def nvmlDeviceGetMigDeviceHandleByIndex(self, handle: str, index: int) -> str:
        if index >= len(self.slices[handle]):
            raise NVMLError(6)
        return self.slices[handle][index]

    def nvmlDeviceGetMemoryInfo(self, handle: str, version: int | None = None) -> Any:
        if isinstance(self.memory, int):
            raise NVMLError(self.memory)
        return SimpleNamespace(**self.memory)


class World:
    """A machine: a root folder, an environment, an NVML."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.environ: dict[str, str] = {}
        self.nvml = FakeNvml(init=12)
        self.write("proc/sys/kernel/random/boot_id", BOOT + "\n")
        self.write("proc/meminfo", "MemTotal: 1000 kB\nMemFree: 300 kB\nMemAvailable: 400 kB\n")

    def write(self, path: str, text: str) -> None:
        target = self.root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)

    def cards(self, *cards: tuple[str, str] | str, **env: str) -> None:
        self.nvml = FakeNvml(*((card, "RTX") if isinstance(card, str) else card for card in cards))
        self.environ = env

    def spec(self, name: object, **more: Any) -> model.DeviceSpec:
        session = NvmlSession(module=self.nvml, root=str(self.root))
        return resolve(name, root=str(self.root), environ=self.environ, session=session, **more)

    def key(self, name: object) -> str:
        return self.spec(name).key

    def proc_gpu(self, address: str, name: str, minor: int, *, node: bool = True) -> None:
        self.write(
            f"proc/driver/nvidia/gpus/{address}/information",
            f"Model: \t\t RTX\nIRQ:   \t 10\nGPU UUID: \t {name}\nBus Location: \t {address}\n"
            f"Device Minor: \t {minor}\n",
        )
        if node:
            self.write(f"dev/nvidia{minor}", "")

    def sysfs_gpu(self, address: str, device: str = "0x2684") -> None:
        for name, text in (("vendor", "0x10de"), ("class", "0x030000"), ("device", device)):
            self.write(f"sys/bus/pci/devices/{address}/{name}", text + "\n")


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.setenv("MEMLEDGER_PATH", str(tmp_path / "ledger"))
    monkeypatch.setattr(nvidia, "running_cuda_uuid", lambda ordinal: "")
    return World(tmp_path)


def refused(world: World, name: object, **more: Any) -> UnknownDevice:
    with pytest.raises(UnknownDevice) as caught:
        world.spec(name, **more)
    return caught.value


# -- RAM


@pytest.mark.parametrize(
    "name", ["ram", "cpu", f"ram:{BOOT}", SimpleNamespace(type="cpu", index=None)]
)
def test_resolve_ram_by_any_name_is_the_boot(world: World, name: object) -> None:
    spec = world.spec(name)
    assert spec.levels == (model.PoolSpec(f"ram:{BOOT}", kind=model.KIND_RAM),)
    assert isinstance(spec.sources[0], Meminfo)
    assert spec.sources[0].read().free == 400 * 1024


def test_resolve_ram_of_another_boot_is_unknown(world: World) -> None:
    assert BOOT in str(refused(world, "ram:00000000-0000-0000-0000-000000000000"))


def test_resolve_ram_without_boot_id_is_stable_and_hides_the_machine_id(world: World) -> None:
    (world.root / "proc/sys/kernel/random/boot_id").unlink()
    world.write("etc/machine-id", "b08dfa6083e7567a1921a715000001fb\n")
    first = world.key("ram")
    assert first == world.key("ram")
    assert first.startswith("ram:m-")
    assert "b08dfa60" not in first


# -- NVIDIA through NVML


def test_resolve_b33_visible_indices_follow_the_mask(world: World) -> None:
    """A CUDA index used as an NVML index charged the wrong card."""
    world.cards(A, B, C, D, CUDA_VISIBLE_DEVICES="2,3")
    assert (world.key("cuda:0"), world.key("cuda:1")) == (C, D)
    world.environ = {"CUDA_VISIBLE_DEVICES": "3,0"}
    assert (world.key("cuda:0"), world.key("cuda:1")) == (D, A)


def test_resolve_b33_running_cuda_knows_best(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fastest first is an order of CUDA's own: what the running driver says wins over the
    environment."""
    world.cards((A, "x"), (B, "y"), (C, "z"), (D, "w"), CUDA_VISIBLE_DEVICES="2,3")
    monkeypatch.setattr(nvidia, "running_cuda_uuid", lambda ordinal: [D[4:], C[4:]][ordinal])
    assert (world.key("cuda:0"), world.key("cuda:1")) == (D, C)


def test_resolve_b33_every_name_of_a_card_gives_one_key(world: World) -> None:
    world.cards(A, B, C, D, CUDA_VISIBLE_DEVICES="2,3")
    names: list[object] = [
        "cuda:0",
        "cuda",
        C,
        C.upper(),
        "GPU-cc",
        "pci:0000:03:00.0",
        "pci:03:00.0",
    ]
    names.append(SimpleNamespace(type="cuda", index=0))
    specs = [world.spec(name) for name in names]
    assert {spec.key for spec in specs} == {C}
    assert {spec.levels[0].aliases for spec in specs} == {("pci:0000:03:00.0",)}
    world.environ = {"CUDA_VISIBLE_DEVICES": "GPU-cccc"}
    assert world.key("cuda:0") == C


def test_resolve_key_never_contains_an_ordinal(world: World) -> None:
    world.cards(A, B)
    for name in ("cuda:0", "cuda:1", SimpleNamespace(type="cuda", index=1)):
        spec = world.spec(name)
        assert all(pool.key.startswith("GPU-") for pool in spec.levels)


def test_resolve_different_cards_without_an_order_are_a_doubt(world: World) -> None:
    world.cards((A, "RTX 3060"), (B, "RTX 4090"))
    error = refused(world, "cuda:0")
    assert "CUDA_DEVICE_ORDER=PCI_BUS_ID" in str(error)
    assert error.candidates == (A, B)
    world.environ = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    assert world.key("cuda:0") == A
    world.environ = {"CUDA_VISIBLE_DEVICES": B[:12]}
    assert world.key("cuda:0") == B


@pytest.mark.parametrize(
    ("mask", "count"), [("", 0), ("-1", 0), ("1,-1,0", 1), ("0,nonsense,1", 1), (f"{B},7", None)]
)
def test_resolve_mask_ends_at_its_first_bad_entry(
    world: World, mask: str, count: int | None
) -> None:
    world.cards(A, B, CUDA_VISIBLE_DEVICES=mask)
    text = str(refused(world, "cuda:1"))
    assert (f"shows {count} device" if count is not None else "2 device(s)") in text


def test_resolve_ordinal_beyond_the_cards_lists_them(world: World) -> None:
    world.cards(A, B)
    assert refused(world, "cuda:2").candidates == (A, B)


def test_resolve_beginning_of_two_uuids_is_ambiguous(world: World) -> None:
    world.cards(A, A[:-1] + "5")
    assert refused(world, "GPU-aaaa").candidates == (A, A[:-1] + "5")


@pytest.mark.parametrize(
    "name", ["GPU-ffff", uuid("f"), "pci:0000:99:00.0", "pci:what", "cuda:x", "cuda:-1"]
)
def test_resolve_nothing_of_that_name_lists_candidates(world: World, name: str) -> None:
    world.cards(A)
    assert refused(world, name).candidates == (A,)


@pytest.mark.parametrize(
    "name", ["tpu:0", "", "GPU", 5, None, SimpleNamespace(type="mps", index=None)]
)
def test_resolve_other_names_are_unknown(world: World, name: object) -> None:
    world.cards(A)
    error = refused(world, name)
    if isinstance(name, str):
        assert error.candidates == ("ram", A)


def test_resolve_sliced_card_needs_the_slice(world: World) -> None:
    world.cards(A)
    world.nvml.slices[A] = ["MIG-1", "MIG-2"]
    assert refused(world, "cuda:0").candidates == ("MIG-1", "MIG-2")
    world.environ = {"CUDA_VISIBLE_DEVICES": "MIG-2"}
    assert world.key("cuda:0") == "MIG-2"
    world.nvml.slices[A] = ["MIG-1"]
    world.environ = {}
    assert world.key("cuda:0") == "MIG-1"


def test_resolve_card_behind_a_lost_one_is_a_doubt(world: World) -> None:
    world.cards(A, B)
    world.nvml.lost = {A}
    assert "does not answer" in str(refused(world, "cuda:1"))
    assert world.key(B) == B


@pytest.mark.parametrize("memory", [3, {"total": 0, "free": 0, "reserved": 0}])
def test_resolve_b35_integrated_gpu_draws_from_ram(world: World, memory: Any) -> None:
    world.cards(A)
    world.nvml.memory = memory
    spec = world.spec("cuda:0")
    assert [pool.key for pool in spec.levels] == [A, f"ram:{BOOT}"]
    assert spec.sources[0] is not None
    reading = spec.sources[0].read()
    assert (reading.total, reading.free, reading.unified) == (1000 * 1024, 400 * 1024, True)


def test_resolve_discrete_gpu_stands_alone_and_starts_nvml_once(world: World) -> None:
    world.cards(A)
    spec = world.spec("cuda:0")
    assert len(spec.levels) == 1
    assert spec.sources[0] is not None
    assert spec.sources[0].read().free == 20 * GIB
    assert world.nvml.init_count == 1


# -- NVIDIA without NVML


def test_resolve_without_nvml_proc_gives_the_uuid(world: World) -> None:
    world.proc_gpu("0000:01:00.0", A, 0)
    spec = world.spec("cuda:0")
    assert spec.levels[0] == model.PoolSpec(A, ("pci:0000:01:00.0",))
    assert spec.sources[0] is not None
    reading = spec.sources[0].read()
    assert (reading.free, reading.reason) == (None, "no_probe")


def test_resolve_without_nvml_cards_without_a_node_do_not_count(world: World) -> None:
    """A container shows /proc of all cards and has the nodes of some: its cuda:0 is the first that
    it may use."""
    world.proc_gpu("0000:01:00.0", A, 0, node=False)
    world.proc_gpu("0000:02:00.0", B, 1)
    assert world.key("cuda:0") == B


def test_resolve_without_nvml_hidden_uuid_gives_the_address(world: World) -> None:
    world.proc_gpu("0000:01:00.0", "GPU-????????-????-????-????-????????????", 0)
    assert world.key("cuda:0") == "pci:0000:01:00.0"


def test_resolve_without_nvml_one_card_in_sysfs_gives_the_address(world: World) -> None:
    world.sysfs_gpu("0000:41:00.0")
    assert world.key("cuda:0") == "pci:0000:41:00.0"
    assert world.key("pci:41:00.0") == "pci:0000:41:00.0"


def test_resolve_without_nvml_several_cards_in_sysfs_are_a_doubt(world: World) -> None:
    world.sysfs_gpu("0000:41:00.0")
    world.sysfs_gpu("0000:42:00.0")
    error = refused(world, "cuda:0", total="24GiB")
    assert error.candidates == ("pci:0000:41:00.0", "pci:0000:42:00.0")


def test_resolve_with_nothing_explains_what_to_pass_even_with_a_total(world: World) -> None:
    """A key made of an ordinal would join two different cards; so a configured total does not help
    here."""
    for more in ({}, {"total": "24GiB"}):
        error = refused(world, "cuda:0", **more)
        assert "GPU-<uuid>" in str(error)
        assert "NVML" in str(error)


def test_resolve_with_nothing_a_whole_uuid_is_enough(world: World) -> None:
    assert world.key(A) == A
    world.environ = {"CUDA_VISIBLE_DEVICES": f"{B},{A}"}
    assert world.key("cuda:1") == A
    assert "whole UUID" in str(refused(world, "GPU-aaaa"))


# -- configured totals


def test_resolve_total_by_argument_goes_before_the_environment(world: World) -> None:
    world.cards(A, MEMLEDGER_TOTAL="12GiB")
    assert world.spec("cuda:0").total == 12 * GIB
    assert world.spec("cuda:0", total="24GiB").total == 24 * GIB
    assert world.spec("ram").total is None
    world.environ = {"MEMLEDGER_TOTAL": "12G"}
    with pytest.raises(InvalidFigure):
        world.spec("cuda:0")


# -- simulated cards


def test_resolve_sim_opens_the_card_and_reads_it(world: World) -> None:
    spec = world.spec("sim:card?total=24GiB&reserved=1GiB&death_delay=0.2&land=2GiB/s")
    assert spec.levels == (model.PoolSpec("sim:card", kind=model.KIND_SIM),)
    assert spec.sources[0] is not None
    reading = spec.sources[0].read()
    assert (reading.total, reading.free, reading.reserved) == (24 * GIB, 23 * GIB, GIB)
    assert world.key("sim:card") == "sim:card"
    assert "sim:card" in refused(world, "sim:other").candidates


def test_resolve_sim_unknown_parameter_names_the_allowed_ones(world: World) -> None:
    for query in ("size=1GiB", "total", "total=1GiB&total=1GiB", "death_delay=soon"):
        error = refused(world, f"sim:card?{query}")
        if query == "size=1GiB":
            assert "total, reserved, land, free_delay" in str(error)


def test_resolve_sim_other_total_says_both(world: World) -> None:
    world.spec("sim:card?total=24GiB")
    with pytest.raises(InvalidFigure) as caught:
        world.spec("sim:card?total=12GiB")
    assert "24.0 GiB" in str(caught.value)
    assert "12.0 GiB" in str(caught.value)
    with pytest.raises(InvalidFigure):
        world.spec("sim:card?total=24GiB", total=12 * GIB)


@pytest.mark.parametrize("name", ["sim:", "sim:a/b", "sim:../x", "sim:" + "x" * 49, "sim:é"])
def test_resolve_sim_bad_name_is_unknown(world: World, name: str) -> None:
    refused(world, f"{name}?total=1GiB")


def test_resolve_sim_removed_card_reads_as_its_own(world: World) -> None:
    spec = world.spec("sim:card?total=1GiB")
    sim.remove("card")
    assert spec.sources[0] is not None
    assert spec.sources[0].read().free == GIB
    assert world.spec("sim:card?total=2GiB").total is None  # a new one, of another size


# -- the numbers that cross into C


def test_model_numbers_are_those_of_the_header() -> None:
    header = Path(__file__).parents[2] / "csrc" / "include" / "memledger.h"
    defined = {n: int(v) for n, v in re.findall(r"#define ML_(\w+) (\d+)\b", header.read_text())}

    def indices(prefix: str) -> dict[str, int]:
        return {n[len(prefix) :].lower(): v for n, v in defined.items() if n.startswith(prefix)}

    assert indices("KIND_") == {kind: index for index, kind in enumerate(model.KINDS)}
    assert indices("SCOPE_") == {scope: index for index, scope in enumerate(model.SCOPES)}
    reasons = {reason or "none": index for index, reason in enumerate(model.REASONS)}
    assert indices("REASON_") == reasons
    assert indices("READING_") == {
        "used_includes_reserved": model.USED_INCLUDES_RESERVED,
        "unified": model.UNIFIED,
        "suspect": model.SUSPECT,
    }
    assert defined["LEVELS_MAX"] == model.LEVELS_MAX
    assert defined["ALIASES_MAX"] == model.ALIASES_MAX
    assert defined["KEY_BYTES"] - 1 == model.KEY_BYTES_MAX
