"""Where figures about whole pools come from, and how a device name becomes a stable key.

A source answers for one pool. It is called by housekeeping, never on a hot path, and keeps no
thread. Anything with `name`, `timeout_s` and `read()` is a source; to add one, write a file beside
these and let `resolve` hand it out.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol

from memledger.errors import UnknownDevice
from memledger.model import KIND_SIM, DeviceSpec, PoolSpec, Reading
from memledger.readings.ram import RamWatch, chain, ram_pool, ram_source
from memledger.sizes import parse_size

if TYPE_CHECKING:
    from memledger.readings.nvml import NvmlSession

__all__ = ["RamWatch", "Source", "candidates", "ram_pool", "ram_source", "resolve"]

_TOTAL = "MEMLEDGER_TOTAL"


class Source(Protocol):
    """One probe of one pool.

    name: at most 8 ASCII characters; it travels in the segment.
    timeout_s: how long `read` may take; a longer one is a failed reading, since the records have
    moved on.
    """

    @property
    def name(self) -> str: ...

    @property
    def timeout_s(self) -> float: ...

    def read(self) -> Reading:
        """The figures now. Expected trouble (no library, no permission, a lost GPU) is a Reading
        with total and free None and the reason, never an exception; the caller takes an exception
        for "probe_failed". May block in a driver, so call it without any lock. A source that keeps
        a session open between reads has `close()`, which drops it; the next `read` opens it
        again."""
        ...

    def explain(self) -> str:
        """One line for `doctor`: what is read, why not something better, what the user can do."""
        ...


def resolve(
    name: object,
    *,
    total: int | str | None = None,
    root: str = "/",
    environ: Mapping[str, str] | None = None,
    session: NvmlSession | None = None,
) -> DeviceSpec:
    """The chain of pools and their sources that a device name stands for.

    name: "ram" or "cpu"; "cuda:<n>" or "cuda" (NVIDIA, and AMD where torch is built for HIP or
    there is no NVIDIA GPU); "hip:<n>", "xpu:<n>", "mps", "npu:<n>", "mlu:<n>"; anything with
    `.type` and `.index`, such as a torch.device; "GPU-<uuid>", "MIG-<uuid>" or a unique beginning
    of one; "pci:<address>"; "sim:<name>[?parameters]"; the key of a pool of this process's RAM
    chain.
    total: bytes (or a string such as "24GiB") to assume where there is no reading; else
    MEMLEDGER_TOTAL_<KEY>, as `total_variables` writes it, or for a GPU MEMLEDGER_TOTAL.
    root, environ, session: where to look for /proc and /sys, the environment, and the NVML session,
    for tests and for looking at another root.

    Raises UnknownDevice with the names that would work; InvalidFigure for a bad size. May
    initialise NVML, never a device. No ordinal ever becomes a key: two processes that see
    different cards as "cuda:0" get different pools, and two names of one card get the same.
    """
    env: Mapping[str, str] = os.environ if environ is None else environ
    text = _text_of(name)
    given = None if total is None else parse_size(total)
    spec = _spec_of(text, given, root, env, session)
    if spec.levels[0].kind == KIND_SIM:
        return spec  # a simulated card has its own total, checked against the one given
    assumed = _configured(spec, env) if given is None else given
    return spec if assumed is None else spec._replace(total=assumed)


def _spec_of(
    text: str,
    total: int | None,
    root: str,
    env: Mapping[str, str],
    session: NvmlSession | None,
) -> DeviceSpec:
    kind, _, rest = text.partition(":")
    if text in ("ram", "cpu") or kind in ("ram", "cgroup"):
        return _resolve_ram(text, root)
    if kind == "sim":
        return _resolve_sim(text, rest, total)
    if kind in ("npu", "mlu"):
        from memledger.readings import accelerators

        return accelerators.resolve(text, root=root, environ=env)
    if kind == "mps":
        from memledger.readings import apple

        return apple.resolve(text, root=root)
    is_uuid = text[:4].upper() in ("GPU-", "MIG-")
    if kind in ("cuda", "hip", "rocm", "xpu", "pci") or is_uuid:
        return _resolve_gpu(text, kind, root, env, session)
    from memledger.readings.accelerators import WITHOUT_KEY

    raise UnknownDevice(
        text,
        WITHOUT_KEY.get(
            kind,
            "expected 'ram', 'cuda:<n>', 'GPU-<uuid>', 'MIG-<uuid>', 'pci:<address>' or "
            "'sim:<name>'",
        ),
        candidates(root=root, session=session),
    )


def candidates(*, root: str = "/", session: NvmlSession | None = None) -> tuple[str, ...]:
    """Names that `resolve` knows here: RAM, the GPUs it can see, existing simulated cards."""
    from memledger import sim
    from memledger.readings import amd, intel, nvidia

    cards = nvidia.enumerate_gpus(root=root, session=session)
    return (
        "ram",
        *cards.keys(),
        *(gpu.key for gpu in amd.gpus(root=root)),
        *(gpu.key for gpu in intel.gpus(root=root)),
        *(f"sim:{card}" for card in sim.existing()),
    )


def total_variables(pool: PoolSpec) -> tuple[str, ...]:
    """Names of the environment variables that give this pool a total, the first that is set wins:
    MEMLEDGER_TOTAL_ and its key (then its aliases) in capitals, with "_" for what is neither letter
    nor digit; for the machine's RAM also MEMLEDGER_TOTAL_RAM. Never an ordinal: a child with
    another mask inherits the variable."""
    names = [re.sub(r"[^A-Z0-9]", "_", key.upper()) for key in (pool.key, *pool.aliases)]
    if pool.key.startswith("ram:"):
        names.append("RAM")
    return tuple(f"{_TOTAL}_{name}" for name in names)


def _configured(spec: DeviceSpec, env: Mapping[str, str]) -> int | None:
    """The total that the environment gives the device."""
    first = spec.levels[0]
    names = total_variables(first)
    if not first.key.startswith(("ram:", "cgroup:")):
        names = (*names, _TOTAL)
    return next((parse_size(env[name]) for name in names if env.get(name, "").strip()), None)


def _resolve_ram(text: str, root: str) -> DeviceSpec:
    found = chain(root=root)
    keys = [pool.key for pool in found.pools]
    if text not in ("ram", "cpu", *keys):
        machine = ram_pool(root=root).key
        why = (
            f"this machine's RAM is {machine}"
            if text.startswith("ram:")
            else "this process is in no such control group, or it has no limit"
        )
        raise UnknownDevice(text, why, ("ram", *keys))
    # A key means that very pool, and what lies outside of it.
    first = keys.index(text) if text in keys else 0
    return DeviceSpec(text, found.pools[first:], found.sources[first:], detail=found.detail)


def _resolve_gpu(
    text: str, kind: str, root: str, env: Mapping[str, str], session: NvmlSession | None
) -> DeviceSpec:
    from memledger.readings import amd, intel, nvidia

    if kind == "pci":
        from memledger.readings.files import normal_pci

        address = normal_pci(text[4:])
        if address and amd.is_amd(root, address):
            return amd.resolve(text, root=root, environ=env)
        if address and intel.is_intel(root, address):
            return intel.resolve(text, root=root, environ=env)
    elif kind == "xpu":
        return intel.resolve(text, root=root, environ=env)
    elif kind in ("hip", "rocm") or (kind == "cuda" and _torch_is_hip()):
        return amd.resolve(text, root=root, environ=env)
    elif text[:4].upper() == "GPU-":
        # ROCm's UUIDs begin like NVIDIA's.
        if any(gpu.uuid.lower() == text.lower() for gpu in amd.gpus(root=root)):
            return amd.resolve(text, root=root, environ=env)
    elif (
        kind == "cuda"
        and amd.gpus(root=root)
        and not nvidia.enumerate_gpus(root=root, session=session).gpus
    ):
        # torch calls an AMD GPU "cuda" too. With an NVIDIA one beside it, CUDA means that.
        return amd.resolve(text, root=root, environ=env)
    return nvidia.resolve(text, root=root, environ=env, session=session)


def _torch_is_hip() -> bool:
    """Whether this process has a torch that is built for AMD. Never imports it."""
    version = getattr(sys.modules.get("torch"), "version", None)
    return bool(getattr(version, "hip", None))


def _resolve_sim(text: str, rest: str, total: int | None) -> DeviceSpec:
    from memledger import sim
    from memledger.readings.simulated import SimulatedCard

    card = sim.open_url(rest, total=total)
    pool = PoolSpec(f"sim:{card.name}", kind=KIND_SIM)
    return DeviceSpec(text, (pool,), (SimulatedCard(card),))


def _text_of(name: object) -> str:
    """`name` as text. A torch.device is taken by its shape, so that torch is never imported."""
    if isinstance(name, str):
        return name.strip()
    kind, index = getattr(name, "type", None), getattr(name, "index", None)
    if not isinstance(kind, str):
        raise UnknownDevice(name, f"expected a string or a torch.device, got {type(name).__name__}")
    if kind == "cpu" or index is None:
        return kind
    return f"{kind}:{index}"
