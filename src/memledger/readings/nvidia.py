"""Which NVIDIA device a name means.

CUDA's ordinals are private to a process: they follow CUDA_VISIBLE_DEVICES and an order of CUDA's
own. So an ordinal is turned into a UUID (or PCI address) here, by whoever knows best: the CUDA
driver of this process where it is already running, else the environment applied to the list of
devices. Where that leaves a doubt, the answer is UnknownDevice: bytes charged to the wrong card are
worse than none.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from memledger.errors import UnknownDevice
from memledger.model import KIND_DEVICE, DeviceSpec, PoolSpec
from memledger.readings.files import is_suspended, listed, normal_pci, pci_folder, word
from memledger.readings.nvml import (
    NvmlSession,
    NvmlSource,
    Unavailable,
    Visit,
    default_session,
    unavailable,
)

_HEX = frozenset("0123456789abcdef")
_INTEGRATED_MODELS = frozenset(("GB10", "Thor", "Orin", "Xavier", "Tegra", "nvgpu"))
_PASS_A_UUID = "pass 'GPU-<uuid>' (nvidia-smi -L) or 'pci:<address>' instead"


class Gpu(NamedTuple):
    """One physical GPU. uuid: "GPU-...", "" where only the address is known. pci: "dddd:bb:dd.f".
    slices: UUIDs of its MIG instances. answers: False for one that is there but does not say which
    it is."""

    uuid: str
    pci: str
    model: str
    slices: tuple[str, ...] = ()
    answers: bool = True

    @property
    def key(self) -> str:
        return self.uuid or f"pci:{self.pci}"


class Gpus(NamedTuple):
    """What can be seen. seen_by: "nvml", "proc", "sysfs", "". numbered: whether it is the set that
    CUDA counts, so that ordinals may be applied to it; not so for sysfs inside a container, which
    lists the host's cards."""

    gpus: tuple[Gpu, ...]
    seen_by: str
    numbered: bool
    detail: str = ""

    def keys(self) -> tuple[str, ...]:
        """Names of the devices that memory can be counted on: for a sliced GPU its slices."""
        return tuple(key for gpu in self.gpus if gpu.answers for key in (gpu.slices or (gpu.key,)))


def resolve(
    text: str, *, root: str, environ: Mapping[str, str], session: NvmlSession | None
) -> DeviceSpec:
    """The device spec for "cuda[:n]", "GPU-...", "MIG-..." or "pci:...". Raises UnknownDevice."""
    session = session or default_session()
    marker = Visit()
    # Held over the whole of it, so that NVML starts once and not once for the list and once for the
    # first reading. Where it fails, enumerate_gpus has other ways and says why.
    with suppress(Unavailable):
        if not _suspended(root):
            session.open(marker)
    try:
        return _resolve(text, root, environ, session)
    finally:
        session.close(marker)


def _resolve(text: str, root: str, environ: Mapping[str, str], session: NvmlSession) -> DeviceSpec:
    gpus = enumerate_gpus(root=root, session=session)
    if text[:4].upper() in ("GPU-", "MIG-"):
        key = _by_uuid(text, gpus)
    elif text.startswith("pci:"):
        key = _by_address(text, gpus, root)
    else:
        key = _by_ordinal(text, gpus, environ)
    return _spec(text, key, gpus, root, session)


def _spec(text: str, key: str, gpus: Gpus, root: str, session: NvmlSession) -> DeviceSpec:
    from memledger.readings.combined import FirstOf
    from memledger.readings.ram import ram_pool, ram_source
    from memledger.readings.torch_backend import TorchSource

    gpu = next((gpu for gpu in gpus.gpus if key in (gpu.key, *gpu.slices)), None)
    uuid = "" if key.startswith("pci:") else key
    address = gpu.pci if gpu else key[4:] if not uuid else ""
    # A slice shares its card's address, so the address is no name of the slice.
    aliases = (f"pci:{address}",) if gpu and uuid == gpu.uuid and uuid and address else ()
    pool = PoolSpec(key, aliases, KIND_DEVICE)
    detail = f"seen by {gpus.seen_by}" if gpus.seen_by else gpus.detail
    source = NvmlSource(uuid, pci=address, session=session, root=root)
    if (
        gpus.seen_by == "nvml"
        and not key.startswith("MIG-")
        and (_is_integrated(gpu.model if gpu else "") or _has_no_memory(source))
    ):
        # An integrated GPU draws from the machine's RAM, so its chain goes on there (B35, B43).
        system = ram_source(root=root)
        source = NvmlSource(uuid, pci=address, session=session, root=root, system=system)
        return DeviceSpec(
            text, (pool, ram_pool(root=root)), (source, system), detail=f"{detail}, integrated"
        )
    torch = TorchSource("cuda", lambda: _running_ordinal(key))
    return DeviceSpec(text, (pool,), (FirstOf(source, torch),), detail=detail)


