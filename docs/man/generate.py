"""Writes the man pages and the reference pages of the command line and of the C API.

    python docs/man/generate.py            # write them
    python docs/man/generate.py --check    # exit with 1 where one is out of date

The sources are the parsers of the command line and csrc/include/memledger.h, so nothing is written
twice. The pages are committed: neither a reader nor a package needs this script.
"""

from __future__ import annotations

import argparse
import re
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
HEADER = ROOT / "csrc" / "include" / "memledger.h"
EXAMPLE = ROOT / "examples" / "c" / "join.c"
DATE = "November 29, 2026"


# ---- the command line


@dataclass
class Command:
    """One parser. options: (how it is written, what it does)."""

    name: str
    usage: str
    description: str
    options: list[tuple[str, str]]
    epilog: str


def commands() -> list[Command]:
    """The program itself first, then its commands in the order of its help."""
    from memledger.cli import command_line
    from memledger.demo import _parser as demo_parser
    from memledger.demo import scenarios

    parser = command_line._parser()
    found = [command_of(parser)]
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, sub in action.choices.items():
                demo = name == "demo"  # has its own parser, made when it is called
                found.append(command_of(demo_parser(list(scenarios.SCENARIOS)) if demo else sub))
    return found


def command_of(parser: argparse.ArgumentParser) -> Command:
    """From the parser's actions, not from its help: that differs between versions of Python."""
    options, words = [], []
    for action in parser._actions:
        if action.help == argparse.SUPPRESS:
            continue
        if isinstance(action, argparse._SubParsersAction):
            words.append("COMMAND ...")
            continue
        written = spelling(action)
        options.append((written, help_of(action)))
        short = written.split(", ")[0]
        words.append(short if action.required or not action.option_strings else f"[{short}]")
    usage = " ".join([parser.prog, *words])
    return Command(
        parser.prog, usage, parser.description or "", options, (parser.epilog or "").rstrip()
    )


def spelling(action: argparse.Action) -> str:
    value = ""
    if action.nargs != 0:
        name = action.metavar if isinstance(action.metavar, str) else action.dest.upper()
        value = {"?": f" [{name}]", "*": f" [{name} ...]", "+": f" {name} ..."}.get(
            str(action.nargs), f" {name}"
        )
    return ", ".join(f"{option}{value}" for option in action.option_strings) or value.strip()


def help_of(action: argparse.Action) -> str:
    text = (action.help or "") % {"default": action.default, "prog": "memledger"}
    if action.choices and action.metavar is not None:
        listed = ", ".join(str(choice) for choice in action.choices)
        text += "" if listed in text else f" ({listed})"
    return " ".join(text.split())


# ---- the C header


@dataclass
class Entry:
    """A comment and the declarations below it."""

    comment: str
    code: str


@dataclass
class Section:
    title: str
    entries: list[Entry] = field(default_factory=list)


def header() -> tuple[str, list[Section]]:
    """The essay at the top, and the sections."""
    text = HEADER.read_text(encoding="utf-8")
    essay, _, rest = text.partition("#ifndef MEMLEDGER_H")
    rest = rest[rest.index("#define ML_LAYOUT_MAJOR") : rest.rindex("#ifdef __cplusplus")]
    sections = [Section("constants and handles")]
    for comment, code in blocks(rest):
        title = re.fullmatch(r"---- (.+) ----", comment)
        if title:
            sections.append(Section(title.group(1)))
        if code and not (title and not code.strip()):
            sections[-1].entries.append(Entry("" if title else comment, code))
    return plain(essay), [section for section in sections if section.entries]


def blocks(text: str) -> Iterator[tuple[str, str]]:
    """(comment at the start of a line, code up to the next such comment)."""
    parts = re.split(r"(^/\*.*?\*/\n)", text, flags=re.S | re.M)
    if parts[0].strip():
        yield "", parts[0].strip("\n")
    for comment, code in zip(parts[1::2], parts[2::2], strict=True):
        yield plain(comment), code.strip("\n")


def plain(comment: str) -> str:
    """The words of a comment; empty lines between paragraphs stay."""
    text = re.sub(r"^\s*/\*|\*/\s*$", "", comment.strip(), flags=re.S)
    lines = [re.sub(r"^\s*\* ?", "", line).rstrip() for line in text.splitlines()]
    paragraphs = "\n".join(lines).strip().split("\n\n")
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)


# ---- mdoc


def escaped(text: str) -> str:
    """One line of text that no formatter takes for a request."""
    text = text.replace("\\", "\\e")
    return "\\&" + text if text.startswith((".", "'")) else text


def prose(text: str) -> list[str]:
    """Paragraphs, one sentence a line."""
    out: list[str] = []
    for paragraph in text.split("\n\n"):
        if out:
            out.append(".Pp")
        for sentence in re.split(r"(?<=[.!?:])\s+(?=[A-Z`*(])", " ".join(paragraph.split())):
            lines = textwrap.wrap(sentence, 79, break_long_words=False, break_on_hyphens=False)
            out += [escaped(line) for line in lines]
    return out


def display(code: str) -> list[str]:
    lines = [escaped(line.rstrip()) for line in code.splitlines()]
    return [".Bd -literal", *lines, ".Ed"]


