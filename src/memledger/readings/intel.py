"""Intel GPUs, as far as the i915 and xe drivers show memory in sysfs.

An integrated one draws from the RAM. Of a discrete one, the upstream drivers show the size at most,
never what is free for all processes; so without torch.xpu the ledger counts alone.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import NamedTuple

from memledger.errors import UnknownDevice
from memledger.model import KIND_DEVICE, DeviceSpec, PoolSpec, Reading, absent, plausible
from memledger.readings.files import is_suspended, listed, normal_pci, number, pci_folder, word

VENDOR = "0x8086"
_GIVE_A_TOTAL = "the ledger counts: give a total (MEMLEDGER_TOTAL)"


class Intel(NamedTuple):
    """pci: "dddd:bb:dd.f"."""

    pci: str

    @property
    def key(self) -> str:
        return f"pci:{self.pci}"

    @property
    def integrated(self) -> bool:
        """Integrated ones sit on the root bus, cards behind a bridge."""
        return self.pci.split(":")[1] == "00"


class IntelSource:
    """Memory of a discrete card, where the driver shows both its size and what is left (i915 of
    Intel's own kernels: lmem_total_bytes, lmem_avail_bytes). About 40 us."""

    name = "intel"
    timeout_s = 0.25

    def __init__(self, pci: str, *, root: str = "/") -> None:
        self._pci = pci
        self._root = root

    def read(self) -> Reading:
        """Never raises."""
        if is_suspended(self._root, self._pci):
            return absent(self.name, "suspended", "runtime_status is suspended")
        for card in _drm_folders(self._root, self._pci):
            total, free = number(card, "lmem_total_bytes"), number(card, "lmem_avail_bytes")
            if total is not None and free is not None:
                return plausible(Reading(self.name, total=total, free=free))
        return absent(
            self.name, "not_supported", f"the driver shows no free memory; {_GIVE_A_TOTAL}"
        )

    def explain(self) -> str:
        return (
            f"looks for lmem_* of {self._pci} in sysfs; upstream drivers lack the free figure, "
            f"which needs Level Zero, so {_GIVE_A_TOTAL}"
        )


def is_intel(root: str, address: str) -> bool:
    return word(pci_folder(root, address), "vendor") == VENDOR


def gpus(*, root: str = "/") -> tuple[Intel, ...]:
    """The Intel GPUs in PCI order. Never raises."""
    return tuple(
        Intel(normal_pci(address))
        for address in listed(os.path.join(root, "sys", "bus", "pci", "devices"))
        if normal_pci(address)
        and word(pci_folder(root, address), "vendor") == VENDOR
        and word(pci_folder(root, address), "class")[:4] == "0x03"
    )


def resolve(text: str, *, root: str, environ: Mapping[str, str]) -> DeviceSpec:
    """The spec for "xpu[:n]" or "pci:<address>". Raises UnknownDevice."""
    if text.startswith("pci:"):
        return spec_of(text, Intel(normal_pci(text[4:])), 0, root=root)
    known = gpus(root=root)
    keys = tuple(gpu.key for gpu in known)
    _, colon, rest = text.partition(":")
    if colon and not (rest.isascii() and rest.isdigit()):
        raise UnknownDevice(text, "expected xpu:<n>", keys)
    ordinal = int(rest) if colon else 0
    if not known:
        raise UnknownDevice(text, "no Intel GPU in /sys")
    masked = environ.get("ZE_AFFINITY_MASK") or environ.get("ONEAPI_DEVICE_SELECTOR")
    if masked or len(known) > 1:
        # Level Zero orders by speed, and its masks count in that order.
        raise UnknownDevice(
            text, "only Level Zero knows which one that is; pass 'pci:<address>'", keys
        )
    if ordinal:
        raise UnknownDevice(text, "there is one Intel GPU", keys)
    return spec_of(text, known[0], ordinal, root=root)


def spec_of(text: str, gpu: Intel, ordinal: int, *, root: str) -> DeviceSpec:
    from memledger.readings.combined import FirstOf, Unified
    from memledger.readings.ram import ram_pool, ram_source
    from memledger.readings.torch_backend import TorchSource

    pool = PoolSpec(gpu.key, kind=KIND_DEVICE)
    if gpu.integrated:
        system = ram_source(root=root)
        source = Unified(
            "intel", system, explanation=f"{gpu.pci} is integrated, so the machine's RAM is read"
        )
        return DeviceSpec(text, (pool, ram_pool(root=root)), (source, system), detail="integrated")
    first = IntelSource(gpu.pci, root=root)
    # A process that named the card by its address need not count it as xpu:0.
    only = len(gpus(root=root)) == 1
    torch = TorchSource("xpu", lambda: ordinal if only else None)
    sizes = [number(card, "lmem_total_bytes") for card in _drm_folders(root, gpu.pci)]
    size = next((size for size in sizes if size), None)
    return DeviceSpec(text, (pool,), (FirstOf(first, torch),), total=size, detail="sysfs")


def _drm_folders(root: str, pci: str) -> list[str]:
    folder = os.path.join(pci_folder(root, pci), "drm")
    return [os.path.join(folder, name) for name in listed(folder) if name.startswith("card")]
