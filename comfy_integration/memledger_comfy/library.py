"""Loading memledger from the host's folder, in a process that has not installed it."""

from __future__ import annotations

import importlib.util
import os
import sys

FOLDER = "MEMLEDGER_COMFY_LIBRARY"
"""Variable with the folder of the host's `memledger` package: abi3, standard library only."""


def load(folder: str | None) -> str | None:
    """Make `import memledger` give the package in `folder`, so that worker and host speak of one
    layout; without a folder, or where that does not load, the installed one. None: it can be
    imported; else why not. Nothing is put on sys.path: what lies beside the folder stays unseen."""
    if "memledger" in sys.modules:
        ours = hasattr(sys.modules["memledger"], "LayoutMismatch")
        return None if ours else "another package called memledger is loaded"
    why = f"{FOLDER} is not set"
    if folder:
        try:
            _load_from(folder)
            return None
        except Exception as error:  # another platform, another kind of Python, no such folder
            _forget()
            why = f"{folder} does not load here ({type(error).__name__}: {error})"
    if not is_installed():
        return f"{why}, and memledger is not installed"
    try:
        importlib.import_module("memledger")
        return None
    except Exception as error:
        _forget()
        return f"{why}, and the installed memledger does not load ({error})"


def is_installed() -> bool:
    """Whether an import would find memledger. The name on the package index belongs to an unrelated
    project, which is told apart without running it: only ours has a native module."""
    try:
        spec = importlib.util.find_spec("memledger")
    except (ImportError, ValueError):
        return False
    places = spec.submodule_search_locations if spec is not None else None
    return any(
        name.startswith("_native.")
        for place in places or ()
        if os.path.isdir(place)
        for name in os.listdir(place)
    )


def _load_from(folder: str) -> None:
    init = os.path.join(folder, "__init__.py")
    spec = importlib.util.spec_from_file_location(
        "memledger", init, submodule_search_locations=[folder]
    )
    if spec is None or spec.loader is None or not os.path.isfile(init):
        raise ImportError("no package there")
    module = importlib.util.module_from_spec(spec)
    sys.modules["memledger"] = module
    spec.loader.exec_module(module)


def _forget() -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "memledger"]:
        del sys.modules[name]
