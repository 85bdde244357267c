"""AMD GPUs from the amdgpu driver's files in sysfs: which device a name means, and its memory.

The files need no library, no permission and no context, and hold for all processes (kernel
documentation, gpu/amdgpu/driver-misc). amdsmi reads the same ones; it is asked only where they are
not visible.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Mapping
from typing import Any, NamedTuple

from memledger.errors import UnknownDevice
from memledger.model import (
    KIND_DEVICE,
    USED_INCLUDES_RESERVED,
    DeviceSpec,
    PoolSpec,
    Reading,
    absent,
    plausible,
)
from memledger.readings.files import is_suspended, listed, normal_pci, number, pci_folder, word

VENDOR = "0x1002"
_DISPLAY_CLASSES = ("0x03", "0x12")  # display controllers; processing accelerators (Instinct)


class Amd(NamedTuple):
    """One GPU. pci: "dddd:bb:dd.f". uuid: "GPU-<16 hex digits>" as ROCm writes it, "" where the GPU
    has none."""

    pci: str
    uuid: str

    @property
    def key(self) -> str:
        return f"pci:{self.pci}"


class AmdSource:
    """VRAM of one discrete GPU, or the carve-out of an integrated one. About 30 us; no library.

    total and used are the driver's for all processes; used contains what the firmware keeps.
    A suspended GPU is not touched.
    """

    name = "amdgpu"
    timeout_s = 0.25

    def __init__(self, pci: str, *, root: str = "/") -> None:
        self._pci = pci
        self._root = root

    def read(self) -> Reading:
        """Never raises."""
        if is_suspended(self._root, self._pci):
            return absent(self.name, "suspended", "runtime_status is suspended")
        folder = pci_folder(self._root, self._pci)
        total = number(folder, "mem_info_vram_total")
        used = number(folder, "mem_info_vram_used")
        if total is None or used is None:
            return _from_amdsmi(self._pci) or absent(
                self.name, "no_probe", f"no mem_info_vram_* in {folder} (is amdgpu loaded?)"
            )
        # While a buffer moves, used may pass total for a moment; that is full, not nonsense.
        return plausible(
            Reading(
                self.name,
                total=total,
                free=max(0, total - used),
                flags=USED_INCLUDES_RESERVED,
            )
        )

    def explain(self) -> str:
        return (
            f"reads mem_info_vram_* of amdgpu in sysfs for {self._pci}: device-wide; nothing "
            "better is needed"
        )


def _from_amdsmi(pci: str) -> Reading | None:
    """None where amdsmi is not installed, does not start, or does not know the GPU."""
    try:
        smi: Any = importlib.import_module("amdsmi")
        smi.amdsmi_init()
    except Exception:  # not installed; or a driver that raises anything
        return None
    try:
        handle = smi.amdsmi_get_processor_handle_from_bdf(pci)
        kind = smi.AmdSmiMemoryType.VRAM
        total = int(smi.amdsmi_get_gpu_memory_total(handle, kind))
        used = int(smi.amdsmi_get_gpu_memory_usage(handle, kind))
    except Exception:  # as above
        return None
    finally:
        smi.amdsmi_shut_down()
    return plausible(
        Reading("amdsmi", total=total, free=max(0, total - used), flags=USED_INCLUDES_RESERVED)
    )


# ---- which device a name means


def is_amd(root: str, address: str) -> bool:
    return word(pci_folder(root, address), "vendor") == VENDOR


def gpus(*, root: str = "/") -> tuple[Amd, ...]:
    """The AMD GPUs that the amdgpu driver runs, in PCI order. Never raises."""
    found = []
    for address in listed(os.path.join(root, "sys", "bus", "pci", "devices")):
        folder = pci_folder(root, address)
        if word(folder, "vendor") != VENDOR or not normal_pci(address):
            continue
        if word(folder, "class")[:4] not in _DISPLAY_CLASSES:
            continue
        if (
            number(folder, "mem_info_vram_total") is None
            and number(folder, "mem_info_gtt_total") is None
        ):
            continue  # another driver has it (vfio), or none
        found.append(Amd(normal_pci(address), _uuid(word(folder, "unique_id"))))
    return tuple(sorted(found))


def resolve(text: str, *, root: str, environ: Mapping[str, str]) -> DeviceSpec:
    """The spec for "hip[:n]", "rocm[:n]", "cuda[:n]" (torch's name for both), "GPU-<unique id>" or
    "pci:<address>". Raises UnknownDevice."""
    known = gpus(root=root)
    if text.startswith("pci:"):
        address = normal_pci(text[4:])
        gpu = next((gpu for gpu in known if gpu.pci == address), Amd(address, ""))
    elif text[:4].upper() == "GPU-":
        gpu = _by_uuid(text, known, text)
    else:
        gpu = _by_ordinal(text, known, root, environ)
    return spec_of(text, gpu, root=root, environ=environ)


def spec_of(text: str, gpu: Amd, *, root: str, environ: Mapping[str, str]) -> DeviceSpec:
    from memledger.readings.combined import FirstOf, Unified
    from memledger.readings.ram import ram_pool, ram_source
    from memledger.readings.torch_backend import TorchSource

    pool = PoolSpec(gpu.key, (gpu.uuid,) if gpu.uuid else (), KIND_DEVICE)
    own = AmdSource(gpu.pci, root=root)
    if not shares_ram(gpu.pci, root=root, environ=environ):
        torch = TorchSource("cuda", lambda: _torch_index(gpu.pci))
        return DeviceSpec(text, (pool,), (FirstOf(own, torch),), detail="amdgpu in sysfs")
    system = ram_source(root=root)
    folder = pci_folder(root, gpu.pci)
    source = Unified(
        "amdgpu",
        system,
        cap=lambda: number(folder, "mem_info_gtt_total"),
        # It does not follow every allocation of HIP, so it is a lower bound; the members' own
        # figures make up the rest.
        used=lambda: number(folder, "mem_info_gtt_used"),
        explanation=f"reads mem_info_gtt_* of amdgpu for {gpu.pci} and the machine's RAM, which "
        "this integrated GPU draws from; MEMLEDGER_AMD_POOL=carveout takes the BIOS's carve-out "
        "instead",
    )
    return DeviceSpec(
        text,
        (pool, ram_pool(root=root)),
        (source, system),
        detail="amdgpu in sysfs, integrated: GTT, out of the RAM",
    )


def shares_ram(pci: str, *, root: str, environ: Mapping[str, str]) -> bool:
    """Whether allocations on this GPU come out of the machine's RAM (GTT), for an integrated GPU.

    Such a GPU has two memories: a carve-out, which the firmware takes away from the RAM before
    Linux counts it, and GTT, which is RAM. Programs get one of them, by size: the larger.
    MEMLEDGER_AMD_POOL=gtt or carveout overrules that.
    """
    if not is_integrated(pci, root=root):
        return False
    wanted = environ.get("MEMLEDGER_AMD_POOL", "").strip().lower()
    if wanted in ("gtt", "carveout"):
        return wanted == "gtt"
    folder = pci_folder(root, pci)
    gtt = number(folder, "mem_info_gtt_total") or 0
    return gtt > (number(folder, "mem_info_vram_total") or 0)


def is_integrated(pci: str, *, root: str) -> bool:
    """Revision 2 and 3 of the gpu_metrics table are those of integrated GPUs (the kernel's
    kgd_pp_interface.h). Reading it wakes a sleeping GPU, so a sleeping one is judged by its KFD
    node, or taken for discrete: integrated ones sleep with the machine."""
    folder = pci_folder(root, pci)
    if not is_suspended(root, pci):
        try:
            with open(os.path.join(folder, "gpu_metrics"), "rb") as file:
                header = file.read(4)  # size (2 bytes), format revision, content revision
            if len(header) == 4:
                return header[2] in (2, 3)
        except OSError:
            pass
    return any(
        node.get("cpu_cores_count", 0) > 0 for node in _kfd_nodes(root) if _kfd_address(node) == pci
    )


# ---- ordinals


def _by_ordinal(text: str, known: tuple[Amd, ...], root: str, environ: Mapping[str, str]) -> Amd:
    _, colon, rest = text.partition(":")
    if colon and not (rest.isascii() and rest.isdigit()):
        raise UnknownDevice(text, "expected hip:<n>", _keys(known))
    ordinal = int(rest) if colon else 0
    running = _torch_address(ordinal)
    if running:
        return next((gpu for gpu in known if gpu.pci == running), Amd(running, ""))
    visible = list(_in_rocm_order(text, known, root))
    # ROCR hides devices from HIP, and HIP counts what is left (ROCm documentation, "GPU isolation
    # techniques"); CUDA_VISIBLE_DEVICES means the same to HIP where HIP's own is not set.
    mask = environ.get("HIP_VISIBLE_DEVICES") or environ.get("CUDA_VISIBLE_DEVICES") or None
    masks = {
        "ROCR_VISIBLE_DEVICES": environ.get("ROCR_VISIBLE_DEVICES"),
        "HIP_VISIBLE_DEVICES": mask,
    }
    for name, value in masks.items():
        if value is not None:
            visible = _masked(text, name, value, visible)
    if ordinal >= len(visible):
        raise UnknownDevice(
            text, f"{len(visible)} AMD GPU(s) are visible to this process", _keys(known)
        )
    return visible[ordinal]


def _masked(text: str, name: str, mask: str, visible: list[Amd]) -> list[Amd]:
    """What a mask leaves, in its order. The runtimes stop at the first entry that names nothing."""
    left: list[Amd] = []
    for token in (token.strip() for token in mask.split(",")):
        if token[:4].upper() == "GPU-":
            left.append(_by_uuid(token, tuple(visible), f"{text} ({name})"))
        elif token.isascii() and token.isdigit() and int(token) < len(visible):
            left.append(visible[int(token)])
        else:
            break
    return left


def _by_uuid(token: str, known: tuple[Amd, ...], text: str) -> Amd:
    wanted = token.lower()
    found = [gpu for gpu in known if gpu.uuid and gpu.uuid.lower().startswith(wanted)]
    if len(found) != 1:
        why = "more than one GPU begins like that" if found else "no AMD GPU has that UUID"
        raise UnknownDevice(text, why, _keys(tuple(found) or known))
    return found[0]


def _in_rocm_order(text: str, known: tuple[Amd, ...], root: str) -> tuple[Amd, ...]:
    """As ROCm counts: in the order of the kernel's compute topology. Its absence leaves a doubt
    where there is more than one GPU."""
    order = [_kfd_address(node) for node in _kfd_nodes(root) if node.get("simd_count", 0) > 0]
    if order:
        by_address = {gpu.pci: gpu for gpu in known}
        return tuple(by_address.get(address, Amd(address, "")) for address in order)
    if len(known) > 1:
        raise UnknownDevice(
            text, "without /sys/class/kfd nobody knows ROCm's order; pass 'pci:<address>'",
            _keys(known),
        )  # fmt: skip
    return known


def _kfd_nodes(root: str) -> list[dict[str, int]]:
    folder = os.path.join(root, "sys", "class", "kfd", "kfd", "topology", "nodes")
    names = sorted((name for name in listed(folder) if name.isdigit()), key=int)
    nodes = []
    for name in names:
        lines = word(folder, name, "properties").splitlines()
        pairs = (line.split() for line in lines)
        nodes.append({p[0]: int(p[1]) for p in pairs if len(p) == 2 and p[1].isdigit()})
    return nodes


def _kfd_address(node: dict[str, int]) -> str:
    location = node.get("location_id", 0)  # bus, device and function as in the PCI header
    bus, device, function = location >> 8 & 0xFF, location >> 3 & 0x1F, location & 7
    return f"{node.get('domain', 0):04x}:{bus:02x}:{device:02x}.{function:x}"


def _torch_address(ordinal: int) -> str:
    """The PCI address of torch's device `ordinal`, "" where torch does not run HIP in this
    process. Only looks."""
    torch = sys.modules.get("torch")
    try:
        if torch is None or not torch.version.hip or not torch.cuda.is_initialized():
            return ""
        device = torch.cuda.get_device_properties(ordinal)
        return f"{device.pci_domain_id:04x}:{device.pci_bus_id:02x}:{device.pci_device_id:02x}.0"
    except Exception:  # an older torch does not say
        return ""


def _torch_index(pci: str) -> int | None:
    """The ordinal that torch of this process has for that GPU; None where it does not say."""
    for ordinal in range(16):
        address = _torch_address(ordinal)
        if not address:
            return None
        if address == pci:
            return ordinal
    return None


def _uuid(unique_id: str) -> str:
    text = unique_id.lower().removeprefix("0x")
    return (
        f"GPU-{text}" if text and set(text) <= set("0123456789abcdef") and text.strip("0") else ""
    )


def _keys(known: tuple[Amd, ...]) -> tuple[str, ...]:
    return tuple(gpu.key for gpu in known)
