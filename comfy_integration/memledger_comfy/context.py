"""What every adapter gets: the settings, the link to the ledger, the wraps, the publisher."""

from __future__ import annotations

import importlib
import sys
import threading
from collections.abc import Callable
from types import ModuleType
from typing import Any

from memledger_comfy import hooks, log
from memledger_comfy.link import Link
from memledger_comfy.pledges import Pledges
from memledger_comfy.points import Points
from memledger_comfy.publisher import Publisher
from memledger_comfy.serving import Serving
from memledger_comfy.settings import Settings
from memledger_comfy.wraps import Wraps

MM = "comfy.model_management"


class Scopes(threading.local):
    """What a thread is inside of, one attribute per row that asks."""

    with_pages = False
    decoding = False
    in_vae = False


class Context:
    """One per process. `role`: "host" or "worker"."""

    def __init__(self, role: str, settings: Settings, label: str) -> None:
        self.role = role
        self.settings = settings
        self.link = Link(settings, role, label)
        self.wraps = Wraps()
        self.publisher = Publisher(self)
        self.serving = Serving(self)
        self.pledges = Pledges(self)
        self.points = Points(self)
        self.status: dict[str, str] = {}
        """By behaviour: "on", or why not."""
        self.stopped = False
        self.kept: dict[str, Any] = {}
        """What a row must not make twice, by its name."""
        self._undo: list[Callable[[], None]] = []
        self.lacks: dict[str, list[str]] = {}
        """By behaviour: names that this ComfyUI does not have, without which it does less."""
        self.scopes = Scopes()
        self.upstream_asks = False
        """ComfyUI itself asks siblings, through a holder of ours in its own registry."""
        self.ram_is_coherent = False
        """comfy.system_memory is wrapped, so what ComfyUI derives from it has been corrected."""

    @property
    def mm(self) -> Any:
        """comfy.model_management; only where it is loaded."""
        return sys.modules[MM]

    def module(self, name: str) -> ModuleType | None:
        """A module if it is loaded already. Imports nothing: what ComfyUI has not loaded, it does
        not use."""
        return hooks.loaded(name)

    def install(self, *, final: bool = False) -> None:
        """Install each row whose modules are loaded and that is not installed yet. `final`: what is
        missing now stays missing, and is noted."""
        from memledger_comfy import adapter

        for row in adapter.rows():
            if row.NAME in self.status or self.role not in row.ROLES:
                continue
            off = self.settings.why_off(row.NAME)
            if off is not None:
                self.status[row.NAME] = off
                continue
            missing = [name for name in row.REQUIRES if self.module(name) is None]
            if missing:
                if final:
                    self.status[row.NAME] = f"this ComfyUI has no {', '.join(missing)}"
                continue
            try:
                self.status[row.NAME] = row.install(self) or "on"
            except Exception as error:
                self.status[row.NAME] = f"{type(error).__name__}: {error}"
                log.failed(f"installing {row.NAME}", error)

    def lack(self, behaviour: str, what: str) -> None:
        """Note that `behaviour` has to do without `what`; it stands in the line at start."""
        names = self.lacks.setdefault(behaviour, [])
        if what not in names:
            names.append(what)

    def reinstall(self) -> None:
        """Behind an import or a reload: install what can be now, and wrap again what has come
        unwrapped. Rows that are in place find their own wraps and leave them."""
        self.status.clear()
        self.install()

    def on_undo(self, action: Callable[[], None]) -> None:
        """Have `action()` called when everything is taken out again."""
        self._undo.append(action)

    def undo(self) -> None:
        """Everything as it was before: wraps, replaced classes, assigned values."""
        self.stopped = True
        for action in reversed(self._undo):
            try:
                action()
            except Exception as error:
                log.failed("undo", error)
        self._undo.clear()
        self.serving.stop()
        self.wraps.undo()
        self.link.leave()

    def describe(self) -> str:
        """The one line in ComfyUI's log."""
        on = [name for name, why in self.status.items() if why == "on"]
        rest = [f"{name} ({why})" for name, why in self.status.items() if why != "on"]
        ledger = self.link.ledger
        where = self.link.why if ledger is None else ledger.scope
        if ledger is not None and ledger.degraded_reason:
            where += f": {ledger.degraded_reason}"
        line = f"{self.role} in ledger ({where}); on: {', '.join(on) or 'nothing'}"
        if rest:
            line = f"{line}; off: {', '.join(rest)}"
        lacks = [f"{name}: {', '.join(what)}" for name, what in self.lacks.items()]
        return f"{line}; without {'; '.join(lacks)}" if lacks else line


def module_names() -> set[str]:
    """The modules behind whose import a row wants to be installed."""
    from memledger_comfy import adapter

    return {name for row in adapter.rows() for name in (*row.REQUIRES, *getattr(row, "AFTER", ()))}


def import_or_none(name: str) -> ModuleType | None:
    try:
        return importlib.import_module(name)
    except Exception:  # an optional part that is there and does not load is as good as absent
        return None
