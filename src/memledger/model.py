"""Small immutable values that pass between sources, devices and the ledger.

NamedTuples, since a reading is made four times a second in every refresher and the whole package
has 50 ms to import. The numbers of kinds, scopes, reasons and flags are those of `memledger.h`; a
test compares them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from memledger.readings import Source

KIND_DEVICE = 0
KIND_RAM = 1
KIND_CGROUP = 2
KIND_SIM = 3
KIND_PIN = 4
KINDS = ("device", "ram", "cgroup", "sim", "pin")

SCOPES = ("none", "device", "process")
"""Index: ML_SCOPE_*. "device": about the whole device. "process": one process's view, never
shared."""

REASONS = (
    None,
    "no_probe",
    "probe_failed",
    "not_supported",
    "no_permission",
    "gpu_lost",
    "implausible",
    "suspended",
    "stale",
    "idle",
    "frozen",
    "private",
)
"""Index: ML_REASON_*. Why there is no better figure; None: there is one."""

USED_INCLUDES_RESERVED = 1
UNIFIED = 2
SUSPECT = 4

SOURCE_NAME_MAX = 8
LEVELS_MAX = 4
ALIASES_MAX = 4
KEY_BYTES_MAX = 95
BYTES_MAX = (1 << 63) - 1


class Reading(NamedTuple):
    """What a driver or a kernel says about a whole pool. All sizes in bytes.

    A reading without figures has `total` and `free` None, scope "none", and a reason; it is never 0
    and never a guess. `reserved` is what the source itself sets apart; it is part of `total` and
    not of `free`.
    """

    source: str
    total: int | None = None
    free: int | None = None
    reserved: int = 0
    immediate: int | None = None
    """Of `free`, what needs no reclaim. None: unknown."""
    soft_limit: int | None = None
    """cgroup memory.high. None: none."""
    scope: str = "device"
    reason: str | None = None
    flags: int = 0
    """USED_INCLUDES_RESERVED | UNIFIED | SUSPECT"""
    detail: str = ""
    """One line for `doctor`: what the source said. Stays in this process."""
    age_s: float | None = None
    """Filled by the ledger: since the reading was taken or first seen here."""
    reader: int | None = None
    """Filled by the ledger: slot of the member that took it."""

    @property
    def known(self) -> bool:
        return self.total is not None and self.free is not None

    @property
    def used_includes_reserved(self) -> bool:
        """The source has no figure for its reserve: what it calls used contains it."""
        return bool(self.flags & USED_INCLUDES_RESERVED)

    @property
    def unified(self) -> bool:
        """The device draws from the machine's RAM, and these are the RAM's figures."""
        return bool(self.flags & UNIFIED)

    @property
    def suspect(self) -> bool:
        """The source answered, but contradicts itself or was completed by an estimate."""
        return bool(self.flags & SUSPECT)


def absent(source: str, reason: str, detail: str = "") -> Reading:
    """The reading of a source that has no figure, and why. `reason` is one of REASONS."""
    return Reading(source, scope="none", reason=reason, detail=detail)


def plausible(reading: Reading) -> Reading:
    """`reading` where its figures can be true, else an absent one with the reason "implausible".
    Costs under 1 us."""
    total, free, reserved = reading.total, reading.free, reading.reserved
    if total is None or free is None:
        return reading
    if 0 < total <= BYTES_MAX and 0 <= free <= total and 0 <= reserved <= total - free:
        return reading
    return absent(reading.source, "implausible", f"total {total}, free {free}, reserved {reserved}")


class PoolSpec(NamedTuple):
    """One level of a chain.

    key: stable and the same in every process: "GPU-<uuid>", "ram:<boot id>", "sim:card"; never an
    ordinal.
    aliases: other names of the same pool that another process may know it by; at most 4.
    largest_bytes: the largest conceivable total, which fixes the unit when the pool is made; 0: 4
    TiB.
    """

    key: str
    aliases: tuple[str, ...] = ()
    kind: int = KIND_DEVICE
    largest_bytes: int = 0


class DeviceSpec(NamedTuple):
    """What a device name resolves to: the chain of pools, its own first, and one source (or None)
    for each.

    total: bytes to assume where there is no reading (argument or MEMLEDGER_TOTAL); None: not
    configured.
    detail: how the key was found, for `doctor`.
    """

    name: str
    levels: tuple[PoolSpec, ...]
    sources: tuple[Source | None, ...]
    total: int | None = None
    detail: str = ""

    @property
    def key(self) -> str:
        return self.levels[0].key
