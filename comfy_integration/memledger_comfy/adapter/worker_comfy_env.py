"""A comfy-env worker's loop: where a node begins and ends, and where the worker waits for one."""

from __future__ import annotations

import selectors
import sys
from collections.abc import Callable
from types import FrameType
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

    wraps = context.wraps
    begun = wraps.around(manager, "cast_epoch_boundary", NAME, begins)
    ended = wraps.around(manager, "release_node_boundary", NAME, ends)
    if not ended:
        return "this comfy-env has no release_node_boundary"
    if not begun:
        return "this comfy-env has no cast_epoch_boundary"
    for name in ("partial_release", "release_pins", "full_release"):
        wraps.around(manager, name, NAME, lambda *_: _without_asks(context))
    transport = getattr(context.module("_ipc_shared"), "SocketTransport", None)
    if not wraps.around(transport, "recv", NAME, lambda args, kwargs: _wait(points, args, kwargs)):
        return "this comfy-env has no SocketTransport.recv: idle workers answer nothing"
    return None


def _without_asks(context: Context) -> Callable[..., object]:
    """The host takes memory back: that is no shortage of ours, for which siblings would be asked,
    who are asked by the host themselves."""
    before = context.serving.limit_asks(0.0)
    return lambda value, error: context.serving.limit_asks(before)


def _called_by_the_loop() -> bool:
    """Whether what called us is the loop that waits for the next node. Within a node, the worker
    waits for what it has asked of the host."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_globals.get("__name__", "").startswith("memledger_comfy"):
        frame = frame.f_back
    return frame is not None and frame.f_code.co_name == "main"


def _wait(points: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """In front of a receive that would block for ever: serve until something has come."""
    timeout = args[1] if len(args) > 1 else kwargs.get("timeout")
    sock = getattr(args[0], "_sock", None)
    if timeout is not None or sock is None or not on_main_thread():
        return
    if points.in_node:
        if not _called_by_the_loop():
            return
        points.node_ends()  # one that failed before it ran, as at its import
    with selectors.DefaultSelector() as selector:
        selector.register(sock, selectors.EVENT_READ)
        points.wait()
        try:
            while not selector.select(points.idle()):
                pass
        finally:
            points.resume()
