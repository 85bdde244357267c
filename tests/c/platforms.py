"""What run.py builds and runs for other systems and CPUs than this machine's own: aarch64 under
qemu's user mode, Windows by mingw-w64 under wine, and the syntax of what only macOS compiles.

What each of them shows, and what it does not, is in docs/platforms.md.
"""

from __future__ import annotations

import importlib.util
import shutil
import sys
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
WINE = ("wine", "wine64", "/usr/lib/wine/wine64")


@dataclass(frozen=True)
class Program:
    """One executable. `core`: linked with csrc/core, else with csrc/os alone. `kill_points`: with
    kill_points.c and core_help.h. `delays`: has kill points of its own. `windows`: also there."""

    name: str
    core: bool = True
    kill_points: bool = False
    delays: bool = False
    tsan: bool = False
    valgrind: bool = True
    windows: bool = False
    threads: bool = False
    arguments: tuple[str, ...] = ()
    long_arguments: tuple[str, ...] = ()
    patience_s: int = 300


@dataclass(frozen=True)
class Build:
    """A compiler, for a system, and what runs its programs (the first of `runners` there is)."""

    name: str
    compiler: str
    flags: tuple[str, ...]
    environment: tuple[tuple[str, str], ...] = ()
    system: str = "linux"
    libraries: tuple[str, ...] = ()
    runner: tuple[str, ...] = ()

    def emulator(self) -> list[str]:
        """What stands before a program's name: what was found of `runner`, or what to ask for."""
        if self.system == "windows" and sys.platform == "win32":
            return []
        found = [name for name in self.runner if shutil.which(name)]
        return (found or list(self.runner))[:1]

    def variables(self, folder: Path) -> dict[str, str]:
        """Additions to the environment; wine keeps its settings and its drive in `folder`."""
        own = {"WINEPREFIX": str(folder / "wine")} if self.system == "windows" else {}
        return {**dict(self.environment), **own}


# Where this file itself runs on macOS; nobody has done so.
BUILDS_ON_MACOS = (Build("macos", "clang", ("-O2",), system="macos"),)
BUILDS_ELSEWHERE = (
    Build(
        "aarch64",
        "aarch64-linux-gnu-gcc",
        ("-O2",),
        (("QEMU_LD_PREFIX", "/usr/aarch64-linux-gnu"), ("TEST_EMULATOR", "qemu-aarch64")),
        runner=("qemu-aarch64",),
    ),
    Build(
        "windows",
        "x86_64-w64-mingw32-gcc",
        ("-O2", "-static"),
        (("WINEDEBUG", "-all"),),
        system="windows",
        libraries=("-ladvapi32",),
        runner=WINE,
    ),
)


def core_sources(system: str, core: bool = True) -> list[Path]:
    """The one set of files for an operating system, and the core."""
    here = ROOT / "csrc/os"
    if system == "windows":
        found = [*sorted(here.glob("os_windows*.c")), here / "os_fork.c"]
    else:
        own = here / ("os_darwin.c" if system == "macos" else "os_linux.c")
        found = [own, here / "os_fork.c", *sorted(here.glob("os_posix*.c"))]
    return found + (sorted((ROOT / "csrc/core").glob("*.c")) if core else [])


def windows_headers(folder: Path) -> Path:
    """This Python's headers with Windows's sizes, in `folder`."""
    headers = folder / "windows_headers"
    shutil.copytree(sysconfig.get_path("include"), headers, dirs_exist_ok=True)
    shutil.copy(HERE / "windows_stubs/pyconfig.h", headers)
    return headers


def windows_module(headers: Path) -> list[str]:
    """The command line for the Python module, up to what to do with it."""
    line = ["x86_64-w64-mingw32-gcc", "-std=c11", "-O2", "-Wall", "-Wextra", "-Werror"]
    line += ["-DPy_LIMITED_API=0x030A0000", f"-I{ROOT / 'csrc'}", f"-I{headers}"]
    sources = [*core_sources("windows"), *sorted((ROOT / "csrc/py").glob("*.c"))]
    return [*line, *map(str, sources)]


def check_windows_module(folder: Path) -> Iterator[tuple[str, str, list[str]]]:
    """Name, what it is, and the command line: it compiles; tests/windows_python.py runs it."""
    if shutil.which("x86_64-w64-mingw32-gcc"):
        line = [*windows_module(windows_headers(folder)), "-fsyntax-only"]
        yield "windows", "csrc/py, compiled", line


def check_macos(warnings: list[str], folder: Path) -> Iterator[tuple[str, str, list[str]]]:
    """Name, what it is, and command lines to run. With `ziglang` installed (it has macOS's headers)
    the core and test_os are compiled and linked for both CPUs; without, the one file of macOS's own
    is compiled as far as its syntax, with stubs for the headers that Linux does not have."""
    flags = ["-std=c11", *warnings, f"-I{ROOT / 'csrc'}", f"-I{HERE}"]
    if importlib.util.find_spec("ziglang") is None:
        stubs = f"-I{HERE / 'darwin_stubs'}"
        line = ["gcc", *flags, "-D_GNU_SOURCE", stubs, "-fsyntax-only"]
        yield "macos", "syntax, stubs", [*line, str(ROOT / "csrc/os/os_darwin.c")]
        return
    sources = [HERE / "test_os.c", ROOT / "csrc/os/os_test.c", *core_sources("macos")]
    for cpu in ("aarch64", "x86_64"):
        line = [sys.executable, "-m", "ziglang", "cc", "-target", f"{cpu}-macos", *flags]
        line += ["-O2", "-DOS_TEST_HOOKS", *map(str, sources)]
        yield f"macos-{cpu}", "built, not run", [*line, "-o", str(folder / f"test_os-macos-{cpu}")]
