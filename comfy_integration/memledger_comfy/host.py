"""The host: the ComfyUI server's own process. Leads a group."""

from __future__ import annotations

import os
import sys

from memledger_comfy import adapter, handover, hooks, library, log, settings
from memledger_comfy.context import Context, module_names

_context: Context | None = None


def start_early() -> None:
    """From prestartup_script.py: before torch. Joins, and installs each row right behind the import
    of what it wraps."""
    try:
        _start()
    except Exception as error:
        log.failed("start", error)


def start_late() -> None:
    """From the package's __init__: ComfyUI is loaded. Installs the rest and says what is on."""
    try:
        context = _start()
        if context is None:
            return
        context.install(final=True)
        context.wraps.sweep_aliases()
        log.info(context.describe())
    except Exception as error:
        log.failed("start", error)


def context() -> Context | None:
    return _context


def stop() -> None:
    """For tests: everything as it was."""
    global _context
    hooks.remove()
    if _context is not None:
        _context.undo()
        _context = None


def _start() -> Context | None:
    global _context
    if _context is not None:
        return _context
    chosen = settings.from_environ(os.environ, adapter.names())
    for complaint in chosen.complaints:
        log.once(complaint, complaint)
    if not chosen.enabled:
        log.once("off", "off: MEMLEDGER_COMFY=off", level=20)
        return None
    _find_library()
    handover.drop_inherited(os.environ)
    context = Context("host", chosen, "ComfyUI")
    if not context.link.join():
        log.once("join", f"off: memledger cannot be used here: {context.link.why}")
        return None
    _context = context
    context.install()
    hooks.after_import(module_names(), context.reinstall)
    return context


def _find_library() -> None:
    """Where memledger is not installed, and this folder is linked from a built checkout: that's."""
    if library.is_installed():
        return
    checkout = os.path.join(os.path.dirname(os.path.dirname(os.path.dirname(__file__))), "src")
    if os.path.isdir(os.path.join(checkout, "memledger")):
        sys.path.append(checkout)
