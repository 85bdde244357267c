"""Safe points: between sampler steps, between nodes, between prompts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from memledger_comfy.context import Context

NAME = "steps"
ROWS = (6, 25)
ROLES = ("host", "worker")
REQUIRES = ("comfy.samplers",)


def install(context: Context) -> str | None:
    samplers = context.module("comfy.samplers")
    if not context.wraps.around(samplers, "calc_cond_batch", NAME, lambda *_: _step(context)):
        return "this ComfyUI has no calc_cond_batch"
    return None


def _step(context: Context) -> Any:
    def leave(*_: Any) -> None:
        context.publisher.step()
        context.serving.at_safe_point()

    return leave
