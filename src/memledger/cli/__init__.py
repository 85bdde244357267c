"""The `memledger` command. Nothing here is imported by a process that only joins.

One file per command; each has `add_parser(commands)` and `run(options) -> exit code`. What is shown
goes through `screen`, which uses rich where it is importable and plain text elsewhere.
"""

from memledger.cli.command_line import main

__all__ = ["main"]
