"""A copied folder is all that a bare worker of another Python needs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import memledger
from helpers import pythons
from helpers.member import plain_device
from helpers.members import Member
from helpers.units import GiB

TOTAL = 24 * GiB


@pytest.fixture(params=pythons.VERSIONS)
def python(request: pytest.FixtureRequest) -> str:
    found = pythons.find(request.param)
    if found is None:
        pytest.skip(f"no Python {request.param}")
    return found


@pytest.fixture
def package(tmp_path: Path) -> Path:
    return pythons.copy_package(tmp_path)


def bare(python: str, package: Path, code: str, *flags: str) -> subprocess.CompletedProcess[str]:
    begin = f"import sys; sys.path.insert(0, {str(package)!r})\n"
    return subprocess.run(
        [python, "-I", "-S", *flags, "-c", begin + code],
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip


def test_native_member_of_a_bare_python_does_everything(
    spawn: Any, python: str, package: Path
) -> None:
    here: Member = spawn("here", total=TOTAL)
    there: Member = spawn("there", total=TOTAL, python=python, flags=("-I", "-S"), package=package)
    assert there.run("sys.flags.no_site") == 1
    assert there.run("import memledger; memledger.__file__").startswith(str(package))
    here.publish(2 * GiB)
    there.publish(3 * GiB, GiB, GiB)
    for member in (here, there):
        assert member.figures()["held"] == 5 * GiB
        assert sorted(m["label"] for m in member.call("members")) == ["here", "there"]
    number = there.call("claim", 4 * GiB)
    assert here.figures()["claimed_by_others"] == 4 * GiB
    assert here.free() == 15 * GiB
    assert here.call("try_claim", 16 * GiB) is None
    there.call("settle", number, 7 * GiB)
    assert here.figures()["held"] == 9 * GiB
    assert there.run("device.snapshot().coherent")
    assert there.run("ledger._check()") == []
    there.call("open", "sim:card?total=24GiB")
    assert there.figures()["complete"]
    there.call("open", "ram")
    assert there.free() is not None
    there.kill()
    here.call("sweep")
    assert here.figures()["held"] == 2 * GiB


def test_native_members_of_all_pythons_share_one_segment(spawn: Any, package: Path) -> None:
    found = [p for p in map(pythons.find, pythons.VERSIONS) if p]
    if len(found) < 2:
        pytest.skip("only one Python here")
    members = [
        spawn(str(i), total=TOTAL, python=p, flags=("-I", "-S"), package=package)
        for i, p in enumerate(found)
    ]
    for number, member in enumerate(members, 1):
        member.publish(number * GiB)
    expected = sum(range(1, len(members) + 1)) * GiB
    for member in members:
        assert member.figures()["held"] == expected
        assert len(member.call("members")) == len(members)
    assert len({m.call("info")["file_id"] for m in members}) == 1


def test_native_module_is_one_file_for_all_versions(package: Path) -> None:
    modules = [p.name for p in (package / "memledger").iterdir() if p.name.startswith("_native.")]
    assert [n for n in modules if n.endswith((".so", ".pyd"))] in (
        ["_native.abi3.so"],
        ["_native.pyd"],
    )


def test_native_import_is_silent_and_takes_nothing_from_others(
    python: str, package: Path, segment: Path
) -> None:
    """In a Python that has torch, numpy, psutil and cffi (fakes that blow up when imported)."""
    fakes = package / "fakes"
    fakes.mkdir()
    for name in (
        "torch",
        "numpy",
        "psutil",
        "cffi",
        "_cffi_backend",
        "pynvml",
        "rich",
        "hypothesis",
    ):
        (fakes / f"{name}.py").write_text(f"raise SystemExit('{name} was imported')")
    done = bare(
        python,
        package,
        f"""
sys.path.insert(0, {str(fakes)!r})
before = set(sys.modules)
import memledger
ledger = memledger.join(label="x")
device = ledger.device("sim:card?total=1GiB")
device.publish(1)
device.claim(5).cancel()
new = {{name.partition(".")[0] for name in set(sys.modules) - before}}
foreign = sorted(n for n in new if n not in sys.stdlib_module_names and n != "memledger")
assert foreign == [], foreign
assert "memledger._ffi" not in sys.modules
ledger.leave()
""",
        "-W", "error",
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_native_import_alone_loads_little(python: str, package: Path, segment: Path) -> None:
    """None of the modules that cost milliseconds."""
    done = bare(python, package, "import memledger; print(*sys.modules)")
    loaded = set(done.stdout.split())
    assert done.stderr == ""
    heavy = {"asyncio", "ctypes", "dataclasses", "inspect", "json", "logging", "multiprocessing",
             "socket", "subprocess", "tempfile", "typing_extensions", "urllib",
             "memledger.sim", "memledger.cli", "memledger.readings.nvml"}  # fmt: skip
    if python != sys.executable and "site" in loaded:
        pytest.skip("site was loaded after all")
    import_alone = set(bare(python, package, "print(*sys.modules)").stdout.split())
    assert not heavy & (loaded - import_alone)


def test_native_no_command_line_needed_at_all(python: str, package: Path, segment: Path) -> None:
    """Embedded interpreters have an empty or no sys.argv; a frozen one may have no sys.stderr."""
    done = bare(
        python,
        package,
        "del sys.argv; sys.argv = []\nsys.stderr = sys.stdout = None\n"
        "import memledger\nledger = memledger.join()\n"
        "assert ledger.members()[0].program\nledger.leave()",
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_native_reload_and_second_import_are_harmless(ledger: memledger.Ledger) -> None:
    import importlib

    device = plain_device(ledger, "test:card", TOTAL)
    device.publish(GiB)
    native = importlib.import_module("memledger._native")
    importlib.reload(native)
    assert device.free() == 23 * GiB
