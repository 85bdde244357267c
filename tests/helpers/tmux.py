"""A program on a terminal of its own, typed at and looked at through tmux."""

from __future__ import annotations

import os
import shlex
import subprocess
import uuid
from collections.abc import Callable
from types import TracebackType

from helpers.system import need_program
from helpers.waiting import wait_until


class Terminal:
    """A tmux server with one session, `columns` by `lines`, in which a shell runs. The server and
    all that runs in it end with the `with` block."""

    def __init__(self, env: dict[str, str], columns: int = 80, lines: int = 24) -> None:
        self._tmux = [need_program("tmux"), "-L", f"memledger-test-{uuid.uuid4().hex}"]
        # Nothing of whoever runs the tests: no configuration, no session around this one.
        self._env = {name: value for name, value in env.items() if name != "TMUX"}
        self._run("-f", os.devnull, "new-session", "-d", "-x", str(columns), "-y", str(lines),
                  "sh")  # fmt: skip
        self.type("PS1='ready> '\n")
        self.see("ready>")

    def _run(self, *arguments: str) -> str:
        done = subprocess.run(
            [*self._tmux, *arguments], env=self._env, capture_output=True, text=True,
            encoding="utf-8", timeout=60, check=True,
        )  # fmt: skip
        return done.stdout

    def start(self, *command: str) -> None:
        """In the shell, which then prints "ended with <exit code>"."""
        self.type(f"clear; {shlex.join(command)}; echo ended with $?\n")

    def type(self, text: str) -> None:
        """Literally; "\\n" is Enter."""
        for part in text.split("\n")[:-1]:
            self._run("send-keys", "-l", part)
            self._run("send-keys", "Enter")
        if rest := text.rpartition("\n")[2]:
            self._run("send-keys", "-l", rest)

    def key(self, name: str) -> None:
        """A key as tmux calls it: "C-c", "Down", "Escape"."""
        self._run("send-keys", name)

    def screen(self, *, colours: bool = False) -> str:
        return self._run("capture-pane", "-p", *(["-e"] if colours else []))

    def see(self, wanted: str | Callable[[str], bool], *, colours: bool = False) -> str:
        """The screen, once it contains `wanted`."""
        last = ""

        def there() -> bool:
            nonlocal last
            last = self.screen(colours=colours)
            return wanted in last if isinstance(wanted, str) else wanted(last)

        try:
            wait_until(there, watchdog_s=60, step_s=0.1)
        except AssertionError:
            raise AssertionError(f"never seen: {wanted!r}; the screen:\n{last}") from None
        return last

    def is_clean(self) -> bool:
        """On the main screen, with a cursor, and without the mouse."""
        flags = "#{alternate_on} #{cursor_flag} #{mouse_any_flag}"
        return self._run("display-message", "-p", flags).split() == ["0", "1", "0"]

    def pane_pid(self) -> int:
        return int(self._run("display-message", "-p", "#{pane_pid}"))

    def __enter__(self) -> Terminal:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        subprocess.run([*self._tmux, "kill-server"], capture_output=True, timeout=60)
