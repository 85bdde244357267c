"""Row 6: VAE decodes and encodes are claimed before ComfyUI chooses how many samples go at once,
and a tiled decode takes its share of what there is instead of the whole card's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from memledger_comfy import log, policy
from memledger_comfy.adapter import claims, figures, loads
from memledger_comfy.adapter.row06_free import correct

if TYPE_CHECKING:
    from memledger_comfy.context import Context

NAME = "vae"
ROWS = (6,)
ROLES = ("host", "worker")
REQUIRES = ("comfy.model_management", "comfy.sd")

_METHODS = ("decode", "encode", "decode_tiled")


def install(context: Context) -> str | None:
    vae = getattr(context.module("comfy.sd"), "VAE", None)
    if vae is None:
        return "this ComfyUI has no VAE"
    found = [name for name in _METHODS if _wrap(context, vae, name)]
    if not found:
        return f"this ComfyUI has no VAE.{', VAE.'.join(_METHODS)}"
    for name in set(_METHODS) - set(found):
        context.lack(NAME, f"VAE.{name}")

    def total(value: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if not context.scopes.decoding or isinstance(value, tuple):
            return value
        return _total(context, value, args[0] if args else kwargs.get("dev"))

    if not context.wraps.result(context.mm, "get_total_memory", NAME, total):
        context.lack(NAME, "get_total_memory")
    return None


def _wrap(context: Context, vae: Any, name: str) -> bool:
    return context.wraps.around(
        vae, name, f"{NAME}.{name}", lambda args, kwargs: _run(context, name, args, kwargs)
    )


def _run(context: Context, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Around a method of VAE: `args` begin with the VAE and its samples or pixels."""
    scopes, serving = context.scopes, context.serving
    serving.begin()
    before = scopes.decoding
    nested = scopes.in_vae
    scopes.decoding = before or method == "decode"
    scopes.in_vae = True
    claimed: list[tuple[str, Any]] = []

    def leave(*_: Any) -> None:
        scopes.decoding, scopes.in_vae = before, nested
        try:
            for name, claim in claimed:
                context.publisher.close_claim(name, claim)
        finally:
            serving.end()

    try:
        if not nested:  # where decode falls back to tiles, decode's claim is there
            claim = _claim(context, method, args[0], _subject(args, kwargs))
            if claim is not None:
                claimed.append(claim)
                context.publisher.open_claim(*claim)
    except Exception as error:
        log.failed(NAME, error)
    except BaseException:
        leave()
        raise
    return leave


def _subject(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The samples or pixels, whatever a version calls them."""
    if len(args) > 1:
        return args[1]
    named = (kwargs.get(name) for name in ("samples_in", "samples", "pixel_samples"))
    return next(value for value in named if value is not None)


def _claim(context: Context, method: str, vae: Any, subject: Any) -> tuple[str, Any] | None:
    name = context.link.name(vae.device)
    if context.link.device(name) is None or name == "cpu":
        return None
    shape = tuple(subject.shape)
    if method == "encode":
        video = not getattr(vae, "not_video", False)
        shape = policy.encode_shape(shape, getattr(vae, "latent_dim", 2), video)
        each = vae.memory_used_encode(shape, vae.vae_dtype)
    else:
        each = vae.memory_used_decode(shape, vae.vae_dtype)
    context.publisher.publish(name)
    batch = 1 if method == "decode_tiled" else shape[0]
    sizes = policy.batch_claims(each, batch, figures.idle(name))
    weights = loads.weights_to_load(context, [vae.patcher]).get(name, 0)
    return _first_that_fits(context, name, sizes, weights)


def _first_that_fits(
    context: Context, name: str, sizes: list[int], weights: int
) -> tuple[str, Any] | None:
    """The largest part of the batch that there is room for beside the VAE's own weights. For one
    sample ComfyUI unloads models, so for one own models make room, and siblings are asked."""
    room = claims.room(context.link.device(name)) - weights
    fitting = [size for size in sizes if size <= room]
    found = claims.first(context, name, fitting)
    if found is None and sizes:
        own = figures.replaceable(context, name)
        found = claims.claim_or_ask(context, name, sizes[-1], own)
    return None if found is None else (name, found)


def _total(context: Context, total: int, torch_device: Any) -> int:
    where = context.mm.get_torch_device() if torch_device is None else torch_device
    name = context.link.name(where)
    device = context.link.device(name)
    if device is None or name == "cpu":
        return total
    with context.link.raw():
        free = context.mm.get_free_memory(where)
    return policy.tile_total(int(total), correct(device, free), figures.evictable(context, name))
