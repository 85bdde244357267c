"""GPU memory from NVML, through the nvidia-ml-py package where it is installed.

Every answer of NVML is optional. What fails becomes a reading with a reason, for one GPU at a time:
the others read on.
"""

from __future__ import annotations

import importlib
import os
import sys
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from memledger.model import UNIFIED, USED_INCLUDES_RESERVED, Reading, absent, plausible

if TYPE_CHECKING:
    from memledger.readings import Source

# nvmlReturn_t, by number: an old nvidia-ml-py lacks some of the names.
_UNINITIALIZED = 1
_INVALID_ARGUMENT = 2
_NOT_SUPPORTED = 3
_FUNCTION_NOT_FOUND = 13
_ARGUMENT_VERSION_MISMATCH = 25
_REASONS = {
    3: "not_supported",
    4: "no_permission",
    6: "gpu_lost",  # no such GPU any more, for a handle by UUID
    9: "no_probe",  # driver not loaded
    12: "no_probe",  # library not found
    15: "gpu_lost",
    16: "gpu_lost",  # reset required
    28: "gpu_lost",  # GPU not found
}
_TRY_V1_AFTER = (_INVALID_ARGUMENT, _NOT_SUPPORTED, _FUNCTION_NOT_FOUND, _ARGUMENT_VERSION_MISMATCH)

_BACKOFF_FIRST_S = 1.0
_BACKOFF_MOST_S = 60.0


class Unavailable(Exception):
    """NVML, or one GPU in it, cannot answer. `reason` as in a Reading. Never leaves the readings
    package."""

    def __init__(self, reason: str, detail: str) -> None:
        self.reason = reason
        self.detail = detail
        super().__init__(f"{reason}: {detail}")