def manual(section: int, what: str, body: list[str]) -> str:
    lines = [
        '.\\" Written by docs/man/generate.py. Change its sources, then run it again.',
        f".Dd {DATE}",
        f".Dt MEMLEDGER {section}",
        ".Os",
        ".Sh NAME",
        ".Nm memledger",
        f".Nd {what}",
        *body,
    ]
    # A display and a list make their own space.
    spaced = zip(lines, [*lines[1:], ""], strict=True)
    kept = [line for line, after in spaced if line != ".Pp" or not after.startswith((".Bd", ".Bl"))]
    return "\n".join(kept) + "\n"


def manual_1(all_commands: list[Command]) -> str:
    program, *rest = all_commands
    body = [".Sh SYNOPSIS", ".Nm", ".Ar command", ".Op Ar options", ".Sh DESCRIPTION"]
    body += prose(program.description)
    body += [".Pp", "Sizes are in bytes where nothing else is said; unknown ones are never 0."]
    body += [".Sh COMMANDS"]
    for command in rest:
        body += [f".Ss {escaped(command.name)}", *display(command.usage)]
        body += [".Pp", *prose(command.description)] if command.description else []
        body += [".Pp", ".Bl -tag -width Ds"]
        for written, text in command.options:
            body += [f".It {escaped(written)}", *(prose(text) if text else [])]
        body += [".El"]
        body += [".Pp", *display(command.epilog)] if command.epilog else []
    body += [".Sh EXIT STATUS, ENVIRONMENT AND EXAMPLES", *display(program.epilog)]
    body += [".Sh SEE ALSO", ".Xr memledger 3"]
    return manual(1, "look at, check and mend a ledger of memory", body)


def manual_3(essay: str, sections: list[Section]) -> str:
    body = [".Sh SYNOPSIS", ".In memledger.h", ".Pp"]
    body += display("cc -Icsrc/include program.c build/libmemledger.a -pthread")
    body += [".Sh DESCRIPTION", *prose(essay)]
    for section in sections:
        body += [f".Ss {section.title[0].upper()}{escaped(section.title[1:])}"]
        for number, entry in enumerate(section.entries):
            body += [".Pp"] if number else []
            body += display(entry.code)
            body += [".Pp", *prose(entry.comment)] if entry.comment else []
    body += [".Sh ENVIRONMENT", ".Bl -tag -width Ds", ".It Ev MEMLEDGER_PATH"]
    body += ["The segment, where", ".Fn ml_ledger_join", "is given none.", ".El"]
    body += [".Sh EXAMPLES", "The file", ".Pa examples/c/join.c :", ".Pp"]
    body += display(EXAMPLE.read_text(encoding="utf-8").rstrip())
    body += [".Sh SEE ALSO", ".Xr memledger 1"]
    return manual(3, "the ledger of memory, for programs in C", body)


# ---- Markdown

NOTE = "<!-- Written by docs/man/generate.py. Change its sources, then run it again. -->\n"


def table_cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")


def markdown_1(all_commands: list[Command]) -> str:
    program, *rest = all_commands
    parts = ["# Command line\n", NOTE, f"{program.description}\n"]
    parts.append("The same as a man page: `docs/man/memledger.1`.\n")
    for command in rest:
        parts.append(f"## {command.name}\n\n{command.description}\n")
        parts.append(f"```text\n{command.usage}\n```\n")
        rows = [
            f"| `{w.replace('|', chr(92) + '|')}` | {table_cell(t)} |" for w, t in command.options
        ]
        parts.append("\n".join(["| option | |", "|---|---|", *rows]) + "\n")
        if command.epilog:
            parts.append(f"```text\n{command.epilog}\n```\n")
    parts.append(f"## Exit codes, environment, examples\n\n```text\n{program.epilog}\n```\n")
    return "\n".join(parts)


def markdown_3(essay: str, sections: list[Section]) -> str:
    parts = ["# C API\n", NOTE, "`csrc/include/memledger.h`, for programs without Python."]
    parts.append("[How to build and use it](../embed.md). As a man page: `docs/man/memledger.3`.\n")
    parts += [prose_markdown(essay) + "\n"]
    for section in sections:
        parts.append(f"## {section.title[0].upper()}{section.title[1:]}\n")
        for entry in section.entries:
            parts.append(f"```c\n{entry.code}\n```\n")
            if entry.comment:
                parts.append(prose_markdown(entry.comment) + "\n")
    return "\n".join(parts)


def prose_markdown(text: str) -> str:
    """A comment's words, with nothing in them that Markdown would take for markup."""

    def word(match: re.Match[str]) -> str:
        return f"`{match.group()}`"

    halves = text.split("`")
    for index in range(0, len(halves), 2):
        half = re.sub(r"\b(?:ml_|ML_|os_|_)\w+(?:->\w+|\.\w+)*\*?(?:\(\))?", word, halves[index])
        halves[index] = re.sub(r"(?<!`)\*(\w+)", r"`*\1`", half).replace("<", "&lt;")
    return "`".join(halves)


# ---- all of them


def pages() -> dict[Path, str]:
    all_commands = commands()
    essay, sections = header()
    return {
        ROOT / "docs/man/memledger.1": manual_1(all_commands),
        ROOT / "docs/man/memledger.3": manual_3(essay, sections),
        ROOT / "docs/reference/cli.md": markdown_1(all_commands),
        ROOT / "docs/reference/c.md": markdown_3(essay, sections),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing; say what is old")
    options = parser.parse_args()
    old = []
    for path, text in pages().items():
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            old.append(path.relative_to(ROOT).as_posix())
            if not options.check:
                path.write_text(text, encoding="utf-8")
    if options.check and old:
        print(f"out of date: {', '.join(old)}; run python docs/man/generate.py", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
