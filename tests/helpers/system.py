"""What this machine lets a test do; and a visible reason where it does not."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import sys

import pytest

IS_CI = os.environ.get("CI", "") not in ("", "0", "false")
linux_only = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="Linux only")


def missing(what: str) -> None:
    """Skip, visibly; but in CI, where everything is meant to be there, fail."""
    if IS_CI:
        pytest.fail(f"CI must have {what}")
    pytest.skip(f"needs {what}")


def need_root() -> None:
    if not hasattr(os, "geteuid") or os.geteuid() != 0:
        missing("root")


def need_program(name: str) -> str:
    path = shutil.which(name)
    if path is None:
        missing(name)
    assert path is not None
    return path


@functools.cache
def _unshare_works(*flags: str) -> bool:
    if shutil.which("unshare") is None:
        return False
    done = subprocess.run(["unshare", *flags, "true"], capture_output=True, timeout=30)
    return done.returncode == 0


def unshare(*flags: str) -> tuple[str, ...]:
    """Words to put before a command so that it runs in namespaces of its own."""
    need_root()
    if not _unshare_works(*flags):
        missing(f"unshare {' '.join(flags)}")
    return ("unshare", *flags)


def compiler() -> str:
    for name in ("cc", "gcc", "clang"):
        path = shutil.which(name)
        if path is not None:
            return path
    missing("a C compiler")
    raise AssertionError("unreachable")
