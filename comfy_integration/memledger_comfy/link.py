"""This process's place in the ledger: joined once, devices opened at first use."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from memledger_comfy import log
from memledger_comfy.settings import Settings

if TYPE_CHECKING:
    import memledger

ACCOUNT = "comfyui"
KNOWN_MAX = 256
_UNTRIED = object()


class _Here(threading.local):
    """What a thread is inside of. A default that the class has costs no failed lookup."""

    raw = 0


class Link:
    """What the adapters know of memledger. `ledger` is None where it could not be joined; then
    `why` says why, and every device is None."""

    def __init__(self, settings: Settings, role: str, label: str) -> None:
        self.settings = settings
        self.role = role
        self.label = label
        self.ledger: memledger.Ledger | None = None
        self.why = "not joined yet"
        self._devices: dict[str, Any] = {}
        self._known: dict[Any, Any] = {}
        self._here = _Here()

    def join(self) -> bool:
        """True where this process is in a ledger now, be it a private one."""
        if self.ledger is not None:
            return True
        try:
            import memledger

            self.ledger = memledger.join(label=self.label, role=self.role)
        except Exception as error:  # also an ImportError of a build for another platform
            self.why = f"{type(error).__name__}: {error}"
            return False
        self.why = self.ledger.degraded_reason or ""
        return True

    def device(self, torch_device: Any) -> memledger.Device | None:
        """The ledger's device for a torch device (or its name); None where it has none, said
        once. After the first call a dictionary lookup."""
        try:
            return self._known[torch_device]
        except (KeyError, TypeError):
            return self._find(torch_device)

    def account(self, torch_device: Any) -> memledger.Account | None:
        """The part of that device's record which is ComfyUI's: what we publish and claim. Other
        code in this process may use memledger for itself."""
        device = self.device(torch_device)
        return None if device is None else device.account(ACCOUNT)

    def name(self, torch_device: Any) -> str:
        """What a torch device is called here, with its index."""
        name = str(torch_device)
        if name.startswith("cpu:"):
            return "cpu"
        if ":" in name or name in ("cpu", "mps", "meta"):
            return name
        current = getattr(getattr(sys.modules.get("torch"), name, None), "current_device", None)
        return name if current is None else f"{name}:{current()}"

    def torch_name(self, device: Any) -> str | None:
        """The torch device of a ledger's device that was opened here."""
        found = (name for name, known in self._devices.items() if known is device)
        return next(found, None)

    def _find(self, torch_device: Any) -> memledger.Device | None:
        name = self.name(torch_device)
        found = self._devices.get(name, _UNTRIED)
        if found is _UNTRIED:
            found = self._devices[name] = self._open(name)
        # One without an index is another device another time; odd ones may be new at every call.
        if name == str(torch_device) and len(self._known) < KNOWN_MAX:
            with contextlib.suppress(TypeError):
                self._known[torch_device] = found
        return found  # type: ignore[no-any-return]

    def _open(self, name: str) -> memledger.Device | None:
        if self.ledger is None:
            return None
        ledger_name = self.settings.devices.get(name) or ("ram" if name == "cpu" else name)
        try:
            return self.ledger.device(ledger_name)
        except Exception as error:
            log.once(f"device:{name}", f"{name} has no place in the ledger: {error}")
            return None

    def devices(self) -> dict[str, memledger.Device]:
        """Those opened so far, by torch name."""
        known = list(self._devices.items())
        return {name: device for name, device in known if device is not None}

    @contextlib.contextmanager
    def raw(self) -> Iterator[None]:
        """Inside, on this thread, the wraps hand ComfyUI's own figures through: for our own
        measurements."""
        depth = self._here.raw
        self._here.raw = depth + 1
        try:
            yield
        finally:
            self._here.raw = depth

    @property
    def is_raw(self) -> bool:
        return self._here.raw > 0

    def leave(self) -> None:
        ledger, self.ledger = self.ledger, None
        self._devices.clear()
        self._known.clear()
        if ledger is not None:
            ledger.leave()


def environment_for_workers(link: Link) -> dict[str, str]:
    """What a worker's environment needs so that it finds this ledger, this group and our code."""
    if link.ledger is None:
        return {}
    import memledger

    package = os.path.dirname(os.path.abspath(memledger.__file__))
    values = {
        "MEMLEDGER_COMFY_LIBRARY": package,
        "MEMLEDGER_COMFY_ADAPTERS": os.path.dirname(os.path.abspath(__file__)),
        "MEMLEDGER_GROUP": link.ledger.group,
    }
    if link.ledger.scope == "path":
        values["MEMLEDGER_PATH"] = link.ledger.path
    return values
