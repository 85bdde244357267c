"""The oracle: what it may see, and whether it notices."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest

from memledger.demo.log import Event, Log, Request, read_events, request_event, request_of
from memledger.demo.oracle import Disagreement, compare, decide_anew
from memledger.demo.policy import GIB, Checkpoint, Step

TOTAL = 48 * GIB
CHECKPOINT = Checkpoint(fp8_bytes=12 * GIB, activation_bytes=2 * GIB)
STEP = Step(image_bytes=GIB, most=8)


def _load(who: str, decision: str | None, subject: str = "model") -> Event:
    request = Request("load", who, f"{who}/{subject}", checkpoint=CHECKPOINT)
    return request_event(request) | {"decision": decision, "figures": {"free": 1, "budget": 1}}


def _step(who: str, number: int, decision: int) -> Event:
    request = Request("step", who, f"{who}/step {number}", step=STEP)
    return request_event(request) | {"decision": decision}


def _free(who: str, what: str) -> Event:
    return request_event(Request("free", who, f"{who}/{what}"))


def a_right_log() -> list[Event]:
    return [
        _load("a", "fp16"),  # 48 free
        _load("b", "fp8"),  # 22
        _step("a", 1, 5),  # 8
        _step("b", 1, 2),  # 3
        _free("a", "step 1"),
        _step("a", 2, 4),  # 6
        _free("b", "step 1"),
        _free("a", "step 2"),
        _free("a", "model"),
        _load("b", "fp16", "second"),  # 34, own 14 resident
        request_event(Request("died", "b", "b")),
        _load("a", "fp16", "third"),
    ]


def test_compare_right_log_agrees() -> None:
    verdict, disagreements = compare(a_right_log(), TOTAL)
    assert disagreements == []
    assert verdict.ooms == 0
    assert verdict.peak_bytes == 47 * GIB
    assert verdict.decisions["b/model"] == "fp8"


@pytest.mark.parametrize(
    ("line", "altered"), [(0, "fp8"), (1, "fp16"), (1, None), (2, 8), (5, 0), (9, "fp8")]
)
def test_oracle_altered_decision_changes_nothing(line: int, altered: str | int | None) -> None:
    """An oracle that looks at what the run decided would agree with anything."""
    events = a_right_log()
    before, _ = compare(events, TOTAL)
    was = events[line]["decision"]
    events[line]["decision"] = altered
    events[line]["figures"] = {"free": 0, "budget": 0, "held": 99 * GIB}
    after, disagreements = compare(events, TOTAL)
    assert after == before
    assert disagreements == [Disagreement(events[line]["subject"], altered, was)]


def _smaller_checkpoint(events: list[Event]) -> None:
    events[1]["checkpoint"]["fp8_bytes"] = 6 * GIB


def _larger_image(events: list[Event]) -> None:
    events[2]["step"]["image_bytes"] = 2 * GIB


def _no_free(events: list[Event]) -> None:
    del events[4]


def _other_order(events: list[Event]) -> None:
    events[0], events[1] = events[1], events[0]


def _other_owner(events: list[Event]) -> None:
    events[8]["who"] = "b"


def _no_death(events: list[Event]) -> None:
    del events[10]


@pytest.mark.parametrize(
    "alter",
    [_smaller_checkpoint, _larger_image, _no_free, _other_order, _other_owner, _no_death],
)
def test_compare_altered_request_disagrees(alter: object) -> None:
    events = copy.deepcopy(a_right_log())
    assert callable(alter)
    alter(events)
    assert compare(events, TOTAL)[1]


def test_compare_missing_decision_is_a_disagreement() -> None:
    events = a_right_log()
    del events[2]["decision"]
    assert compare(events, TOTAL)[1] == [Disagreement("a/step 1", None, 5)]


def test_request_of_carries_no_decision() -> None:
    event = _load("a", "fp16")
    request = request_of(event)
    assert request == Request("load", "a", "a/model", checkpoint=CHECKPOINT)
    assert request_event(request) == {
        key: value for key, value in event.items() if key not in ("decision", "figures")
    } | {"checkpoint": CHECKPOINT._asdict()}


def test_decide_anew_unknown_request_raises() -> None:
    with pytest.raises(ValueError, match="unknown request"):
        decide_anew([Request("guess", "a", "a/x")], TOTAL)


def test_decide_anew_load_without_room_is_none_and_takes_nothing() -> None:
    requests = [request_of(_load("a", None))]
    verdict = decide_anew(requests, 13 * GIB)
    assert (verdict.decisions, verdict.ooms, verdict.peak_bytes) == ({"a/model": None}, 0, 0)


def _pin(who: str, number: int, decision: int) -> Event:
    request = Request("pin", who, f"{who}/{number}", nbytes=2)
    return request_event(request) | {"decision": decision}


def _prompt(kind: str, group: str) -> Event:
    return request_event(Request(kind, f"server-{group}", "prompt", group=group))


def _turn(group: str, number: int, decision: str) -> Event:
    request = Request("turn", f"worker-{group}", f"worker-{group}/{number}", group=group)
    return request_event(request) | {"decision": decision}


def pins() -> list[Event]:
    return [_pin("a", 0, 2), _pin("b", 0, 2), _pin("a", 1, 0), _pin("b", 1, 0)]


def turns() -> list[Event]:
    return [
        _prompt("begin", "a"),
        _prompt("begin", "b"),
        _turn("a", 0, "made"),
        _turn("b", 0, "made"),
        _prompt("stop", "a"),
        _turn("a", 1, "stopped"),
        _turn("b", 1, "made"),
        _prompt("begin", "a"),
        _turn("a", 2, "made"),
    ]


def test_compare_pins_and_turns_agree() -> None:
    verdict, disagreements = compare(pins(), 5)
    assert (verdict.peak_bytes, verdict.ooms, disagreements) == (4, 0, [])
    assert compare(turns(), TOTAL)[1] == []


@pytest.mark.parametrize(("line", "altered"), [(0, 0), (2, 2), (3, 2)])
def test_oracle_altered_pin_changes_nothing(line: int, altered: int) -> None:
    events = pins()
    before, _ = compare(events, 5)
    was, events[line]["decision"] = events[line]["decision"], altered
    assert compare(events, 5) == (
        before,
        [Disagreement(events[line]["subject"], altered, was)],
    )


@pytest.mark.parametrize("line", [2, 3, 5, 6, 8])
def test_oracle_altered_turn_changes_nothing(line: int) -> None:
    events = turns()
    before, _ = compare(events, TOTAL)
    was = events[line]["decision"]
    altered = events[line]["decision"] = "stopped" if was == "made" else "made"
    assert compare(events, TOTAL) == (
        before,
        [Disagreement(events[line]["subject"], altered, was)],
    )


def test_compare_altered_pins_and_turns_disagree() -> None:
    assert compare(pins(), 3)[1]
    larger = pins()
    larger[0]["nbytes"] = 4
    assert compare(larger, 5)[1]
    other_group = turns()
    other_group[4]["group"] = "b"
    assert compare(other_group, TOTAL)[1]
    del (no_click := turns())[4]
    assert compare(no_click, TOTAL)[1]
    del (no_second_prompt := turns())[7]
    assert compare(no_second_prompt, TOTAL)[1]


def test_pin_and_turn_requests_survive_their_events() -> None:
    for event in (*pins(), *turns()):
        assert request_event(request_of(event)) == {
            key: value for key, value in event.items() if key != "decision"
        }


def test_log_lines_survive_the_file(tmp_path: Path) -> None:
    log = Log(str(tmp_path / "log.jsonl"))
    with log.in_order():
        for event in a_right_log():
            log.write(event)
    log.close()
    events = read_events(log.path)
    assert [request_of(event) for event in events] == [request_of(e) for e in a_right_log()]
    assert compare(events, TOTAL)[1] == []
