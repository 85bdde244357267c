"""What a pyisolate child imports: the host lists it among the services of each extension that is
not sealed. In the child, which has its own import path by then, that starts the worker."""

from __future__ import annotations

import os

from memledger_comfy import worker
from pyisolate import ProxiedSingleton

if os.environ.get("PYISOLATE_CHILD") == "1":
    started = worker.start(os.environ.get("PYISOLATE_EXTENSION") or "pyisolate child")
    if started is not None:
        # ComfyUI's adapter may have loaded its modules before, and they copied names.
        started.wraps.sweep_aliases()


class MemledgerWorker(ProxiedSingleton):  # type: ignore[misc]
    """Offers nothing: it is named so that its module is imported."""
