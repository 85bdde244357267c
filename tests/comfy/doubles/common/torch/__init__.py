"""A torch with just enough in it: devices, dtypes, tensors that are sizes, simulated cards."""

from __future__ import annotations

import contextlib
from typing import Any

from torch import cuda, nn
from torch.cuda import OutOfMemoryError

__version__ = "2.0.double"


class device:
    def __init__(self, kind: Any, index: int | None = None) -> None:
        if isinstance(kind, device):
            kind, index = kind.type, kind.index
        elif ":" in kind:
            kind, _, number = kind.partition(":")
            index = int(number)
        self.type, self.index = kind, index

    def __str__(self) -> str:
        return self.type if self.index is None else f"{self.type}:{self.index}"

    def __repr__(self) -> str:
        return f"device(type={self.type!r}, index={self.index!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, device) and (self.type, self.index) == (other.type, other.index)

    def __hash__(self) -> int:
        return hash((self.type, self.index))


class dtype:
    def __init__(self, name: str, itemsize: int) -> None:
        self.name, self.itemsize = name, itemsize

    def __repr__(self) -> str:
        return f"torch.{self.name}"


float32 = dtype("float32", 4)
float16 = dtype("float16", 2)
bfloat16 = dtype("bfloat16", 2)
float8_e4m3fn = dtype("float8_e4m3fn", 1)


class Tensor:
    """Bytes on a device, gone with the object."""

    def __init__(self, nbytes: int, where: Any = "cpu") -> None:
        self.nbytes = nbytes
        self.device = device(where)
        self._allocation = None
        if self.device.type == "cuda":
            self._allocation = cuda.allocator(self.device).alloc(nbytes)
            self._allocation.wait()

    def untyped_storage(self) -> Tensor:
        return self

    def data_ptr(self) -> int:
        return id(self)

    def numel(self) -> int:
        return self.nbytes

    def nelement(self) -> int:
        return self.nbytes

    def element_size(self) -> int:
        return 1

    def __del__(self) -> None:
        if getattr(self, "_allocation", None) is not None:
            self._allocation.free()


class Sized:
    """A tensor's size without the bytes: for a weight whose place is not decided yet."""

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes

    def nelement(self) -> int:
        return self.nbytes

    def element_size(self) -> int:
        return 1


def empty(nbytes: int, device: Any = "cpu") -> Tensor:
    return Tensor(nbytes, device)


no_grad = contextlib.nullcontext

__all__ = [
    "OutOfMemoryError",
    "Sized",
    "Tensor",
    "cuda",
    "device",
    "dtype",
    "empty",
    "nn",
    "no_grad",
]
