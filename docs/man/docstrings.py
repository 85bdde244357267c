"""What the reference pages need of docstrings, as an extension of griffe (mkdocs.yml names it).

Docstrings of the package say "name: what it is" at the start of a line, which people can read as it
stands; Markdown would run such lines together, so they become a list. What the native module
defines has its docstrings in C, and types alone in _native.pyi: they are put together here.
"""

from __future__ import annotations

import re
from typing import Any

import griffe

_NAMED = re.compile(r"^([a-z_][\w, ]{0,40}): (?=\S)")


def as_lists(text: str) -> str:
    """Lines "name: words", with the lines that continue them, as items of a list."""
    out: list[str] = []
    inside = False
    for line in text.splitlines():
        named = _NAMED.match(line)
        if named and not line.startswith("http"):
            if not inside and out and out[-1]:
                out.append("")
            out.append(f"- **{named.group(1)}**: {line[named.end() :]}")
            inside = True
        elif inside and line.strip() and not line.startswith((" ", "`", "#")):
            out.append(f"  {line}")
        else:
            inside = False
            out.append(line)
    return "\n".join(out)


def as_text(text: str) -> str:
    """What stands in angle brackets outside of code is meant: "GPU-<uuid>" is no HTML."""
    lines = []
    for line in text.splitlines():
        halves = [line] if line.startswith("    ") else re.split(r"(`[^`]*`)", line)
        plain = [h if h.startswith(("`", "    ")) else h.replace("<", "&lt;") for h in halves]
        lines.append("".join(plain))
    return "\n".join(lines)


def native_text(path: str) -> str | None:
    """The C docstring of a name in memledger._native, without its first line where that is the
    signature."""
    import memledger._native as found

    for word in path.split(".")[2:]:
        found = getattr(found, word, None)  # type: ignore[assignment]
    text = getattr(found, "__doc__", None)
    if not text:
        return None
    first, _, rest = text.partition("\n\n")
    return rest if "(" in first and rest else text


class Docstrings(griffe.Extension):
    def on_instance(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        if obj.docstring is None and obj.path.startswith("memledger._native."):
            text = native_text(obj.path)
            if text:
                obj.docstring = griffe.Docstring(text, parent=obj)
        if obj.docstring is not None:
            obj.docstring.value = as_text(as_lists(obj.docstring.value))
