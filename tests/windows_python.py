"""The Python package in a CPython for Windows, under wine: by hand, since that Python has to be
brought. FOLDER is an unpacked "embeddable package" of it (python.exe, python3.dll, ...), 3.10 or
newer:

    python tests/windows_python.py FOLDER

Builds memledger._native with mingw-w64 and runs tests/wheel_smoke.py there.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

TESTS = Path(__file__).resolve().parent
sys.path.insert(0, str(TESTS / "c"))
from platforms import WINE, windows_headers, windows_module  # noqa: E402

TOOLS = "x86_64-w64-mingw32-"
# wine 8 has no answer to what `platform` asks by this module; without it Python asks otherwise.
BEGIN = """import sys
sys.path.insert(0, {package!r})
sys.modules["_wmi"] = None
"""


def import_library(python3_dll: Path, folder: Path) -> Path:
    """What to link with, from the names that the DLL exports."""
    listing = subprocess.run(
        [f"{TOOLS}objdump", "-p", str(python3_dll)], capture_output=True, text=True, check=True
    ).stdout
    names = re.findall(r"^\s*\[\s*\d+\]\s+(_?Py\w+)\s*$", listing, flags=re.M)
    definition, library = folder / "python3.def", folder / "libpython3.a"
    definition.write_text("LIBRARY python3.dll\nEXPORTS\n" + "\n".join(names) + "\n")
    subprocess.run([f"{TOOLS}dlltool", "-d", definition, "-l", library], check=True)
    return library


def build(python: Path, folder: Path) -> Path:
    """A folder with the package in it."""
    package = folder / "package"
    skip = shutil.ignore_patterns("*.so", "__pycache__")
    shutil.copytree(TESTS.parent / "src/memledger", package / "memledger", ignore=skip)
    line = [*windows_module(windows_headers(folder)), "-shared", "-static-libgcc"]
    line += [str(import_library(python / "python3.dll", folder)), "-ladvapi32", "-lshell32"]
    subprocess.run([*line, "-o", package / "memledger/_native.pyd"], check=True)
    return package


def main() -> int:
    python = Path(sys.argv[1]).resolve()
    wine = next(filter(None, map(shutil.which, WINE)))
    with tempfile.TemporaryDirectory(prefix="ml-windows-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        package = "Z:" + str(build(python, folder)).replace("/", "\\")
        smoke = folder / "smoke.py"
        source = (TESTS / "wheel_smoke.py").read_text()
        first = source.index("from __future__")
        later = source.index("\n", first) + 1
        begin = BEGIN.format(package=package)
        smoke.write_text(source[:later] + begin + source[later:])
        environment = {**os.environ, "WINEPREFIX": str(folder / "wine"), "WINEDEBUG": "-all"}
        # Pipes on all three: wine 8 gives Python no standard streams otherwise.
        done = subprocess.run(
            [wine, str(python / "python.exe"), str(smoke)], env=environment, timeout=300,
            input=b"", stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False,
        )  # fmt: skip
    print(done.stdout.decode(errors="replace").strip())
    return done.returncode


if __name__ == "__main__":
    sys.exit(main())