def _is_integrated(model: str) -> bool:
    """Whether NVML's name of the GPU is that of one inside a system on chip. Some drivers answer
    for those with a number that has nothing to do with the RAM, so the answer alone does not
    tell."""
    words = model.replace("-", " ").replace("(", " ").split()
    return any(word in _INTEGRATED_MODELS for word in words)


def _has_no_memory(source: NvmlSource) -> bool:
    """NVML answers for this GPU, but not about memory of its own: both calls unsupported, or a
    total of 0. NVML has no word for "integrated"; a discrete GPU answers, or fails with another
    code."""
    reading = source.read()
    return reading.reason == "not_supported" or (
        reading.reason == "implausible" and reading.detail.startswith("total 0,")
    )


# ---- by UUID or address


def _by_uuid(text: str, gpus: Gpus) -> str:
    wanted = text[:4].upper() + text[4:].lower()
    known = [uuid for gpu in gpus.gpus for uuid in (gpu.uuid, *gpu.slices) if uuid]
    # Without case: older drivers name a slice "MIG-GPU-<uuid>/<instance>/<instance>".
    found = [uuid for uuid in known if uuid.lower().startswith(text.lower())]
    if len(found) == 1:
        return found[0]
    if found:
        raise UnknownDevice(text, "more than one device begins like that", found)
    if not gpus.seen_by and _is_full_uuid(wanted):
        # Nothing here can list devices, but the name is complete: other processes use the same one.
        return wanted
    why = (
        f"no device has that UUID ({gpus.seen_by})"
        if gpus.seen_by
        else f"{gpus.detail}; give the whole UUID"
    )
    raise UnknownDevice(text, why, gpus.keys())


def _by_address(text: str, gpus: Gpus, root: str) -> str:
    address = normal_pci(text[4:])
    if not address:
        raise UnknownDevice(text, "expected pci:<dddd:bb:dd.f>", gpus.keys())
    for gpu in gpus.gpus:
        if gpu.pci == address:
            return gpu.key
    if os.path.isdir(pci_folder(root, address)):
        return f"pci:{address}"
    raise UnknownDevice(text, f"no PCI device at {address}", gpus.keys())


def _is_full_uuid(text: str) -> bool:
    body = text[4:]
    return (
        len(body) == 36
        and [len(part) for part in body.split("-")] == [8, 4, 4, 4, 12]
        and (set(body) <= _HEX | {"-"})
    )


# ---- by ordinal


def _by_ordinal(text: str, gpus: Gpus, environ: Mapping[str, str]) -> str:
    number = text[5:] if text.startswith("cuda:") else None
    if number is not None and not (number.isascii() and number.isdigit()):
        raise UnknownDevice(text, "expected cuda:<n>", gpus.keys())
    ordinal = int(number) if number is not None else _current_ordinal()
    running = running_cuda_uuid(ordinal)
    if running:
        return _with_prefix(running, gpus)
    mask = environ.get("CUDA_VISIBLE_DEVICES")
    if mask is None:
        return _device_at(text, ordinal, gpus, environ)
    tokens = [token.strip() for token in mask.split(",")]
    visible: list[str] = []
    for token in tokens:
        # CUDA stops at the first entry that names no device; what stands before it is visible.
        if len(visible) > ordinal or not token or token.startswith("-"):
            break
        if token[:4].upper() in ("GPU-", "MIG-"):
            visible.append(_masked_uuid(text, token, gpus))
        elif token.isascii() and token.isdigit():
            visible.append(_device_at(text, int(token), gpus, environ))
        else:
            break
    if ordinal >= len(visible):
        raise UnknownDevice(
            text, f"CUDA_VISIBLE_DEVICES={mask!r} shows {len(visible)} device(s)", gpus.keys()
        )
    return visible[ordinal]


def _masked_uuid(text: str, token: str, gpus: Gpus) -> str:
    try:
        key = _by_uuid(token, gpus)
    except UnknownDevice as error:
        raise UnknownDevice(text, f"CUDA_VISIBLE_DEVICES: {error}", gpus.keys()) from None
    return _whole(text, key, gpus)


