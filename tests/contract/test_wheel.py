"""A wheel is for every CPython from 3.10 on: its name says so, and nothing in it fits fewer."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path

import pytest

from helpers import pythons

ROOT = Path(__file__).resolve().parents[2]
FREE_THREADED = bool(sysconfig.get_config_var("Py_GIL_DISABLED"))
USE = """
import memledger
with memledger.join(label="wheel") as ledger:
    card = ledger.device("sim:card?total=24GiB")
    card.publish(held=2 << 30)
    with card.claim(1 << 30) as claim:
        claim.settle(held=1 << 30)
    print(ledger.scope, card.free() >> 30)
"""


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy to build from, so that nothing is left in the checkout."""
    to = tmp_path_factory.mktemp("source")
    for name in ("setup.py", "pyproject.toml", "README.md", "CHANGELOG.md", "MANIFEST.in"):
        shutil.copy(ROOT / name, to)
    for name in ("csrc", "src"):
        skip = shutil.ignore_patterns("*.so", "__pycache__", "*.egg-info")
        shutil.copytree(ROOT / name, to / name, ignore=skip)
    return to


@pytest.fixture(scope="module")
def wheel(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("wheel")
    line = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "-w", str(place)]
    done = subprocess.run(
        [*line, str(source)], capture_output=True, text=True, timeout=110,
        env={**os.environ, "MEMLEDGER_CFLAGS": "-O0 -U_FORTIFY_SOURCE"},  # faster to build
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    (found,) = place.glob("*.whl")
    return found


@pytest.mark.skipif(FREE_THREADED, reason="abi3 does not exist for free-threaded builds")
def test_wheel_holds_the_stable_module_and_no_other(wheel: Path) -> None:
    """cffi's module fits one version: in a wheel for all it would be loaded by none or crash."""
    assert wheel.name.startswith("memledger_shm-")
    assert "-cp310-abi3-" in wheel.name
    names = zipfile.ZipFile(wheel).namelist()
    binaries = [name for name in names if name.endswith((".so", ".pyd", ".dylib"))]
    assert len(binaries) == 1, binaries
    assert binaries[0].startswith("memledger/_native.")
    assert "memledger/py.typed" in names
    assert "memledger/_native.pyi" in names
    assert not [name for name in names if name.endswith((".c", ".h"))]


@pytest.mark.parametrize("version", pythons.VERSIONS)
def test_wheel_works_in_each_python(wheel: Path, version: str, tmp_path: Path) -> None:
    python = pythons.find(version)
    if python is None:
        pytest.skip(f"no Python {version}")
    zipfile.ZipFile(wheel).extractall(tmp_path)
    done = subprocess.run(
        [python, "-S", "-c", USE], capture_output=True, text=True, timeout=60,
        env={"PYTHONPATH": str(tmp_path), "MEMLEDGER_PATH": str(tmp_path / "segment")},
    )  # fmt: skip
    assert done.stdout == "path 23\n", done.stderr


def test_sdist_holds_the_sources_of_every_system(source: Path, tmp_path: Path) -> None:
    """Made on one system, built on another."""
    pytest.importorskip("setuptools", reason="setuptools is not installed")
    code = "import sys; from setuptools import build_meta; build_meta.build_sdist(sys.argv[1])"
    line = [sys.executable, "-c", code, str(tmp_path)]
    done = subprocess.run(line, cwd=source, capture_output=True, text=True, timeout=110)
    assert done.returncode == 0, done.stderr
    (archive,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(archive) as files:
        names = {name.partition("/")[2] for name in files.getnames()}
    wanted = {str(path.relative_to(ROOT)) for path in (ROOT / "csrc").rglob("*.[ch]")}
    assert wanted <= names, wanted - names
