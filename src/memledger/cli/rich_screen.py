"""The screen with rich. Imported only through `screen.open_screen`, since rich may be missing."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from rich.box import SIMPLE_HEAD, Box
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table as RichTable
from rich.text import Text

from memledger.cli import screen as base

STYLES = {
    "": "", "bold": "bold", "dim": "dim", "good": "green", "bad": "bold red", "warn": "yellow",
    "member0": "cyan", "member1": "magenta", "member2": "blue", "member3": "green",
    "member4": "yellow",
}  # fmt: skip
_BLANK = "    \n"
_ASCII_HEAD = Box(_BLANK * 2 + " -- \n" + _BLANK * 5, ascii=True)


class _Console(Console):
    def on_broken_pipe(self) -> None:
        # rich would end the process with 1; `command_line` answers for that.
        raise BrokenPipeError


class RichScreen:
    """Text goes in as rich Text, so nothing in it is markup."""

    def __init__(self) -> None:
        self.width = base.width_of_output()
        self._ascii = base.needs_ascii()
        self._console = _Console(
            file=sys.stdout,
            width=self.width,
            color_system=None if os.environ.get("NO_COLOR") else "auto",
            markup=False,
            highlight=False,
            emoji=False,
            legacy_windows=False,
        )
        self.live = self._console.is_terminal and not base.is_dumb()
        self._wrap = base.is_terminal() or bool(os.environ.get("COLUMNS"))

    def _text(self, text: str, style: str = "") -> Text:
        lines = (base.clean(part, ascii_only=self._ascii) for part in text.split("\n"))
        return Text("\n".join(lines), style=STYLES[style])

    def line(self, text: str = "", style: str = "") -> None:
        text = base.clean(text, ascii_only=self._ascii)
        for part in base.wrapped(text, self.width) if self._wrap else [text]:
            self._console.print(self._text(part, style), soft_wrap=True)

    def cells(self, cells: Sequence[base.Cell]) -> None:
        line = Text.assemble(*(self._text(cell.text, cell.style) for cell in cells))
        line.rstrip()
        self._console.print(line, soft_wrap=True)

    def entry(self, state: str, style: str, subject: str, text: str) -> None:
        subject, text = (base.clean(part, ascii_only=self._ascii) for part in (subject, text))
        for cells in base.entry_lines(state, subject, text, self.width, wrap=self._wrap):
            line = Text.assemble(
                (cells[0], STYLES[style]), (cells[1], "bold"), (cells[2], "" if state else "cyan")
            )
            line.rstrip()
            self._console.print(line, soft_wrap=True)

    def _rich(self, table: base.Table) -> RichTable:
        drawn = RichTable(box=_ASCII_HEAD if self._ascii else SIMPLE_HEAD, safe_box=False,
                          padding=(0, 1, 0, 0),
            pad_edge=False, header_style="bold", show_edge=False)  # fmt: skip
        for column in table.columns:
            drawn.add_column(
                self._text(column.header),
                justify="right" if column.right else "left",
                no_wrap="\n" not in column.header,
                vertical="top",
            )
        for row in table.rows:
            drawn.add_row(*(self._text(cell.text, cell.style) for cell in row))
        return drawn

    def natural_width(self, table: base.Table) -> int:
        wide = self._console.options.update_width(10_000)
        return Measurement.get(self._console, wide, self._rich(table)).maximum

    def table(self, table: base.Table) -> None:
        if self._console.is_terminal:
            self._console.print(self._rich(table))
        else:
            # rich fills lines up to the table's width; in a file that is only noise.
            with self._console.capture() as drawn:
                self._console.print(self._rich(table))
            for line in drawn.get().splitlines():
                print(line.rstrip())
        self._console.print()

    def clear(self) -> None:
        self._console.clear()
        self.width = self._console.width = base.width_of_output()
