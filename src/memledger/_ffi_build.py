"""Makes `memledger._ffi` from the public C header, so that no declaration is written twice.

Called by setup.py; never imported at run time.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

HEADER = Path(__file__).resolve().parents[2] / "csrc" / "include" / "memledger.h"


def declarations(text: str) -> str:
    """The header as cffi's parser takes it: no comments, no preprocessor except integer constants,
    and array bounds as numbers."""
    text = re.sub(r"/\*.*?\*/", "", text, flags=re.S)
    text = re.sub(r"^#ifdef __cplusplus\n.*?^#endif\n", "", text, flags=re.S | re.M)
    constants = dict(re.findall(r"^#define (ML_\w+) (\(?-?\w+\)?)\s*$", text, flags=re.M))
    body = "\n".join(line for line in text.splitlines() if not line.startswith("#"))

    def bound(match: re.Match[str]) -> str:
        expression = re.sub(r"ML_\w+", lambda name: constants[name.group()], match.group(1))
        product = 1
        for index, factor in enumerate(expression.split("/")):
            product = int(factor) if index == 0 else product // int(factor)
        return f"[{product}]"

    body = re.sub(r"\[([^\]]+)\]", bound, body)
    defines = "\n".join(f"#define {name} ..." for name in constants if name not in ("MEMLEDGER_H",))
    return f"{defines}\n{body}"


def extension(core_sources: list[str], common: dict[str, Any]) -> Any:
    """The setuptools Extension. core_sources: paths from the project's root."""
    from cffi import FFI

    ffi = FFI()
    ffi.cdef(declarations(HEADER.read_text(encoding="utf-8")))
    ffi.set_source(
        "memledger._ffi",
        '#include "include/memledger.h"',
        sources=core_sources,
        py_limited_api=False,
        **{key: value for key, value in common.items() if key != "depends"},
    )
    return ffi.distutils_extension(tmpdir="build", verbose=False)
