"""Small files of /proc and /sys, read whole; what is not there is "" and never an exception."""

from __future__ import annotations

import os

_PCI_HEX = frozenset("0123456789abcdef")


def word(*parts: str) -> str:
    """The file's content without white space at its ends, at most 4 KiB of it; "" where it cannot
    be read. About 8 us."""
    try:
        with open(os.path.join(*parts), "rb") as file:
            return file.read(4096).strip().decode("ascii", "replace")
    except (OSError, ValueError):  # ValueError: a NUL in a name that came out of another file
        return ""


def number(*parts: str) -> int | None:
    """The file's decimal number, such as a count of bytes; None where there is none."""
    text = word(*parts)
    return int(text) if text.isascii() and text.isdigit() else None


def listed(folder: str) -> list[str]:
    """Names in `folder`, sorted; none where it cannot be listed."""
    try:
        return sorted(os.listdir(folder))
    except (OSError, ValueError):
        return []


def pci_folder(root: str, address: str) -> str:
    """Where sysfs shows the PCI device at `address`."""
    return os.path.join(root, "sys", "bus", "pci", "devices", address)


def is_suspended(root: str, address: str) -> bool:
    """Whether the kernel has put that PCI device to sleep. Looking does not wake it."""
    return bool(address) and (
        word(pci_folder(root, address), "power", "runtime_status") == "suspended"
    )


def normal_pci(text: str) -> str:
    """A PCI address as "dddd:bb:dd.f" in lower case, from any of "00000000:01:00.0", "01:00.0",
    "0000:01:00"; "" where it is none."""
    body, _, function = text.strip().lower().partition(".")
    parts = body.split(":")
    if len(parts) == 2:
        parts.insert(0, "0000")
    fields = (*parts, function or "0")
    if len(parts) != 3 or not all(part and set(part) <= _PCI_HEX for part in fields):
        return ""
    domain, bus, device = (int(part, 16) for part in parts)
    return f"{domain:04x}:{bus:02x}:{device:02x}.{int(function or '0', 16):x}"
