"""Locks that a forked child finds open: what another thread held at the fork is held for ever, for
that thread is not there to let go of it."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable
from typing import Any

_in_child: weakref.WeakKeyDictionary[Any, list[Callable[[Any], None]]] = weakref.WeakKeyDictionary()


def afresh(owner: Any, name: str, make: Callable[[], Any]) -> None:
    """Set `owner.name` to `make()`, now and in each child that is forked later."""
    setattr(owner, name, make())
    in_child(owner, lambda self: setattr(self, name, make()))


def in_child(owner: Any, action: Callable[[Any], None]) -> None:
    """Have `action(owner)` called in each child that is forked later, while `owner` lives."""
    _in_child.setdefault(owner, []).append(action)


def _forked() -> None:
    for owner, actions in list(_in_child.items()):
        for action in actions:
            action(owner)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)
