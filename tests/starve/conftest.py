"""The library that the tests of this folder preload."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from helpers.system import compiler

HERE = Path(__file__).parent


@pytest.fixture(scope="session")
def shim(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The library to preload."""
    library = tmp_path_factory.mktemp("shim") / "shim.so"
    done = subprocess.run(
        [compiler(), "-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror", "-o", str(library),
         str(HERE / "shim.c"), "-ldl"],
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return library
