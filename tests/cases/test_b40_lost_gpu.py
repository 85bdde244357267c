"""B40: NVML, or one GPU, goes away in mid-life; and B41: asking is rare, and never wakes a GPU."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from helpers.fake_nvml import Card, FakeDriver, uuid
from helpers.members import Member
from helpers.system import linux_only
from helpers.units import GiB
from helpers.waiting import wait_until

pytestmark = linux_only
Spawn = Callable[..., Member]
A, B = uuid(0), uuid(1)


@pytest.fixture
def driver(segment: Path) -> FakeDriver:
    return FakeDriver(segment.parent, Card(A), Card(B))


def reading(member: Member, key: str) -> dict[str, object]:
    fields: dict[str, object] = member.run(f"ledger.device({key!r}).reading._asdict()")
    return fields


def refreshed(member: Member, key: str) -> dict[str, object]:
    """A reading that is asked for until the source's own back-off lets it through."""
    fields: dict[str, object] = member.run(f"ledger.device({key!r}).refresh(max_age_s=0)._asdict()")
    return fields


@pytest.mark.parametrize("code", [15, 18, 999])
def test_b40_one_gpu_lost_the_other_reads_on(spawn: Spawn, driver: FakeDriver, code: int) -> None:
    member = spawn("host", env=driver.env())
    for key in (A, B):
        assert refreshed(member, key)["free"] == 20 * GiB
    driver.set(1, v2_error=code, v1_error=code, find_error=code)
    driver.set(0, free=7 * GiB)
    lost = refreshed(member, B)
    assert lost["free"] == 20 * GiB, "the last good value stays, with its age"
    assert lost["age_s"] is not None
    assert refreshed(member, A)["free"] == 7 * GiB
    source = "ledger._pool_sources[ledger.device({!r})._pools()[0]].read()._asdict()"
    answer = member.run(source.format(B))
    assert (answer["free"], answer["reason"]) == (
        None,
        "gpu_lost" if code == 15 else "probe_failed",
    )
    assert member.run(source.format(A))["free"] == 7 * GiB
    assert driver.calls("init") == 1


def test_b40_member_that_cannot_init_views_what_a_healthy_one_published(
    spawn: Spawn, driver: FakeDriver
) -> None:
    healthy = spawn("healthy", env=driver.env())
    healthy.call("open", A)
    healthy.publish(1 * GiB)
    driver.set(0, free=14 * GiB)
    assert refreshed(healthy, A)["free"] == 14 * GiB
    blind = spawn("blind", env=driver.env(init_error=18))
    assert blind.call("open", A) == A
    seen = wait_until(lambda: reading(blind, A), what="a reading")
    assert (seen["free"], seen["total"], seen["source"]) == (14 * GiB, 24 * GiB, "nvml")
    slots = {m["label"]: m["slot"] for m in blind.call("members")}
    assert seen["reader"] == slots["healthy"]
    assert blind.free() is not None
    # And it never refreshes in the healthy one's place: what changes, it sees through that one.
    driver.set(0, free=9 * GiB)
    wait_until(lambda: reading(blind, A)["free"] == 9 * GiB, what="the next reading")
    assert reading(blind, A)["reader"] == slots["healthy"]


def test_b40_failing_init_is_tried_once_per_step_by_each_process(
    spawn: Spawn, driver: FakeDriver
) -> None:
    driver.fail_init(18)
    member = spawn("host", env=driver.env())
    member.call("open", A)
    assert member.free() is None
    assert member.figures()["reason"] == "probe_failed"
    tried, begun = driver.calls("init"), time.monotonic()
    for _ in range(50):
        member.run(f"ledger._pool_sources[ledger.device({A!r})._pools()[0]].read().reason")
    # The steps are 1, 2, 4 ... seconds long, so there are at most as many as seconds, and one.
    assert driver.calls("init") - tried <= 1 + (time.monotonic() - begun), "one try per step"
    driver.fail_init(0)
    wait_until(lambda: refreshed(member, A)["free"] == 20 * GiB, what="recovery")


