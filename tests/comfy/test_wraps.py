"""Wrapping: everything passes through, twice is once, and whoever wraps over us keeps it."""

from __future__ import annotations

import asyncio
import functools
import importlib
import inspect
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from helpers.adapters import load

Wraps = load("wraps").Wraps

SOURCE = """
calls = []
def size(a, b=2, *rest, **named):
    calls.append((a, b, rest, named))
    return a + b
def boom():
    raise KeyError("upstream's own")
async def later():
    return 7
class Model:
    def size(self, n):
        return n
    @staticmethod
    def fixed():
        return 1
class Child(Model):
    pass
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    (tmp_path / "upstream_double.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield importlib.import_module("upstream_double")
    del sys.modules["upstream_double"]


def double(value: Any, args: Any, kwargs: Any) -> Any:
    return value * 2


def fails(*_: Any) -> Any:
    raise ValueError("ours")


def test_everything_is_passed_on(module: Any) -> None:
    assert Wraps().result(module, "size", "k", double)
    assert module.size(1, 5, 6, x=7) == 12
    assert module.calls == [(1, 5, (6,), {"x": 7})]
    assert module.size.__name__ == "size"
    assert module.size.__wrapped__ is not module.size


def test_an_absent_name_is_said_and_nothing_changes(module: Any) -> None:
    wraps = Wraps()
    module.number = 3
    before = dict(vars(module))
    for name in ("missing", "number"):
        assert not wraps.result(module, name, "k", double)
        assert not wraps.around(module, name, "k", lambda *_: None)
        assert not wraps.replace(module, name, "k", lambda original: original)
    assert vars(module) == before


def test_twice_is_once_also_under_somebody_elses_wrap(module: Any) -> None:
    wraps = Wraps()
    for _ in range(2):
        assert wraps.result(module, "size", "k", double)
    ours = module.size

    @functools.wraps(ours)
    def theirs(*args: Any, **kwargs: Any) -> Any:
        return ours(*args, **kwargs) + 100

    module.size = theirs
    assert wraps.result(module, "size", "k", double)
    assert module.size(1) == 106


def test_twice_is_once_under_a_wrap_that_says_nothing(module: Any) -> None:
    """Claims of siblings would be subtracted twice: packs wrap by a bare lambda."""
    wraps = Wraps()
    wraps.result(module, "size", "k", double)
    ours = module.size
    module.size = lambda *args: ours(*args) + 100
    assert wraps.result(module, "size", "k", double)
    assert module.size(1) == 106


def test_a_reloaded_module_is_wrapped_again(module: Any) -> None:
    wraps = Wraps()
    wraps.result(module, "size", "k", double)
    wraps.result(module.Model, "size", "k", double)
    importlib.reload(module)
    assert module.size(1) == 3
    assert wraps.result(module, "size", "k", double)
    assert wraps.result(module.Model, "size", "k", double)
    assert (module.size(1), module.Model().size(4)) == (6, 8)
    wraps.undo()
    assert (module.size(1), module.Model().size(4)) == (3, 4)


@pytest.mark.parametrize("ours_first", [True, False])
def test_two_who_wrap_the_same_in_either_order(module: Any, ours_first: bool) -> None:
    wraps = Wraps()

    def other() -> None:
        inner = module.size
        module.size = lambda *args: inner(*args) + 100

    steps = [lambda: wraps.result(module, "size", "k", double), other]
    for step in steps if ours_first else reversed(steps):
        step()
    assert module.size(1) == (106 if ours_first else 206)
    wraps.undo()
    assert module.size(1) == 103


def test_undo_puts_the_very_functions_back(module: Any) -> None:
    before = {name: vars(module)[name] for name in ("size", "boom", "later")}
    methods = dict(vars(module.Model)), dict(vars(module.Child))
    wraps = Wraps()
    for name in before:
        wraps.result(module, name, "k", double)
        wraps.around(module, name, "k2", lambda *_: None)
    wraps.result(module.Child, "size", "k", double)
    assert "size" in vars(module.Child)
    wraps.result(module.Model, "size", "k", double)
    wraps.undo()
    assert {name: vars(module)[name] for name in before} == before
    assert (dict(vars(module.Model)), dict(vars(module.Child))) == methods


def test_what_a_class_inherits_wrapped_is_wrapped(module: Any) -> None:
    wraps = Wraps()
    wraps.result(module.Model, "size", "k", double)
    assert wraps.result(module.Child, "size", "k", double)
    assert module.Child().size(1) == 2


def test_a_static_method_is_refused(module: Any) -> None:
    with pytest.raises(TypeError, match="staticmethod"):
        Wraps().result(module.Model, "fixed", "k", double)
    assert module.Model.fixed() == 1


def test_our_errors_cost_one_line_and_upstreams_value_stands(
    module: Any, caplog: pytest.LogCaptureFixture
) -> None:
    wraps = Wraps()
    wraps.result(module, "size", "a", fails)
    wraps.around(module, "size", "b", fails)
    wraps.around(module, "size", "c", lambda *_: fails)
    for _ in range(3):
        assert module.size(1) == 3
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 3, lines
    assert all("ValueError: ours; ComfyUI's own value is used" in line for line in lines)


def test_upstreams_error_is_upstreams(module: Any, caplog: pytest.LogCaptureFixture) -> None:
    seen: list[Any] = []
    wraps = Wraps()
    wraps.result(module, "boom", "d", double)
    wraps.around(module, "boom", "e", lambda *_: lambda *ended: seen.append(ended))
    with pytest.raises(KeyError, match="upstream's own"):
        module.boom()
    assert [value for value, _ in seen] == [None]
    assert isinstance(seen[0][1], KeyError)
    assert not caplog.records


def test_around_sees_the_value_and_the_end_of_an_interrupt(module: Any) -> None:
    seen: list[Any] = []

    def enter(args: Any, kwargs: Any) -> Any:
        seen.append((args, kwargs))
        return lambda value, error: seen.append((value, type(error)))

    wraps = Wraps()
    wraps.around(module, "size", "k", enter)
    module.size(1, b=4)
    assert seen == [((1,), {"b": 4}), (5, type(None))]

    def interrupted(*_: Any) -> Any:
        raise KeyboardInterrupt

    module.Model.size = interrupted
    wraps.around(module.Model, "size", "k", enter)
    with pytest.raises(KeyboardInterrupt):
        module.Model().size(1)
    assert seen[-1] == (None, KeyboardInterrupt)


def test_replace_decides_itself(module: Any) -> None:
    wraps = Wraps()
    wraps.replace(module, "size", "k", lambda original: lambda n: original(n) + 1000)
    assert module.size(1) == 1003
    inner = module.size
    module.size = lambda n: inner(n)
    wraps.undo()
    assert module.size(1) == 3, "under somebody else's wrap it does nothing more"


def test_copies_of_a_name_are_found(module: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    pack = ModuleType("pack_double")
    pack.size, pack.other = module.size, module.boom  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "pack_double", pack)
    wraps = Wraps()
    wraps.result(module, "size", "k", double)
    assert wraps.sweep_aliases() == 1
    assert pack.size(1) == 6  # type: ignore[attr-defined]
    assert pack.other is module.boom  # type: ignore[attr-defined]
    assert wraps.sweep_aliases() == 0
    wraps.undo()
    assert pack.size(1) == 3  # type: ignore[attr-defined]


class TestCoroutineFunctions:
    """Packs ask what a function is before they wrap it; so it stays what it was."""

    def test_values_errors_and_undo(self, module: Any, caplog: pytest.LogCaptureFixture) -> None:
        wraps, seen = Wraps(), []

        def enter(args: Any, kwargs: Any) -> Any:
            seen.append("begins")
            return lambda value, error: seen.append(value)

        wraps.result(module, "later", "twice", double)
        wraps.result(module, "later", "broken", fails)
        wraps.replace(module, "later", "replaced", lambda original: original)
        wraps.around(module, "later", "around", enter)
        assert inspect.iscoroutinefunction(module.later)
        waiting = module.later()
        assert seen == [], "nothing has begun"
        assert asyncio.run(waiting) == 14
        assert seen == ["begins", 14]
        assert len(caplog.records) == 1
        copied = module.later
        wraps.undo()
        assert asyncio.run(copied()) == asyncio.run(module.later()) == 7
        assert seen == ["begins", 14]

    def test_one_that_is_cancelled_is_left(self, module: Any) -> None:
        wraps, seen = Wraps(), []

        async def never() -> None:
            await asyncio.Event().wait()

        async def cancelled() -> None:
            task = asyncio.ensure_future(module.later())
            await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

        module.later = never
        wraps.around(module, "later", "k", lambda *_: lambda value, error: seen.append(type(error)))
        asyncio.run(cancelled())
        assert seen == [asyncio.CancelledError]
