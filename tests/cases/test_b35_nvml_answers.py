"""B35 and B37: what NVML answers is optional, and reserved bytes are not used ones."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from helpers.fake_nvml import Card, FakeDriver, uuid
from helpers.members import Member
from helpers.system import linux_only
from helpers.units import GiB, MiB

pytestmark = linux_only
Spawn = Callable[..., Member]
A = uuid(0)


@pytest.fixture
def integrated(tmp_path: Path) -> Path:
    """The root of a GB10's /proc."""
    (tmp_path / "proc/sys/kernel/random").mkdir(parents=True)
    (tmp_path / "proc/sys/kernel/random/boot_id").write_text("0d4bbd6c-1ee5-4e0a\n")
    (tmp_path / "proc/meminfo").write_text(
        "MemTotal: 127600748 kB\nMemFree: 90000000 kB\nMemAvailable: 118566368 kB\n"
    )
    return tmp_path


@pytest.mark.parametrize(
    "card",
    [
        Card(A, v2_error=3, v1_error=3, name="NVIDIA GB10"),
        Card(A, v2_error=3, v1_error=3, name="unheard of"),
        Card(A, total=0, free=0, name="NVIDIA GB10"),
        Card(A, total=0, free=0, name="unheard of"),
        Card(A, total=2 * GiB, free=GiB, name="NVIDIA GB10"),
        Card(A, total=4 * GiB, free=5 * GiB, name="Orin (nvgpu)"),
    ],
    ids=["unsupported", "unsupported_unknown", "total_0", "total_0_unknown", "far", "implausible"],
)
def test_b35_integrated_gpu_has_the_systems_memory(
    spawn: Spawn, segment: Path, integrated: Path, card: Card
) -> None:
    driver = FakeDriver(segment.parent, card)
    member = spawn("host", join=False, env=driver.env())
    member.run("from memledger.readings import resolve")
    member.run(f"spec = resolve('cuda:0', root={str(integrated)!r})")
    assert member.run("[level.key for level in spec.levels]") == [A, "ram:0d4bbd6c-1ee5-4e0a"]
    reading = member.run("r = spec.sources[0].read(); [r.total, r.free, r.unified, r.reason]")
    assert reading == [130663165952, 121411960832, True, None]


def test_b35_integrated_gpu_keeps_immediate_apart_from_reclaimable(
    spawn: Spawn, segment: Path, integrated: Path
) -> None:
    """NVML's free on such a machine leaves out the page cache."""
    driver = FakeDriver(
        segment.parent, Card(A, total=130663165952, free=30 * GiB, name="NVIDIA GB10")
    )
    member = spawn("host", join=False, env=driver.env())
    member.run("from memledger.readings import resolve")
    member.run(f"r = resolve('cuda:0', root={str(integrated)!r}).sources[0].read()")
    assert member.run("[r.free, r.immediate, r.unified]") == [121411960832, 30 * GiB, True]


def test_b35_integrated_gpu_with_a_total_that_is_not_the_rams_is_not_believed_at_all(
    spawn: Spawn, segment: Path, integrated: Path
) -> None:
    driver = FakeDriver(segment.parent, Card(A, total=2 * GiB, free=GiB, name="NVIDIA GB10"))
    member = spawn("host", join=False, env=driver.env())
    member.run("from memledger.readings import resolve")
    member.run(f"r = resolve('cuda:0', root={str(integrated)!r}).sources[0].read()")
    assert member.run("[r.free, r.immediate]") == [121411960832, 90000000 << 10]
    assert "2147483648" in member.run("r.detail")


def test_b35_integrated_gpu_without_memory_is_not_asked_at_every_reading(
    spawn: Spawn, segment: Path, integrated: Path
) -> None:
    driver = FakeDriver(segment.parent, Card(A, v2_error=3, v1_error=3))
    member = spawn("host", join=False, env=driver.env())
    member.run("from memledger.readings import resolve")
    member.run(f"source = resolve('cuda:0', root={str(integrated)!r}).sources[0]")
    calls = driver.calls("v2", "v1")
    assert member.run("{source.read().total for _ in range(20)} == {130663165952}") is True
    assert driver.calls("v2", "v1") - calls <= 4


