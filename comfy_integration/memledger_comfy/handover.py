"""What the host hands to its workers by environment: the ledger, the group, the folders.

The variables stand in the host's own environment, so that each process it starts has them, whoever
starts it. MEMLEDGER_COMFY_HOST says whose they are: a second server that was started from the first
is no worker of it, and forgets them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, MutableMapping
from typing import TYPE_CHECKING

from memledger_comfy import log
from memledger_comfy.link import environment_for_workers

if TYPE_CHECKING:
    from memledger_comfy.link import Link

OWNER = "MEMLEDGER_COMFY_HOST"
SERIALIZERS = "COMFY_ENV_SERIALIZER_FILES"
ENTRY = os.path.join(os.path.dirname(os.path.abspath(__file__)), "serializer_entry.py")
_HANDED = ("MEMLEDGER_COMFY_LIBRARY", "MEMLEDGER_COMFY_ADAPTERS", "MEMLEDGER_GROUP", OWNER)


def variables(link: Link, environ: MutableMapping[str, str]) -> dict[str, str]:
    """All that a worker with an empty environment needs: also the settings."""
    handed = environment_for_workers(link)
    if not handed:
        return {}
    own = {name: value for name, value in environ.items() if name.startswith("MEMLEDGER_")}
    return {**own, **handed, OWNER: str(os.getpid())}


def hand_over(link: Link, environ: MutableMapping[str, str]) -> Callable[[], None]:
    """Set the variables. Returns what sets them back."""
    new = variables(link, environ)
    if new:
        new[SERIALIZERS] = with_entry(environ.get(SERIALIZERS))
    before = {name: environ.get(name) for name in new}
    environ.update(new)

    def undo() -> None:
        for name, value in before.items():
            if environ.get(name) != new[name]:
                continue  # somebody has changed it since: it is theirs
            if value is None:
                del environ[name]
            else:
                environ[name] = value

    return undo


def with_entry(files: str | None) -> str:
    """comfy-env's list of files to run in a worker, with ours in it."""
    if "," in ENTRY:  # the list's separator
        log.once("comma", f"comfy-env's workers cannot join: a comma in {ENTRY}")
        return files or ""
    known = [name.strip() for name in (files or "").split(",") if name.strip()]
    return ",".join(known if ENTRY in known else [*known, ENTRY])


def drop_inherited(environ: MutableMapping[str, str]) -> None:
    """In a host, before it joins: forget what another host had handed to its children."""
    if environ.get(OWNER) in (None, str(os.getpid())):
        return
    for name in _HANDED:
        environ.pop(name, None)
