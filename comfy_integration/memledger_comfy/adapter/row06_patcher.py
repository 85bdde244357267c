"""Row 6: a model's own free figure, which counts the pages that its pager would evict.

ComfyUI adds them to the figure of `row06_free`. That one has a floor: where siblings were promised
more than is free, the own pages have to make up for it first, and would be counted in full.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from memledger_comfy import log
from memledger_comfy.adapter.row06_free import correct

if TYPE_CHECKING:
    from memledger_comfy.context import Context

NAME = "patcher"
ROWS = (6,)
ROLES = ("host", "worker")
REQUIRES = ("comfy.model_management", "comfy.model_patcher")


def install(context: Context) -> str | None:
    patcher = getattr(context.module("comfy.model_patcher"), "ModelPatcher", None)
    link = context.link

    def make(original: Any) -> Any:
        def get_free_memory(*args: Any, **kwargs: Any) -> Any:
            with link.raw():
                value = original(*args, **kwargs)
            if link.is_raw:
                return value
            try:
                device = link.device(args[1] if len(args) > 1 else kwargs["device"])
                return value if device is None else correct(device, value)
            except Exception as error:
                log.failed(NAME, error)
                return value

        return get_free_memory

    if patcher is None or not context.wraps.replace(patcher, "get_free_memory", NAME, make):
        return "this ComfyUI has no ModelPatcher.get_free_memory"
    return None
