"""Wrapping functions of ComfyUI so that nothing breaks: everything is passed on, errors of ours
cost a log line, wrapping twice wraps once, and whoever wraps over us keeps what they wrapped.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable
from typing import Any

from memledger_comfy import log

Function = Callable[..., Any]
Adjust = Callable[[Any, tuple[Any, ...], dict[str, Any]], Any]
Leave = Callable[[Any, "BaseException | None"], None]
Enter = Callable[[tuple[Any, ...], dict[str, Any]], "Leave | None"]

MARK = "__memledger__"


class _Wrap:
    """One wrapped attribute. `active` False: the wrapper is transparent, for when it cannot be
    taken out because somebody has wrapped it meanwhile."""

    def __init__(self, owner: Any, name: str, key: str) -> None:
        self.owner, self.name, self.key = owner, name, key
        self.active = True
        self.inherited = isinstance(owner, type) and name not in vars(owner)
        self.original: Any = vars(owner)[name] if name in vars(owner) else getattr(owner, name)
        self.wrapper: Any = None

    def install(self, wrapper: Function) -> None:
        functools.update_wrapper(wrapper, getattr(self.owner, self.name))
        setattr(wrapper, MARK, self)
        descriptor = type(self.original)
        if descriptor in (staticmethod, classmethod):
            raise TypeError(f"{self.name}: a {descriptor.__name__} cannot be wrapped")
        self.wrapper = wrapper
        setattr(self.owner, self.name, wrapper)

    def undo(self) -> None:
        self.active = False
        if vars(self.owner).get(self.name) is self.wrapper:
            if self.inherited:
                delattr(self.owner, self.name)
            else:
                setattr(self.owner, self.name, self.original)


class Wraps:
    """All that this process has wrapped."""

    def __init__(self) -> None:
        self._all: list[_Wrap] = []
        self._swept: list[tuple[dict[str, Any], str, Any, Any]] = []
        """Copies that were replaced: whose names, which, what stood there, what does now."""

    def result(self, owner: Any, name: str, key: str, adjust: Adjust) -> bool:
        """Let `adjust(value, args, kwargs)` change what `owner.name` returns, or what awaiting it
        does. False: no such function."""
        wrap = self._begin(owner, name, key)
        if wrap is None:
            return self._has(owner, name, key)
        original = getattr(owner, name)

        # Called per layer: not through a helper.
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            value = original(*args, **kwargs)
            if not wrap.active:
                return value
            try:
                return adjust(value, args, kwargs)
            except Exception as error:
                log.failed(key, error)
                return value

        async def wrapper_async(*args: Any, **kwargs: Any) -> Any:
            value = await original(*args, **kwargs)
            adjusted = (
                _guarded(key, lambda: (adjust(value, args, kwargs),)) if wrap.active else None
            )
            return value if adjusted is None else adjusted[0]

        wrap.install(wrapper_async if _is_async(original) else wrapper)
        self._all.append(wrap)
        return True

    def around(self, owner: Any, name: str, key: str, enter: Enter) -> bool:
        """Call `enter(args, kwargs)` before `owner.name`, and what it returned (if anything) after
        it, as `leave(value, error)`: one of the two is None. A coroutine function begins and ends
        where it is awaited. False: no such function."""
        wrap = self._begin(owner, name, key)
        if wrap is None:
            return self._has(owner, name, key)
        original = getattr(owner, name)

        def wrapper(*args: Any, **kwargs: Any) -> Any:
            leave = _guarded(key, enter, args, kwargs) if wrap.active else None
            try:
                value = original(*args, **kwargs)
            except BaseException as error:
                if leave is not None:
                    _guarded(key, leave, None, error)
                raise
            if leave is not None:
                _guarded(key, leave, value, None)
            return value

        async def wrapper_async(*args: Any, **kwargs: Any) -> Any:
            leave = _guarded(key, enter, args, kwargs) if wrap.active else None
            try:
                value = await original(*args, **kwargs)
            except BaseException as error:
                if leave is not None:
                    _guarded(key, leave, None, error)
                raise
            if leave is not None:
                _guarded(key, leave, value, None)
            return value

        wrap.install(wrapper_async if _is_async(original) else wrapper)
        self._all.append(wrap)
        return True

    def replace(
        self, owner: Any, name: str, key: str, make: Callable[[Function], Function]
    ) -> bool:
        """Put `make(original)` in the place of `owner.name`: for what the other two cannot say.
        The function must call the original itself, whatever happens to its own work."""
        wrap = self._begin(owner, name, key)
        if wrap is None:
            return self._has(owner, name, key)
        original = getattr(owner, name)
        made = make(original)

        def wrapper(*args: Any, **kwargs: Any) -> Any:
            return made(*args, **kwargs) if wrap.active else original(*args, **kwargs)

        async def wrapper_async(*args: Any, **kwargs: Any) -> Any:
            return await (made if wrap.active else original)(*args, **kwargs)

        wrap.install(wrapper_async if _is_async(original) else wrapper)
        self._all.append(wrap)
        return True

    def undo(self) -> None:
        """Take everything out, in the opposite order. What others have wrapped over stays in place
        and does nothing more."""
        for names, name, before, now in reversed(self._swept):
            if names.get(name) is now:
                names[name] = before
        self._swept.clear()
        for wrap in reversed(self._all):
            wrap.undo()
        self._all.clear()

    def sweep_aliases(self) -> int:
        """Replace copies (`from comfy.model_management import get_free_memory`) in all loaded
        modules by the wrapped functions. Returns how many. Some tens of ms: at start, once."""
        wrapped = {
            id(wrap.original): wrap
            for wrap in self._all
            if wrap.active and not isinstance(wrap.owner, type)
        }
        count = 0
        for module in list(sys.modules.values()):
            names = getattr(module, "__dict__", None)
            if not isinstance(names, dict):
                continue
            for name, value in list(names.items()):
                wrap = wrapped.get(id(value))
                if wrap is None or (module is wrap.owner and name == wrap.name):
                    continue
                now = names[name] = vars(wrap.owner).get(wrap.name, wrap.wrapper)
                self._swept.append((names, name, value, now))
                count += 1
        return count

    def _begin(self, owner: Any, name: str, key: str) -> _Wrap | None:
        """None where there is nothing to wrap, or it is wrapped."""
        if not callable(getattr(owner, name, None)) or self._has(owner, name, key):
            return None
        return _Wrap(owner, name, key)

    def _has(self, owner: Any, name: str, key: str) -> bool:
        """Whether `key` is somewhere among the wraps around `owner.name`, ours or not on top."""
        function = getattr(owner, name, None)
        for _ in range(64):
            if function is None:
                return False
            mark = getattr(function, MARK, None)
            if isinstance(mark, _Wrap) and mark.key == key and mark.active:
                return mark in self._all
            inner = getattr(function, "__wrapped__", None)
            if inner is None:
                break
            function = inner
        # Somebody who says nothing of what he wrapped. If we had wrapped this before him, then we
        # are inside; only a module that was loaded anew has a function of its own here again.
        before = any((w.owner, w.name, w.key) == (owner, name, key) for w in self._all)
        return before and not _is_own(owner, function)


def put_back(owner: Any, name: str, ours: Any, plain: Any) -> None:
    """Give `owner.name` its former value, where it is still `ours`."""
    if getattr(owner, name, None) is ours:
        setattr(owner, name, plain)


def _is_async(function: Any) -> bool:
    """Packs ask that of a function before they wrap it themselves: the wrapper says the same."""
    return inspect.iscoroutinefunction(function)


def _guarded(key: str, call: Function, *args: Any) -> Any:
    try:
        return call(*args)
    except Exception as error:
        log.failed(key, error)
        return None


def _is_own(owner: Any, function: Any) -> bool:
    """Whether a module or class defined the function itself."""
    home = owner if not isinstance(owner, type) else sys.modules.get(owner.__module__)
    return getattr(function, "__globals__", None) is getattr(home, "__dict__", None)
