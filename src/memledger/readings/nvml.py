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
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from memledger.model import UNIFIED, USED_INCLUDES_RESERVED, Reading, absent, plausible
from memledger.readings.files import is_suspended

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

# After these the driver may be another one than the session was opened with (a reload, an update).
_MAYBE_RELOADED = (_UNINITIALIZED, 9, 15, 16, 18, 999)

_FAR = 8
"""A total that differs from the RAM's by more than one part in so many is not about the RAM. The
kernel, firmware and carve-outs take a few percent."""

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


class Visit:
    """Stands for a user of the session that comes and goes."""


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
        # Weak, since a source may be dropped without `close`: one that was made to look, and one of
        # a device that is known already.
        self._users: weakref.WeakSet[object] = weakref.WeakSet()
        self._failing: weakref.WeakKeyDictionary[object, int] = weakref.WeakKeyDictionary()
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
            self._users.add(user)
            return self._module

    def lost(self) -> None:
        """Somebody in this process shut NVML down: the next `open` initialises again."""
        with self._lock:
            self._module = None
            self._failing.clear()

    def worked(self, user: object) -> None:
        """`user` got an answer."""
        self._failing.pop(user, None)

    def failed(self, user: object) -> None:
        """`user` got an error that a driver which was reloaded would give too. Once all users have,
        twice in a row, NVML is shut down, and the next `open` initialises it anew; as long as one
        GPU answers, a sick one costs the others nothing."""
        with self._lock:
            self._failing[user] = self._failing.get(user, 0) + 1
            if all(self._failing.get(user, 0) >= 2 for user in self._users):
                self._shut_down()

    def _shut_down(self) -> None:
        """Under the lock."""
        self._failing.clear()
        module, self._module = self._module, None
        try:
            if module is not None:
                module.nvmlShutdown()
        except Exception:  # it is of no use for anything more either way
            return

    def close(self, user: object) -> None:
        """`user` needs no session any more. Shuts NVML down after the last one."""
        if self._pid != os.getpid():
            return
        with self._lock:
            self._users.discard(user)
            self._failing.pop(user, None)
            if not self._users:
                self._shut_down()

    def _initialise(self) -> Any:
        module = self._given
        try:
            if module is None:
                module = importlib.import_module("pynvml")
            module.nvmlInit()
        except ImportError as error:
            text = f"pip install nvidia-ml-py: {error}"
            raise self._backoff.failed(Unavailable("no_probe", text)) from None
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

    A suspended GPU is not touched ("suspended"), so reading never wakes one. `system` is given for
    integrated GPUs, which have no memory of their own: it stands in where NVML cannot say anything,
    or says a total that is far from the system's. Figures of an integrated GPU come back marked
    `unified`.
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
        self._root = root
        self._backoff = Backoff(clock)
        self._handle: Any = None
        self._epoch = -1
        self._only_v1 = False

    def read(self) -> Reading:
        """Never raises."""
        if is_suspended(self._root, self._pci):
            return absent(self.name, "suspended", "runtime_status is suspended")
        try:
            self._backoff.check()
            reading = self._ask()
        except Unavailable as why:
            reading = absent(self.name, why.reason, why.detail)
        return reading if self._system is None else self._of_unified(reading, self._system)

    def explain(self) -> str:
        name = self._uuid or self._pci
        if self._system is not None:
            return (
                f"asks NVML for {name}, an integrated GPU, and reads the machine's RAM where NVML "
                "has no figure for it"
            )
        return (
            f"asks NVML for {name}: device-wide, without a CUDA context; needs the driver's "
            "libnvidia-ml and nvidia-ml-py in one member at least"
        )

    def _of_unified(self, reading: Reading, system: Source) -> Reading:
        """NVML's `free` leaves out the page cache, which the system gives away when asked; so the
        system's figures stand, and NVML's is what can be had at once."""
        if not reading.known and reading.reason not in ("not_supported", "implausible"):
            return reading
        ram = system.read()
        if ram.total is None or ram.free is None:
            return reading
        immediate = ram.immediate
        if reading.free is not None and reading.total is not None:
            if abs(reading.total - ram.total) <= ram.total // _FAR:
                immediate = min(reading.free, ram.free)
            else:
                text = f"NVML's total {reading.total} is not that of the RAM"
                ram = ram._replace(detail="; ".join(filter(None, (ram.detail, text))))
        return ram._replace(flags=ram.flags | UNIFIED, immediate=immediate)

    def close(self) -> None:
        """Lets go of the NVML session; the next read opens it again."""
        self._handle = None
        self._session.close(self)

    def _ask(self) -> Reading:
        nvml = self._session.open(self)
        try:
            if self._handle is None or self._epoch != self._session.epoch:
                self._handle = self._find(nvml)
                self._epoch = self._session.epoch
                self._only_v1 = False
            reading = self._memory(nvml)
        except Exception as error:  # one sick GPU must not stop the others, nor the host
            self._handle = None
            why = unavailable(error, "nvmlDeviceGetMemoryInfo")
            if _code_of(error) == _UNINITIALIZED:
                self._session.lost()
            elif _code_of(error) in _MAYBE_RELOADED:
                self._session.failed(self)
            self._backoff.failed(why)
            raise why from None
        self._backoff.worked()
        self._session.worked(self)
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
        memory = nvml.nvmlDeviceGetMemoryInfo(self._handle)
        self._only_v1 = True  # with this driver; v2 is not tried before every reading
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
