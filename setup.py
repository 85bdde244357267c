"""Builds the two native modules from one list of sources.

memledger._native: hand-written, stable ABI (abi3, CPython 3.10+), all that a member needs.
memledger._ffi: cffi in API mode over csrc/include/memledger.h, for tests and tools in a checkout.
It fits one version of CPython, and a wheel fits all from 3.10 on: so no wheel has it. Left out,
too, where cffi is not installed.
"""

import importlib.util
import os
import sys
import sysconfig
from glob import glob
from pathlib import Path

from setuptools import Extension, setup

ROOT = Path(__file__).parent
WHEEL = "bdist_wheel" in sys.argv  # also `pip install .`; not `pip install --editable .`
FREE_THREADED = bool(sysconfig.get_config_var("Py_GIL_DISABLED"))


def core_sources() -> list[str]:
    """The C core and the one set of files for this operating system."""
    if sys.platform == "win32":
        system = [*glob("csrc/os/os_windows*.c"), "csrc/os/os_fork.c"]
    else:
        own = "os_darwin.c" if sys.platform == "darwin" else "os_linux.c"
        system = [f"csrc/os/{own}", "csrc/os/os_fork.c", *glob("csrc/os/os_posix*.c")]
    return sorted(glob("csrc/core/*.c")) + sorted(system)


def compile_args() -> list[str]:
    if sys.platform == "win32" and not os.environ.get("MEMLEDGER_GCC"):
        return ["/O2", "/std:c11", "/experimental:c11atomics"]
    flags = [
        "-std=c11",
        "-O2",
        "-g0",
        "-Wall",
        "-Wextra",
        "-fvisibility=hidden",
        "-D_FORTIFY_SOURCE=2",
    ]
    flags += ["-fstack-protector-strong", "-fno-strict-aliasing"]
    return flags + os.environ.get("MEMLEDGER_CFLAGS", "").split()


def link_args() -> list[str]:
    if sys.platform == "linux":
        return ["-Wl,-z,relro,-z,now,-z,noexecstack", "-pthread"]
    return []


common = {
    "include_dirs": ["csrc"],
    "extra_compile_args": compile_args(),
    "extra_link_args": link_args() + os.environ.get("MEMLEDGER_LDFLAGS", "").split(),
    "libraries": ["advapi32", "shell32"] if sys.platform == "win32" else [],
    "depends": sorted(glob("csrc/**/*.h", recursive=True)),
}

native = Extension(
    "memledger._native",
    sources=core_sources() + sorted(glob("csrc/py/*.c")),
    # abi3 does not exist for free-threaded builds: those get a wheel of their own.
    py_limited_api=not FREE_THREADED,
    define_macros=[] if FREE_THREADED else [("Py_LIMITED_API", "0x030A0000")],
    **common,
)

extensions = [native]
if not WHEEL and importlib.util.find_spec("cffi") is not None:
    sys.path.insert(0, str(ROOT / "src" / "memledger"))
    import _ffi_build

    extensions.append(_ffi_build.extension(core_sources(), common))

setup(
    ext_modules=extensions,
    options={} if FREE_THREADED else {"bdist_wheel": {"py_limited_api": "cp310"}},
)
