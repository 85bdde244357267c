"""One module per decision of ComfyUI: the only place that knows its names.

Each has
    NAME      its behaviour, as the settings call it
    ROWS      the rows of docs/comfyui.md that it serves
    ROLES     the processes it runs in: "host", "worker"
    REQUIRES  modules that must be loaded; it is installed right behind the last one's import
    AFTER     optional: modules that may come at any time; it is installed again behind their import
    install(context) -> str | None
              probes every name, wraps or sets what is there; None: on; else why it is off. It runs
              again behind a reload: wraps find themselves, anything else must too
"""

from __future__ import annotations

from importlib import import_module
from types import ModuleType

_MODULES = (
    "holder",
    "row06_free",
    "row06_patcher",
    "row06_multigpu",
    "row06_vae",
    "row07_dtype",
    "row08_ram",
    "loads",
    "asks",
    "row14_windows",
    "row19_oom",
    "row21_free",
    "row25_prompt",
    "row31_hooks",
    "row32_backups",
    "row33_clones",
    "row34_pins",
    "row39_interrupt",
    "row41_view",
    "steps",
    "workers",
    "nodes",
    "worker_progress",
    "worker_comfy_env",
    "worker_pyisolate",
)


def rows() -> tuple[ModuleType, ...]:
    """All adapter modules, in the order in which they are installed."""
    return tuple(import_module(f"{__name__}.{name}") for name in _MODULES)


def names() -> tuple[str, ...]:
    """The behaviours that can be switched."""
    return tuple(row.NAME for row in rows())
