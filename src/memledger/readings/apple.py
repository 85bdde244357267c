"""Apple's GPUs: they draw from the RAM, up to what Metal recommends.

Not tried on a Mac: the rules stand here, the probes are given in by the tests.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

from memledger.errors import UnknownDevice
from memledger.model import KIND_DEVICE, DeviceSpec, PoolSpec

_MIB = 1 << 20

Probe = Callable[[], "int | None"]


def resolve(
    text: str, *, root: str = "/", platform: str = sys.platform, probe: Probe | None = None
) -> DeviceSpec:
    """The spec for "mps" or "mps:0": the one GPU of the machine, then its RAM. probe: bytes that
    Metal recommends, None where it does not say. Raises UnknownDevice."""
    from memledger.readings.combined import Unified
    from memledger.readings.machine import boot_identity
    from memledger.readings.ram import ram_pool, ram_source

    if text not in ("mps", "mps:0"):
        raise UnknownDevice(text, "there is one Metal device", ("mps",))
    if platform != "darwin":
        raise UnknownDevice(text, "Metal exists on macOS only")
    system = ram_source(root=root)
    source = Unified(
        "metal",
        system,
        cap=probe or recommended_working_set,
        cap_needed=True,
        why_no_cap="Metal's recommended working set is not known before torch.mps runs in this "
        "process; give a total (MEMLEDGER_TOTAL)",
        explanation="reads the machine's RAM up to Metal's recommended working set; Metal has no "
        "figure for other processes, so theirs come from the ledger",
    )
    pool = PoolSpec(f"mps:{boot_identity(root=root)}", kind=KIND_DEVICE)
    return DeviceSpec(text, (pool, ram_pool(root=root)), (source, system), detail="Metal")


def recommended_working_set() -> int | None:
    """Bytes; None where neither the administrator's limit nor a running torch.mps says. The
    default, some two thirds to three quarters of the RAM, is Apple's secret and not guessed."""
    return _wired_limit() or _from_torch()


def _wired_limit() -> int | None:
    """`sysctl iogpu.wired_limit_mb`, 0 where nobody set it."""
    if sys.platform != "darwin":
        return None
    import ctypes

    try:
        libc = ctypes.CDLL(None)
        value, size = ctypes.c_uint64(0), ctypes.c_size_t(8)
        name = b"iogpu.wired_limit_mb"
        if libc.sysctlbyname(name, ctypes.byref(value), ctypes.byref(size), None, 0) != 0:
            return None
    except (OSError, AttributeError):
        return None
    return value.value * _MIB or None


def _from_torch() -> int | None:
    torch = sys.modules.get("torch")
    try:
        # A generator is made by the first use of the backend; asking Metal earlier would start it.
        if torch is None or torch.mps._default_mps_generator is None:
            return None
        return int(torch.mps.recommended_max_memory()) or None
    except Exception:  # an older torch, or none with Metal
        return None
