"""AMD, Intel, Apple and other accelerators: which device a name means, and what is said of it."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from helpers.units import GiB
from memledger import model
from memledger.errors import UnknownDevice
from memledger.readings import candidates, resolve, total_variables
from memledger.readings.amd import AmdSource
from memledger.readings.apple import resolve as resolve_apple
from memledger.readings.combined import FirstOf, Unified
from memledger.readings.nvml import NvmlSession

BOOT = "0d4bbd6c-1ee5-4e0a-b1a4-3f6f3c2f7d00"


class NoNvml:
    @staticmethod
    def nvmlInit() -> None:
        raise ImportError("no driver here")


class World:
    def __init__(self, root: Path) -> None:
        self.root = root
        self.environ: dict[str, str] = {}
        self.write("proc/sys/kernel/random/boot_id", BOOT)
        self.write("proc/meminfo", "MemTotal: 1000 kB\nMemFree: 300 kB\nMemAvailable: 400 kB")
        self.session = NvmlSession(module=NoNvml, root=str(root))

    def write(self, path: str, text: object) -> None:
        target = self.root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(f"{text}\n")

    def pci(self, address: str, vendor: str, kind: str = "0x030000", **files: object) -> None:
        folder = f"sys/bus/pci/devices/{address}"
        for name, text in {"vendor": vendor, "class": kind, **files}.items():
            self.write(f"{folder}/{name}", text)

    def amd(self, address: str, unique_id: str = "", **files: object) -> None:
        figures = {"mem_info_vram_total": 24 * GiB, "mem_info_vram_used": 4 * GiB,
                   "mem_info_gtt_total": 32 * GiB, "mem_info_gtt_used": 0}  # fmt: skip
        extra = {"unique_id": unique_id} if unique_id else {}
        self.pci(address, "0x1002", **{**figures, **extra, **files})

    def kfd(self, *addresses: str) -> None:
        """The CPU is node 0."""
        nodes = "sys/class/kfd/kfd/topology/nodes"
        self.write(f"{nodes}/0/properties", "cpu_cores_count 16\nsimd_count 0\nlocation_id 0")
        for number, address in enumerate(addresses, 1):
            domain, bus, rest = address.split(":")
            location = int(bus, 16) << 8 | int(rest[:2], 16) << 3 | int(rest[3])
            self.write(
                f"{nodes}/{number}/properties",
                f"cpu_cores_count 0\nsimd_count 96\nlocation_id {location}\n"
                f"domain {int(domain, 16)}",
            )

    def spec(self, name: object, **more: Any) -> model.DeviceSpec:
        return resolve(
            name, root=str(self.root), environ=self.environ, session=self.session, **more
        )

    def key(self, name: object) -> str:
        return self.spec(name).key

    def read(self, name: str) -> model.Reading:
        source = self.spec(name).sources[0]
        assert source is not None
        return source.read()

    def refused(self, name: object) -> UnknownDevice:
        with pytest.raises(UnknownDevice) as caught:
            self.spec(name)
        return caught.value


A, B, C = "0000:03:00.0", "0000:43:00.0", "0000:83:00.0"


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.setenv("MEMLEDGER_PATH", str(tmp_path / "ledger"))
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    return World(tmp_path)


# ---- AMD


@pytest.mark.parametrize(
    "name", ["cuda:0", "cuda", "hip:0", "hip", "rocm:0", f"pci:{A}", "pci:03:00.0"]
)
def test_amd_every_name_of_a_card_gives_its_address(world: World, name: str) -> None:
    world.amd(A, "a1b2c3d4e5f60718")
    spec = world.spec(name)
    assert spec.levels == (model.PoolSpec(f"pci:{A}", ("GPU-a1b2c3d4e5f60718",)),)
    assert world.key("GPU-a1b2c3d4e5f60718") == f"pci:{A}"
    assert world.key("GPU-A1B2C3D4E5F60718") == f"pci:{A}"


def test_amd_figures_are_those_of_the_driver(world: World) -> None:
    world.amd(A)
    reading = world.read("hip:0")
    assert (reading.total, reading.free, reading.scope) == (24 * GiB, 20 * GiB, "device")
    assert reading.used_includes_reserved
    world.amd(A, mem_info_vram_used=25 * GiB)
    assert world.read("hip:0").free == 0


@pytest.mark.parametrize("text", ["", "many", "-4", "1 2"])
def test_amd_nonsense_in_a_file_is_absent(world: World, text: str) -> None:
    world.amd(A)
    spec = world.spec("hip:0")
    world.amd(A, mem_info_vram_used=text)
    assert spec.sources[0] is not None
    reading = spec.sources[0].read()
    assert (reading.free, reading.reason) == (None, "no_probe")


def test_amd_suspended_card_is_not_read(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading its tables would wake it."""
    world.amd(A, **{"power/runtime_status": "suspended", "gpu_metrics": "x"})
    opened: list[str] = []
    real = open

    def watched(path: Any, *args: Any, **kwargs: Any) -> Any:
        opened.append(str(path))
        return real(path, *args, **kwargs)

    monkeypatch.setattr("builtins.open", watched)
    spec = world.spec("hip:0")
    assert spec.sources[0] is not None
    assert not [path for path in opened if path.endswith("gpu_metrics")]
    opened.clear()
    assert spec.sources[0].read().reason == "suspended"
    assert not [path for path in opened if "mem_info" in path]


