"""GPU memory as a torch backend of this very process sees it.

Only where the process has torch imported and that backend running already: a source that
initialised one to ask would cost hundreds of MB on the device, and a process that has initialised
CUDA can no longer fork. So nothing here imports torch, initialises a backend, or makes a context.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, NamedTuple

from memledger.model import Reading, absent, plausible
from memledger.sizes import format_size

BACKENDS = ("cuda", "xpu", "npu", "mlu")
"""Attributes of the torch module that have `is_initialized` and `mem_get_info`. hip is "cuda"."""


class CrossCheck(NamedTuple):
    """What torch says beside a reading, all in bytes. total_difference, free_difference: torch's
    figure less the reading's. reserved, allocated: of this process's torch allocator, part of what
    it holds. text: one line."""

    total_difference: int
    free_difference: int
    reserved: int | None
    allocated: int | None
    text: str


class TorchSource:
    """`torch.<backend>.mem_get_info(index)`, about 50 us.

    index: a callable, since which ordinal a device has may be known only once the backend runs;
    None: this process does not see the device. adapter: bytes (used, total) of the whole adapter
    from the operating system, where the runtime's own figure is one process's (WDDM); it may answer
    None.

    On Windows the runtime's free is in effect this process's own budget, and passing it does not
    fail but spills to system memory, ten times slower. So there the reading has the scope
    "process", unless `adapter` gives the whole; and its detail says `spill_possible`.
    """

    name = "torch"
    timeout_s = 0.25

    def __init__(
        self,
        backend: str,
        index: Callable[[], int | None],
        *,
        platform: str = sys.platform,
        adapter: Callable[[], tuple[int, int] | None] = lambda: None,
    ) -> None:
        self._backend = backend
        self._index = index
        self._platform = platform
        self._adapter = adapter

    def read(self) -> Reading:
        """Never raises."""
        wddm = self._platform == "win32"
        whole = self._adapter() if wddm else None
        if whole is not None:
            used, total = whole
            free = max(0, total - used)
            return plausible(
                Reading("adapter", total=total, free=free, detail="spill_possible (WDDM)")
            )
        index = self._index()
        if index is None:
            return absent(self.name, "no_probe", "torch does not use the device in this process")
        module = running(self._backend, index)
        if module is None:
            return absent(self.name, "no_probe", _why_not(self._backend))
        try:
            free, total = (int(value) for value in module.mem_get_info(index))
        except Exception as error:  # a sick driver raises anything
            return absent(self.name, "probe_failed", f"mem_get_info: {error}")
        # Free figures jitter while a driver answers; one past the total is that, not nonsense.
        return plausible(
            Reading(
                self.name,
                total=total,
                free=min(free, total),
                scope="process" if wddm else "device",
                detail="spill_possible (WDDM), this process's view" if wddm else "",
            )
        )

    def explain(self) -> str:
        return (
            f"asks torch.{self._backend} of this process, once that runs; the driver's own library "
            "would answer before and in every process: install its Python package"
        )


def running(backend: str, index: int) -> Any | None:
    """The backend's module, where this process has initialised it and used the device `index`
    already, else None. Never initialises anything."""
    module = getattr(sys.modules.get("torch"), backend, None)
    try:
        if module is None or not module.is_initialized():
            return None
        if backend != "cuda":
            return module
        # Asking about a device that this process has not used would make a context on it.
        has_context = getattr(
            getattr(sys.modules["torch"], "_C", None), "_cuda_hasPrimaryContext", None
        )
        used = has_context(index) if has_context is not None else module.memory_reserved(index) > 0
        return module if used else None
    except Exception:  # a half-imported or broken torch says nothing
        return None


def cross_check(reading: Reading, backend: str, index: int) -> CrossCheck | None:
    """torch's figures beside `reading`, None where torch does not run here. A total that differs by
    more than a GiB means that the two speak of different devices; the free figures differ by what
    moved in between."""
    module = running(backend, index)
    if module is None or reading.total is None or reading.free is None:
        return None
    try:
        free, total = (int(value) for value in module.mem_get_info(index))
        reserved, allocated = (
            _maybe(module, name, index) for name in ("memory_reserved", "memory_allocated")
        )
    except Exception:  # as above
        return None
    text = f"torch.{backend} says {format_size(free)} of {format_size(total)} free"
    if abs(total - reading.total) > 1 << 30:
        text += f", but {reading.source} has a total of {format_size(reading.total)}"
    return CrossCheck(total - reading.total, free - reading.free, reserved, allocated, text)


def _maybe(module: Any, name: str, index: int) -> int | None:
    function = getattr(module, name, None)
    return None if function is None else int(function(index))


def _why_not(backend: str) -> str:
    if "torch" not in sys.modules:
        return "this process has not imported torch"
    if not hasattr(sys.modules["torch"], backend):
        return f"this torch has no {backend} backend"
    return f"torch.{backend} is not initialised, or has not used the device"
