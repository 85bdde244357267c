"""The same nodes for pyisolate, which calls an extension."""

from __future__ import annotations

import asyncio
import os
from typing import Any

import memledger_test_nodes as nodes
from pyisolate import ExtensionBase


class TestExtension(ExtensionBase):  # type: ignore[misc]
    began = False

    async def tell(self) -> dict[str, Any]:
        known = {**nodes.tell(), "namespace": os.readlink("/proc/self/ns/pid")}
        known["variables"] = sorted(name for name in os.environ if name.startswith("MEMLEDGER"))
        return known

    async def load(self, nbytes: int) -> int:
        return nodes.load(nbytes)

    async def checks(self) -> str:
        """Until it is interrupted."""
        import comfy.model_management as mm

        self.began = True
        for _ in range(10_000):
            mm.throw_exception_if_processing_interrupted()
            await asyncio.sleep(0.002)
        return "barked"

    async def has_begun(self) -> bool:
        return self.began
