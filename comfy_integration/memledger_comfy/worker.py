"""A worker: a process that runs nodes for a host. Joins the host's group and keeps its word.

Started before ComfyUI's modules (`serializer_entry` in comfy-env's workers,
`pyisolate_entry` in pyisolate's, `bootstrap` in any other). Needs nothing installed: the host hands
over the folders of this package and of memledger by environment (handover.py).
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator

from memledger_comfy import adapter, hooks, library, log, settings
from memledger_comfy.context import Context, module_names

_context: Context | None = None


def start(label: str = "") -> Context | None:
    """Join, and install each row behind the import of what it wraps. None where it is off or there
    is no ledger: then nothing has changed. Never raises. A second call changes nothing."""
    try:
        return _start(label)
    except Exception as error:
        log.failed("start of a worker", error)
        return None


def boundary() -> None:
    """To call between two jobs, on the main thread, in workers that this package does not know:
    publishes, answers asks, frees what the group is asked to free."""
    if _context is not None:
        _context.points.boundary()


@contextlib.contextmanager
def waiting() -> Iterator[None]:
    """Around a worker's wait for its next job, on the main thread: meanwhile asks are answered at
    once. Begins with a `boundary`."""
    context = _context
    if context is None:
        yield
        return
    context.points.wait()
    try:
        yield
    finally:
        context.points.resume()


def on_free(call: Callable[[bool, bool], None]) -> None:
    """Have `call(unload, cache)` run when the group is asked to free: for caches of one's own."""
    if _context is not None:
        _context.points.on_free.append(call)


def context() -> Context | None:
    return _context


def stop() -> None:
    """For tests: everything as it was."""
    global _context
    hooks.remove()
    if _context is not None:
        _context.undo()
        _context = None


def _start(label: str) -> Context | None:
    global _context
    host = sys.modules.get("memledger_comfy.host")
    if _context is not None or (host is not None and host.context() is not None):
        return _context
    chosen = settings.from_environ(os.environ, adapter.names())
    if not chosen.enabled:
        return None
    why = library.load(os.environ.get(library.FOLDER))
    if why is not None:
        log.once("library", f"off in this worker: {why}")
        return None
    context = Context("worker", chosen, label or os.path.basename(sys.argv[0]) or "worker")
    if not context.link.join():
        log.once("join", f"off in this worker: memledger cannot be used here: {context.link.why}")
        return None
    if context.link.why:
        log.once("join", f"this worker shares no ledger with its host: {context.link.why}")
    _context = context
    context.serving.begin()
    context.install()
    hooks.after_import(module_names(), context.reinstall)
    return context
