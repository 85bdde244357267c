"""Rows 8, 32 and 34: RAM, what is kept in it, and what is page-locked of it."""

from __future__ import annotations

from typing import Any

import pytest

MIB = 1 << 20
GIB = 1 << 30


def ram_claim(sibling: Any, nbytes: int) -> None:
    sibling.call("open", "ram")
    sibling.run(f"claim = ledger.device('ram').claim({nbytes})")


@pytest.fixture
def fixed_ram(monkeypatch: pytest.MonkeyPatch) -> int:
    """What psutil says of RAM stands still, so that figures can be compared exactly."""
    import psutil

    now = psutil.virtual_memory()
    fixed = now._replace(available=now.available // GIB * GIB)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: fixed)
    return int(fixed.available)


def test_ram_lacks_what_a_sibling_was_promised_once(
    comfy: Any, sibling: Any, fixed_ram: int
) -> None:
    comfy.start_host()
    cpu = comfy.module("torch").device("cpu")
    before = comfy.mm.get_free_memory(cpu)
    ram_claim(sibling, 2 * GIB)
    assert before <= fixed_ram
    # Old: also bounded by the ledger's own reading, which moves with the machine.
    lost = before - comfy.mm.get_free_memory(cpu)
    if comfy.generation == "new":
        assert lost == 2 * GIB
        caching = comfy.module("comfy_execution.caching")
        assert caching.headroom_left() == before - 2 * GIB
    else:
        assert 1 * GIB < lost < 3 * GIB


def test_copies_of_the_name_are_replaced_too(comfy: Any, sibling: Any, fixed_ram: int) -> None:
    if comfy.generation == "old":
        pytest.skip("the old generation copies no name of system_memory")
    comfy.module("comfy.model_management")
    caching = comfy.module("comfy_execution.caching")  # copies before anything of ours is there
    comfy.start_host()
    ram_claim(sibling, 2 * GIB)
    assert caching.headroom_left() == fixed_ram - 2 * GIB


def test_backups_are_counted_once_and_not_where_the_model_uses_them(comfy: Any) -> None:
    comfy.load_all()
    comfy.start_host()
    torch = comfy.module("torch")
    kept_bytes = comfy.module("memledger_comfy.adapter.row32_backups").kept_bytes
    shared, own = torch.empty(64 * MIB), torch.empty(32 * MIB)
    on_card = torch.empty(16 * MIB, device="cuda:0")
    live = torch.empty(8 * MIB)

    class Model:
        def parameters(self) -> list[Any]:
            return [live]

    class Patcher:
        model = Model()
        backup = {"a": (shared, True), "b": own, "c": (on_card, False), "d": live}  # noqa: RUF012
        backup_buffers = {"e": shared}  # noqa: RUF012

    class Loaded:
        def __init__(self, patcher: Any) -> None:
            self.model = patcher

    assert kept_bytes([Loaded(Patcher()), Loaded(Patcher()), Loaded(None)]) == 96 * MIB


class TestPins:
    @pytest.fixture
    def new(self, comfy: Any) -> Any:
        if comfy.generation == "old":
            pytest.skip("the old generation pins without a budget")
        return comfy

    def test_pins_of_two_processes_stay_within_one_budget(self, new: Any, sibling: Any) -> None:
        context = new.start_host()
        ram = context.link.device("cpu")
        ram.pin_ceiling(1 * GIB)
        sibling.call("open", "ram")
        sibling.run(f"n = {768 * MIB}; pin = ledger.device('ram').try_pin(n); pin.settle(n)")
        assert new.mm.pin(128 * MIB)
        assert not new.mm.pin(256 * MIB)
        assert new.mm.pin(128 * MIB)
        assert not new.mm.pin(1 * MIB)
        context.publisher.at_safe_point()
        assert ram.amounts[2] == 256 * MIB
        assert ram.pin_budget() == 0

    def test_the_ceiling_is_this_process_share_and_never_zero(self, new: Any, sibling: Any) -> None:
        upstream = new.mm.MAX_PINNED_MEMORY
        context = new.start_host()
        assert upstream == new.mm.MAX_PINNED_MEMORY
        sibling.call("open", "ram")
        sibling.run(f"pin = ledger.device('ram').try_pin({GIB}); pin.settle({GIB})")
        context.publisher.at_safe_point()
        assert upstream - GIB == new.mm.MAX_PINNED_MEMORY
        sibling.run(f"device.pinned(0); device.publish({int(upstream)}, pinned={int(upstream)})")
        context.publisher.at_safe_point()
        assert new.mm.MAX_PINNED_MEMORY == 1
        context.undo()
        assert upstream == new.mm.MAX_PINNED_MEMORY

    def test_pinning_that_is_off_stays_off(self, new: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        mm = new.module("comfy.model_management")
        mm.MAX_PINNED_MEMORY = -1
        context = new.start_host()
        context.publisher.at_safe_point()
        assert mm.MAX_PINNED_MEMORY == -1
        assert not mm.pin(1 * MIB)

    def test_a_sibling_that_asks_gets_pins_that_are_not_in_use(
        self, new: Any, sibling: Any
    ) -> None:
        context = new.start_host()
        ram = context.link.device("cpu")
        ram.pin_ceiling(1 * GIB)
        assert new.mm.pin(512 * MIB)
        assert new.mm.pin(512 * MIB, active=True)
        context.publisher.at_safe_point()
        sibling.call("open", "ram")
        sibling.run(f"result = ledger.device('ram')._pins().device.ask({512 * MIB}, 20)")
        assert sibling.run("[result.state, result.credited]") == ["done", 512 * MIB]
        assert new.mm.TOTAL_PINNED_MEMORY == 512 * MIB