def test_b40_driver_reload_is_initialised_again(spawn: Spawn, driver: FakeDriver) -> None:
    """An update replaced the driver under running processes: their sessions were void for ever."""
    member = spawn("host", env=driver.env())
    member.call("open", A)
    assert refreshed(member, A)["free"] == 20 * GiB
    driver.reload()
    driver.set(0, free=3 * GiB)
    wait_until(lambda: refreshed(member, A)["free"] == 3 * GiB, what="a new session")
    assert driver.calls("init") == 2


def test_b40_refresher_killed_another_takes_over(spawn: Spawn, driver: FakeDriver) -> None:
    members = [spawn(f"m{n}", env=driver.env()) for n in range(3)]
    for member in members:
        member.call("open", A)
        member.publish(1 * GiB)
    slots = {m["slot"]: m["label"] for m in members[0].call("members")}
    first = wait_until(lambda: slots.get(reading(members[0], A)["reader"]), what="a reader")
    victim = members[int(first[1])]
    victim.kill()
    rest = [member for member in members if member is not victim]
    driver.set(0, free=11 * GiB)
    for member in rest:
        wait_until(lambda m=member: reading(m, A)["free"] == 11 * GiB, what="a takeover")
    assert slots[int(str(reading(rest[0], A)["reader"]))] != first


def test_b40_refresher_stopped_another_takes_over(spawn: Spawn, driver: FakeDriver) -> None:
    members = [spawn(f"m{n}", env=driver.env()) for n in range(2)]
    for member in members:
        member.call("open", A)
        member.publish(1 * GiB)
    slots = {m["slot"]: m["label"] for m in members[0].call("members")}
    reader = wait_until(lambda: slots.get(reading(members[0], A)["reader"]), what="a reader")
    stopped, other = members[int(reader[1])], members[1 - int(reader[1])]
    stopped.stop()
    driver.set(0, free=6 * GiB)
    wait_until(lambda: reading(other, A)["free"] == 6 * GiB, what="a takeover")
    stopped.resume()


def test_b40_refresher_hung_in_the_driver_costs_an_age_only(
    spawn: Spawn, driver: FakeDriver
) -> None:
    """One process's driver call never came back, and everybody waited for its figure."""
    members = [spawn(f"m{n}", env=driver.env()) for n in range(2)]
    for member in members:
        member.call("open", A)
        member.publish(1 * GiB)
    slots = {m["slot"]: m["label"] for m in members[0].call("members")}
    reader = wait_until(lambda: slots.get(reading(members[0], A)["reader"]), what="a reader")
    hung, other = members[int(reader[1])], members[1 - int(reader[1])]
    driver.slow_only(hung.pid)
    calls = driver.calls("v2")
    driver.set(0, latency_us=600_000_000, free=6 * GiB)
    for member in (other, hung):
        wait_until(lambda m=member: reading(m, A)["free"] == 6 * GiB, what="a takeover")
    hung.publish(2 * GiB)
    assert hung.free() is not None
    assert reading(hung, A)["reader"] != hung.call("info")["slot"]
    assert driver.calls("v2") > calls


def test_b41_eight_members_make_four_calls_a_second_together(
    spawn: Spawn, driver: FakeDriver
) -> None:
    """Counted over whole seconds of the machine's clock, however slow it is."""
    members = [spawn(f"m{n}", env=driver.env()) for n in range(8)]
    for member in members:
        member.call("open", A)
        member.publish(1 * GiB)
    calls, begun = driver.calls("v2", "v1"), time.monotonic()
    wait_until(lambda: driver.calls("v2", "v1") - calls >= 16, what="16 readings")
    elapsed_s = time.monotonic() - begun
    made = driver.calls("v2", "v1") - calls
    # One per period of 250 ms; one more stood at the start, and a takeover may add one.
    assert made <= elapsed_s / 0.25 + 2, f"{made} calls in {elapsed_s:.2f} s"
    assert driver.calls("init") == 8


