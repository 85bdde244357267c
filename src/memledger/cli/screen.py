"""What commands show: tables and lines, laid out for the width that there is.

Commands describe a table once, as text; it is drawn by rich where that is importable, and as plain
columns elsewhere. Cells are data from a segment that anybody of this user may have written, so they
are never read as markup, and control characters do not get through.
"""

from __future__ import annotations

import os
import shutil
import sys
import textwrap
import unicodedata
from collections.abc import Sequence
from typing import NamedTuple, Protocol

PIPE_COLUMNS = 200
"""Where nobody looks (a pipe, a file) and COLUMNS is not set: wide enough for whole names."""

_GAP = 2
_STATE_WIDTH, _SUBJECT_WIDTH = 6, 12
_PLAIN_OF = str.maketrans({"·": "-", "†": "*", "…": "~", "≤": "<", "—": "-"})


class Cell(NamedTuple):
    """style: "", "bold", "dim", "good", "bad", "warn", or "member0" to "member4"."""

    text: str
    style: str = ""


class Column(NamedTuple):
    """header: at most two lines. right: numbers."""

    header: str
    right: bool = False


class Table(NamedTuple):
    columns: Sequence[Column]
    rows: Sequence[Sequence[Cell]]


class Screen(Protocol):
    """Where output goes. width: in characters. live: whether it may draw over itself."""

    width: int
    live: bool

    def line(self, text: str = "", style: str = "") -> None:
        """One paragraph, wrapped where there is a width to keep to."""

    def cells(self, cells: Sequence[Cell]) -> None:
        """One line as it is, never wrapped."""

    def entry(self, state: str, style: str, subject: str, text: str) -> None:
        """One line of a list: a state, what it is about, and text that hangs beside the two."""

    def table(self, table: Table) -> None: ...

    def natural_width(self, table: Table) -> int: ...

    def clear(self) -> None:
        """Start over at the top, at the width that there is now; where `live`."""


def clean(text: str, *, ascii_only: bool = False) -> str:
    """`text` without anything that could move a cursor, ring a bell or hide other text."""
    shown = "".join(
        c if c.isprintable() and unicodedata.category(c) not in ("Cf", "Cs", "Co") else "?"
        for c in text
    )
    if ascii_only:
        shown = shown.translate(_PLAIN_OF).encode("ascii", "replace").decode("ascii")
    return shown


def open_screen() -> Screen:
    """The screen on stdout."""
    try:
        from memledger.cli.rich_screen import RichScreen
    except ImportError:
        return PlainScreen()
    return RichScreen()


def width_of_output() -> int:
    """COLUMNS, else the terminal's, else `PIPE_COLUMNS`; never under 20."""
    return max(20, shutil.get_terminal_size((PIPE_COLUMNS, 50)).columns)


def is_terminal() -> bool:
    return bool(sys.stdout.isatty())


def is_dumb() -> bool:
    return os.environ.get("TERM", "").lower() in ("dumb", "unknown")


def needs_ascii() -> bool:
    """Whether the output can show ASCII only. Python writes UTF-8 under LANG=C too (PEP 538 and
    540), where the terminal may not understand it, so the locale is looked at as well."""
    encoding = (sys.stdout.encoding or "ascii").lower().replace("-", "")
    if not encoding.startswith("utf"):
        return True
    if os.environ.get("PYTHONIOENCODING") or os.environ.get("PYTHONUTF8") == "1":
        return False
    names = [os.environ.get(name, "") for name in ("LC_ALL", "LC_CTYPE", "LANG")]
    if names[1] == "C.UTF-8" and not names[0] and names[2] in ("C", "POSIX"):
        names[1] = ""  # Python's own coercion put it there
    locale = next((name for name in names if name), "UTF-8")
    return locale in ("C", "POSIX") or ("." in locale and "utf" not in locale.lower())


def fitting(screen: Screen, tables: Sequence[Table]) -> Table | None:
    """The first of `tables` (best first) that fits the screen; None where none does."""
    return next((t for t in tables if screen.natural_width(t) <= screen.width), None)


def show(screen: Screen, *tables: Table) -> None:
    """The first of `tables` that fits, else the last one row by row, as "header  value" lines."""
    table = fitting(screen, tables)
    if table is not None:
        screen.table(table)
        return
    stacked(screen, tables[-1])


