"""What somebody new trips over is said in words that name it: arguments, handles, refusals."""

from __future__ import annotations

import logging
import os
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import memledger
from helpers.members import Member
from helpers.units import GiB
from memledger.readings import nvidia
from memledger.readings.nvml import NvmlSession


@pytest.fixture
def card(ledger: memledger.Ledger) -> memledger.Device:
    return ledger.device("sim:card?total=24GiB")


# ---- arguments

WRONG_JOINS: list[tuple[str, type[Exception], dict[str, Any]]] = [
    ("label", TypeError, {"label": 5}),
    ("label", ValueError, {"label": "a\0b"}),
    ("path", TypeError, {"path": 3}),
    ("role", ValueError, {"role": "king"}),
    ("group", TypeError, {"group": 7}),
]


@pytest.mark.parametrize(("name", "kind", "arguments"), WRONG_JOINS)
def test_wrong_argument_of_join_is_named(
    segment: Path, name: str, kind: type[Exception], arguments: dict[str, Any]
) -> None:
    with pytest.raises(kind, match=f"^{name}: "):
        memledger.join(**arguments)


WRONG_CALLS: list[tuple[str, Callable[[Any], object]]] = [
    ("timeout", lambda card: card.claim(1, timeout="1")),
    ("ttl", lambda card: card.claim(1, ttl="1")),
    ("ttl", lambda card: card.try_claim(1, ttl="1")),
    ("nbytes", lambda card: card.claim("1")),
    ("sizes", lambda card: card.claim_first(1)),
    ("timeout", lambda card: card.ask(1, timeout="1")),
    ("max_age_s", lambda card: card.refresh("1")),
    ("max_s", lambda card: card.window("1").__enter__()),
    ("timeout", lambda card: card.wait_clear("1")),
    ("name", lambda card: card.account(5)),
    ("timeout", lambda card: card._ledger.serve("1")),
    ("bound_s", lambda card: card._ledger.as_holder("1")),
    ("job_id", lambda card: card._ledger.job(3)),
    ("prompt_id", lambda card: card._ledger.prompt_begin(3)),
]


@pytest.mark.parametrize(("name", "call"), WRONG_CALLS)
def test_wrong_argument_of_a_call_is_named(
    card: memledger.Device, name: str, call: Callable[[Any], object]
) -> None:
    with pytest.raises(TypeError, match=f"^{name}: "):
        call(card)


# ---- what a handle says of itself


def test_reprs_tell_what_is_held_and_claimed(card: memledger.Device) -> None:
    card.publish(2 * GiB, releasable=GiB)
    weights = card.account("weights")
    weights.publish(GiB)
    assert f"held={2 * GiB} releasable={GiB}" in repr(card)
    assert "'weights'" in repr(weights)
    assert f"held={GiB}" in repr(weights)
    claim = card.claim(4 * GiB)
    assert repr(claim) == f"<memledger.Claim on 'sim:card' size={4 * GiB} open={4 * GiB} open>"
    claim.publish(held=5 * GiB)
    assert f"open={GiB} open" in repr(claim)
    claim.cancel()
    assert "ended" in repr(claim)
    unknown = card._ledger.device("GPU-" + "0" * 8 + "-0000-0000-0000-" + "0" * 12)
    assert "not checked" in repr(unknown.claim(GiB))


def test_repr_of_a_pin_claim_tells_its_size(ledger: memledger.Ledger) -> None:
    pin = ledger.device("ram").try_pin(5000)
    assert pin is not None
    assert repr(pin) == "<memledger.PinClaim size=8192 open=8192 open>"
    pin.cancel()
    assert "ended" in repr(pin)


# ---- joining


def test_second_join_with_another_role_warns_that_it_is_the_first_handle(segment: Path) -> None:
    first = memledger.join(label="a", role="worker")
    with pytest.warns(RuntimeWarning, match=r"'worker'.*role='host'") as caught:
        assert memledger.join(role="host") is first
    assert caught[0].filename == __file__
    with pytest.warns(RuntimeWarning, match="group='other'"):
        assert memledger.join(group="other") is first
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert memledger.join(label="b") is first
        assert memledger.join(role="worker") is first


