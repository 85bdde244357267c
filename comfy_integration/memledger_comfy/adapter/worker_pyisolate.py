"""A pyisolate child's loop: calls begin and end, and between them it waits."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from memledger_comfy.context import Context

NAME = "pyisolate"
ROWS = ()
ROLES = ("worker",)
REQUIRES = ("pyisolate._internal.rpc_protocol",)


def install(context: Context) -> str | None:
    points = context.points
    idling: list[asyncio.Task[None]] = []

    async def idle() -> None:
        while True:
            await asyncio.sleep(points.idle())

    def counted(original: Callable[..., Any]) -> Callable[..., Any]:
        async def dispatch(*args: Any, **kwargs: Any) -> Any:
            if idling and not points.in_node:
                idling.pop().cancel()
                points.resume()
            points.node_begins()
            try:
                return await original(*args, **kwargs)
            finally:
                points.node_ends()
                if not points.in_node:
                    points.wait()
                    idling.append(asyncio.get_running_loop().create_task(idle()))

        return dispatch

    rpc = getattr(context.module("pyisolate._internal.rpc_protocol"), "AsyncRPC", None)
    if not context.wraps.replace(rpc, "dispatch_request", NAME, counted):
        return "this pyisolate has no AsyncRPC.dispatch_request"
    return None
