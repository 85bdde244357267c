"""Row 33: a deep clone for another card is claimed there before it is made."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from memledger_comfy import log

if TYPE_CHECKING:
    from memledger_comfy.context import Context

NAME = "clones"
ROWS = (33,)
ROLES = ("host", "worker")
REQUIRES = ("comfy.model_management", "comfy.model_patcher")


def install(context: Context) -> str | None:
    patcher = context.module("comfy.model_patcher")
    cls = getattr(patcher, "ModelPatcher", None)

    def enter(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        where = args[1] if len(args) > 1 else kwargs.get("new_load_device")
        claim = _claim(context, args[0], where)
        if claim is None:
            return None

        def leave(value: Any, error: BaseException | None) -> None:
            # The clone is an ordinary model from here on: its load makes a claim of its own.
            context.publisher.at_safe_point()
            claim.cancel()

        return leave

    if not context.wraps.around(cls, "deepclone_multigpu", NAME, enter):
        return "this ComfyUI has no deepclone_multigpu"
    return None


def _claim(context: Context, patcher: Any, where: Any) -> Any:
    device = None if where is None else context.link.device(where)
    if device is None:
        return None
    import memledger

    size = int(patcher.model_size())
    try:
        return device.claim(size, timeout=0.0)
    except memledger.ClaimRefused:
        context.serving.ask(where, size)
    try:
        return device.claim(size, timeout=0.0)
    except memledger.ClaimRefused as refused:
        log.once("clones:refused", f"a clone on {where} goes on without a claim: {refused}")
        return None
