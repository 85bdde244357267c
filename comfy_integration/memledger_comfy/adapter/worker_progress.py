"""A worker's steps: at each progress callback it answers asks, and publishes at times."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from memledger_comfy.context import Context

NAME = "progress"
ROWS = ()
ROLES = ("worker",)
REQUIRES = ("comfy.utils",)


def install(context: Context) -> str | None:
    bar = getattr(context.module("comfy.utils"), "ProgressBar", None)

    def step(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        context.points.step()

    if not context.wraps.around(bar, "update_absolute", NAME, step):
        return "this ComfyUI has no ProgressBar.update_absolute"
    return None
