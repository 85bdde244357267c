"""Safe points of the host: node boundaries, where nothing is in use, and prompts, in which this
process works."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from memledger_comfy.context import Context

NAME = "nodes"
ROWS = (6, 25)
ROLES = ("host",)
REQUIRES = ("execution",)


def install(context: Context) -> str | None:
    execution = context.module("execution")
    executor = getattr(execution, "PromptExecutor", None)
    if executor is None or not context.wraps.around(
        executor, "execute", NAME, lambda *_: _prompt(context)
    ):
        return "this ComfyUI has no PromptExecutor.execute"
    # A coroutine function: it is called where a node begins.
    if not context.wraps.around(execution, "execute", NAME, lambda *_: _node(context)):
        context.lack(NAME, "execution.execute")
    return None


def _prompt(context: Context) -> Any:
    context.serving.begin()

    def leave(*_: Any) -> None:
        context.pledges.drop()
        try:
            boundary(context)
        finally:
            context.serving.end()

    return leave


def _node(context: Context) -> None:
    context.pledges.renew()
    boundary(context)


def boundary(context: Context) -> None:
    """Between two nodes: whatever is loaded, nothing works with it."""
    context.publisher.in_use = False
    context.publisher.at_safe_point()
    context.serving.at_safe_point()
