"""Which machine, and which boot of it, this is: the name of the RAM pool."""

from __future__ import annotations

import os
import sys

_KEY_CHARACTERS = frozenset("0123456789abcdefABCDEF-")


def boot_identity(*, root: str = "/") -> str:
    """A name for this boot, the same in every process and container of the machine.

    Linux: the kernel's boot id. macOS: its boot session. Elsewhere, and in sandboxes without a boot
    id: "m-" and a hash of the machine's id. No boot time goes into it: what systems without a boot
    id offer is a wall-clock time, which moves with the clock, and two processes with two names
    would share nothing. A segment does not survive a boot anyway.
    """
    return _linux_boot_id(root) or _darwin_boot_session() or f"m-{_hash(_machine_id(root))}"


def physical_ram() -> int:
    """Bytes of RAM that the system was booted with, 0 where it does not say. Never a figure: only
    to size units."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return 0


def _linux_boot_id(root: str) -> str:
    text = _first_line(os.path.join(root, "proc", "sys", "kernel", "random", "boot_id"))
    return text if text and set(text) <= _KEY_CHARACTERS and len(text) <= 64 else ""


def _darwin_boot_session() -> str:
    if sys.platform != "darwin":
        return ""
    import ctypes

    try:
        libc = ctypes.CDLL(None)
        buffer = ctypes.create_string_buffer(64)
        size = ctypes.c_size_t(len(buffer))
        if libc.sysctlbyname(b"kern.bootsessionuuid", buffer, ctypes.byref(size), None, 0) != 0:
            return ""
    except (OSError, AttributeError):
        return ""
    return buffer.value.decode("ascii", "replace")


def _machine_id(root: str) -> str:
    if sys.platform == "win32":
        import winreg

        try:
            with winreg.OpenKey(
                winreg.HKEY_LOCAL_MACHINE, r"SOFTWARE\Microsoft\Cryptography"
            ) as key:
                return str(winreg.QueryValueEx(key, "MachineGuid")[0])
        except OSError:
            pass
    for parts in (("etc", "machine-id"), ("var", "lib", "dbus", "machine-id")):
        text = _first_line(os.path.join(root, *parts))
        if text:
            return text
    import platform

    return platform.node() or "unknown"


def _hash(text: str) -> str:
    # The machine id is meant to stay private (machine-id(5)), hence the hash.
    import hashlib

    return hashlib.sha256(b"memledger:" + text.encode()).hexdigest()[:32]


def _first_line(path: str) -> str:
    try:
        with open(path, "rb") as file:
            lines = file.read(256).decode("ascii", "replace").splitlines()
    except OSError:
        return ""
    return lines[0].strip() if lines else ""
