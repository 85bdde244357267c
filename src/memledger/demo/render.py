"""What a person sees: rich tables where rich is there, plain text otherwise. At most 80 columns
where the terminal is wider, and as narrow as the terminal where it is not."""

from __future__ import annotations

import contextlib
import shutil
import textwrap
from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from typing import Any, NoReturn, TextIO

from memledger.demo.stage import Outcome

_WIDTH = 80


class Renderer:
    def __init__(self, stream: TextIO, *, plain: bool = False) -> None:
        self._stream = stream
        self._width = min(_WIDTH, shutil.get_terminal_size((_WIDTH, 24)).columns)
        self._console: Any = None
        if not plain and find_spec("rich") is not None:
            self._console = import_module("rich.console").Console(
                file=stream, width=self._width, highlight=False
            )
            # Its own would end the program with 1, which here means that the ledger was wrong.
            self._console.on_broken_pipe = _reader_gone

    def text(self, text: str = "", style: str = "") -> None:
        for line in textwrap.wrap(text, self._width) or [""]:
            if self._console is not None:
                self._console.print(line, style=style or None, markup=False, soft_wrap=True)
            else:
                print(line, file=self._stream)
        self._stream.flush()

    @contextlib.contextmanager
    def playing(self, name: str) -> Iterator[None]:
        """Says so while a person waits for it."""
        if not self._stream.isatty():
            yield
            return
        note = f"   playing {name} ..."
        self._stream.write(note)
        self._stream.flush()
        try:
            yield
        finally:
            self._stream.write("\r" + " " * len(note) + "\r")

    def outcome(self, number: int, outcome: Outcome) -> None:
        self.text(f"{number}. {outcome.title}", "bold")
        self.text(outcome.shown)
        self.text()
        self._table(outcome)
        self._strips(outcome)
        self.text()
        if outcome.ok:
            self.text(f"   ok: {outcome.fine}", "green")
        for problem in outcome.problems:
            self.text(f"   WRONG: {problem}", "bold red")
        self.text()

    def _table(self, outcome: Outcome) -> None:
        if self._console is not None:
            self._console.print(_rich_table(outcome))
            return
        lines = [["", *outcome.columns], *([row.label, *row.cells] for row in outcome.rows)]
        widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
        for number, line in enumerate(lines):
            cells = [cell.ljust(width) for cell, width in zip(line, widths, strict=True)]
            print("   " + "  ".join(cells).rstrip(), file=self._stream)
            if number == 0:
                print("   " + "  ".join("-" * width for width in widths), file=self._stream)

    def _strips(self, outcome: Outcome) -> None:
        if not outcome.strips:
            return
        self.text()
        self.text(f"   {outcome.strips_title}:")
        names = dict(zip(outcome.runs, outcome.columns, strict=True))
        for key, who, strip in outcome.strips:
            label = f"   {names[key]:<15} {who:<10} "
            if self._console is None:
                print(label + strip, file=self._stream)
                continue
            text = import_module("rich.text").Text(label + strip)
            text.highlight_regex("x(?=[x0-9]*$)", "bold red")
            self._console.print(text)


def _reader_gone() -> NoReturn:
    raise BrokenPipeError


def _rich_table(outcome: Outcome) -> Any:
    box = import_module("rich.box")
    table = import_module("rich.table").Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    text = import_module("rich.text").Text
    table.add_column("")
    for column in outcome.columns:
        table.add_column(column)
    for row in outcome.rows:
        good = row.good or [None] * len(row.cells)
        table.add_row(
            row.label,
            *(
                text(cell, style={True: "green", False: "bold red", None: ""}[verdict])
                for cell, verdict in zip(row.cells, good, strict=True)
            ),
        )
    return table
