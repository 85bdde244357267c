"""A comfy-env worker's loop: where a node begins and ends, and where the worker waits for one."""

from __future__ import annotations

import selectors
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from memledger_comfy.points import on_main_thread

if TYPE_CHECKING:
    from memledger_comfy.context import Context

NAME = "comfy_env"
ROWS = ()
ROLES = ("worker",)
REQUIRES = ("_ipc_shared", "memory_manager")
"""Both lie beside comfy-env's worker program and are loaded before us."""


def install(context: Context) -> str | None:
    points = context.points
    manager = context.module("memory_manager")

    def begins(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        points.node_begins()

    def ends(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Callable[..., None]:
        return lambda value, error: points.node_ends()

    # Called before a node's module is imported, and in the `finally` around the node. A node whose
    # import fails never ends: the next one's beginning is also its end.
    def begins_anew(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if points.in_node:
            points.node_ends()
        begins(args, kwargs)

    wraps = context.wraps
    begun = wraps.around(manager, "cast_epoch_boundary", NAME, begins_anew)
    ended = wraps.around(manager, "release_node_boundary", NAME, ends)
    if not ended:
        return "this comfy-env has no release_node_boundary"
    if not begun:
        return "this comfy-env has no cast_epoch_boundary"
    transport = getattr(context.module("_ipc_shared"), "SocketTransport", None)
    if not wraps.around(transport, "recv", NAME, lambda args, kwargs: _wait(points, args, kwargs)):
        return "this comfy-env has no SocketTransport.recv: idle workers answer nothing"
    return None


def _wait(points: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """In front of a receive that would block for ever: serve until something has come."""
    timeout = args[1] if len(args) > 1 else kwargs.get("timeout")
    sock = getattr(args[0], "_sock", None)
    if timeout is not None or sock is None or points.in_node or not on_main_thread():
        return
    with selectors.DefaultSelector() as selector:
        selector.register(sock, selectors.EVENT_READ)
        points.wait()
        try:
            while not selector.select(points.idle()):
                pass
        finally:
            points.resume()