def test_amd_ordinals_follow_the_compute_topology_and_the_masks(world: World) -> None:
    for address, name in ((A, "aa11"), (B, "bb22"), (C, "cc33")):
        world.amd(address, name)
    world.kfd(C, A, B)
    assert [world.key(f"hip:{n}")[4:] for n in range(3)] == [C, A, B]
    for env, expected in (
        ({"HIP_VISIBLE_DEVICES": "2,0"}, [B, C]),
        ({"CUDA_VISIBLE_DEVICES": "1"}, [A]),
        ({"HIP_VISIBLE_DEVICES": "0", "CUDA_VISIBLE_DEVICES": "1"}, [C]),
        ({"ROCR_VISIBLE_DEVICES": "1,2"}, [A, B]),
        ({"ROCR_VISIBLE_DEVICES": "GPU-bb22,0", "HIP_VISIBLE_DEVICES": "1"}, [C]),
        ({"ROCR_VISIBLE_DEVICES": "0,-1,1"}, [C]),
        ({"HIP_VISIBLE_DEVICES": "1,nonsense,2"}, [A]),
        ({"HIP_VISIBLE_DEVICES": "0,7,1"}, [C]),
        ({"HIP_VISIBLE_DEVICES": "-1"}, []),
    ):
        world.environ = env
        shown = [world.key(f"cuda:{n}")[4:] for n in range(len(expected))]
        assert shown == expected, env
        assert f"pci:{A}" in world.refused(f"cuda:{len(expected)}").candidates


def test_amd_two_cards_without_topology_are_a_doubt(world: World) -> None:
    world.amd(A)
    world.amd(B)
    assert world.refused("hip:0").candidates == (f"pci:{A}", f"pci:{B}")
    assert world.key(f"pci:{B}") == f"pci:{B}"


def test_amd_mask_with_an_unknown_uuid_says_so(world: World) -> None:
    world.amd(A, "aa11")
    world.environ = {"HIP_VISIBLE_DEVICES": "GPU-ffff"}
    assert "UUID" in str(world.refused("hip:0"))


def test_amd_card_of_another_driver_is_none(world: World) -> None:
    """Handed to a virtual machine, say."""
    world.pci(A, "0x1002")
    world.pci(B, "0x1002", "0x040300")
    assert f"pci:{A}" not in candidates(root=str(world.root), session=world.session)
    assert world.read(f"pci:{A}").reason == "no_probe"


def test_amd_running_hip_knows_best(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.amd(A)
    world.amd(B)
    address = SimpleNamespace(pci_domain_id=0, pci_bus_id=0x43, pci_device_id=0)
    cuda = SimpleNamespace(is_initialized=lambda: True, get_device_properties=lambda n: address)
    version = SimpleNamespace(hip="6.4", cuda=None)
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda, version=version))
    assert world.key("cuda:0") == f"pci:{B}"


