"""Page-locked RAM: one budget for all members, at every level of the chain."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import memledger
from helpers.members import Member
from helpers.units import GiB, MiB
from memledger.device import Device
from memledger.errors import UnknownDevice
from memledger.model import KIND_CGROUP, KIND_RAM, DeviceSpec, PoolSpec, Reading
from memledger.pins import PAGE_BYTES, whole_pages

Spawn = Callable[..., Member]
Until = Callable[..., Any]

RAM = """
from memledger.device import Device
from memledger.model import KIND_CGROUP, KIND_RAM, DeviceSpec, PoolSpec, Reading
class Source:
    name, timeout_s = "test", 1.0
    def __init__(self, total): self.total = total
    def read(self): return Reading("test", total=self.total, free=self.total)
def ram_of(levels):
    pools = tuple(PoolSpec(key, kind=KIND_RAM if key.startswith("ram:") else KIND_CGROUP)
                  for key, _ in levels)
    sources = tuple(None if total is None else Source(total) for _, total in levels)
    found = Device(ledger, DeviceSpec(levels[0][0], pools, sources))
    ledger._devices[found.key] = found
    ledger._adopt_sources(found)
    found.refresh()
    return found
"""
MACHINE = ("ram:test", 64 * GiB)


class Source:
    """A level of RAM that is all free."""

    name, timeout_s = "test", 1.0

    def __init__(self, total: int | None) -> None:
        self.total = total

    def read(self) -> Reading:
        if self.total is None:
            return Reading("test", scope="none", reason="no_probe")
        return Reading("test", total=self.total, free=self.total)


def ram_of(ledger: memledger.Ledger, *levels: tuple[str, int | None]) -> Device:
    """A RAM device whose levels say so many bytes each, its own first."""
    pools = tuple(
        PoolSpec(key, kind=KIND_RAM if key.startswith("ram:") else KIND_CGROUP) for key, _ in levels
    )
    sources: Any = tuple(None if total is None else Source(total) for _, total in levels)
    device = Device(ledger, DeviceSpec(levels[0][0], pools, sources))
    ledger._devices[device.key] = device
    ledger._adopt_sources(device)
    device.refresh()
    return device


def member_with_ram(spawn: Spawn, *levels: tuple[str, int | None], label: str = "m") -> Member:
    member = spawn(label)
    member.run(RAM + f"ram = ram_of({levels!r})")
    return member


def pinned_of(device: Device) -> int:
    return sum(row.pinned for row in device.snapshot().rows)


def test_budget_is_one_for_all_members(ledger: memledger.Ledger, spawn: Spawn) -> None:
    """RAM 64, half of it: who comes second may pin 8, not another 32."""
    other = member_with_ram(spawn, MACHINE)
    assert other.run(f"p = ram.try_pin({24 * GiB})\np.settle({24 * GiB})\np.checked") is True
    ram = ram_of(ledger, MACHINE)
    assert ram.pin_budget() == 8 * GiB
    assert ram.try_pin(9 * GiB) is None
    claim = ram.try_pin(8 * GiB)
    assert claim is not None
    assert ram.pin_budget() == 8 * GiB, "own open claims are not subtracted"
    assert other.run("ram.pin_budget()") == 0
    claim.cancel()
    assert other.run("ram.pin_budget()") == 8 * GiB


def test_pins_count_in_whole_pages(ledger: memledger.Ledger) -> None:
    """1,000 pins of 5,000 bytes take 2,000 pages, not 1,221."""
    ram = ram_of(ledger, MACHINE)
    total = 0
    for _ in range(1000):
        claim = ram.try_pin(5000)
        assert claim is not None
        total += 5000
        claim.settle(total)
    wanted = 1000 * 2 * PAGE_BYTES if PAGE_BYTES == 4096 else 1000 * whole_pages(5000)
    assert pinned_of(ram) == wanted
    assert 32 * GiB - (ram.pin_budget() or 0) == wanted
    ram.pinned(total - 5000)
    assert pinned_of(ram) == wanted - whole_pages(5000)
    ram.pinned(0)
    assert pinned_of(ram) == 0
    assert ram.pin_budget() == 32 * GiB


def test_pin_that_is_left_unsettled_is_given_back(ledger: memledger.Ledger) -> None:
    ram = ram_of(ledger, MACHINE)
    claim = ram.try_pin(GiB)
    assert claim is not None
    with claim:
        pass
    claim.cancel()
    assert ram.pin_budget() == 32 * GiB


def test_settle_leaves_what_other_threads_publish_alone(ledger: memledger.Ledger) -> None:
    """The pinned facet is changed by difference, never by writing back what was read before."""
    ram = ram_of(ledger, MACHINE)
    ram.publish(5 * GiB, releasable=GiB)
    part = ram.account("weights")
    part.publish(2 * GiB)
    claim = ram.try_pin(GiB)
    assert claim is not None
    claim.settle(GiB)
    assert ram.amounts == (5 * GiB, GiB, GiB)
    assert ram.figures().own_held == 7 * GiB
    assert ram.figures().pinned == GiB


def test_smallest_ceiling_of_all_members_counts(ledger: memledger.Ledger, spawn: Spawn) -> None:
    ram = ram_of(ledger, MACHINE)
    other = member_with_ram(spawn, MACHINE)
    other.run(f"ram.pin_ceiling({10 * GiB})")
    assert ram.pin_budget() == 10 * GiB
    ram.pin_ceiling(4 * GiB)
    assert other.run("ram.pin_budget()") == 4 * GiB
    ram.pin_ceiling(60 * GiB)
    assert ram.pin_budget() == 10 * GiB
    other.exit()


def test_learned_limit_is_everybodys_until_it_is_taken_back(
    ledger: memledger.Ledger, spawn: Spawn
) -> None:
    ram = ram_of(ledger, MACHINE)
    other = member_with_ram(spawn, MACHINE)
    assert ram.pin_budget() == 32 * GiB
    other.run(f"ram.learn_limit({500 * MiB})")
    assert ram.pin_budget() == 500 * MiB
    assert ram.try_pin(501 * MiB) is None
    other.run("ram.learn_limit(None)")
    assert ram.pin_budget() == 32 * GiB
    other.run(f"ram.learn_limit({500 * MiB})")
    other.kill()
    ledger.sweep()
    assert ram.pin_budget() == 32 * GiB


def test_highest_floor_of_all_members_counts(ledger: memledger.Ledger, spawn: Spawn) -> None:
    """Free RAM that pins must leave alone."""
    ram = ram_of(ledger, MACHINE)
    other = member_with_ram(spawn, MACHINE)
    ram.publish(30 * GiB)
    assert ram.pin_budget() == 32 * GiB
    other.run(f"ram.floor({10 * GiB})")
    ram.floor(4 * GiB)
    # 64 in all, 30 held, 10 left alone.
    assert ram.pin_budget() == 24 * GiB
    assert ram.try_pin(25 * GiB) is None
    assert other.run(f"ram.try_pin({25 * GiB})") is None
    other.run("ram.floor(0)")
    assert ram.pin_budget() == 30 * GiB


def test_chain_is_checked_at_every_level(ledger: memledger.Ledger, spawn: Spawn) -> None:
    """Two containers of 16 on a machine of 20: the inner budget is 8 each, the outer 10 in all."""
    machine = ("ram:test", 20 * GiB)
    ram = ram_of(ledger, ("cgroup:a", 16 * GiB), machine)
    other = member_with_ram(spawn, ("cgroup:b", 16 * GiB), machine)
    assert ram.pin_budget() == 8 * GiB
    assert other.run(f"p = ram.try_pin({7 * GiB})\np.settle({7 * GiB})\nram.pin_budget()") == GiB
    assert ram.pin_budget() == 3 * GiB, "the machine binds now"
    assert ram.try_pin(4 * GiB) is None
    assert ram.try_pin(3 * GiB) is not None


def test_siblings_are_asked_for_pins_before_a_refusal(
    ledger: memledger.Ledger, spawn: Spawn
) -> None:
    ram = ram_of(ledger, MACHINE)
    other = member_with_ram(spawn, MACHINE)
    other.run(
        "pinned, calls = [30 << 30], []\n"
        "class Unpins:\n"
        "    def release_memory(self, device, size):\n"
        "        calls.append(size)\n"
        "        pinned[0] -= size\n"
        "        ram.pinned(pinned[0])\n"
        "        return size\n"
        "ledger.holders.register(Unpins(), thread_safe=True)\n"
        "p = ram.try_pin(30 << 30)\np.settle(30 << 30)"
    )
    for _ in range(5):  # it has 50 ms to answer; a busy machine may need another try
        claim = ram.try_pin(10 * GiB)
        if claim is not None:
            break
    assert claim is not None
    assert other.run("sum(calls)") >= 8 * GiB
    assert other.run("ram.amounts[2]") <= 22 * GiB


def test_sibling_in_another_container_is_asked_where_the_machine_binds(
    ledger: memledger.Ledger, spawn: Spawn
) -> None:
    """It publishes in the machine's pool alone; asking one's own level would not find it."""
    machine = ("ram:test", 20 * GiB)
    ram = ram_of(ledger, ("cgroup:a", 16 * GiB), machine)
    other = member_with_ram(spawn, ("cgroup:b", 18 * GiB), machine)
    other.run(
        "class Unpins:\n"
        "    def release_memory(self, device, size):\n"
        "        ram.pinned(0)\n        return size\n"
        "ledger.holders.register(Unpins(), thread_safe=True)\n"
        "p = ram.try_pin(9 << 30)\np.settle(9 << 30)"
    )
    for _ in range(5):
        claim = ram.try_pin(8 * GiB)
        if claim is not None:
            break
    assert claim is not None


def test_pins_of_a_member_without_holders_are_not_asked_for(
    ledger: memledger.Ledger, spawn: Spawn
) -> None:
    ram = ram_of(ledger, MACHINE)
    other = member_with_ram(spawn, MACHINE)
    other.run(f"p = ram.try_pin({32 * GiB})\np.settle({32 * GiB})")
    assert ram.try_pin(GiB) is None
    shown = next(m for m in ledger.members() if m.pid == other.pid)
    assert shown.counters.asks_declined == 0


def test_total_that_nobody_knows_grants_without_a_check(ledger: memledger.Ledger) -> None:
    """Unknown is not 0: nothing is refused for it, and nothing is pretended."""
    ram = ram_of(ledger, ("ram:unknown", None))
    assert ram.pin_budget() is None
    claim = ram.try_pin(GiB)
    assert claim is not None
    assert claim.checked is False
    claim.cancel()


def test_total_that_is_configured_or_comes_late_is_used(ledger: memledger.Ledger) -> None:
    ram = ram_of(ledger, ("ram:late", None))
    assert ram.pin_budget() is None
    ram._set_limit(10 * GiB)
    assert ram.pin_budget() == 5 * GiB
    claim = ram.try_pin(5 * GiB)
    assert claim is not None
    assert claim.checked is True


def test_dead_members_pins_go_away(ledger: memledger.Ledger, spawn: Spawn) -> None:
    ram = ram_of(ledger, MACHINE)
    other = member_with_ram(spawn, MACHINE)
    other.run(f"p = ram.try_pin({24 * GiB})\np.settle({24 * GiB})")
    assert ram.pin_budget() == 8 * GiB
    other.kill()
    ledger.sweep()
    assert ram.pin_budget() == 32 * GiB


def test_forked_child_has_pinned_nothing(spawn: Spawn) -> None:
    member = member_with_ram(spawn, MACHINE)
    assert member.run(
        "p = ram.try_pin(8 << 30)\np.settle(8 << 30)\n"
        "read, write = os.pipe()\n"
        "pid = os.fork()\n"
        "if pid == 0:\n"
        "    q = ram.try_pin(5000)\n    q.settle(5000)\n"
        "    own = ram.amounts[2], ram.pin_budget()\n"
        "    os.write(write, repr(own).encode())\n"
        "    os._exit(0)\n"
        "os.waitpid(pid, 0)\nos.read(read, 200).decode()"
    ) == repr((whole_pages(5000), 24 * GiB - whole_pages(5000)))


def test_pins_are_of_ram_only(ledger: memledger.Ledger, segment: Path) -> None:
    device = Device(ledger, DeviceSpec("x", (PoolSpec("test:card"),), (None,)))
    with pytest.raises(UnknownDevice):
        device.try_pin(1)


def test_private_ledger_pins_for_itself(tmp_path: Path) -> None:
    with memledger.join("alone", path=tmp_path / "absent" / "segment") as ledger:
        ram = ram_of(ledger, MACHINE)
        assert ram.pin_budget() == 32 * GiB
        claim = ram.try_pin(GiB)
        assert claim is not None
        claim.settle(GiB)
        assert ram.try_pin(32 * GiB) is None


@pytest.mark.parametrize(
    ("value", "error"),
    [
        (-1, memledger.InvalidFigure),
        (1 << 64, memledger.InvalidFigure),
        (True, TypeError),
        (1.5, TypeError),
    ],
)
def test_pins_and_asks_refuse_what_is_no_number_of_bytes(
    ledger: memledger.Ledger, value: object, error: type[Exception]
) -> None:
    """Failure: try_pin(-1) was granted, since rounding to pages made it 0, and pinned=-1 took the
    process's pins to 0."""
    ram = ledger.device("ram")
    for call in (ram.try_pin, ram.pinned, ram.pin_ceiling, ram.learn_limit, ram.ask):
        with pytest.raises(error, match="expected"):
            call(value)  # type: ignore[operator]
