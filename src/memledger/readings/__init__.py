"""Where figures about whole pools come from, and how a device name becomes a stable key.

A source answers for one pool. It is called by housekeeping, never on a hot path, and keeps no
thread. Anything with `name`, `timeout_s` and `read()` is a source; to add one, write a file beside
these and let `resolve` hand it out.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol

from memledger.errors import UnknownDevice
from memledger.model import KIND_RAM, KIND_SIM, DeviceSpec, PoolSpec, Reading
from memledger.sizes import parse_size

if TYPE_CHECKING:
    from memledger.readings.nvml import NvmlSession

__all__ = ["Source", "candidates", "ram_pool", "ram_source", "resolve"]

_DEFAULT_LARGEST_BYTES = 4 << 40


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


def resolve(
    name: object,
    *,
    total: int | str | None = None,
    root: str = "/",
    environ: Mapping[str, str] | None = None,
    session: NvmlSession | None = None,
) -> DeviceSpec:
    """The chain of pools and their sources that a device name stands for.

    name: "ram" or "cpu"; "sim:<name>[?parameters]"; "cuda:<n>" or "cuda"; anything with `.type` and
    `.index`, such as a torch.device; "GPU-<uuid>", "MIG-<uuid>" or a unique beginning of one;
    "pci:<address>"; "ram:<boot id>" of this boot.
    total: bytes (or a string such as "24GiB") to assume where there is no reading; else
    MEMLEDGER_TOTAL for a GPU.
    root, environ, session: where to look for /proc and /sys, the environment, and the NVML session,
    for tests and for looking at another root.

    Raises UnknownDevice with the names that would work; InvalidFigure for a bad size. May
    initialise NVML. No ordinal ever becomes a key: two processes that see
    different cards as "cuda:0" get different pools, and two names of one card get the same.
    """
    env: Mapping[str, str] = os.environ if environ is None else environ
    text = _text_of(name)
    assumed = None if total is None else parse_size(total)
    kind, _, rest = text.partition(":")
    if text in ("ram", "cpu") or kind == "ram":
        return _resolve_ram(text, assumed, root)
    if kind == "sim":
        return _resolve_sim(text, rest, assumed)
    if kind in ("cuda", "pci") or text[:4].upper() in ("GPU-", "MIG-"):
        from memledger.readings import nvidia

        if assumed is None and env.get("MEMLEDGER_TOTAL", "").strip():
            assumed = parse_size(env["MEMLEDGER_TOTAL"])
        spec = nvidia.resolve(text, root=root, environ=env, session=session)
        return spec._replace(total=assumed)
    raise UnknownDevice(
        text,
        "expected 'ram', 'cuda:<n>', 'GPU-<uuid>', 'MIG-<uuid>', 'pci:<address>' or 'sim:<name>'",
        candidates(root=root, session=session),
    )


def candidates(*, root: str = "/", session: NvmlSession | None = None) -> tuple[str, ...]:
    """Names that `resolve` knows here: RAM, the NVIDIA devices it can see, existing simulated
    cards."""
    from memledger import sim
    from memledger.readings import nvidia

    gpus = nvidia.enumerate_gpus(root=root, session=session)
    return ("ram", *gpus.keys(), *(f"sim:{card}" for card in sim.existing()))


def ram_pool(*, root: str = "/") -> PoolSpec:
    """The pool of this machine's RAM: the same for every process of this boot, in any container."""
    from memledger.readings.machine import boot_identity, physical_ram

    # The default unit serves up to 4 TiB; a larger machine counts in coarser ones.
    largest = physical_ram() if physical_ram() > _DEFAULT_LARGEST_BYTES else 0
    return PoolSpec(f"ram:{boot_identity(root=root)}", kind=KIND_RAM, largest_bytes=largest)


def ram_source(*, root: str = "/") -> Source:
    """/proc/meminfo where there is one, else psutil."""
    if os.path.exists(os.path.join(root, "proc", "meminfo")):
        from memledger.readings.meminfo import Meminfo

        return Meminfo(root=root)
    from memledger.readings.psutil_ram import PsutilRam

    return PsutilRam()


def _resolve_ram(text: str, total: int | None, root: str) -> DeviceSpec:
    pool = ram_pool(root=root)
    if text not in ("ram", "cpu", pool.key):
        raise UnknownDevice(text, f"this machine's RAM is {pool.key}", ("ram",))
    return DeviceSpec(text, (pool,), (ram_source(root=root),), total)


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