def test_amd_and_nvidia_in_one_machine_cuda_means_nvidia(world: World) -> None:
    world.amd(A)
    world.pci(B, "0x10de", device="0x2684")
    assert world.key("cuda:0") == f"pci:{B}"
    assert world.key("hip:0") == f"pci:{A}"


def test_amdsmi_is_asked_where_sysfs_says_nothing(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []
    smi = SimpleNamespace(
        AmdSmiMemoryType=SimpleNamespace(VRAM=0),
        amdsmi_init=lambda: calls.append("init"),
        amdsmi_shut_down=lambda: calls.append("shut_down"),
        amdsmi_get_processor_handle_from_bdf=lambda pci: pci,
        amdsmi_get_gpu_memory_total=lambda handle, kind: 16 * GiB,
        amdsmi_get_gpu_memory_usage=lambda handle, kind: GiB,
    )
    monkeypatch.setitem(sys.modules, "amdsmi", smi)
    reading = AmdSource(A, root=str(world.root)).read()
    assert (reading.free, reading.source) == (15 * GiB, "amdsmi")
    assert calls == ["init", "shut_down"]
    smi.amdsmi_get_gpu_memory_usage = lambda handle, kind: 1 // 0
    assert AmdSource(A, root=str(world.root)).read().reason == "no_probe"


# ---- Intel


def test_intel_integrated_draws_from_ram(world: World) -> None:
    world.pci("0000:00:02.0", "0x8086")
    spec = world.spec("xpu:0")
    assert [level.key for level in spec.levels] == ["pci:0000:00:02.0", f"ram:{BOOT}"]
    reading = world.read("xpu")
    assert (reading.total, reading.free, reading.unified) == (1000 << 10, 400 << 10, True)


def test_intel_discrete_without_a_free_figure_is_unknown_with_advice(world: World) -> None:
    world.pci(A, "0x8086", **{"drm/card1/lmem_total_bytes": 16 * GiB})
    spec = world.spec("xpu:0")
    reading = world.read("xpu:0")
    assert (reading.total, reading.free, reading.reason) == (None, None, "not_supported")
    assert "MEMLEDGER_TOTAL" in reading.detail
    assert spec.total == 16 * GiB, "the size at least is known"
    world.environ = {"MEMLEDGER_TOTAL": "12GiB"}
    assert world.spec("xpu:0").total == 12 * GiB


def test_intel_driver_with_a_free_figure_is_read(world: World) -> None:
    figures = {"drm/card1/lmem_total_bytes": 16 * GiB, "drm/card1/lmem_avail_bytes": 9 * GiB}
    world.pci(A, "0x8086", **figures)
    assert world.read(f"pci:{A}").free == 9 * GiB


@pytest.mark.parametrize("env", [{}, {"ZE_AFFINITY_MASK": "1"}])
def test_intel_two_cards_are_a_doubt(world: World, env: dict[str, str]) -> None:
    world.pci(A, "0x8086")
    world.pci(B, "0x8086")
    world.environ = env
    assert world.refused("xpu:0").candidates == (f"pci:{A}", f"pci:{B}")


# ---- others


def test_apple_only_on_macos(world: World) -> None:
    assert "macOS" in str(world.refused("mps"))
    with pytest.raises(UnknownDevice):
        resolve_apple("mps:1", platform="darwin")
    spec = resolve_apple("mps:0", root=str(world.root), platform="darwin", probe=lambda: 7)
    assert [level.key for level in spec.levels] == [f"mps:{BOOT}", f"ram:{BOOT}"]


@pytest.mark.parametrize("name", ["privateuseone:0", "dml", "vulkan:0", "meta", "tpu:0"])
def test_backend_that_names_no_device_is_unknown_with_a_reason(world: World, name: str) -> None:
    error = world.refused(name)
    assert error.reason
    assert "ram" in error.candidates


@pytest.mark.parametrize(("backend", "vendor"), [("npu", "0x19e5"), ("mlu", "0xcabc")])
def test_accelerator_alone_in_the_machine_is_its_address(
    world: World, backend: str, vendor: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert world.refused(f"{backend}:0").candidates == ()
    world.pci(A, vendor, "0x120000")
    assert world.key(f"{backend}:0") == f"pci:{A}"
    assert world.read(backend).reason == "no_probe"
    module = SimpleNamespace(is_initialized=lambda: True, mem_get_info=lambda n: (3, 8))
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(**{backend: module}))
    assert world.read(backend).free == 3
    world.pci(B, vendor, "0x120000")
    assert len(world.refused(backend).candidates) == 2


def test_total_variables_name_the_key_and_never_an_ordinal(world: World) -> None:
    world.amd(A, "aa11")
    (pool,) = world.spec("hip:0").levels
    assert total_variables(pool) == (
        "MEMLEDGER_TOTAL_PCI_0000_03_00_0",
        "MEMLEDGER_TOTAL_GPU_AA11",
    )
    for env, total in (
        ({"MEMLEDGER_TOTAL": "8GiB"}, 8 * GiB),
        ({"MEMLEDGER_TOTAL": "8GiB", "MEMLEDGER_TOTAL_GPU_AA11": "6GiB"}, 6 * GiB),
        ({"MEMLEDGER_TOTAL_PCI_0000_03_00_0": "5GiB", "MEMLEDGER_TOTAL_GPU_AA11": "6GiB"}, 5 * GiB),
        ({"MEMLEDGER_TOTAL_CUDA_0": "6GiB"}, None),
        ({"MEMLEDGER_TOTAL": " "}, None),
    ):
        world.environ = env
        assert world.spec("hip:0").total == total
    world.environ = {"MEMLEDGER_TOTAL": "8GiB"}
    assert world.spec("ram").total is None
    world.environ = {"MEMLEDGER_TOTAL_RAM": "8GiB"}
    assert world.spec("ram").total == 8 * GiB


# ---- sources made of sources


class Fixed:
    timeout_s = 0.1

    def __init__(self, reading: model.Reading) -> None:
        self.name = reading.source
        self.reading = reading
        self.asked = 0

    def read(self) -> model.Reading:
        self.asked += 1
        return self.reading

    def explain(self) -> str:
        return f"explains {self.name}"


def test_first_of_takes_the_first_that_knows_and_names_the_others() -> None:
    bad = Fixed(model.absent("nvml", "no_probe", "no library"))
    good = Fixed(model.Reading("torch", total=10, free=4))
    reading = FirstOf(bad, good).read()
    assert (reading.source, reading.free) == ("torch", 4)
    assert "nvml: no_probe" in reading.detail
    assert FirstOf(good, bad).read().detail == ""
    assert bad.asked == 1
    absent = FirstOf(bad, Fixed(model.absent("torch", "no_probe", "no torch"))).read()
    assert (absent.source, absent.reason) == ("nvml", "no_probe")
    assert "no torch" in absent.detail


def test_first_of_never_asks_past_a_sleeping_device() -> None:
    asleep, other = Fixed(model.absent("nvml", "suspended")), Fixed(model.Reading("torch"))
    assert FirstOf(asleep, other).read().reason == "suspended"
    assert other.asked == 0


@pytest.mark.parametrize(
    ("cap", "used", "free", "total"),
    [
        (None, None, 400, 1000),
        (300, None, 300, 300),
        (2000, 0, 400, 1000),
        (300, 250, 50, 300),
        (300, 900, 0, 300),
    ],
)
def test_unified_is_the_ram_within_the_cap(
    cap: int | None, used: int | None, free: int, total: int
) -> None:
    ram = Fixed(model.Reading("meminfo", total=1000, free=400, reserved=100, immediate=350))
    reading = Unified("x", ram, cap=lambda: cap, used=lambda: used).read()
    assert (reading.free, reading.total, reading.unified) == (free, total, True)
    assert reading.immediate is not None
    assert reading.immediate <= free


def test_unified_without_ram_figures_is_absent() -> None:
    ram = Fixed(model.absent("meminfo", "no_permission"))
    assert Unified("x", ram, cap=lambda: 5).read().reason == "no_permission"
