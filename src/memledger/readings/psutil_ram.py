"""The machine's RAM from psutil, where there is no /proc/meminfo (macOS, Windows, BSD)."""

from __future__ import annotations

import importlib

from memledger.model import Reading, absent, plausible


class PsutilRam:
    """Reads psutil.virtual_memory(). About 35 us after the first call, which imports psutil."""

    name = "psutil"
    timeout_s = 0.2
    never_blocks = True  # kernel files and memory, no driver

    def read(self) -> Reading:
        """Never raises for a missing psutil ("no_probe") or a refusing system."""
        try:
            psutil = importlib.import_module("psutil")
        except ImportError:
            return absent(self.name, "no_probe", "psutil is not installed for this Python")
        try:
            memory = psutil.virtual_memory()
        except psutil.AccessDenied:
            return absent(self.name, "no_permission", "psutil.virtual_memory: access denied")
        except (OSError, psutil.Error, ValueError, RuntimeError) as error:
            return absent(self.name, "probe_failed", f"psutil.virtual_memory: {error}")
        total, free = int(memory.total), int(memory.available)
        # Some systems let available run a little past total or below zero while pages move between
        # lists.
        free = max(0, min(free, total))
        immediate = max(0, min(int(memory.free), free))
        return plausible(Reading(self.name, total=total, free=free, immediate=immediate))

    def explain(self) -> str:
        return (
            "asks psutil for the whole machine's RAM, as there is no /proc/meminfo here; install "
            "psutil where it is missing"
        )