def test_b35_no_library_is_the_ledger_alone(spawn: Spawn, tmp_path: Path) -> None:
    """Same calls, no exception; with a configured total the figures are the ledger's."""
    empty = tmp_path / "empty"
    empty.mkdir()
    member = spawn("host", env={"LD_LIBRARY_PATH": str(empty), "MEMLEDGER_TOTAL": "24GiB"})
    assert member.call("open", A) == A
    member.publish(4 * GiB)
    figures = member.figures()
    assert (figures["source"], figures["free"], figures["complete"]) == ("ledger", 20 * GiB, False)
    assert figures["reason"] == "no_probe"


def test_b35_a_total_for_one_device_only(spawn: Spawn, tmp_path: Path) -> None:
    variable = "MEMLEDGER_TOTAL_" + A.upper().replace("-", "_")
    member = spawn(
        "host", env={"LD_LIBRARY_PATH": str(tmp_path), "MEMLEDGER_TOTAL": "8GiB", variable: "48GiB"}
    )
    assert member.call("open", A) == A
    assert member.free() == 48 * GiB
    assert member.call("open", uuid(1)) == uuid(1)
    assert member.free() == 8 * GiB


def test_b35_stub_library_is_no_driver(spawn: Spawn, segment: Path) -> None:
    driver = FakeDriver(segment.parent, Card(A))
    stubs = segment.parent / "cuda" / "stubs"
    stubs.mkdir(parents=True)
    library = segment.parent / "fake-driver" / "libnvidia-ml.so.1"
    library.rename(stubs / "libnvidia-ml.so.1")
    member = spawn("host", env={**driver.env(), "LD_LIBRARY_PATH": str(stubs)})
    assert member.call("open", A) == A
    assert member.free() is None
    assert member.figures()["reason"] == "no_probe"


def test_b37_v2_keeps_reserved_apart(spawn: Spawn, segment: Path) -> None:
    driver = FakeDriver(
        segment.parent,
        Card(A, total=81920 * MiB, reserved=905 * MiB, free=81008 * MiB),
    )
    member = spawn("host", env=driver.env())
    member.call("open", "cuda:0")
    figures = member.figures()
    assert (figures["free"], figures["reserved"]) == (81008 * MiB, 905 * MiB)
    assert figures["unaccounted"] == 7 * MiB


def test_b37_members_bytes_are_not_unaccounted(spawn: Spawn, segment: Path) -> None:
    driver = FakeDriver(
        segment.parent, Card(A, total=81920 * MiB, reserved=905 * MiB, free=81015 * MiB)
    )
    member = spawn("host", env=driver.env())
    member.call("open", "cuda:0")
    member.publish(5 * MiB)
    driver.set(0, free=81008 * MiB)
    member.run("ledger.device('cuda:0').refresh(max_age_s=0)")
    assert member.figures()["unaccounted"] == 2 * MiB


@pytest.mark.parametrize("without", [(), ("v2",)], ids=["unsupported", "no such symbol"])
def test_b37_v1_alone_gives_the_same_free_and_is_flagged(
    spawn: Spawn, segment: Path, without: tuple[str, ...]
) -> None:
    driver = FakeDriver(
        segment.parent,
        Card(A, total=81920 * MiB, reserved=905 * MiB, free=81008 * MiB, v2_error=3),
        without=without,
    )
    member = spawn("host", env=driver.env())
    member.call("open", "cuda:0")
    assert member.free() == 81008 * MiB
    assert member.run("ledger.device('cuda:0').reading.used_includes_reserved") is True


def test_b35_slow_driver_costs_an_age_and_no_figure(spawn: Spawn, segment: Path) -> None:
    """A call that takes longer than a period is a failed reading; the last good one stays."""
    driver = FakeDriver(segment.parent, Card(A))
    member = spawn("host", env=driver.env())
    member.call("open", A)
    member.publish(GiB)
    driver.set(0, latency_us=600_000, free=GiB)
    member.run(f"ledger.device({A!r}).refresh(max_age_s=0)")
    assert member.run(f"ledger.device({A!r}).reading.free") == 20 * GiB
    assert member.free() is not None
