"""stats(): what people see of the ledger. Whoever reads it must be able to trust each figure."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import memledger
from helpers.member import plain_device
from helpers.web_page import adapter

module = adapter("stats")
SCHEMA, stats, system_stats_block = module.SCHEMA, module.stats, module.system_stats_block
GIB = 1 << 30
CARD = "sim:card?total=24GiB"
HOSTILE = '<img src=x onerror="window.hit=1">'


@pytest.fixture
def host(segment: Path) -> memledger.Ledger:
    return memledger.join(label="comfyui-host", role="host")


def of(shown: dict[str, Any], name: str) -> dict[str, Any]:
    found = [device for device in shown["devices"] if device["name"] == name]
    assert len(found) == 1, f"{name}: {[device['name'] for device in shown['devices']]}"
    return found[0]


def plain(shown: dict[str, Any]) -> dict[str, Any]:
    """Through JSON and back: what a page gets. NaN and Infinity are no JSON."""
    copy: dict[str, Any] = json.loads(json.dumps(shown, allow_nan=False))
    assert copy == shown
    return copy


def test_figures_and_rows_of_two_members(
    host: memledger.Ledger, spawn: Callable[..., Any], wait_until: Callable[..., Any]
) -> None:
    """Failure: rows and figures that do not add up, or a sibling's row under our name."""
    card = host.device(CARD)
    card.publish(held=10 * GIB, releasable=4 * GIB, pinned=1 * GIB)
    worker = spawn(join=False, env={"MEMLEDGER_GROUP": host.group})
    worker.join("a worker", role="worker")
    worker.call("open", CARD)
    worker.publish(3 * GIB, 2 * GIB)
    stranger = spawn(join=False)
    stranger.join(HOSTILE, role="host")
    stranger.call("open", CARD)
    stranger.publish(1 * GIB)
    with card.claim(2 * GIB):
        wait_until(lambda: card.figures().unaccounted == 0)
        shown = plain(stats(host))
    device = of(shown, "sim:card")
    assert shown["schema"] == SCHEMA
    assert (shown["status"], shown["degraded_reason"]) == ("ok", None)
    assert (device["total"], device["held"], device["releasable"]) == (24 * GIB, 14 * GIB, 6 * GIB)
    assert (device["claimed"], device["pinned"], device["unaccounted"]) == (2 * GIB, GIB, 0)
    assert (device["free"], device["available"], device["overcommitted"]) == (8 * GIB, 14 * GIB, 0)
    assert (device["kind"], device["opened"]) == ("sim", True)
    assert (device["reading"]["source"], device["reading"]["reason"]) == ("sim", None)
    assert device["reading"]["age_s"] >= 0
    rows = {row["label"]: row for row in device["members"]}
    own = rows["comfyui-host"]
    assert (own["pid"], own["relation"], own["role"]) == (os.getpid(), "own", "host")
    assert (own["held"], own["releasable"], own["claimed"], own["pinned"]) == (
        10 * GIB, 4 * GIB, 2 * GIB, GIB,
    )  # fmt: skip
    assert (rows["a worker"]["relation"], rows["a worker"]["held"]) == ("group", 3 * GIB)
    assert (rows[HOSTILE]["relation"], rows[HOSTILE]["pid"]) == ("other", stranger.pid)
    assert {member["pid"] for member in shown["members"]} == {
        os.getpid(), worker.pid, stranger.pid,
    }  # fmt: skip


def test_device_that_only_a_sibling_opened_is_shown(
    host: memledger.Ledger, spawn: Callable[..., Any]
) -> None:
    """Failure: the host shows its own card only, and a worker's second card is invisible."""
    sibling = spawn("sibling", total=8 * GIB, key="test:second")
    sibling.publish(5 * GIB)
    host.device(CARD)
    shown = plain(stats(host))
    second = of(shown, "test:second")
    assert (second["opened"], second["held"], second["total"]) == (False, 5 * GIB, 8 * GIB)
    assert of(shown, "sim:card")["opened"] is True


