"""What an installed wheel must do on every system, by itself: no pytest, nothing of POSIX.

    python tests/wheel_smoke.py

Two processes join and see each other's bytes, one is killed, and its bytes go away. Run by
cibuildwheel in each Python and on each system; the tests of the checkout are for Linux.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import memledger

MIB = 1 << 20
PATIENCE_S = 30


def open_ram(path: str, label: str) -> tuple[memledger.Ledger, memledger.Device]:
    ledger = memledger.join(label=label, path=path)
    assert ledger.degraded_reason is None, ledger.degraded_reason
    assert ledger.scope == "path", ledger.scope
    return ledger, ledger.device("ram")


def be_the_other(path: str) -> None:
    """Holds 3 MiB, says so, and waits to be killed."""
    _ledger, ram = open_ram(path, "other")
    ram.publish(held=3 * MIB)
    print("ready", flush=True)
    time.sleep(10 * PATIENCE_S)


def held(ram: memledger.Device) -> int:
    return sum(row.held for row in ram.snapshot().rows)


def meet_and_bury(path: str, ram: memledger.Device, ledger: memledger.Ledger) -> None:
    other = subprocess.Popen([sys.executable, __file__, path], stdout=subprocess.PIPE)
    watchdog = threading.Timer(2 * PATIENCE_S, other.kill)
    watchdog.start()
    assert other.stdout is not None
    assert other.stdout.readline().strip() == b"ready"
    assert sorted(member.label for member in ledger.members()) == ["one", "other"]
    assert held(ram) == 4 * MIB
    other.kill()
    other.wait()
    other.stdout.close()
    watchdog.cancel()
    deadline = time.monotonic() + PATIENCE_S
    while held(ram) != MIB:
        assert time.monotonic() < deadline, "a dead member's bytes stay"
        time.sleep(0.05)
    assert [member.label for member in ledger.members()] == ["one"]


def use_alone(ram: memledger.Device) -> None:
    """Whatever the source of this system says: a figure that is known is a number that fits."""
    with ram.claim(2 * MIB, timeout=5) as claim:
        claim.settle(held=3 * MIB)
    assert held(ram) == 3 * MIB
    figures = ram.figures()
    if figures.total is None:
        print(f"no total here: {figures.reason}")
    else:
        assert figures.free is not None
        assert 0 <= figures.free <= figures.total
        try:
            ram.claim(figures.total * 2)
        except memledger.ClaimRefused:
            pass
        else:
            raise AssertionError("a claim of twice the memory was granted")
    ram.publish(held=MIB)
    assert held(ram) == MIB


def main() -> None:
    if len(sys.argv) > 1:
        be_the_other(sys.argv[1])
        return
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:  # Windows: mapped
        path = str(Path(folder) / "segment")
        ledger, ram = open_ram(path, "one")
        use_alone(ram)
        meet_and_bury(path, ram, ledger)
        ledger.leave()
    print(f"wheel works: {memledger.__file__} in Python {sys.version.split()[0]}")


if __name__ == "__main__":
    main()
