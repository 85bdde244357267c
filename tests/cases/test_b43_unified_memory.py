"""B43: integrated GPUs draw from the RAM; B44: a runtime's figure that is one process's own."""

from __future__ import annotations

from pathlib import Path

import pytest

from helpers.units import GiB, MiB
from memledger import model
from memledger.readings import resolve
from memledger.readings.apple import resolve as resolve_apple
from memledger.readings.torch_backend import TorchSource

BOOT = "0d4bbd6c-1ee5-4e0a-b1a4-3f6f3c2f7d00"
GTT, CARVEOUT = 103079215104, 16636528640


def write(root: Path, files: dict[str, object]) -> None:
    for name, content in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, bytes):
            (root / name).write_bytes(content)
        else:
            (root / name).write_text(f"{content}\n")


def strix_halo(
    root: Path, ram: int = 128 * GiB, available: int = 100 * GiB, **more: object
) -> None:
    card = "sys/bus/pci/devices/0000:c5:00.0"
    write(
        root,
        {
            "proc/sys/kernel/random/boot_id": BOOT,
            "proc/meminfo": f"MemTotal: {ram >> 10} kB\nMemFree: {GiB >> 10} kB\n"
            f"MemAvailable: {available >> 10} kB",
            f"{card}/vendor": "0x1002",
            f"{card}/class": "0x030000",
            f"{card}/mem_info_vram_total": CARVEOUT,
            f"{card}/mem_info_vram_used": GiB,
            f"{card}/mem_info_gtt_total": GTT,
            f"{card}/mem_info_gtt_used": 0,
            f"{card}/gpu_metrics": bytes([8, 1, 3, 0]) + bytes(260),
            **{f"{card}/{name}": value for name, value in more.items()},
        },
    )


def spec(root: Path, name: str = "cuda:0", **env: str) -> model.DeviceSpec:
    return resolve(name, root=str(root), environ=env)


def read(device: model.DeviceSpec, level: int = 0) -> model.Reading:
    source = device.sources[level]
    assert source is not None
    return source.read()


def test_b43_gtt_is_the_cap_and_the_pool_is_shared_with_ram(tmp_path: Path) -> None:
    strix_halo(tmp_path)
    device = spec(tmp_path)
    assert [level.key for level in device.levels] == ["pci:0000:c5:00.0", f"ram:{BOOT}"]
    reading = read(device)
    assert (reading.total, reading.unified) == (GTT, True)
    assert reading.free == GTT  # less than the 100 GiB that the RAM has
    assert read(device, 1).free == 100 * GiB


def test_b43_free_is_bounded_by_the_ram_and_by_gtt_used(tmp_path: Path) -> None:
    strix_halo(tmp_path, available=20 * GiB)
    assert read(spec(tmp_path)).free == 20 * GiB
    strix_halo(tmp_path, mem_info_gtt_used=90 * GiB)
    assert read(spec(tmp_path)).free == 6 * GiB


def test_b43_the_cap_is_never_more_than_the_ram(tmp_path: Path) -> None:
    strix_halo(tmp_path, ram=64 * GiB, available=60 * GiB)
    assert read(spec(tmp_path)).total == 64 * GiB


def test_b43_carve_out_stands_alone_where_it_is_the_larger_or_is_chosen(tmp_path: Path) -> None:
    """A carve-out is taken from the RAM before Linux counts it, so the two share no byte."""
    strix_halo(tmp_path, ram=32 * GiB, mem_info_vram_total=96 * GiB, mem_info_gtt_total=16 * GiB)
    for device in (spec(tmp_path), spec(tmp_path, MEMLEDGER_AMD_POOL="carveout")):
        assert [level.key for level in device.levels] == ["pci:0000:c5:00.0"]
        assert (read(device).total, read(device).free) == (96 * GiB, 95 * GiB)
        assert not read(device).unified
    chosen = spec(tmp_path, MEMLEDGER_AMD_POOL="gtt")
    assert len(chosen.levels) == 2
    assert read(chosen).total == 16 * GiB


def test_b43_discrete_card_with_a_large_gtt_is_not_integrated(tmp_path: Path) -> None:
    """GTT of a discrete card is RAM that it can reach, not memory of its own."""
    strix_halo(tmp_path, gpu_metrics=bytes([8, 1, 1, 3]), mem_info_vram_total=24 * GiB)
    device = spec(tmp_path)
    assert len(device.levels) == 1
    assert (read(device).total, read(device).free) == (24 * GiB, 23 * GiB)
    assert read(device).used_includes_reserved


def apple(root: Path, available: int, cap: int | None) -> model.DeviceSpec:
    write(
        root,
        {
            "proc/sys/kernel/random/boot_id": BOOT,
            "proc/meminfo": f"MemTotal: {24 << 20} kB\nMemFree: 1000 kB\n"
            f"MemAvailable: {available >> 10} kB",
        },
    )
    return resolve_apple("mps", root=str(root), platform="darwin", probe=lambda: cap)


def test_b43_apple_cap_is_the_recommended_working_set(tmp_path: Path) -> None:
    """RAM 24, recommended 17.76, members hold 6 + 5: 6.76 are left, or what the RAM has."""
    cap, held = 17760 * MiB, 11 * GiB
    for foreign, free in ((2 * GiB, cap - held), (8 * GiB, 5 * GiB)):
        reading = read(apple(tmp_path, 24 * GiB - held - foreign, cap))
        assert reading.total == cap
        assert reading.free is not None
        unaccounted = max(0, cap - reading.free - held)
        assert cap - unaccounted - held == free


def test_b43_apple_without_a_cap_is_unknown_and_says_what_to_do(tmp_path: Path) -> None:
    reading = read(apple(tmp_path, 12 * GiB, None))
    assert (reading.total, reading.free, reading.reason) == (None, None, "not_supported")
    assert "MEMLEDGER_TOTAL" in reading.detail


# ---- WDDM


class Torch:
    """Stands for torch.cuda of a HIP build on Windows."""

    class version:
        hip = "6.4"

    class cuda:
        @staticmethod
        def is_initialized() -> bool:
            return True

        @staticmethod
        def memory_reserved(index: int) -> int:
            return 1

        @staticmethod
        def mem_get_info(index: int) -> tuple[int, int]:
            return 24410 * MiB, 24560 * MiB


@pytest.fixture
def torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "torch", Torch)


@pytest.mark.usefixtures("torch")
def test_b44_adapter_counter_is_the_whole_device() -> None:
    source = TorchSource(
        "cuda", lambda: 0, platform="win32", adapter=lambda: (18247 * MiB, 24560 * MiB)
    )
    reading = source.read()
    assert (reading.free, reading.scope) == (6313 * MiB, "device")
    assert "spill_possible" in reading.detail


@pytest.mark.usefixtures("torch")
def test_b44_without_a_counter_the_figure_is_this_processes_own() -> None:
    reading = TorchSource("cuda", lambda: 0, platform="win32").read()
    assert (reading.free, reading.scope) == (24410 * MiB, "process")
    assert "spill_possible" in reading.detail
    assert TorchSource("cuda", lambda: 0, platform="linux").read().scope == "device"


@pytest.mark.usefixtures("torch")
@pytest.mark.parametrize("counter", [(30 * GiB, 24 * GiB), (0, 0)])
def test_b44_odd_counters_give_no_negative(counter: tuple[int, int]) -> None:
    reading = TorchSource("cuda", lambda: 0, platform="win32", adapter=lambda: counter).read()
    assert reading.free == 0 if counter[1] else reading.reason == "implausible"
