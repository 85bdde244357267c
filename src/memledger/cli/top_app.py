"""The live screen of `memledger top`. Imported only by it, since textual may be missing.

All colours are the terminal's own sixteen on its own background, so light and dark terminals both
work, and nothing is told by colour alone.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
from typing import ClassVar

from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import DataTable, Input, Static

from memledger.cli import screen, top_draw
from memledger.cli.look import Look, look, short_names
from memledger.cli.rich_screen import STYLES
from memledger.cli.screen import Cell
from memledger.cli.top import ASKING, KEYS, MEANING
from memledger.cli.top_ask import ask_member
from memledger.cli.top_draw import COLUMNS, MemberRow
from memledger.errors import LedgerError
from memledger.sizes import format_size, parse_size

_HINTS = "q quit  s sort  r reverse  / filter  f freeze  a ask  ? help"
INTERRUPTED = 130


class Help(ModalScreen[None]):
    """Any key closes it; the arrows scroll."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding(key, "close", show=False) for key in ("escape", "q", "h", "question_mark", "enter")
    ]
    CSS = "Help { background: ansi_default; } Help VerticalScroll { height: 1fr; }"

    def compose(self) -> ComposeResult:
        text = f"memledger top (escape closes this)\n\n{KEYS}\n{MEANING}\n{ASKING}"
        with VerticalScroll():
            yield Static(Text(text))

    def action_close(self) -> None:
        self.dismiss()