def test_b41_without_v2_a_reading_is_still_one_call(spawn: Spawn, segment: Path) -> None:
    for without, v2_error in (((), 3), (("v2",), 0)):
        folder = segment.parent / f"without{len(without)}"
        folder.mkdir()
        driver = FakeDriver(folder, Card(A, v2_error=v2_error), without=without)
        member = spawn("host", env=driver.env())
        member.run("from memledger.readings.nvml import NvmlSource")
        member.run(f"source = NvmlSource({A!r})")
        assert member.run("source.read().used_includes_reserved") is True
        calls = driver.calls("v1", "v2")
        member.run("[source.read().free for _ in range(10)]")
        assert driver.calls("v1", "v2") - calls == 10


def test_b41_suspended_gpu_gets_no_call_at_all(
    spawn: Spawn, driver: FakeDriver, tmp_path: Path
) -> None:
    """An open NVML handle kept a laptop's GPU awake for ever."""
    device = tmp_path / "sys/bus/pci/devices/0000:01:00.0"
    (device / "power").mkdir(parents=True)
    for name, text in (("vendor", "0x10de"), ("class", "0x030000"), ("device", "0x2684"),
                       ("power/runtime_status", "suspended")):  # fmt: skip
        (device / name).write_text(text + "\n")
    (tmp_path / "proc/driver/nvidia/gpus/0000:01:00.0").mkdir(parents=True)
    (tmp_path / "proc/driver/nvidia/gpus/0000:01:00.0/information").write_text(
        f"Model: Fake RTX\nGPU UUID: {A}\n"
    )
    member = spawn("host", join=False, env=driver.env())
    member.run("from memledger.readings import resolve, candidates")
    member.run(f"spec = resolve('cuda:0', root={str(tmp_path)!r})")
    assert member.run("spec.key") == A
    assert member.run("spec.sources[0].read().reason") == "suspended"
    assert member.run(f"candidates(root={str(tmp_path)!r})")
    assert driver.calls() == 0
    (device / "power/runtime_status").write_text("active\n")
    assert member.run("spec.sources[0].read().free") == 20 * GiB
    (device / "power/runtime_status").write_text("suspended\n")
    calls = driver.calls()
    assert member.run("spec.sources[0].read().reason") == "suspended"
    assert driver.calls() == calls


def test_b41_who_does_not_read_keeps_no_session_and_nobody_after_leaving(
    spawn: Spawn, driver: FakeDriver
) -> None:
    """Every member once opened NVML at its first figure and never closed it."""
    refresher, other = (spawn(name, env=driver.env()) for name in ("refresher", "other"))
    for member in (refresher, other):
        member.call("open", A)
    refresher.publish(1 * GiB)
    # It found a fresh reading, so it may have looked for the device only.
    # On a busy machine it would stand in for the refresher now and then, which is not meant here.
    other.run(f"ledger._set_reader(ledger.device({A!r})._pools()[0], False)")
    wait_until(lambda: driver.calls("shutdown") == 1, what="the idle session is closed")
    driver.set(0, free=5 * GiB)
    wait_until(lambda: reading(other, A)["free"] == 5 * GiB, what="a reading by the refresher")
    assert driver.calls("init") == 2
    for member in (refresher, other):
        member.call("leave")
    assert driver.calls("init") == driver.calls("shutdown")


def test_b41_woken_gpu_is_read_again_soon(spawn: Spawn, driver: FakeDriver) -> None:
    member = spawn("host", env=driver.env())
    member.call("open", A)
    member.publish(1 * GiB)
    member.run("import memledger.readings.nvml as n; n.is_suspended = lambda root, pci: True")
    wait_until(lambda: len(member.run("list(ledger._source_retry)")) == 1, what="it sleeps")
    calls = driver.calls()
    for _ in range(20):
        member.run(f"ledger.device({A!r}).refresh(max_age_s=0)")
    member.run("[ledger._reader_failed(p, 'suspended') for p in [*ledger._source_retry] * 9]")
    steps = member.run("[step for _, step in ledger._source_retry.values()]")
    assert steps == [1.0], "sleep is no failure, so the pauses do not grow"
    # Its idle session is closed in its time; nothing is asked.
    assert driver.calls() - driver.calls("shutdown") <= calls
    assert member.free() is not None, "the last good figure, with its age"
    driver.set(0, free=8 * GiB)
    member.run("n.is_suspended = lambda root, pci: False")
    wait_until(lambda: reading(member, A)["free"] == 8 * GiB, what="a reading after it woke")