def _device_at(text: str, index: int, gpus: Gpus, environ: Mapping[str, str]) -> str:
    """The device with that index in CUDA's own order, before any mask."""
    if not gpus.seen_by:
        raise UnknownDevice(text, f"{gpus.detail}; {_PASS_A_UUID}")
    if index >= len(gpus.gpus):
        raise UnknownDevice(text, f"{gpus.seen_by} shows {len(gpus.gpus)} device(s)", gpus.keys())
    if len(gpus.gpus) > 1 and not gpus.numbered:
        raise UnknownDevice(
            text, f"{gpus.seen_by} may show devices that CUDA does not; {_PASS_A_UUID}", gpus.keys()
        )
    if not all(gpu.answers for gpu in gpus.gpus[: index + 1]):
        raise UnknownDevice(
            text,
            f"a GPU before it does not answer, so CUDA may skip it; {_PASS_A_UUID}",
            gpus.keys(),
        )
    by_bus = environ.get("CUDA_DEVICE_ORDER", "").strip().upper() == "PCI_BUS_ID"
    models = {gpu.model for gpu in gpus.gpus}
    if not by_bus and (len(models) > 1 or "" in models) and len(gpus.gpus) > 1:
        raise UnknownDevice(
            text,
            "the GPUs differ, and CUDA orders them by speed, which only CUDA knows: set "
            "CUDA_DEVICE_ORDER=PCI_BUS_ID, "
            f"open the device after CUDA is initialised, or {_PASS_A_UUID}",
            gpus.keys(),
        )
    return _whole(text, gpus.gpus[index].key, gpus)


def _whole(text: str, key: str, gpus: Gpus) -> str:
    """`key`, unless that GPU is sliced: then CUDA sees one of the slices."""
    gpu = next((gpu for gpu in gpus.gpus if gpu.key == key), None)
    if gpu is None or not gpu.slices:
        return key
    if len(gpu.slices) == 1:
        return gpu.slices[0]
    raise UnknownDevice(text, f"{key} is sliced (MIG); name the slice", gpu.slices)


def _with_prefix(uuid: str, gpus: Gpus) -> str:
    """CUDA gives the bare UUID, of the slice where the device is one."""
    return f"MIG-{uuid}" if any(f"MIG-{uuid}" in gpu.slices for gpu in gpus.gpus) else f"GPU-{uuid}"


def _current_ordinal() -> int:
    """What "cuda" without a number means: torch's current device where torch uses CUDA already,
    else 0. Never imports torch and never initialises CUDA."""
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    try:
        return int(cuda.current_device()) if cuda is not None and cuda.is_initialized() else 0
    except Exception:  # a half-imported or broken torch says nothing
        return 0


def running_cuda_uuid(ordinal: int) -> str:
    """The UUID that the CUDA driver of this process gives that ordinal, "" where CUDA is not
    initialised, and where there is no looking without loading (Windows).

    Only looks: the library is neither loaded nor initialised here, since a process that initialised
    CUDA can no longer fork workers that use it.
    """
    if sys.platform != "linux":
        return ""
    import ctypes

    try:
        cuda = ctypes.CDLL("libcuda.so.1", mode=os.RTLD_NOLOAD | os.RTLD_NOW)
        get_uuid = getattr(cuda, "cuDeviceGetUuid_v2", None) or cuda.cuDeviceGetUuid
        device = ctypes.c_int()
        raw = ctypes.create_string_buffer(16)
        if cuda.cuDeviceGet(ctypes.byref(device), ordinal) != 0 or get_uuid(raw, device) != 0:
            return ""
    except (OSError, AttributeError):
        return ""
    text = raw.raw.hex()
    return "-".join((text[:8], text[8:12], text[12:16], text[16:20], text[20:]))


def _running_ordinal(key: str) -> int | None:
    """The ordinal under which CUDA of this process has the device, None where it does not run or
    has another set."""
    for ordinal in range(64):
        uuid = running_cuda_uuid(ordinal)
        if not uuid:
            return None
        if key[4:] == uuid:
            return ordinal
    return None


# ---- what can be seen


