"""torch's memory in the ledger: what its caching allocator has is published, drains claims, and is
given back when a sibling asks.

Importing this costs nothing: torch is imported inside the functions. They take their figures from
`torch.cuda` (which is AMD's too, in a torch built for it), or from any object with the same
functions, given as `backend=`. For CPU tensors torch has no such figures, so RAM is refused.

Which torch device a ledger device is: that of its name, "cuda:1"; `index=` says it where the device
was opened under another name, such as its UUID.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from memledger.errors import LedgerError, UnknownDevice
from memledger.model import KIND_CGROUP, KIND_RAM
from memledger.readings.torch_backend import running

if TYPE_CHECKING:
    from memledger._native import Claim
    from memledger.device import Account, Device
    from memledger.ledger import Ledger

__all__ = [
    "CONTEXT_BYTES",
    "Amounts",
    "Backend",
    "EmptyCacheHolder",
    "amounts",
    "context_allowance",
    "empty_cache_holder",
    "max_memory",
    "publish",
    "pump",
]

CONTEXT_BYTES = 640 << 20
"""Bytes to allow for a context that this process does not have yet. An allowance, not a
measurement: how large a context is depends on the card, the driver and the kernels that are loaded.
"""

_RESERVED = "reserved_bytes.all.current"
_ALLOCATED = "allocated_bytes.all.current"


class Backend(Protocol):
    """What is used of `torch.cuda`."""

    def is_initialized(self) -> bool:
        """Has this process used a device? Never makes that so."""
        ...

    def device_count(self) -> int:
        """Devices that this process sees."""
        ...

    def memory_stats(self, device: int, /) -> Mapping[str, Any]:
        """Empty where nothing was ever allocated."""
        ...

    def empty_cache(self) -> None:
        """Gives idle segments of all devices back to the driver."""
        ...


class Amounts(NamedTuple):
    """Bytes. releasable: what the allocator has idle; `empty_cache` may give back less, since a
    segment that is partly in use stays."""

    held: int
    releasable: int


def amounts(
    device: Device | Account,
    *,
    context_bytes: int | None = None,
    index: int | None = None,
    backend: Backend | None = None,
) -> Amounts:
    """What torch holds on `device` in this process: held is what its allocator has reserved, and
    the context if its size is given and it is there; releasable is reserved less allocated. One
    look at the allocator's statistics, so the two belong together.

    context_bytes: of this process's context. None: it is not counted as held, and shows as
    unaccounted in the device's readings.

    Raises UnknownDevice where torch has no such statistics: RAM, or a name that is not torch's.
    """
    where, torch_cuda = _where(device, index), _backend(backend)
    stats = torch_cuda.memory_stats(where)
    reserved = int(stats.get(_RESERVED, 0))
    allocated = int(stats.get(_ALLOCATED, 0))
    held = reserved
    if context_bytes and _has_context(torch_cuda, where, reserved):
        held += context_bytes
    return Amounts(held, max(0, reserved - allocated))


def publish(
    device: Device | Account,
    *,
    context_bytes: int | None = None,
    index: int | None = None,
    backend: Backend | None = None,
) -> Amounts:
    """Publish `amounts`, and return them. A plain publish: open claims stay as they are."""
    now = amounts(device, context_bytes=context_bytes, index=index, backend=backend)
    device.publish(now.held, releasable=now.releasable)
    return now


@contextlib.contextmanager
def pump(
    claim: Claim,
    device: Device | Account,
    *,
    settle: bool = True,
    hz: float = 10.0,
    context_bytes: int | None = None,
    index: int | None = None,
    backend: Backend | None = None,
) -> Iterator[None]:
    """While the block runs, publish what torch holds through `claim`, `hz` times a second, so that
    bytes which have landed are not promised any more. `device`: where the claim was made.

    At the end of the block the claim is settled, unless `settle` is False; then, as after an
    exception, what has landed is published through it and the rest stays promised, for the caller
    to cancel. A claim that the block has settled or cancelled itself is left alone.

    The thread behind it reads torch's counters and sleeps; it never outlives the block by more than
    the reading that it is in, and never publishes after it.
    """
    if not hz > 0:
        raise ValueError(f"hz: expected a number above 0, got {hz!r}")

    def now() -> Amounts:
        return amounts(device, context_bytes=context_bytes, index=index, backend=backend)

    now()  # what cannot be read is refused here, and not in the thread
    # Held over a publish, so that none comes after the block's last one and puts an older figure
    # in its place.
    publishing = threading.Lock()
    over = threading.Event()

    def drain() -> None:
        while not over.wait(1 / hz):
            # One bad reading must not end the draining. What stays bad is raised at the end of the
            # block, on the caller's thread.
            with contextlib.suppress(Exception):
                landed = now()
                with publishing:
                    if over.is_set() or _was_ended(claim):
                        return
                    claim.publish(landed.held, releasable=landed.releasable)

    threading.Thread(target=drain, name="memledger-pump", daemon=True).start()
    try:
        yield
    except BaseException:
        with publishing:
            over.set()
        with contextlib.suppress(Exception):  # the block's own is the one to be seen
            landed = now()
            if not _was_ended(claim):
                claim.publish(landed.held, releasable=landed.releasable)
        raise
    finally:
        with publishing:
            over.set()
    if not _was_ended(claim):
        end = claim.settle if settle else claim.publish
        landed = now()
        end(landed.held, releasable=landed.releasable)


def _was_ended(claim: Claim) -> bool:
    """By its owner. One that has only expired still publishes: its bytes are there all the same."""
    return claim.ended and not claim.expired


class EmptyCacheHolder:
    """A holder that empties torch's idle cache. `empty_cache_holder` makes it."""

    def __init__(
        self, device: Device, *, context_bytes: int | None, index: int | None, backend: Any
    ) -> None:
        self._device = device
        self._context_bytes = context_bytes
        self._index = _where(device, index)
        self._backend = backend

    def release_memory(self, device: object, size: int) -> int:
        """Empty the cache and publish; returns bytes by which held went down. 0 at once where there
        is nothing idle, or `device` is another one."""
        from memledger.device import Device

        mine = self._device
        asked = device if isinstance(device, Device) else mine._ledger.device(device)
        if asked is not mine or size <= 0:
            return 0
        before = mine.amounts[0]
        if self._publish().releasable:
            _backend(self._backend).empty_cache()
            self._publish()
        return max(0, before - mine.amounts[0])

    def _publish(self) -> Amounts:
        return publish(
            self._device,
            context_bytes=self._context_bytes,
            index=self._index,
            backend=self._backend,
        )


