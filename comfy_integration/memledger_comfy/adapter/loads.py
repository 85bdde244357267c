"""Loads: claimed before they begin, drained while they land, dropped at their end."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from memledger_comfy import log, policy
from memledger_comfy.adapter import figures

if TYPE_CHECKING:
    from memledger_comfy.context import Context

NAME = "loads"
ROWS = (6, 7, 14)
ROLES = ("host", "worker")
REQUIRES = ("comfy.model_management",)

WINDOW_S = 0.25
SETTLE_S = 0.02
"""How long a claim waits for bytes that siblings said they gave."""


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
    claims: list[tuple[str, Any]] = []

    def leave(*_: Any) -> None:
        serving.limit_asks(asked)
        publisher.in_use = True
        try:
            for name, claim in reversed(claims):
                publisher.close_claim(name, claim)
            publisher.at_safe_point()
        finally:
            serving.end()

    try:
        for name, weights in _by_device(context, models).items():
            claim = _claim_load(context, name, weights, required)
            if claim is not None:
                publisher.open_claim(name, claim)
                claims.append((name, claim))
    except Exception as error:
        log.failed(NAME, error)
    except BaseException:
        leave()
        raise
    return leave


def _claim_load(context: Context, name: str, weights: int, required: float) -> Any | None:
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
    return obtain(context, name, wanted)


def obtain(context: Context, name: str, wanted: int) -> Any | None:
    """A claim of `wanted` bytes on a device: with the room that own models would make, else after
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
    own = min(wanted, context.publisher.evictable(name))
    for replacing in dict.fromkeys((0, own)):
        claim = account.try_claim(wanted, replacing=replacing)
        if claim is not None:
            return claim
    if context.serving.ask(name, wanted - own - _room(device)):
        claim = _patient(account, wanted, own)
        if claim is not None:
            return claim
    room = _room(device)
    return account.try_claim(min(wanted, room)) if room else None


def _adopt(pledge: Any, wanted: int) -> bool:
    from memledger import ClaimRefused

    try:
        pledge.renew(None)
        pledge.resize(wanted)
    except ClaimRefused:
        return False
    return True


def _patient(account: Any, wanted: int, replacing: int) -> Any | None:
    from memledger import ClaimRefused

    try:
        return account.claim(wanted, SETTLE_S, replacing=replacing)
    except ClaimRefused:
        return None


def _room(device: Any) -> int:
    """What a claim may be, with the own open ones."""
    now = device.figures()
    return 0 if now.free is None else max(0, now.free - now.own_claimed)


def _by_device(context: Context, models: Any) -> dict[str, int]:
    """Bytes of weights that a load will bring to each device; clones once, the CPU not at all."""
    sizes: dict[tuple[str, int], int] = {}
    for model in _with_patches(models):
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
    """The models to load and those that their patches bring, once each."""
    found: dict[int, Any] = {}
    for model in models:
        found[id(model)] = model
        for extra in getattr(model, "model_patches_models", tuple)():
            found[id(extra)] = extra
    return list(found.values())
