"""Row 39: the user's interrupt, seen by every worker of the group at its next step."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from memledger_comfy.points import on_main_thread

if TYPE_CHECKING:
    from memledger_comfy.context import Context

NAME = "interrupt"
ROWS = (39,)
ROLES = ("host", "worker")
REQUIRES = ("comfy.model_management",)
AFTER = ("comfy.utils",)
TEXT = "Processing interrupted by user"
"""pyisolate sends the text alone, and takes an empty one for success."""


def install(context: Context) -> str | None:
    return _install_in_worker(context) if context.role == "worker" else _install_in_host(context)


# ---- the host says it


def _install_in_host(context: Context) -> str | None:
    def said(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Callable[..., None]:
        value = args[0] if args else kwargs.get("value", True)

        def leave(result: Any, error: BaseException | None) -> None:
            # Behind ComfyUI's own flag, so that whoever sees the word finds the flag set.
            if error is None:
                _say(context, bool(value))

        return leave

    if not context.wraps.around(context.mm, "interrupt_current_processing", NAME, said):
        return "this ComfyUI has no interrupt_current_processing"
    return None


def _say(context: Context, interrupted: bool) -> None:
    ledger = context.link.ledger
    prompt = ledger.prompt() if ledger is not None else None
    if ledger is None or prompt is None or not prompt[2]:
        return  # no prompt runs: ComfyUI itself forgets this click when the next one begins
    if interrupted:
        ledger.job(prompt[1]).interrupt()
    elif ledger.interrupted():
        ledger.prompt_begin(prompt[1])  # the same prompt goes on, clear


# ---- the worker sees it


def _install_in_worker(context: Context) -> str | None:
    mm = context.mm
    base = getattr(mm, "InterruptProcessingException", None)
    if base is None:
        return "this ComfyUI has no InterruptProcessingException"
    raised = _exception(base)

    def word() -> bool:
        ledger = context.link.ledger
        try:
            return ledger is not None and ledger.interrupted()
        except Exception:  # left
            return False

    def checked(original: Callable[..., Any]) -> Callable[..., Any]:
        def check(*args: Any, **kwargs: Any) -> Any:
            if word():
                _interrupt(context, raised)
            return original(*args, **kwargs)

        return check

    wraps = context.wraps
    found = wraps.replace(mm, "throw_exception_if_processing_interrupted", NAME, checked)
    wraps.result(mm, "processing_interrupted", NAME, lambda value, args, kwargs: value or word())
    bar = getattr(context.module("comfy.utils"), "ProgressBar", None)
    wraps.replace(bar, "update_absolute", NAME, checked)
    return None if found else "this ComfyUI has no throw_exception_if_processing_interrupted"


def _exception(base: type[BaseException]) -> type[BaseException]:
    """What to raise: always an Exception. ComfyUI's newer interrupt is a BaseException, which goes
    past the handlers of a worker's loop and kills it, or leaves its host waiting for ever. Code
    that catches ComfyUI's class catches this one. A node that swallows it meets the next: the word
    stays until the prompt ends."""
    if issubclass(base, Exception):
        return base
    return type(base.__name__, (base, Exception), {"__module__": base.__module__})


def _interrupt(context: Context, raised: type[BaseException]) -> None:
    """Raises. Not in a comfy-env worker that runs no node: it gives memory back, or answers the
    host, and is not what the user interrupts.

    comfy-env's progress hook asks the host, and raises what makes the host stop as after a click of
    the user; where it does not, this raises `raised`. Outside of a node nobody would answer it.
    """
    if "comfy_worker" in sys.modules and on_main_thread():
        if not context.points.in_node:
            return
        hook = getattr(sys.modules.get("comfy.utils"), "PROGRESS_BAR_HOOK", None)
        if hook is not None:
            hook(0, 1, None)
    raise raised(TEXT)