def enumerate_gpus(*, root: str = "/", session: NvmlSession | None = None) -> Gpus:
    """The NVIDIA GPUs in PCI order: from NVML, else from the driver's /proc files, else from sysfs.
    Never raises."""
    session = session or default_session()
    asleep = _suspended(root)
    if asleep:
        # Asking NVML for the list opens every GPU, which wakes the one that sleeps.
        detail = f"NVML is not asked while {asleep} is suspended"
    else:
        marker = Visit()
        try:
            nvml = session.open(marker)
            try:
                return Gpus(tuple(_by_bus(_nvml_gpus(nvml))), "nvml", True)
            finally:
                session.close(marker)
        except Unavailable as why:
            # What to do comes first, where the package is all that lacks.
            lacking = why.detail.startswith("pip install")
            detail = why.detail if lacking else f"no NVML ({why.detail})"
        except Exception as error:  # a broken driver raises anything
            detail = f"no NVML ({unavailable(error, 'nvmlDeviceGetCount').detail})"
    gpus = _by_bus(_proc_gpus(root))
    if gpus:
        return Gpus(tuple(gpus), "proc", True, detail)
    gpus = _by_bus(_sysfs_gpus(root))
    if gpus:
        return Gpus(tuple(gpus), "sysfs", len(gpus) == 1, detail)
    return Gpus((), "", False, f"{detail}, and no NVIDIA GPU in /proc or /sys")


def _suspended(root: str) -> str:
    """The address of an NVIDIA GPU that the kernel has put to sleep, "" for none."""
    addresses = (gpu.pci for gpu in _sysfs_gpus(root))
    return next((address for address in addresses if is_suspended(root, address)), "")


def _by_bus(gpus: Sequence[Gpu]) -> list[Gpu]:
    return sorted(gpus, key=lambda gpu: gpu.pci)


def _nvml_gpus(nvml: Any) -> list[Gpu]:
    return [_nvml_gpu(nvml, index) for index in range(int(nvml.nvmlDeviceGetCount()))]


def _nvml_gpu(nvml: Any, index: int) -> Gpu:
    pci = ""
    try:
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
        pci = normal_pci(_text(nvml.nvmlDeviceGetPciInfo(handle).busId))
        uuid, model = _text(nvml.nvmlDeviceGetUUID(handle)), _text(nvml.nvmlDeviceGetName(handle))
    except Exception:  # one lost GPU must not hide the others
        return Gpu("", pci, "", answers=False)
    return Gpu(uuid, pci, model, _nvml_slices(nvml, handle))


def _nvml_slices(nvml: Any, handle: Any) -> tuple[str, ...]:
    try:
        current, _ = nvml.nvmlDeviceGetMigMode(handle)
        if not current:
            return ()
        count = int(nvml.nvmlDeviceGetMaxMigDeviceCount(handle))
    except Exception:  # most GPUs know nothing of MIG and say so with an error
        return ()
    slices = []
    for index in range(count):
        try:
            slices.append(
                _text(
                    nvml.nvmlDeviceGetUUID(nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, index))
                )
            )
        except Exception:  # an empty place in the table
            continue
    return tuple(slices)


def _proc_gpus(root: str) -> list[Gpu]:
    """From /proc/driver/nvidia/gpus/<address>/information, those whose device node is here: a
    container may see the files of all cards and have the nodes of some."""
    folder = os.path.join(root, "proc", "driver", "nvidia", "gpus")
    gpus = []
    for name in listed(folder):
        fields = _information(os.path.join(folder, name, "information"))
        minor = fields.get("Device Minor", "")
        if minor and not os.path.exists(os.path.join(root, "dev", f"nvidia{minor}")):
            continue
        uuid = fields.get("GPU UUID", "")
        # "GPU-????????-..." until the driver has started that card.
        uuid = uuid if _is_full_uuid(uuid.lower()) else ""
        pci = normal_pci(name)
        if pci:
            gpus.append(Gpu(uuid, pci, fields.get("Model", "")))
    return gpus


def _information(path: str) -> dict[str, str]:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            lines = file.read(8192).splitlines()
    except OSError:
        return {}
    pairs = (line.partition(":") for line in lines)
    return {name.strip(): value.strip() for name, _, value in pairs}


def _sysfs_gpus(root: str) -> list[Gpu]:
    folder = os.path.join(root, "sys", "bus", "pci", "devices")
    gpus = []
    for name in listed(folder):
        device = os.path.join(folder, name)
        if word(device, "vendor") == "0x10de" and word(device, "class")[:4] == "0x03":
            gpus.append(Gpu("", normal_pci(name), word(device, "device")))
    return gpus


def _text(value: Any) -> str:
    """Old bindings answer bytes, new ones str."""
    return value.decode("ascii", "replace") if isinstance(value, bytes) else str(value)
