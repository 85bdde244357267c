"""A driver that does not answer costs an age on the figure, and nothing else."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

import memledger
from memledger.device import Device
from memledger.model import DeviceSpec, PoolSpec, Reading
from memledger.readings.bounded import BoundedSource, bounded

GIB = 1 << 30


class Driver:
    """Answers, until it is told to hang."""

    name = "fake"
    timeout_s = 0.05

    def __init__(self) -> None:
        self.may_answer = threading.Event()
        self.may_answer.set()
        self.calls = 0
        self.closed = 0

    def read(self) -> Reading:
        self.calls += 1
        self.may_answer.wait(60)
        return Reading("fake", 24 * GIB, 20 * GIB)

    def explain(self) -> str:
        return "a fake driver"

    def close(self) -> None:
        self.closed += 1


def test_bounded_source_makes_no_second_call_into_a_hung_driver() -> None:
    driver = Driver()
    source = BoundedSource(driver)
    assert source.read().free == 20 * GIB
    driver.may_answer.clear()
    assert source.read().reason == "probe_failed"
    assert "no answer" in source.read().detail
    assert driver.calls == 2
    source.close()
    assert driver.closed == 0  # a call is still inside
    driver.may_answer.set()
    hanging = source._hanging
    assert hanging is not None
    hanging.join(60)
    assert source.read().free == 20 * GIB
    source.close()
    assert driver.closed == 1


def test_bounded_source_passes_an_exception_on() -> None:
    class Broken(Driver):
        def read(self) -> Reading:
            raise OSError("gone")

    with pytest.raises(OSError, match="gone"):
        BoundedSource(Broken()).read()


def test_source_that_never_blocks_is_asked_directly() -> None:
    class Quick(Driver):
        never_blocks = True

    quick: Any = Quick()
    assert bounded(quick) is quick


def test_hung_driver_lets_claims_and_refreshes_go_on(tmp_path: Path) -> None:
    """Failure: a claim wants a newer reading and waits in the driver with it."""
    driver = Driver()
    with memledger.join(label="hung", path=tmp_path / "segment") as ledger:
        device = Device(ledger, DeviceSpec("card", (PoolSpec("GPU-hung"),), (driver,)))
        ledger._devices[device.key] = device
        ledger._adopt_sources(device)
        assert device.refresh(0).free == 20 * GIB
        driver.may_answer.clear()
        assert device.refresh(0).free == 20 * GIB  # the last one, with its age
        with device.claim(GIB) as claim:
            assert claim.checked
        assert device.try_claim(30 * GIB) is None
        driver.may_answer.set()
