"""What is switched on, from the environment. Every behaviour has a name, on by default.

MEMLEDGER_COMFY=off switches all of it off; MEMLEDGER_COMFY=free,oom switches on those alone;
MEMLEDGER_COMFY_<NAME>=off switches one off. MEMLEDGER_COMFY_DEVICES says which device of the ledger
a torch device is, where its own name does not: "cuda:0=GPU-<uuid>,cuda:1=sim:card?total=24GiB".
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

PREFIX = "MEMLEDGER_COMFY"
_OFF = {"off", "0", "no", "false"}
_ON = {"on", "1", "yes", "true", ""}
_OTHERS = {"DEVICES", "LIBRARY", "ADAPTERS", "HOST"}
"""Variables of ours that are no switches."""


@dataclass(frozen=True)
class Settings:
    enabled: bool = True
    only: frozenset[str] | None = None
    """Where given, the behaviours that are on."""
    off: frozenset[str] = frozenset()
    devices: Mapping[str, str] = field(default_factory=dict)
    complaints: tuple[str, ...] = ()
    """Values that could not be understood, each as one sentence; the default holds for them."""

    def why_off(self, name: str) -> str | None:
        """None where behaviour `name` is on, else the variable that switches it off."""
        if not self.enabled:
            return f"{PREFIX}=off"
        if self.only is not None and name not in self.only:
            return f"not in {PREFIX}"
        if name in self.off:
            return f"{PREFIX}_{name.upper()}=off"
        return None


def from_environ(environ: Mapping[str, str], names: Iterable[str]) -> Settings:
    """The settings that `environ` asks for, of behaviours called `names`. Never raises."""
    known = set(names)
    complaints: list[str] = []
    whole = environ.get(PREFIX, "").strip().lower()
    if whole in _OFF:
        return Settings(enabled=False)
    only = None
    if whole not in _ON:
        asked = {name.strip() for name in whole.split(",") if name.strip()}
        unknown = sorted(asked - known)
        if unknown:
            complaints.append(
                f"{PREFIX}: unknown {', '.join(unknown)}; known: {', '.join(sorted(known))}"
            )
        if asked & known:
            only = frozenset(asked & known)
    off = set()
    for name in known:
        value = environ.get(f"{PREFIX}_{name.upper()}", "").strip().lower()
        if value in _OFF:
            off.add(name)
        elif value not in _ON:
            complaints.append(f"{PREFIX}_{name.upper()}: expected on or off, got {value!r}")
    for variable in environ:
        word = variable.removeprefix(f"{PREFIX}_")
        if word != variable and word not in _OTHERS and word.lower() not in known:
            complaints.append(f"{variable}: no such switch; known: {', '.join(sorted(known))}")
    devices, bad = _device_map(environ.get(f"{PREFIX}_DEVICES", ""))
    return Settings(True, only, frozenset(off), devices, (*complaints, *bad))


def _device_map(text: str) -> tuple[dict[str, str], list[str]]:
    devices: dict[str, str] = {}
    complaints = []
    for entry in filter(None, (part.strip() for part in text.split(","))):
        torch_name, equals, ledger_name = (part.strip() for part in entry.partition("="))
        if torch_name and equals and ledger_name:
            devices[torch_name] = ledger_name
        else:
            complaints.append(
                f"{PREFIX}_DEVICES: expected <torch device>=<ledger device>, got {entry!r}"
            )
    return devices, complaints
