"""Holders for tests, good and bad ones. Also imported by the processes that obey."""

from __future__ import annotations

import os
import threading
from typing import Any


class Gives:
    """Gives what it is asked for, as far as there is releasable; `at_most` bytes a call."""

    def __init__(self, device: Any, at_most: int | None = None) -> None:
        self.device, self.at_most, self.calls = device, at_most, 0

    def release_memory(self, device: object, size: int) -> int:
        self.calls += 1
        held, releasable, pinned = self.device.amounts
        size = min(size, releasable, size if self.at_most is None else self.at_most)
        self.device.publish(held - size, releasable=releasable - size, pinned=pinned)
        return int(size)


class Says:
    """Says that it has freed so many bytes, and has freed nothing."""

    def __init__(self, nbytes: int) -> None:
        self.nbytes, self.calls = nbytes, 0

    def release_memory(self, device: object, size: int) -> int:
        self.calls += 1
        return self.nbytes


class Raises:
    def __init__(self, error: BaseException) -> None:
        self.error, self.calls = error, 0

    def release_memory(self, device: object, size: int) -> int:
        self.calls += 1
        raise self.error


class Hangs:
    """Its first call waits until `go` is set, and frees nothing; later ones go to `then`."""

    def __init__(self, then: Any = None) -> None:
        self.then, self.calls = then, 0
        self.inside, self.go, self.ended = threading.Event(), threading.Event(), threading.Event()

    def release_memory(self, device: object, size: int) -> int:
        self.calls += 1
        if self.calls > 1 and self.then is not None:
            return int(self.then.release_memory(device, size))
        self.inside.set()
        self.go.wait(60)
        self.ended.set()
        return 0


class Dies:
    def release_memory(self, device: object, size: int) -> int:
        os._exit(7)