def test_unknown_figures_are_null(host: memledger.Ledger) -> None:
    """Failure: a device that nobody can read is shown as full, or as empty."""
    device = plain_device(host, "test:dark", None)
    device.publish(3 * GIB)
    for shown in (
        of(plain(stats(host, own_devices=[device])), "test:dark"),
        plain(system_stats_block(host, own_devices={"cuda:0": device}))["devices"][0],
    ):
        unknown = ("total", "free", "available", "unaccounted", "overcommitted")
        assert {field: shown[field] for field in unknown} == dict.fromkeys(unknown)
        assert shown["held"] == 3 * GIB
    reading = of(plain(stats(host, own_devices=[device])), "test:dark")["reading"]
    assert (reading["source"], reading["age_s"]) == (None, None)
    assert reading["reason"] == "no_probe"


def test_overcommit_is_shown(host: memledger.Ledger) -> None:
    device = plain_device(host, "test:small", 4 * GIB)
    device.publish(6 * GIB)
    shown = of(plain(stats(host, own_devices=[device])), "test:small")
    assert (shown["overcommitted"], shown["free"]) == (2 * GIB, 0)


def test_names_of_comfyui_are_kept(host: memledger.Ledger) -> None:
    """Failure: the panel speaks of sim:card where ComfyUI speaks of cuda:0; or one card twice."""
    card = host.device(CARD)
    host.device("ram")
    names = {"cuda:0": card, "cuda:0 again": card}
    shown = plain(stats(host, own_devices=names))
    assert of(shown, "cuda:0")["key"] == "sim:card"
    assert [device["key"] for device in shown["devices"]].count("sim:card") == 1
    block = plain(system_stats_block(host, own_devices=names))
    assert [device["name"] for device in block["devices"]] == ["cuda:0"]


def test_degraded_ledger_says_why_and_still_shows_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Failure: a private ledger looks like a machine with one process on it."""
    path = tmp_path / "memledger-v1-0"
    path.write_bytes(b"something else\n" * 1000)
    path.chmod(0o600)
    ledger = memledger.join(label="alone", path=path)
    try:
        ledger.device(CARD).publish(held=GIB)
        shown = plain(stats(ledger))
        assert (shown["status"], shown["scope"]) == ("degraded", "private")
        assert shown["degraded_reason"]
        assert shown["complete"] is False
        assert of(shown, "sim:card")["held"] == GIB
        assert of(shown, "sim:card")["complete"] is False
        assert plain(system_stats_block(ledger))["degraded_reason"] == shown["degraded_reason"]
    finally:
        ledger.leave()


def test_no_ledger_is_off() -> None:
    shown = plain(stats(None))
    assert (shown["schema"], shown["status"]) == (SCHEMA, "off")
    assert shown["degraded_reason"]


def test_counters_are_summed(host: memledger.Ledger, spawn: Callable[..., Any]) -> None:
    host.device(CARD).note_oom()
    sibling = spawn("sibling", total=GIB)
    sibling.run("device.note_oom(); device.note_oom()")
    shown = plain(stats(host))
    assert shown["counters"]["ooms"] == 3
    assert {m["label"]: m["counters"]["ooms"] for m in shown["members"]} == {
        "comfyui-host": 1, "sibling": 2,
    }  # fmt: skip


def test_a_dead_process_with_our_pid_is_not_us(host: memledger.Ledger) -> None:
    """Failure: what a killed server with our pid left behind is shown as our own."""
    (own,) = host.members()
    dead = own._replace(slot=own.slot + 1, state="dead", leader=None)
    relations = [relation for _, relation in module._relations([dead, own]).values()]
    assert relations == ["other", "own"]


def test_block_is_a_part_of_the_stats(host: memledger.Ledger) -> None:
    """Failure: /system_stats and the panel use one word for two things."""
    device = plain_device(host, "test:card", 8 * GIB)  # nobody reads it: both looks see the same
    device.publish(2 * GIB, releasable=GIB)
    whole = plain(stats(host, own_devices=[device]))
    block = plain(system_stats_block(host, own_devices=[device]))
    large, small = whole["devices"][0], block["devices"][0]
    assert {name: large[name] for name in small if name != "members"} == {
        name: value for name, value in small.items() if name != "members"
    }
    assert [{name: row[name] for name in small["members"][0]} for row in large["members"]] == (
        small["members"]
    )


def test_after_leave_it_raises_and_makes_up_nothing(host: memledger.Ledger) -> None:
    host.device(CARD)
    host.leave()
    with pytest.raises(memledger.LedgerError):
        stats(host)
