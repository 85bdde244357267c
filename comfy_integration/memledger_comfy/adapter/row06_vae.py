"""Row 6: VAE decodes and encodes are claimed before ComfyUI chooses how many samples go at once,
and a tiled decode takes its share of what there is instead of the whole card's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from memledger_comfy import log, policy
from memledger_comfy.adapter import figures
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
    before = scopes.decoding
    nested = scopes.in_vae
    scopes.decoding = before or method == "decode"
    scopes.in_vae = True
    serving.begin()
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
                context.publisher.open_claim(*claim)
                claimed.append(claim)
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
    account = context.link.account(name)
    if account is None or name == "cpu":
        return None
    shape = tuple(subject.shape)
    if method == "encode":
        video = not getattr(vae, "not_video", False)
        shape = policy.encode_shape(shape, getattr(vae, "latent_dim", 2), video)
        each = vae.memory_used_encode(shape, vae.vae_dtype)
    else:
        each = vae.memory_used_decode(shape, vae.vae_dtype)
    context.publisher.publish(name)
    return _first_that_fits(context, name, account, policy.batch_claims(
        each, 1 if method == "decode_tiled" else shape[0], figures.idle(name)
    ))  # fmt: skip


def _first_that_fits(
    context: Context, name: str, account: Any, sizes: list[int]
) -> tuple[str, Any] | None:
    from memledger import ClaimRefused

    if not sizes:
        return None
    own = context.publisher.evictable(name)
    for asked in (False, True):
        try:
            return name, account.claim_first(sizes, replacing=own)[1]
        except ClaimRefused as refused:
            missing = sizes[-1] - own - max(0, refused.free or 0)
            if asked or not context.serving.ask(name, missing):
                return None
    return None


def _total(context: Context, total: int, torch_device: Any) -> int:
    where = context.mm.get_torch_device() if torch_device is None else torch_device
    name = context.link.name(where)
    device = context.link.device(name)
    if device is None or name == "cpu":
        return total
    with context.link.raw():
        free = context.mm.get_free_memory(where)
    return policy.tile_total(int(total), correct(device, free), figures.evictable(context, name))
