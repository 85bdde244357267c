"""Runs any program as a worker: `python <this file> script.py args...`, `python <this file> -m
module args...`, or `python -m memledger_comfy.bootstrap ...` where that can be imported.

Joins and sets the hooks first; then the program runs as __main__, with the sys.argv and sys.path
that it would have had. It finds the ledger and its group by the environment that the host hands
over (handover.py). Where there is no ledger it runs all the same.
"""

from __future__ import annotations

import importlib.util
import os
import runpy
import sys

USAGE = "usage: bootstrap.py (script | -m module) [args...]"


def main(argv: list[str]) -> int:
    """Returns only where there is nothing to run; the program's own exit passes through."""
    if not argv or argv == ["-m"] or (argv[0].startswith("-") and argv[0] != "-m"):
        print(USAGE, file=sys.stderr)
        return 2
    as_module = argv[0] == "-m"
    program, args = (argv[1], argv[2:]) if as_module else (argv[0], argv[1:])
    from memledger_comfy import worker

    worker.start(program if as_module else os.path.basename(program))
    sys.argv = [program, *args]
    if as_module:
        runpy.run_module(program, run_name="__main__", alter_sys=True)
    else:
        runpy.run_path(program, run_name="__main__")
    return 0


def _as_script() -> None:
    """sys.path[0] is this folder, where names such as `log` and `host` would be found first. What
    the program is to find there instead is its own folder, or for -m the current one."""
    here = os.path.dirname(os.path.abspath(__file__))
    argv = sys.argv[1:]
    script = argv[0] if argv and argv[0] != "-m" else None
    own = os.getcwd() if script is None else os.path.dirname(os.path.abspath(script))
    if sys.path and os.path.abspath(sys.path[0]) == here:
        sys.path[0] = own
    if "memledger_comfy" not in sys.modules:
        spec = importlib.util.spec_from_file_location(
            "memledger_comfy",
            os.path.join(here, "__init__.py"),
            submodule_search_locations=[here],
        )
        assert spec is not None
        assert spec.loader is not None
        package = importlib.util.module_from_spec(spec)
        sys.modules["memledger_comfy"] = package
        spec.loader.exec_module(package)


if __name__ == "__main__":
    if not __package__:
        _as_script()
    sys.exit(main(sys.argv[1:]))
