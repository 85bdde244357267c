"""What the kernel and the driver say: asked, never published to."""

from __future__ import annotations

import importlib.util
from typing import Any

from benchmarks.peers.peer import Peer


class Psutil(Peer):
    name = "psutil.virtual_memory()"
    reads_only = True
    dies_inside = False

    @classmethod
    def unavailable(cls) -> str | None:
        return None if importlib.util.find_spec("psutil") else "psutil is not installed"

    def attach(self, me: int) -> None:
        import psutil

        self.psutil = psutil

    read_call = "psutil.virtual_memory()"

    def names(self) -> dict[str, Any]:
        return {"psutil": self.psutil}


class Nvml(Peer):
    name = "NVML memory info"
    reads_only = True
    dies_inside = False

    @classmethod
    def unavailable(cls) -> str | None:
        if not importlib.util.find_spec("pynvml"):
            return "nvidia-ml-py is not installed"
        import pynvml

        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError:
            return "no driver here"
        return None

    def attach(self, me: int) -> None:
        import pynvml

        pynvml.nvmlInit()
        self.pynvml, self.handle = pynvml, pynvml.nvmlDeviceGetHandleByIndex(0)

    read_call = "pynvml.nvmlDeviceGetMemoryInfo(handle)"

    def names(self) -> dict[str, Any]:
        return {"pynvml": self.pynvml, "handle": self.handle}
