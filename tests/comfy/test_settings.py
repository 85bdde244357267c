"""The switches: what the environment can say, and what it cannot."""

from __future__ import annotations

from typing import Any

import pytest

from helpers.adapters import load

NAMES = ("free", "oom", "pins")


settings_module = load("settings")


def read(**environ: str) -> Any:
    return settings_module.from_environ(environ, NAMES)


def test_without_a_word_everything_is_on() -> None:
    settings = read()
    assert settings.enabled
    assert not settings.complaints
    assert [settings.why_off(name) for name in NAMES] == [None] * 3


@pytest.mark.parametrize("word", ["off", "OFF", " 0 ", "no", "false"])
def test_one_word_switches_all_of_it_off(word: str) -> None:
    settings = read(MEMLEDGER_COMFY=word)
    assert not settings.enabled
    assert settings.why_off("free") == "MEMLEDGER_COMFY=off"


@pytest.mark.parametrize("word", ["on", "1", "yes", "TRUE", ""])
def test_a_yes_is_the_default(word: str) -> None:
    settings = read(MEMLEDGER_COMFY=word)
    assert settings.enabled
    assert settings.only is None


def test_a_list_is_what_is_on() -> None:
    settings = read(MEMLEDGER_COMFY="free, oom")
    assert settings.why_off("free") is None
    assert settings.why_off("oom") is None
    assert settings.why_off("pins") == "not in MEMLEDGER_COMFY"


def test_unknown_names_are_named_and_the_known_ones_hold() -> None:
    settings = read(MEMLEDGER_COMFY="free,fre")
    assert settings.complaints == ("MEMLEDGER_COMFY: unknown fre; known: free, oom, pins",)
    assert settings.only == {"free"}
    nothing_known = read(MEMLEDGER_COMFY="fre")
    assert nothing_known.only is None, "a typing error must not switch everything off"
    assert nothing_known.complaints


def test_one_behaviour_is_switched_off() -> None:
    settings = read(MEMLEDGER_COMFY_OOM="off", MEMLEDGER_COMFY_PINS="on")
    assert settings.why_off("oom") == "MEMLEDGER_COMFY_OOM=off"
    assert settings.why_off("pins") is None
    odd = read(MEMLEDGER_COMFY_OOM="perhaps")
    assert odd.why_off("oom") is None
    assert odd.complaints == ("MEMLEDGER_COMFY_OOM: expected on or off, got 'perhaps'",)


def test_devices_are_mapped() -> None:
    settings = read(MEMLEDGER_COMFY_DEVICES="cuda:0=sim:card?total=24GiB, cuda:1 = GPU-1,")
    assert settings.devices == {"cuda:0": "sim:card?total=24GiB", "cuda:1": "GPU-1"}
    assert not settings.complaints


@pytest.mark.parametrize("entry", ["cuda:0", "=GPU-1", "cuda:0="])
def test_a_device_that_cannot_be_read_is_named(entry: str) -> None:
    settings = read(MEMLEDGER_COMFY_DEVICES=f"{entry},cuda:1=GPU-1")
    assert settings.devices == {"cuda:1": "GPU-1"}
    assert len(settings.complaints) == 1
    assert repr(entry) in settings.complaints[0]


def test_a_switch_that_does_not_exist_is_said() -> None:
    settings = read(MEMLEDGER_COMFY_PIN="off")
    assert settings.why_off("pins") is None
    assert len(settings.complaints) == 1
    assert settings.complaints[0].startswith("MEMLEDGER_COMFY_PIN: no such switch")
    handed = ("DEVICES", "LIBRARY", "ADAPTERS", "HOST")
    assert not read(**{f"MEMLEDGER_COMFY_{name}": "" for name in handed}).complaints
