"""Row 6: the batch sizer of several cards reads the plain free figure where that of one card counts
the pager's pages too; inside it, they count."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from memledger_comfy.context import Context

NAME = "multigpu"
ROWS = (6,)
ROLES = ("host", "worker")
REQUIRES = ("comfy.samplers",)


def install(context: Context) -> str | None:
    scopes = context.scopes

    def enter(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        before = scopes.with_pages
        scopes.with_pages = True

        def leave(*_: Any) -> None:
            scopes.with_pages = before

        return leave

    samplers = context.module("comfy.samplers")
    if not context.wraps.around(samplers, "_calc_cond_batch_multigpu", NAME, enter):
        return "this ComfyUI has no _calc_cond_batch_multigpu"
    return None
