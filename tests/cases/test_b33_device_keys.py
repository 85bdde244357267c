"""B33: ordinals are private to a process; bytes land on the card that the name means there."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from helpers.fake_nvml import Card, FakeDriver, uuid
from helpers.members import Member, RemoteError
from helpers.system import linux_only
from helpers.units import GiB

pytestmark = linux_only
Spawn = Callable[..., Member]
A, B, C, D = (uuid(n) for n in range(4))


@pytest.fixture
def driver(segment: Path) -> FakeDriver:
    return FakeDriver(segment.parent, *(Card(name, free=24 * GiB) for name in (A, B, C, D)))


def held(member: Member, key: str) -> int:
    """What all members hold on a card, as `member` sees it."""
    value: int = member.run(f"ledger.device({key!r}).snapshot().figures.held")
    return value


def test_b33_visible_indices_charge_the_card_that_they_mean(
    spawn: Spawn, driver: FakeDriver
) -> None:
    """With CUDA_VISIBLE_DEVICES=2,3 ordinal 0 was charged to the first card of the machine."""
    host = spawn("host", env=driver.env(CUDA_VISIBLE_DEVICES="2,3"))
    assert host.call("open", "cuda:0") == C
    host.publish(5 * GiB)
    worker = spawn("worker", env=driver.env(CUDA_VISIBLE_DEVICES=C[:12]))
    assert worker.call("open", "cuda:0") == C
    worker.publish(1 * GiB)
    assert [held(host, key) for key in (A, B, C, D)] == [0, 0, 6 * GiB, 0]
    other = spawn("other", env=driver.env(CUDA_VISIBLE_DEVICES="3,2"))
    assert other.call("open", "cuda:1") == C
    assert held(other, C) == 6 * GiB


def test_b33_no_ordinal_enters_the_segment(spawn: Spawn, driver: FakeDriver, segment: Path) -> None:
    member = spawn("host", env=driver.env(CUDA_VISIBLE_DEVICES="1"))
    member.call("open", "cuda:0")
    member.publish(GiB)
    content = segment.read_bytes()
    assert b"cuda:" not in content
    assert B.encode() in content


def test_b33_address_and_uuid_are_one_pool(spawn: Spawn, driver: FakeDriver) -> None:
    """One process knows the UUID and the address (NVML), the other the address alone."""
    blind = spawn("blind", env=driver.env(init_error=18))
    with pytest.raises(RemoteError):
        blind.call("open", driver.pci(0))  # this machine has no such PCI device, and NVML is out
    blind.open_plain(driver.pci(0), total=24 * GiB)
    blind.publish(3 * GiB)
    seeing = spawn("seeing", env=driver.env())
    assert seeing.call("open", "cuda:0") == A
    seeing.publish(2 * GiB)
    assert held(seeing, A) == 5 * GiB
    assert blind.figures()["held"] == 5 * GiB


def test_b33_a_doubt_names_the_candidates(spawn: Spawn, segment: Path) -> None:
    driver = FakeDriver(segment.parent, Card(A, name="RTX 3060"), Card(B, name="RTX 4090"))
    member = spawn("host", env=driver.env())
    with pytest.raises(RemoteError) as caught:
        member.call("open", "cuda:0")
    assert A in caught.value.text
    assert B in caught.value.text
    by_bus = spawn("by-bus", env=driver.env(CUDA_DEVICE_ORDER="PCI_BUS_ID"))
    assert by_bus.call("open", "cuda:1") == B


def test_b33_mig_slice_has_its_own_total_and_key(spawn: Spawn, segment: Path) -> None:
    first, second = "MIG-11111111-aaaa", "MIG-22222222-bbbb"
    driver = FakeDriver(
        segment.parent,
        Card(A, total=80 * GiB, free=70 * GiB),
        Card(first, total=10 * GiB, free=9 * GiB, slice_of=0),
        Card(second, total=20 * GiB, free=5 * GiB, slice_of=0),
    )
    member = spawn("host", env=driver.env(CUDA_VISIBLE_DEVICES=second[:8]))
    assert member.call("open", "cuda:0") == second
    assert (member.figures()["total"], member.free()) == (20 * GiB, 5 * GiB)
    assert member.call("open", first) == first
    assert (member.figures()["total"], member.free()) == (10 * GiB, 9 * GiB)
    with pytest.raises(RemoteError) as caught:
        spawn("unmasked", env=driver.env()).call("open", "cuda:0")
    assert first in caught.value.text