def stacked(screen: Screen, table: Table) -> None:
    names = [column.header.replace("-\n", "").replace("\n", " ") for column in table.columns]
    wide = max((len(name) for name in names), default=0)
    for row in table.rows:
        screen.line(row[0].text, row[0].style or "bold")
        for name, cell in zip(names[1:], row[1:], strict=True):
            if cell.text:
                screen.line(f"  {name.ljust(wide)}  {cell.text}", cell.style)
    screen.line()


def entry_lines(
    state: str, subject: str, text: str, width: int, *, wrap: bool
) -> list[tuple[str, str, str]]:
    """`entry` as lines of (state, subject, text) cells that are already padded."""
    wide = len(subject) > _SUBJECT_WIDTH or width < 60
    hang = 4 if wide else _STATE_WIDTH + _SUBJECT_WIDTH + 2
    parts = (
        textwrap.wrap(text, max(20, width - hang - 1), break_long_words=False,
                      break_on_hyphens=False)
        if wrap else [text]
    ) or [""]  # fmt: skip
    head = (state.ljust(_STATE_WIDTH), subject.ljust(_SUBJECT_WIDTH) + "  ")
    if not wide:
        first = [(*head, parts[0])]
        return first + [(" " * _STATE_WIDTH, " " * (_SUBJECT_WIDTH + 2), p) for p in parts[1:]]
    heading = [(head[0], subject, "")] if state or subject else []
    return heading + [("    ", "", part) for part in parts]


class PlainScreen:
    """Plain columns: no control codes at all, so nothing is drawn over."""

    live = False

    def __init__(self) -> None:
        self.width = width_of_output()
        self._ascii = needs_ascii()
        self._wrap = is_terminal() or bool(os.environ.get("COLUMNS"))

    def line(self, text: str = "", style: str = "") -> None:
        text = clean(text, ascii_only=self._ascii)
        for part in wrapped(text, self.width) if self._wrap else [text]:
            print(part)

    def cells(self, cells: Sequence[Cell]) -> None:
        print("".join(clean(cell.text, ascii_only=self._ascii) for cell in cells).rstrip())

    def entry(self, state: str, style: str, subject: str, text: str) -> None:
        subject, text = (clean(part, ascii_only=self._ascii) for part in (subject, text))
        for cells in entry_lines(state, subject, text, self.width, wrap=self._wrap):
            print("".join(cells).rstrip())

    def natural_width(self, table: Table) -> int:
        return sum(_widths(table)) + _GAP * (len(table.columns) - 1) + 1

    def table(self, table: Table) -> None:
        widths = _widths(table)
        heads = [column.header.split("\n") for column in table.columns]
        depth = max(len(head) for head in heads)
        for level in range(depth):
            self._row(table, widths, [(["", *head] if len(head) < depth else head)[level]
                                      for head in heads])  # fmt: skip
        print(" " + ("-" if self._ascii else "─") * (sum(widths) + _GAP * (len(widths) - 1)))
        for row in table.rows:
            self._row(table, widths, [cell.text for cell in row])
        print()

    def _row(self, table: Table, widths: Sequence[int], texts: Sequence[str]) -> None:
        cells = [
            text.rjust(width) if column.right else text.ljust(width)
            for column, width, text in zip(
                table.columns,
                widths,
                (clean(t, ascii_only=self._ascii) for t in texts),
                strict=True,
            )
        ]
        print((" " + (" " * _GAP).join(cells)).rstrip())

    def clear(self) -> None:
        raise NotImplementedError("plain output is never drawn over")


def wrapped(text: str, width: int) -> list[str]:
    """Lines of at most `width`, continued below the text's own indent; long paths stay whole."""
    indent = len(text) - len(text.lstrip(" "))
    hang = indent + (4 if indent else 0)
    return textwrap.wrap(
        text.strip(), max(20, width - 1), initial_indent=" " * indent,
        subsequent_indent=" " * hang, break_long_words=False, break_on_hyphens=False,
    ) or [""]  # fmt: skip


def _widths(table: Table) -> list[int]:
    return [
        max(
            [len(part) for part in column.header.split("\n")]
            + [len(clean(row[index].text)) for row in table.rows]
        )
        for index, column in enumerate(table.columns)
    ]
