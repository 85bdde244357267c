"""GPU memory from NVML, played by a module object: what real drivers were seen to answer, and that
none of it escapes as an exception or spreads to another GPU."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from memledger.readings.meminfo import Meminfo
from memledger.readings.nvml import NvmlSession, NvmlSource

MIB = 1 << 20
GIB = 1 << 30


class NVMLError(Exception):
    def __init__(self, value: int) -> None:
        self.value = value
        super().__init__(f"code {value}")


class FakeNvml:
    """Stands for the pynvml module. Give it numbers to answer with, or an int to fail with."""

    nvmlMemory_v2 = 0x02000028

    def __init__(self) -> None:
        self.init: int = 0
        self.v2: dict[str, Any] = {}
        self.v1: dict[str, Any] = {}
        self.find: dict[str, int] = {}
        self.calls: list[str] = []

    def nvmlInit(self) -> None:
        self.calls.append("init")
        if self.init:
            raise NVMLError(self.init)

    def nvmlShutdown(self) -> None:
        self.calls.append("shutdown")

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:
        self.calls.append("find")
        if self.find.get(uuid):
            raise NVMLError(self.find[uuid])
        return uuid

    def nvmlDeviceGetHandleByPciBusId(self, pci: str) -> str:
        return pci

    def nvmlDeviceGetMemoryInfo(self, handle: str, version: int | None = None) -> Any:
        self.calls.append("v2" if version else "v1")
        answer = (self.v2 if version else self.v1)[handle]
        if isinstance(answer, int):
            raise NVMLError(answer)
        if isinstance(answer, Exception):
            raise answer
        return SimpleNamespace(**answer)


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def nvml() -> FakeNvml:
    return FakeNvml()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def session(nvml: FakeNvml, clock: Clock, tmp_path: Path) -> NvmlSession:
    return NvmlSession(module=nvml, root=str(tmp_path), clock=clock)


def source(session: NvmlSession, clock: Clock, uuid: str = "GPU-A", **more: Any) -> NvmlSource:
    return NvmlSource(uuid, session=session, clock=clock, **more)


def v2(total: int, free: int, reserved: int = 0) -> dict[str, int]:
    return {"total": total, "free": free, "reserved": reserved, "used": total - free - reserved}


def test_nvml_b37_v2_keeps_the_drivers_reserve_apart(
    nvml: FakeNvml, session: NvmlSession, clock: Clock
) -> None:
    nvml.v2["GPU-A"] = {
        "total": 81920 * MIB,
        "reserved": 905 * MIB,
        "used": 7 * MIB,
        "free": 81008 * MIB,
    }
    reading = source(session, clock).read()
    assert (reading.total, reading.free) == (81920 * MIB, 81008 * MIB)
    assert reading.reserved == 905 * MIB
    assert not reading.used_includes_reserved
    assert (reading.source, reading.scope, reading.reason) == ("nvml", "device", None)


@pytest.mark.parametrize(
    "answer", [2, 3, 13, 25, TypeError("version"), AttributeError("nvmlMemory_v2")]
)
def test_nvml_b37_only_v1_works_is_flagged(
    nvml: FakeNvml, session: NvmlSession, clock: Clock, answer: Any
) -> None:
    nvml.v2["GPU-A"] = answer
    nvml.v1["GPU-A"] = {"total": 81920 * MIB, "used": 912 * MIB, "free": 81008 * MIB}
    reading = source(session, clock).read()
    assert (reading.free, reading.reserved) == (81008 * MIB, 0)
    assert reading.used_includes_reserved


def test_nvml_v2_without_such_a_function_is_not_tried_again(
    nvml: FakeNvml, session: NvmlSession, clock: Clock
) -> None:
    nvml.v2["GPU-A"] = 13
    nvml.v1["GPU-A"] = v2(GIB, GIB)
    it = source(session, clock)
    it.read()
    it.read()
    assert nvml.calls.count("v2") == 1


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        (3, "not_supported"),
        (4, "no_permission"),
        (6, "gpu_lost"),
        (9, "no_probe"),
        (10, "probe_failed"),
        (12, "no_probe"),
        (15, "gpu_lost"),
        (16, "gpu_lost"),
        (18, "probe_failed"),
        (999, "probe_failed"),
    ],
)
def test_nvml_failing_call_is_a_reason(
    nvml: FakeNvml, session: NvmlSession, clock: Clock, code: int, reason: str
) -> None:
    nvml.v2["GPU-A"] = nvml.v1["GPU-A"] = code
    reading = source(session, clock).read()
    assert (reading.total, reading.free, reading.reason) == (None, None, reason)
    assert str(code) in reading.detail


@pytest.mark.parametrize("error", [OSError(5, "I/O"), RuntimeError("x"), ValueError("y")])
def test_nvml_any_exception_stays_inside(
    nvml: FakeNvml, session: NvmlSession, clock: Clock, error: Exception
) -> None:
    nvml.v2["GPU-A"] = error
    assert source(session, clock).read().reason == "probe_failed"


@pytest.mark.parametrize(("total", "free"), [(0, 0), (10, 11), (10, 2**64 - 1), (2**64 - 1, 5)])
def test_nvml_implausible_success_is_dropped(
    nvml: FakeNvml, session: NvmlSession, clock: Clock, total: int, free: int
) -> None:
    nvml.v2["GPU-A"] = v2(total, free)
    assert source(session, clock).read().reason == "implausible"


@pytest.mark.parametrize("code", [15, 18, 999])
def test_nvml_b40_one_gpu_fails_the_other_reads_on(
    nvml: FakeNvml, session: NvmlSession, clock: Clock, code: int
) -> None:
    nvml.v2 = {"GPU-A": v2(24 * GIB, 20 * GIB), "GPU-B": v2(24 * GIB, 10 * GIB)}
    first, second = source(session, clock), source(session, clock, "GPU-B")
    assert second.read().free == 10 * GIB
    nvml.v2["GPU-B"] = nvml.v1["GPU-B"] = code
    for _ in range(5):
        assert second.read().free is None
        assert first.read().free == 20 * GIB
        clock.now += 0.25
    assert nvml.calls.count("init") == 1
    assert "shutdown" not in nvml.calls


def test_nvml_b40_lost_gpu_is_asked_again_with_growing_pauses_and_recovers(
    nvml: FakeNvml, session: NvmlSession, clock: Clock
) -> None:
    it = source(session, clock)
    nvml.v2["GPU-A"] = 15
    for _ in range(4 * 120):
        it.read()
        clock.now += 0.25
    assert 4 <= nvml.calls.count("v2") <= 8  # at 0, 1, 3, 7, 15, 31, 63 s
    nvml.v2["GPU-A"] = v2(24 * GIB, 20 * GIB)
    clock.now += 61
    assert it.read().free == 20 * GIB


def test_nvml_b40_failing_init_is_tried_once_per_back_off_step(
    nvml: FakeNvml, session: NvmlSession, clock: Clock
) -> None:
    nvml.init = 18
    sources = [source(session, clock), source(session, clock, "GPU-B")]
    for step, delay in enumerate((1, 2, 4, 8, 16, 32, 60, 60), 1):
        for it in sources * 3:
            assert it.read().reason == "probe_failed"
        assert nvml.calls.count("init") == step
        clock.now += delay
    nvml.init = 0
    nvml.v2["GPU-A"] = v2(GIB, GIB)
    clock.now += 61
    assert sources[0].read().free == GIB


def test_nvml_shut_down_by_somebody_else_is_initialised_again(
    nvml: FakeNvml, session: NvmlSession, clock: Clock
) -> None:
    it = source(session, clock)
    nvml.v2["GPU-A"] = v2(GIB, GIB)
    it.read()
    nvml.v2["GPU-A"] = 1
    assert it.read().free is None
    nvml.v2["GPU-A"] = v2(GIB, GIB // 2)
    clock.now += 2
    assert it.read().free == GIB // 2
    assert nvml.calls.count("init") == 2


def test_nvml_source_dropped_without_close_keeps_no_session(
    nvml: FakeNvml, session: NvmlSession, clock: Clock
) -> None:
    """Each look at a device that was open already left a user behind, and NVML was never shut
    down."""
    nvml.v2["GPU-A"] = v2(GIB, GIB)
    kept = source(session, clock)
    kept.read()
    for _ in range(3):
        source(session, clock).read()
    kept.close()
    assert nvml.calls.count("shutdown") == 1


@pytest.mark.parametrize("code", [9, 15, 18, 999])
def test_nvml_b40_reloaded_driver_is_initialised_anew_once_all_gpus_fail(
    nvml: FakeNvml, session: NvmlSession, clock: Clock, code: int
) -> None:
    """After a reload every old session is void; only a new initialisation helps."""
    first, second = source(session, clock), source(session, clock, "GPU-B")
    nvml.v2 = {"GPU-A": v2(GIB, GIB), "GPU-B": v2(GIB, GIB)}
    first.read()
    second.read()
    nvml.v2["GPU-B"] = code
    for _ in range(5):
        second.read()
        first.read()
        clock.now += 70
    assert nvml.calls.count("init") == 1, "a sick GPU alone costs the others nothing"
    nvml.v2["GPU-A"] = code
    for _ in range(2):
        first.read()
        second.read()
        clock.now += 70
    assert nvml.calls.count("shutdown") == 1
    nvml.v2 = {"GPU-A": v2(GIB, 5), "GPU-B": v2(GIB, 6)}
    assert (first.read().free, second.read().free) == (5, 6)
    assert nvml.calls.count("init") == 2
    assert nvml.calls[-4:] == ["find", "v2"] * 2, "handles of the old session are void"


def test_nvml_in_a_forked_child_is_initialised_again(
    nvml: FakeNvml, session: NvmlSession, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    it = source(session, clock)
    nvml.v2["GPU-A"] = v2(GIB, GIB)
    it.read()
    monkeypatch.setattr(os, "getpid", lambda: -1)
    assert it.read().free == GIB
    assert nvml.calls.count("init") == 2
    assert nvml.calls.count("find") == 2


def test_nvml_session_closes_with_its_last_source_only(
    nvml: FakeNvml, session: NvmlSession, clock: Clock
) -> None:
    """An open session keeps a laptop's GPU awake; a closed one must not stop another source."""
    nvml.v2 = {"GPU-A": v2(GIB, GIB), "GPU-B": v2(GIB, GIB)}
    first, second = source(session, clock), source(session, clock, "GPU-B")
    first.read()
    second.read()
    first.close()
    assert "shutdown" not in nvml.calls
    second.close()
    assert nvml.calls.count("shutdown") == 1
    assert first.read().free == GIB
    assert nvml.calls.count("init") == 2


