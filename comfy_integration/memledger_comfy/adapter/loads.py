"""Loads: claimed before they begin, drained while they land, dropped at their end."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from memledger_comfy import log, policy
from memledger_comfy.adapter import claims, figures

if TYPE_CHECKING:
    from memledger_comfy.context import Context

NAME = "loads"
ROWS = (6, 7, 14)
ROLES = ("host", "worker")
REQUIRES = ("comfy.model_management",)

WINDOW_S = 0.25


def install(context: Context) -> str | None:
    mm = context.mm
    for name in ("load_models_gpu", "current_loaded_models", "minimum_inference_memory"):
        if not hasattr(mm, name):
            return f"this ComfyUI has no {name}"
    context.wraps.around(mm, "load_models_gpu", NAME, lambda args, kw: _load(context, args, kw))
    return None


def _load(context: Context, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    models = args[0] if args else kwargs.get("models", ())
    required = args[1] if len(args) > 1 else kwargs.get("memory_required", 0)
    serving, publisher = context.serving, context.publisher
    serving.begin()
    asked = serving.start_asking()
    made: list[tuple[str, Any]] = []

    def leave(*_: Any) -> None:
        serving.limit_asks(asked)
        publisher.in_use = True
        try:
            for name, claim in reversed(made):
                publisher.close_claim(name, claim)
            publisher.at_safe_point()
        finally:
            serving.end()

    try:
        loading = _with_patches(models)
        keep = frozenset(figures.identity(model) for model in loading)
        for name, weights in weights_to_load(context, loading).items():
            claim = _claim_load(context, name, weights, required, keep)
            if claim is not None:
                made.append((name, claim))
                publisher.open_claim(name, claim)
    except Exception as error:
        log.failed(NAME, error)
    except BaseException:
        leave()
        raise
    return leave


def _claim_load(
    context: Context, name: str, weights: int, required: float, keep: frozenset[int]
) -> Any | None:
    device = context.link.device(name)
    if device is None or not weights:
        return None
    device.wait_clear(WINDOW_S)
    context.publisher.publish(name)
    inference = context.mm.minimum_inference_memory()
    wanted = policy.load_claim(
        weights,
        inference if policy.is_everything(required) else max(inference, required),
        covered=context.publisher.claimed(name),
        idle=figures.idle(name),
    )
    return obtain(context, name, wanted, figures.replaceable(context, name, keep))


def obtain(context: Context, name: str, wanted: int, own: int) -> Any | None:
    """A claim of `wanted` bytes on a device: with the room that `own` models would make, else after
    siblings were asked, else of what there is. None: nothing to be had; ComfyUI goes on as it would
    without us. A pledge for this device is adopted."""
    account, device = context.link.account(name), context.link.device(name)
    if account is None or device is None or wanted <= 0:
        return None
    pledge = context.pledges.take(name)
    if pledge is not None and _adopt(pledge, wanted):
        return pledge
    if pledge is not None:
        pledge.cancel()
    claim = claims.claim_or_ask(context, name, wanted, own)
    if claim is not None:
        return claim
    left = claims.room(device)
    return account.try_claim(min(wanted, left)) if left else None


def _adopt(pledge: Any, wanted: int) -> bool:
    from memledger import ClaimRefused

    try:
        pledge.renew(None)
        pledge.resize(wanted)
    except ClaimRefused:
        return False
    return True


def weights_to_load(context: Context, models: Any) -> dict[str, int]:
    """Bytes of weights that a load will bring to each device; clones once, the CPU not at all."""
    sizes: dict[tuple[str, int], int] = {}
    for model in models:
        name = context.link.name(model.load_device)
        if name == "cpu":
            continue
        there = model.current_loaded_device() == model.load_device
        size = int(model.model_size()) - (int(model.loaded_size()) if there else 0)
        key = (name, figures.identity(model))
        sizes[key] = max(sizes.get(key, 0), size)
    totals: dict[str, int] = {}
    for (name, _), size in sizes.items():
        totals[name] = totals.get(name, 0) + max(0, size)
    return totals


def _with_patches(models: Any) -> list[Any]:
    """The models to load and those that their patches bring, once each. None of those that can be
    read only once: they are ComfyUI's to read."""
    found: dict[int, Any] = {}
    if iter(models) is models:
        return []
    for model in models:
        found[id(model)] = model
        for extra in getattr(model, "model_patches_models", tuple)():
            found[id(extra)] = extra
    return list(found.values())
