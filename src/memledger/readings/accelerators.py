"""Accelerators that only their own torch backend can read: Ascend (npu) and Cambricon (mlu); and
backends of which nobody can say which device they mean."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import NamedTuple

from memledger.errors import UnknownDevice
from memledger.model import KIND_DEVICE, DeviceSpec, PoolSpec
from memledger.readings.files import listed, normal_pci, pci_folder, word


class _Maker(NamedTuple):
    vendor: str
    mask: str


MAKERS = {
    "npu": _Maker("0x19e5", "ASCEND_RT_VISIBLE_DEVICES"),
    "mlu": _Maker("0xcabc", "MLU_VISIBLE_DEVICES"),
}
WITHOUT_KEY = {
    "privateuseone": "torch's out-of-tree backends (DirectML) do not say which device they use, "
    "nor how full it is",
    "dml": "DirectML does not say which device it uses, nor how full it is",
    "vulkan": "torch's vulkan backend does not say which device it uses",
    "meta": "meta tensors use no memory",
}


def resolve(text: str, *, root: str, environ: Mapping[str, str]) -> DeviceSpec:
    """The spec for "npu[:n]", "mlu[:n]", where the machine has one such device. Raises
    UnknownDevice."""
    from memledger.readings.torch_backend import TorchSource

    backend, colon, rest = text.partition(":")
    maker = MAKERS[backend]
    known = _devices(root, maker.vendor)
    if colon and not (rest.isascii() and rest.isdigit()):
        raise UnknownDevice(text, f"expected {backend}:<n>", known)
    if len(known) != 1 or int(rest or 0) != 0 or environ.get(maker.mask) not in (None, "0"):
        raise UnknownDevice(
            text,
            f"which of {len(known)} devices that is, only the backend knows; pass 'pci:<address>'",
            known,
        )
    return DeviceSpec(
        text, (PoolSpec(known[0], kind=KIND_DEVICE),), (TorchSource(backend, lambda: 0),),
        detail="the only one in sysfs",
    )  # fmt: skip


def _devices(root: str, vendor: str) -> tuple[str, ...]:
    """Keys of that maker's processing accelerators."""
    return tuple(
        f"pci:{normal_pci(address)}"
        for address in listed(os.path.join(root, "sys", "bus", "pci", "devices"))
        if word(pci_folder(root, address), "vendor") == vendor
        and word(pci_folder(root, address), "class")[:4] == "0x12"
        and normal_pci(address)
    )