def test_nvml_b41_suspended_gpu_is_not_touched(
    nvml: FakeNvml, session: NvmlSession, clock: Clock, tmp_path: Path
) -> None:
    status = tmp_path / "sys/bus/pci/devices/0000:01:00.0/power/runtime_status"
    status.parent.mkdir(parents=True)
    status.write_text("suspended\n")
    nvml.v2["GPU-A"] = v2(GIB, GIB)
    it = source(session, clock, pci="0000:01:00.0", root=str(tmp_path))
    assert it.read().reason == "suspended"
    assert nvml.calls == []
    status.write_text("active\n")
    assert it.read().free == GIB


def test_nvml_b35_stub_library_is_rejected(
    nvml: FakeNvml, session: NvmlSession, clock: Clock, tmp_path: Path
) -> None:
    stub = "/usr/local/cuda/lib64/stubs/libnvidia-ml.so.1"
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/maps").write_text(f"7f0-7f1 r-xp 00000000 08:01 1234   {stub}\n")
    nvml.v2["GPU-A"] = v2(GIB, GIB)
    reading = source(session, clock).read()
    assert reading.reason == "no_probe"
    assert stub in reading.detail
    assert "v2" not in nvml.calls


def test_nvml_b35_package_missing_is_no_probe(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "pynvml", None)
    reading = NvmlSource("GPU-A", session=NvmlSession(clock=clock), clock=clock).read()
    assert (reading.total, reading.free, reading.reason) == (None, None, "no_probe")


@pytest.mark.parametrize("answer", [3, v2(0, 0)], ids=["not_supported", "total_0"])
def test_nvml_b35_integrated_gpu_shows_the_systems_memory(
    nvml: FakeNvml, session: NvmlSession, clock: Clock, tmp_path: Path, answer: Any
) -> None:
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/meminfo").write_text(
        "MemTotal: 127600748 kB\nMemFree: 9000 kB\nMemAvailable: 118566368 kB\n"
    )
    nvml.v2["GPU-A"] = nvml.v1["GPU-A"] = answer
    reading = source(session, clock, system=Meminfo(root=str(tmp_path))).read()
    assert (reading.total, reading.free) == (130663165952, 121411960832)
    assert reading.unified


def test_nvml_by_pci_address_reads(nvml: FakeNvml, session: NvmlSession, clock: Clock) -> None:
    nvml.v2["0000:01:00.0"] = v2(GIB, GIB // 4)
    it = NvmlSource(pci="0000:01:00.0", session=session, clock=clock)
    assert it.read().free == GIB // 4


def test_nvml_source_without_any_name_is_refused() -> None:
    with pytest.raises(ValueError, match="UUID or a PCI address"):
        NvmlSource()
