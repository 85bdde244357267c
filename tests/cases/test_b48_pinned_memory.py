"""B48: page-locked memory, where every process took its own share of the whole."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import memledger
from helpers.members import Member
from helpers.units import GiB, MiB
from memledger import pins
from memledger.device import Device
from memledger.model import KIND_RAM, DeviceSpec, PoolSpec, Reading

Spawn = Callable[..., Member]

SOURCE = """
from memledger.device import Device
from memledger.model import KIND_RAM, DeviceSpec, PoolSpec, Reading
class Ram:
    name, timeout_s = "test", 1.0
    def read(self): return Reading("test", total=64 << 30, free=64 << 30)
ram = Device(ledger, DeviceSpec("ram:test", (PoolSpec("ram:test", kind=KIND_RAM),), (Ram(),)))
ledger._devices[ram.key] = ram
ledger._adopt_sources(ram)
ram.refresh()
"""


class Ram:
    """64 GiB, all free."""

    name, timeout_s = "test", 1.0

    def read(self) -> Reading:
        return Reading("test", total=64 * GiB, free=64 * GiB)


@pytest.fixture
def ram(ledger: memledger.Ledger) -> Device:
    source: Any = Ram()
    pools = (PoolSpec("ram:test", kind=KIND_RAM),)
    device = Device(ledger, DeviceSpec("ram:test", pools, (source,)))
    ledger._devices[device.key] = device
    ledger._adopt_sources(device)
    device.refresh()
    return device


def test_b48_second_process_may_pin_what_is_left_of_the_one_budget(
    ram: Device, spawn: Spawn
) -> None:
    """RAM 64, cap 50 % = 32; A pins 24: B may pin 8, not 32."""
    a = spawn("A")
    a.run(SOURCE + "p = ram.try_pin(24 << 30)\np.settle(24 << 30)")
    assert ram.pin_budget() == 8 * GiB
    assert ram.try_pin(8 * GiB + 1) is None
    claim = ram.try_pin(8 * GiB)
    assert claim is not None
    claim.settle(8 * GiB)
    assert a.run("[ram.pin_budget(), ram.try_pin(1)]") == [0, None]


def test_b48_pins_are_counted_in_pages(ram: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """1,000 pins of 5,000 B with 4 KiB pages: 8,192,000 bytes."""
    monkeypatch.setattr(pins, "PAGE_BYTES", 4096)
    for number in range(1, 1001):
        claim = ram.try_pin(5000)
        assert claim is not None
        claim.settle(5000 * number)
    assert ram.figures().pinned == 8192000
    assert ram.pin_budget() == 32 * GiB - 8192000


def test_b48_learned_limit_is_seen_by_others_until_a_later_success(
    ram: Device, spawn: Spawn
) -> None:
    """Pinning failed at 500 MiB in all, as under WSL."""
    a = spawn("A")
    a.run(SOURCE + "ram.learn_limit(500 << 20)")
    assert ram.pin_budget() == 500 * MiB
    assert ram.try_pin(501 * MiB) is None
    claim = ram.try_pin(500 * MiB)
    assert claim is not None
    claim.cancel()
    a.run("ram.learn_limit(None)")
    assert ram.pin_budget() == 32 * GiB


def test_b48_more_may_be_pinned_than_is_held(ram: Device) -> None:
    """Registered memory of files, or of another process: nothing assumes pinned <= held."""
    ram.publish(GiB, pinned=2 * GiB)
    assert ram.amounts == (GiB, 0, 2 * GiB)
