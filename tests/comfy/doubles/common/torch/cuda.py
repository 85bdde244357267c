"""torch.cuda over simulated cards."""

from __future__ import annotations

import os
from typing import Any

from memledger import sim


class OutOfMemoryError(RuntimeError):
    pass


def _names() -> list[str]:
    return [name for name in os.environ.get("COMFY_DOUBLE_CARDS", "").split(";") if name]


_allocators: dict[int, sim.Allocator] = {}


def _index(where: Any) -> int:
    if where is None:
        return 0
    if isinstance(where, int):
        return where
    _, _, number = str(where).partition(":")
    return int(number or 0)


def allocator(where: Any = None) -> sim.Allocator:
    index = _index(where)
    if index not in _allocators:
        _allocators[index] = sim.Allocator(sim.open_url(_names()[index].removeprefix("sim:")))
    return _allocators[index]


def is_available() -> bool:
    return bool(_names())


def is_initialized() -> bool:
    return bool(_allocators)


def device_count() -> int:
    return len(_names())


def current_device() -> int:
    return 0


def get_device_name(where: Any = None) -> str:
    return f"Double {_index(where)}"


def get_allocator_backend() -> str:
    return "double"


def memory_stats(where: Any = None) -> dict[str, int]:
    own = allocator(where)
    reserved, allocated = own.reserved, own.allocated
    return {
        "reserved_bytes.all.current": reserved,
        "allocated_bytes.all.current": allocated,
        "active_bytes.all.current": allocated,
    }


def mem_get_info(where: Any = None) -> tuple[int, int]:
    card = allocator(where).card
    used, reserved, total = card.read()
    return max(0, total - reserved - used), total


def empty_cache() -> None:
    for own in _allocators.values():
        own.empty_cache()


def ipc_collect() -> None:
    pass


def synchronize(where: Any = None) -> None:
    pass


class graph:
    """What torch.cuda.graph is to a caller: a context manager."""

    def __init__(
        self, cuda_graph: Any, pool: Any = None, stream: Any = None, **kwargs: Any
    ) -> None:
        self.cuda_graph = cuda_graph

    def __enter__(self) -> None:
        pass

    def __exit__(self, *exc: object) -> None:
        pass


class CUDAGraph:
    pass
