"""Other Pythons of this machine, found by PATH and by pyenv; and a copy of memledger as a bare
worker gets it."""

from __future__ import annotations

import functools
import shutil
import subprocess
from pathlib import Path

VERSIONS = ("3.10", "3.11", "3.12", "3.13")
FREE_THREADED = ("3.13t", "3.14t")


def _answers(executable: str, version: str) -> bool:
    # Shims of version managers exist for versions that are not active; only an answer counts.
    code = (
        "import sys, sysconfig; t = 't' if sysconfig.get_config_var('Py_GIL_DISABLED') else ''; "
        "print(f'{sys.version_info[0]}.{sys.version_info[1]}{t}')"
    )
    try:
        done = subprocess.run(
            [executable, "-I", "-c", code], capture_output=True, text=True, timeout=30
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0 and done.stdout.strip() == version


def _pyenv_versions() -> Path | None:
    pyenv = shutil.which("pyenv")
    if pyenv is None:
        return None
    done = subprocess.run([pyenv, "root"], capture_output=True, text=True, timeout=30)
    return Path(done.stdout.strip()) / "versions" if done.returncode == 0 else None


@functools.cache
def find(version: str) -> str | None:
    """The executable of "3.12" or "3.13t", or None."""
    candidates = [shutil.which(f"python{version}")]
    versions = _pyenv_versions()
    if versions is not None:
        plain = version.rstrip("t")
        candidates += [
            str(path) for path in sorted(versions.glob(f"{plain}.*/bin/python{version}"))
        ]
    return next((path for path in candidates if path and _answers(path, version)), None)


def copy_package(to: Path) -> Path:
    """Copy the installed package as a bare worker would get it: no cffi module, no caches.
    Returns the folder to put on sys.path."""
    import memledger

    source = Path(memledger.__file__).parent
    shutil.copytree(
        source, to / "memledger", ignore=shutil.ignore_patterns("_ffi.*", "__pycache__")
    )
    return to
