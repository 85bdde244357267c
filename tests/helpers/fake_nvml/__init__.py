"""A driver without a GPU: `libnvidia-ml.so.1` of our own, compiled by the test, so that the real
nvidia-ml-py runs against it unchanged in real processes.

    driver = FakeDriver(tmp_path, Card(uuid(0)), Card(uuid(1)))
    spawn("a", env=driver.env())       # a process that finds this driver
    driver.set(0, free=4 * GiB)        # what all processes see from now on
    driver.calls("v2")                 # made so far, by all of them
"""

from __future__ import annotations

import mmap
import struct
import subprocess
from pathlib import Path
from typing import NamedTuple

from helpers.system import compiler

GIB = 1 << 30
_MAGIC = 0x6C6D764E656B6146
_DEVICES_MAX = 16
_CALLS = ("init", "shutdown", "list", "find", "v2", "v1")
_HEADER = struct.Struct("<5Q8Q")
_DEVICE = struct.Struct("<96s96s32s8Q")
_NUMBERS = (
    "total", "free", "reserved", "find_error", "v2_error", "v1_error", "latency_us", "slice_of",
)  # fmt: skip
_SOURCE = Path(__file__).with_name("nvml.c")


class Card(NamedTuple):
    """A GPU, or with `slice_of` (a card's index) a MIG slice of one. Errors are nvmlReturn_t, 0 for
    none; sizes in bytes; latency of each memory call in us."""

    uuid: str
    total: int = 24 * GIB
    free: int = 20 * GIB
    reserved: int = 0
    find_error: int = 0
    v2_error: int = 0
    v1_error: int = 0
    latency_us: int = 0
    slice_of: int | None = None
    name: str = "Fake RTX"


def uuid(number: int) -> str:
    return f"GPU-{number:08x}-1111-2222-3333-444444444444"


class FakeDriver:
    """The library and its state, in `folder`. without: "v1" or "v2", calls that it lacks."""

    def __init__(self, folder: Path, *cards: Card, without: tuple[str, ...] = ()) -> None:
        self.cards = cards
        self._folder = folder / "fake-driver"
        self._folder.mkdir()
        self._state = self._folder / "state"
        flags = [f"-DWITHOUT_{name.upper()}" for name in without]
        built = subprocess.run(
            [compiler(), "-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror", *flags,
             "-o", str(self._folder / "libnvidia-ml.so.1"), str(_SOURCE)],
            capture_output=True, text=True, timeout=120,
        )  # fmt: skip
        assert built.returncode == 0, built.stderr
        self._state.write_bytes(bytes(_HEADER.size + _DEVICES_MAX * _DEVICE.size))
        with self._state.open("r+b") as file:
            self._memory = mmap.mmap(file.fileno(), 0)
        for index, card in enumerate(cards):
            numbers = {
                **card._asdict(),
                "slice_of": 0 if card.slice_of is None else card.slice_of + 1,
            }
            _DEVICE.pack_into(
                self._memory, self._at(index), card.uuid.encode(), card.name.encode(),
                f"00000000:{index + 1:02X}:00.0".encode(), *(numbers[name] for name in _NUMBERS),
            )  # fmt: skip
        # The magic last: a process that starts meanwhile finds no driver rather than half of one.
        _HEADER.pack_into(self._memory, 0, _MAGIC, len(cards), 0, 0, 0, *([0] * 8))

    def env(self, *, init_error: int = 0, **more: str) -> dict[str, str]:
        """For processes that find this driver; init_error: in them only, nvmlInit fails so."""
        found = {"LD_LIBRARY_PATH": str(self._folder), "FAKE_NVML_STATE": str(self._state), **more}
        return {**found, "FAKE_NVML_INIT": str(init_error)} if init_error else found

    def set(self, index: int, **numbers: int) -> None:
        """Change numbers of a card, each with one store."""
        for name, value in numbers.items():
            offset = self._at(index) + 96 + 96 + 32 + 8 * _NUMBERS.index(name)
            struct.pack_into("<Q", self._memory, offset, value)

    def pci(self, index: int) -> str:
        return f"pci:0000:{index + 1:02x}:00.0"

    def fail_init(self, code: int) -> None:
        """From now on nvmlInit fails so in every process; 0 ends it."""
        struct.pack_into("<Q", self._memory, 16, code)

    def reload(self) -> None:
        """The driver is unloaded and loaded: sessions opened before get error 999."""
        (epoch,) = struct.unpack_from("<Q", self._memory, 24)
        struct.pack_into("<Q", self._memory, 24, epoch + 1)

    def slow_only(self, pid: int) -> None:
        """Latencies are for that process alone."""
        struct.pack_into("<Q", self._memory, 32, pid)

    def calls(self, *names: str) -> int:
        """How often these were called, by all processes together: "init", "shutdown", "list",
        "find", "v2", "v1"; no name: all of them."""
        counts = struct.unpack_from("<8Q", self._memory, 40)
        return sum(counts[_CALLS.index(name)] for name in names or _CALLS)

    def _at(self, index: int) -> int:
        assert index < _DEVICES_MAX
        return _HEADER.size + index * _DEVICE.size