def empty_cache_holder(
    device: Device,
    *,
    context_bytes: int | None = None,
    index: int | None = None,
    backend: Backend | None = None,
) -> EmptyCacheHolder:
    """A holder for `ledger.holders.register(holder, quick=True)`: it gives siblings what torch has
    idle on `device`, and publishes that. torch empties the caches of all its devices at once; those
    of other devices count when they are published next.

    Raises UnknownDevice as `amounts` does.
    """
    return EmptyCacheHolder(device, context_bytes=context_bytes, index=index, backend=backend)


def context_allowance(
    device: Device | Account,
    *,
    context_bytes: int = CONTEXT_BYTES,
    index: int | None = None,
    backend: Backend | None = None,
) -> int:
    """Bytes to add to a claim for the context that the first use of `device` in this process will
    make: 0 where it is there."""
    where, torch_cuda = _where(device, index), _backend(backend)
    reserved = int(torch_cuda.memory_stats(where).get(_RESERVED, 0))
    return 0 if _has_context(torch_cuda, where, reserved) else context_bytes


def max_memory(
    ledger: Ledger,
    *,
    devices: Mapping[int, Device] | None = None,
    cpu: bool = True,
    context_bytes: int = CONTEXT_BYTES,
    backend: Backend | None = None,
) -> dict[int | str, int]:
    """The map that accelerate and transformers take as `max_memory`: torch device index to bytes,
    and "cpu" to bytes. Each is what this process may take now: free, less its own open claims, less
    the context where there is none yet.

    devices: by torch index; default all that torch sees, as the ledger's "cuda:<n>".
    cpu: with the RAM; it is left out beside an integrated GPU, whose figure is that RAM already.

    The figures are of this moment and promise nothing: claim before loading. Raises UnknownDevice
    for a device that the ledger cannot name, LedgerError where a figure is unknown: leaving the
    device out would move a model to the CPU without a word.
    """
    torch_cuda = _backend(backend)
    if devices is None:
        devices = {n: ledger.device(f"cuda:{n}") for n in range(torch_cuda.device_count())}
    limits: dict[int | str, int] = {}
    for number, device in devices.items():
        allowance = context_allowance(
            device, context_bytes=context_bytes, index=number, backend=torch_cuda
        )
        limits[number] = max(0, _takeable(device) - allowance)
    if cpu:
        ram = ledger.device("ram")
        shared = set(ram._pools())
        if not any(shared & set(device._pools()) for device in devices.values()):
            limits["cpu"] = _takeable(ram)
    return limits


def _takeable(device: Device) -> int:
    figures = device.figures()
    if figures.free is None:
        raise LedgerError(
            f"what is free on {device.name} is unknown ({figures.reason}); "
            "ledger.device(name, total=...) gives it a total"
        )
    return max(0, figures.free - figures.own_claimed)


def _backend(given: Backend | None) -> Backend:
    if given is not None:
        return given
    cuda: Backend = import_module("torch").cuda
    return cuda


def _has_context(backend: Backend, index: int, reserved: int) -> bool:
    """Whether this process has a context on the device. Never makes one."""
    if reserved:
        return True
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    return backend is cuda and running("cuda", index) is not None


def _where(device: Device | Account, index: int | None) -> int:
    """The torch index of a ledger device."""
    from memledger.device import Account

    owner = device.device if isinstance(device, Account) else device
    if owner._spec.levels[0].kind in (KIND_RAM, KIND_CGROUP):
        raise UnknownDevice(owner.name, "torch has no allocator statistics for CPU tensors")
    if index is not None:
        return index
    kind, _, number = owner.name.partition(":")
    if kind in ("cuda", "hip", "rocm") and (not number or number.isdigit()):
        return int(number or 0)
    raise UnknownDevice(
        owner.name, "which torch device that is cannot be told from its name; pass index="
    )
