"""Row 19: out of memory is heard, counted, and siblings are asked; ComfyUI shrinks as before.

Three ways to hear of it, for the sites differ: ComfyUI asks `is_oom` (A'); it catches
`model_management.OOM_EXCEPTION`, which Python looks up only while an exception is in flight (B); it
empties its cache inside the except block (C). Each exception counts once.
"""

from __future__ import annotations

import sys
import threading
import time
from types import ModuleType
from typing import TYPE_CHECKING, Any

from memledger_comfy import log, policy

if TYPE_CHECKING:
    from memledger_comfy.context import Context

NAME = "oom"
ROWS = (19,)
ROLES = ("host", "worker")
REQUIRES = ("comfy.model_management",)

HEARD = "__memledger_heard__"
QUIET_S = 1.0
"""Attention retries in a loop: after an ask that gave nothing, no other for so long."""
LEAST_ASK = 256 * policy.MIB
"""Asked for where the error does not say how much was missing."""


def install(context: Context) -> str | None:
    mm = context.mm
    if not hasattr(mm, "OOM_EXCEPTION"):
        return "this ComfyUI has no OOM_EXCEPTION"
    ear = context.kept.setdefault(NAME, _Ear(context))

    def asked(value: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        error = args[0] if args else kwargs.get("e")
        if value and isinstance(error, BaseException):
            ear.hear(error)
        return value

    if not context.wraps.result(mm, "is_oom", NAME, asked):
        context.lack(NAME, "is_oom")
    if not context.wraps.around(mm, "soft_empty_cache", NAME, lambda *_: ear.look()):
        context.lack(NAME, "soft_empty_cache")
    _watch_name(context, mm, ear)
    return None


class _Ear:
    def __init__(self, context: Context) -> None:
        self._context = context
        self._here = threading.local()
        self._quiet_until: dict[str, float] = {}

    def look(self) -> None:
        """Is an out-of-memory error in flight on this thread? Never raises."""
        error = sys.exc_info()[1]
        if error is None:
            return
        try:
            kind = vars(self._context.mm).get("OOM_EXCEPTION")
            # A torch without such a class leaves plain Exception there, which says nothing.
            plain = not isinstance(kind, type) or kind in (Exception, BaseException)
            if not plain and isinstance(error, kind):
                self.hear(error)
        except Exception as own:
            log.failed(NAME, own)

    def hear(self, error: BaseException) -> None:
        """Count it and ask, once per exception. Never raises."""
        if getattr(self._here, "inside", False) or HEARD in vars(error):
            return
        self._here.inside = True
        try:
            vars(error)[HEARD] = True
            self._act(error)
        except Exception as own:
            log.failed(NAME, own)
        finally:
            self._here.inside = False

    def _act(self, error: BaseException) -> None:
        context = self._context
        name = context.link.name(context.mm.get_torch_device())
        device = context.link.device(name)
        if device is None:
            return
        wanted = policy.wanted_bytes(str(error))
        device.note_oom(wanted)
        # The failed frames still hold their tensors, so there is nothing of our own to give up.
        now = time.monotonic()
        if now < self._quiet_until.get(name, 0.0):
            return
        if not context.serving.ask(name, max(wanted, LEAST_ASK)):
            self._quiet_until[name] = now + QUIET_S


def _watch_name(context: Context, mm: ModuleType, ear: _Ear) -> None:
    """Make reading `mm.OOM_EXCEPTION` from outside a chance to look. Inside the module the name is
    a global, and nothing changes."""
    base = type(mm)
    if getattr(base, "_memledger_watches", None) is context:
        return

    class Watched(base):  # type: ignore[valid-type,misc]
        _memledger_watches = context

        @property
        def OOM_EXCEPTION(self) -> Any:
            ear.look()
            try:
                return vars(self)["OOM_EXCEPTION"]
            except KeyError:
                raise AttributeError("OOM_EXCEPTION") from None

        @OOM_EXCEPTION.setter
        def OOM_EXCEPTION(self, value: Any) -> None:
            vars(self)["OOM_EXCEPTION"] = value

        @OOM_EXCEPTION.deleter
        def OOM_EXCEPTION(self) -> None:
            vars(self).pop("OOM_EXCEPTION", None)

    def undo() -> None:
        if type(mm) is Watched:
            mm.__class__ = base

    mm.__class__ = Watched
    context.on_undo(undo)