class Backoff:
    """Says when a failed thing may be tried again: 1 s after the first failure, doubled up to 60
    s."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._delay_s = 0.0
        self._not_before = 0.0
        self._why: Unavailable | None = None

    def check(self) -> None:
        """Raises the last failure again while it is too early for another try."""
        if self._why is not None and self._clock() < self._not_before:
            raise Unavailable(self._why.reason, self._why.detail)

    def failed(self, why: Unavailable) -> Unavailable:
        self._delay_s = min(_BACKOFF_MOST_S, self._delay_s * 2 or _BACKOFF_FIRST_S)
        self._not_before = self._clock() + self._delay_s
        self._why = why
        return why

    def worked(self) -> None:
        self._delay_s, self._why = 0.0, None


class NvmlSession:
    """The process's use of NVML: opened when a source first needs it, shared by the sources, closed
    when the last of them lets go (an open session keeps a laptop's GPU awake), opened anew after a
    fork.

    module: stands for pynvml in tests. root: where /proc is.
    """

    def __init__(
        self, *, module: Any = None, root: str = "/", clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._given = module
        self._root = root
        self._clock = clock
        self.epoch = 0
        """Raised by every initialisation, never reset: handles of an older one are void."""
        self._forget()

    def _forget(self) -> None:
        self._lock = threading.Lock()
        self._module: Any = None
        self._users: set[int] = set()
        self._backoff = Backoff(self._clock)
        self._pid = os.getpid()

    def open(self, user: object) -> Any:
        """The initialised pynvml module, for `user` until it calls `close`. Raises Unavailable;
        after a failure without a try until the back-off has passed."""
        if self._pid != os.getpid():
            # A forked child shares the parent's driver descriptors, which NVML does not support;
            # and the lock may have been held by a thread that does not exist here.
            self._forget()
        with self._lock:
            if self._module is None:
                self._backoff.check()
                self._module = self._initialise()
                self._backoff.worked()
                self.epoch += 1
            self._users.add(id(user))
            return self._module

    def lost(self) -> None:
        """Somebody in this process shut NVML down: the next `open` initialises again."""
        with self._lock:
            self._module = None

    def close(self, user: object) -> None:
        """`user` needs no session any more. Shuts NVML down after the last one."""
        if self._pid != os.getpid():
            return
        with self._lock:
            self._users.discard(id(user))
            if self._users or self._module is None:
                return
            module, self._module = self._module, None
            try:
                module.nvmlShutdown()
            except Exception:  # it is of no use for anything more either way
                return

    def _initialise(self) -> Any:
        module = self._given
        try:
            if module is None:
                module = importlib.import_module("pynvml")
            module.nvmlInit()
        except ImportError as error:
            raise self._backoff.failed(Unavailable("no_probe", f"nvidia-ml-py: {error}")) from None
        except Exception as error:  # a broken driver raises anything; the host must live on
            raise self._backoff.failed(unavailable(error, "nvmlInit")) from None
        stub = _loaded_stub(self._root)
        if stub:
            raise self._backoff.failed(
                Unavailable("no_probe", f"{stub} is the CUDA toolkit's stub, not a driver")
            )
        return module


class NvmlSource:
    """One GPU or MIG slice, by UUID or PCI address. A read enters the driver; the first one opens
    the session, which takes far longer.

    A suspended GPU is not touched ("suspended"), so reading never wakes one. `system` stands in
    where the GPU has no memory of its own and NVML cannot say anything (integrated GPUs): its
    figures come back marked `unified`.
    """

    name = "nvml"
    timeout_s = 0.25

    def __init__(
        self,
        uuid: str = "",
        *,
        pci: str = "",
        system: Source | None = None,
        session: NvmlSession | None = None,
        root: str = "/",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if not uuid and not pci:
            raise ValueError("NvmlSource needs a UUID or a PCI address")
        self._uuid = uuid
        self._pci = pci
        self._system = system
        self._session = session or default_session()
        self._status_path = (
            os.path.join(root, "sys", "bus", "pci", "devices", pci, "power", "runtime_status")
            if pci
            else ""
        )
        self._backoff = Backoff(clock)
        self._handle: Any = None
        self._epoch = -1
        self._only_v1 = False

    def read(self) -> Reading:
        """Never raises."""
        if self._suspended():
            return absent(self.name, "suspended", "runtime_status is suspended")
        try:
            self._backoff.check()
            reading = self._ask()
        except Unavailable as why:
            reading = absent(self.name, why.reason, why.detail)
        if self._system is not None and reading.reason in ("not_supported", "implausible"):
            stand_in = self._system.read()
            return stand_in._replace(flags=stand_in.flags | UNIFIED)
        return reading

    def close(self) -> None:
        """Lets go of the NVML session; the next read opens it again."""
        self._handle = None
        self._session.close(self)

    def _suspended(self) -> bool:
        if not self._status_path:
            return False
        try:
            with open(self._status_path, "rb") as file:
                return file.read(32).strip() == b"suspended"
        except OSError:
            return False

    def _ask(self) -> Reading:
        nvml = self._session.open(self)
        try:
            if self._handle is None or self._epoch != self._session.epoch:
                self._handle = self._find(nvml)
                self._epoch = self._session.epoch
            reading = self._memory(nvml)
        except Exception as error:  # one sick GPU must not stop the others, nor the host
            self._handle = None
            why = unavailable(error, "nvmlDeviceGetMemoryInfo")
            if _code_of(error) == _UNINITIALIZED:
                self._session.lost()
            if why.reason != "not_supported":
                self._backoff.failed(why)
            raise why from None
        self._backoff.worked()
        return plausible(reading)

    def _find(self, nvml: Any) -> Any:
        if self._uuid:
            return nvml.nvmlDeviceGetHandleByUUID(self._uuid)
        return nvml.nvmlDeviceGetHandleByPciBusId(self._pci)

    def _memory(self, nvml: Any) -> Reading:
        """v2 keeps what the driver reserves apart. v1 counts it as used, which looks like a leak of
        hundreds of MB; so its reading says so. `free` is always the driver's own, never total less
        used."""
        if not self._only_v1:
            try:
                memory = nvml.nvmlDeviceGetMemoryInfo(self._handle, version=nvml.nvmlMemory_v2)
                total, free, reserved = int(memory.total), int(memory.free), int(memory.reserved)
                return Reading(self.name, total=total, free=free, reserved=reserved)
            except (AttributeError, TypeError):
                self._only_v1 = True  # a binding from before v2
            except Exception as error:  # what is not "no such call here" goes on to the caller
                if _code_of(error) not in _TRY_V1_AFTER:
                    raise
                self._only_v1 = _code_of(error) == _FUNCTION_NOT_FOUND
        memory = nvml.nvmlDeviceGetMemoryInfo(self._handle)
        return Reading(
            self.name, total=int(memory.total), free=int(memory.free), flags=USED_INCLUDES_RESERVED
        )


def default_session() -> NvmlSession:
    """The session that all sources of this process share."""
    global _default
    if _default is None:
        _default = NvmlSession()
    return _default


_default: NvmlSession | None = None


def unavailable(error: Exception, call: str) -> Unavailable:
    """What an exception out of pynvml means."""
    code = _code_of(error)
    if code is None:
        return Unavailable("probe_failed", f"{call}: {type(error).__name__}: {error}")
    try:
        text = str(error)  # pynvml may call the driver for it
    except Exception:
        text = "no text"
    return Unavailable(_REASONS.get(code, "probe_failed"), f"{call}: NVML error {code} ({text})")


def _code_of(error: Exception) -> int | None:
    code = getattr(error, "value", None)
    return code if isinstance(code, int) else None


def _loaded_stub(root: str) -> str:
    """Path of the toolkit's stub library, if that is what the loader found; it links, answers, and
    knows no GPU."""
    if sys.platform == "win32":
        return ""
    try:
        with open(os.path.join(root, "proc", "self", "maps"), "rb") as file:
            for line in file:
                if b"libnvidia-ml" in line and b"/stubs/" in line:
                    return line.split(None, 5)[-1].strip().decode("utf-8", "replace")
    except OSError:
        pass
    return ""