def test_private_ledger_says_why_in_its_repr_and_in_one_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "absent" / "segment"
    with caplog.at_level(logging.WARNING, logger="memledger"):
        ledger = memledger.join(path=path)
    try:
        assert ledger.degraded_reason is not None
        assert ledger.degraded_reason in repr(ledger)
        said = [record.getMessage() for record in caplog.records if record.name == "memledger"]
        assert len(said) == 1
        assert ledger.degraded_reason in said[0]
    finally:
        ledger.leave()


def test_private_ledger_prints_nothing_where_no_logging_is_set_up(spawn: Any) -> None:
    member: Member = spawn("x", join=False)  # the fixture fails on any output
    member.join("x", path="/nonexistent/segment")
    assert member.run("me.ledger.scope") == "private"


def test_private_ledger_joins_where_nothing_more_can_be_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a change of the user or of the root."""
    monkeypatch.setitem(sys.modules, "logging", None)
    with memledger.join(path=tmp_path / "absent" / "segment") as ledger:
        assert ledger.scope == "private"


def test_relative_path_is_made_absolute_when_joining(
    spawn: Any, segment: Path, tmp_path: Path
) -> None:
    """The segment is opened anew when it is replaced; by then the working directory may have
    changed."""
    member: Member = spawn(
        "x", join=False, env={"MEMLEDGER_PATH": segment.name}, cwd=str(segment.parent)
    )
    member.join("x")
    assert member.run("me.ledger.path") == str(segment)
    member.run(f"os.chdir({str(tmp_path)!r}); me.ledger.leave()")
    assert member.run("import memledger; memledger.join('y').path") == str(tmp_path / segment.name)


def test_relative_path_argument_is_the_same_ledger_as_the_absolute_one(
    segment: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(segment.parent)
    ledger = memledger.join(path=segment.name)
    assert memledger.join(path=segment) is ledger
    assert ledger.path == str(segment)
    assert os.path.isabs(ledger.path)


# ---- claims that can never fit


def test_claim_above_the_whole_device_is_refused_without_waiting(card: memledger.Device) -> None:
    """With an hour's patience: the watchdog would bark if it waited."""
    with pytest.raises(memledger.ClaimRefused, match=r"the whole device has 24\.0 GiB"):
        card.claim(25 * GiB, timeout=3600)


def test_claim_above_a_level_of_the_chain_is_refused_without_waiting(spawn: Any) -> None:
    member: Member = spawn("x")
    member.run(
        "inner = plain_device(ledger, 'test:inner', 24 << 30, ('test:outer',))\n"
        "outer = plain_device(ledger, 'test:outer', 8 << 30)"
    )
    text = member.run(
        "import memledger\n"
        "def refused():\n"
        "    try: inner.claim(9 << 30, timeout=3600)\n"
        "    except memledger.ClaimRefused as error: return str(error)\n"
        "refused()"
    )
    assert "the whole device has 8.0 GiB" in text


def test_claim_that_would_fit_without_the_others_still_waits(
    spawn: Any, card: memledger.Device, segment: Path
) -> None:
    other: Member = spawn("other")
    other.call("open", "sim:card")
    other.publish(20 * GiB)
    other.send_run("import time; time.sleep(0.05); device.publish(0)")
    with card.claim(24 * GiB, timeout=30) as claim:
        assert claim.checked
    other.receive()


def test_headroom_does_not_make_a_claim_hopeless(
    spawn: Any, card: memledger.Device, segment: Path
) -> None:
    """Whoever wants it may take it back."""
    other: Member = spawn("other")
    other.call("open", "sim:card")
    other.run("device.headroom(4 << 30)")
    other.send_run("import time; time.sleep(0.05); device.headroom(0)")
    with card.claim(24 * GiB, timeout=30) as claim:
        assert claim.checked
    other.receive()


# ---- devices


def test_card_below_one_unit_is_refused_with_the_least_size(ledger: memledger.Ledger) -> None:
    with pytest.raises(memledger.InvalidFigure, match=r"total: .*4096 bytes.*got 4095"):
        ledger.device("sim:tiny?total=4095")
    assert ledger.device("sim:tiny?total=4096").free() == 4096


def test_cuda_without_the_package_first_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    session = NvmlSession(root=str(tmp_path))
    with pytest.raises(memledger.UnknownDevice, match=r"'cuda:0': pip install nvidia-ml-py: "):
        nvidia.resolve("cuda:0", root=str(tmp_path), environ={}, session=session)