class Top(App[int]):
    """`run()` returns the exit code."""

    ENABLE_COMMAND_PALETTE = False
    TITLE = "memledger top"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q", "quit_with(0)", "quit"),
        Binding("ctrl+c", f"quit_with({INTERRUPTED})", "quit", priority=True),
        Binding("ctrl+z", "suspend_process", show=False, priority=True),
        Binding("s", "sort_by(1)", "sort"),
        Binding("S", "sort_by(-1)", "sort back"),
        Binding("r", "turn_round", "reverse"),
        Binding("slash", "filter", "filter"),
        Binding("f,space", "freeze", "freeze"),
        Binding("a", "ask", "ask"),
        Binding("question_mark,h", "help", "help"),
        Binding("escape", "leave_line", show=False),
    ]
    CSS = """
    Screen { background: ansi_default; color: ansi_default; }
    #title { height: 1; text-style: bold; text-wrap: nowrap; text-overflow: ellipsis; }
    #legend, #hints { text-wrap: nowrap; text-overflow: ellipsis; }
    #devices { height: auto; max-height: 50%; scrollbar-size-vertical: 1; }
    #bars { height: auto; }
    #legend, #hints { height: 1; }
    #status { height: auto; max-height: 3; }
    #members { height: 1fr; background: ansi_default; scrollbar-size-vertical: 1; }
    #members:focus { background-tint: ansi_default 0%; }
    #members > .datatable--header { background: ansi_default; text-style: bold underline; }
    #members > .datatable--even-row { background: ansi_default; }
    #members > .datatable--cursor {
        background: ansi_default; color: ansi_default; text-style: reverse;
    }
    #line { height: 1; border: none; padding: 0; display: none; background: ansi_default; }
    #line:focus { border: none; }
    """

    def __init__(
        self, path: str, scope: str, *, interval_s: float = 1.0, sort: str = "held", words: str = ""
    ) -> None:
        super().__init__(ansi_color=True)  # also decides what NO_COLOR does: no colours, not greys
        self.theme = "ansi-dark"
        self._path, self._scope, self._interval_s = path, scope, interval_s
        self._column, self._reverse, self._words = sort, False, words
        self._frozen = False
        self._asking: MemberRow | None = None
        self._message = ""
        self._ascii = screen.needs_ascii()
        self._tags, self._history = top_draw.Tags(), top_draw.History()
        self._seen: Look | None = None
        self._rows: list[MemberRow] = []

    def compose(self) -> ComposeResult:
        yield Static(id="title")
        with VerticalScroll(id="devices"):
            yield Static(id="bars")
        yield Static(id="legend")
        yield DataTable[Text](id="members", cursor_type="row", cell_padding=1)
        yield Static(id="status")
        yield Static(id="hints")
        yield Input(id="line", compact=True)

    def on_mount(self) -> None:
        # textual leaves SIGTERM to the default, which would leave the terminal as it is drawn on.
        for number in (signal.SIGTERM, getattr(signal, "SIGHUP", None)):
            if number is not None:
                with contextlib.suppress(NotImplementedError):
                    asyncio.get_running_loop().add_signal_handler(
                        number, self.exit, 128 + number, 128 + number
                    )
        self.query_one("#members").focus()
        self._look()
        self.set_interval(self._interval_s, self._look)

    def on_resize(self) -> None:
        self._draw()

    def _look(self) -> None:
        if self._frozen:
            return
        self._seen = look(self._path, self._scope)
        self._tags.update(self._seen.members)
        self._history.add(self._seen)
        self._draw()

    # ---- drawing

    def _draw(self) -> None:
        seen = self._seen
        if seen is None or isinstance(self.screen, Help):
            return
        with self.batch_update():
            self._put("#title", [Cell(top_draw.title(seen))])
            self._draw_devices(seen)
            self._draw_members(seen)
            self._draw_status(seen)

    def _draw_devices(self, seen: Look) -> None:
        pools = top_draw.shown_pools(seen)
        names = short_names([pool.key for pool in pools])
        width = max(20, self.size.width - 1)
        lines = [
            line
            for pool in pools
            for line in top_draw.device_lines(
                pool, names[pool.key], width, self._tags, self._history.of(pool.key),
                ascii_only=self._ascii,
            )
        ]  # fmt: skip
        if seen.status != "ok":
            lines = [[Cell(f"{seen.reason or seen.status}", "warn")], [Cell("waiting for it")]]
        elif not lines:
            lines = [[Cell("no device has been opened yet")]]
        self.query_one("#bars", Static).update(Text("\n").join(map(self._text, lines)))
        self._put("#legend", top_draw.legend(ascii_only=self._ascii))

    def _draw_members(self, seen: Look) -> None:
        table = self.query_one("#members", DataTable)
        chosen = self._chosen()
        scroll = table.scroll_y
        rows = top_draw.matching(top_draw.member_rows(seen, self._tags), self._words)
        self._rows = top_draw.in_order(rows, self._column, reverse=self._reverse)
        columns = top_draw.fitting_columns(self._rows, self.size.width - 1, self._column)
        table.clear(columns=True)
        for shown in columns:
            table.add_column(self._header(shown), key=shown.name)
        for entry in self._rows:
            texts = top_draw.cells_of(entry)
            table.add_row(
                *(self._cell(entry, shown, texts[shown.name]) for shown in columns),
                key=_key(entry),
            )
        keys = [_key(entry) for entry in self._rows]
        if chosen is not None and _key(chosen) in keys:
            table.move_cursor(row=keys.index(_key(chosen)), scroll=False)
        table.scroll_to(y=scroll, animate=False)

    def _header(self, shown: top_draw.Shown) -> Text:
        label = shown.header
        if shown.name == self._column:
            down = shown.number != self._reverse
            label += ("v" if down else "^") if self._ascii else ("▼" if down else "▲")
        return Text(label, justify="right" if shown.number else "left")

    def _cell(self, entry: MemberRow, shown: top_draw.Shown, text: str) -> Text:
        cell = self._text([Cell(text, top_draw.style_of(entry, shown.name, self._tags))])
        cell.justify = "right" if shown.number else "left"
        return cell

    def _draw_status(self, seen: Look) -> None:
        words = [("frozen", "warn")] if self._frozen else []
        if self._words:
            words.append((f"filter: {self._words} ({len(self._rows)} rows)", "warn"))
        if self._message:
            words.append((self._message, "bold"))
        words += top_draw.notes(seen)
        cells = [Cell(text + "  ", style) for text, style in words]
        self.query_one("#status").display = bool(cells)
        self._put("#status", cells)
        self._put("#hints", [Cell(_HINTS, "dim")])

    def _put(self, selector: str, cells: list[Cell]) -> None:
        self.query_one(selector, Static).update(self._text(cells))

    def _text(self, cells: list[Cell]) -> Text:
        return Text.assemble(
            *((screen.clean(c.text, ascii_only=self._ascii), STYLES[c.style]) for c in cells)
        )

    # ---- keys

    def action_quit_with(self, code: int) -> None:
        self.exit(code)

    def action_sort_by(self, step: int) -> None:
        names = [shown.name for shown in COLUMNS]
        self._column = names[(names.index(self._column) + step) % len(names)]
        self._message = f"sorted by {self._column}"
        self._draw()

    def action_turn_round(self) -> None:
        self._reverse = not self._reverse
        self._draw()

    def action_freeze(self) -> None:
        self._frozen = not self._frozen
        self._look()
        self._draw()

    def action_help(self) -> None:
        self.push_screen(Help())

    def action_filter(self) -> None:
        self._asking = None
        self._open_line(self._words, "words that a row must have; enter keeps, escape clears")

    def action_ask(self) -> None:
        entry = self._chosen()
        if entry is None or entry.row is None or not entry.row.releasable:
            self._message = "the chosen row has nothing releasable: nothing to ask for"
            self._draw()
            return
        self._asking = entry
        # Whole bytes, so that all means all.
        self._open_line(f"{entry.row.releasable}B", "")
        self._message = (
            f"ask {entry.name} ({entry.member.pid}) for how much of {entry.device}? "
            f"It can release {format_size(entry.row.releasable)}. Enter asks, escape leaves."
        )
        self._draw()

    def _chosen(self) -> MemberRow | None:
        at = self.query_one("#members", DataTable).cursor_row
        return self._rows[at] if 0 <= at < len(self._rows) else None

    # ---- the line at the bottom

    def _open_line(self, value: str, placeholder: str) -> None:
        line = self.query_one("#line", Input)
        with line.prevent(Input.Changed):
            line.value = value
        line.placeholder = placeholder
        line.display = True
        self.query_one("#hints").display = False
        self.screen.set_focus(line)

    def _close_line(self) -> None:
        self.query_one("#line").display = False
        self.query_one("#hints").display = True
        self.screen.set_focus(self.query_one("#members"))
        self._draw()

    def on_input_changed(self, event: Input.Changed) -> None:
        if self._asking is None:
            self._words = event.value
            self._draw()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        entry, self._asking = self._asking, None
        if entry is not None:
            self._message = self._begin_ask(entry, event.value)
        self._close_line()

    def action_leave_line(self) -> None:
        if self._asking is None:
            self._words = ""
        self._asking, self._message = None, ""
        self._close_line()

    def _begin_ask(self, entry: MemberRow, text: str) -> str:
        try:
            nbytes = parse_size(text)
        except (LedgerError, ValueError) as error:
            return f"not asked: {error}"
        if not nbytes:
            return "not asked: 0 bytes"

        def ask() -> None:
            try:
                answer = ask_member(self._path, entry, nbytes)
            except (LedgerError, OSError) as error:
                answer = f"not asked: {error}"
            self.call_from_thread(self._answered, answer)

        self.run_worker(ask, thread=True, exit_on_error=False)
        return f"asking {entry.name} for {format_size(nbytes)} ..."

    def _answered(self, text: str) -> None:
        self._message = text
        self._look()
        self._draw()


def _key(entry: MemberRow) -> str:
    return f"{entry.member.slot}:{entry.member.generation}:{entry.key}"
