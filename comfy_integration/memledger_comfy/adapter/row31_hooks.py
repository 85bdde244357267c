"""Row 31: the cache of hook weights takes what one claim was granted, and no more.

ComfyUI starts its counter with the whole free figure of the card, so two processes would each fill
it. The counter in its place spends the same figure, but only as far as a claim follows; the copies
that exist are published as releasable.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from memledger_comfy import log
from memledger_comfy.publisher import Part
from memledger_comfy.wraps import put_back

if TYPE_CHECKING:
    from memledger_comfy.context import Context

NAME = "hooks"
ROWS = (31,)
ROLES = ("host", "worker")
REQUIRES = ("comfy.model_management", "comfy.model_patcher")

_CHUNK = 64 << 20
"""Bytes by which the claim grows: one claim per weight would be hundreds for one hook."""


def install(context: Context) -> str | None:
    patcher = context.module("comfy.model_patcher")
    plain = getattr(patcher, "MemoryCounter", None)
    if patcher is None or not isinstance(plain, type):
        return "this ComfyUI has no MemoryCounter"
    cls = getattr(patcher, "ModelPatcher", None)
    if not hasattr(cls, "patch_hooks"):
        return "this ComfyUI has no ModelPatcher.patch_hooks"
    if not getattr(plain, "__memledger__", False):
        cache = _HookCache(context)
        ours = patcher.MemoryCounter = _counter_class(plain, cache)
        context.on_undo(lambda: put_back(patcher, "MemoryCounter", ours, plain))
        context.publisher.contribute(NAME, cache.part)
        context.wraps.around(cls, "patch_hooks", NAME, cache.patching)
    return None


class _Patching:
    """One that is going on: what its cache was granted, in claims, and has not used."""

    def __init__(self, device: Any) -> None:
        self.device = device
        self.claims: list[Any] = []
        self.granted = 0


class _HookCache:
    """The claims behind the patchings that are going on, and what stays of them."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._here = threading.local()
        """`patching`: this thread's; cards are sampled on a thread each."""

    def patching(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        outer = getattr(self._here, "patching", None)
        now = _Patching(self._context.link.device(getattr(args[0], "load_device", "cpu")))
        self._here.patching = now

        def done(value: Any, error: BaseException | None) -> None:
            self._here.patching = outer
            # First what has landed, then the promise: the other way round it would be nobody's.
            self._context.publisher.at_safe_point()
            for claim in now.claims:
                try:
                    claim.cancel()
                except Exception as own:
                    log.failed(NAME, own)

        return done

    def allows(self, nbytes: int) -> bool:
        """Whether `nbytes` more may be cached on the card."""
        now: _Patching | None = getattr(self._here, "patching", None)
        if now is None or now.device is None:
            return True
        if nbytes > now.granted:
            more = max(nbytes - now.granted, _CHUNK)
            claim = now.device.try_claim(more)
            if claim is None:
                return False
            now.claims.append(claim)
            now.granted += more
        now.granted -= nbytes
        return True

    def part(self, name: str) -> Part | None:
        """The copies are torch's, so they are held already: only that they could be given back is
        new."""
        total = 0
        for loaded in getattr(self._context.mm, "current_loaded_models", ()):
            patcher = loaded.model
            if patcher is None or self._context.link.name(patcher.load_device) != name:
                continue
            if loaded.currently_used:
                continue
            total += _copies(patcher, name)
        return Part(releasable=total) if total else None


def _copies(patcher: Any, name: str) -> int:
    """Bytes of cached hook weights and hook backups of one patcher on the device `name`."""
    seen: set[int] = set()
    total = 0
    groups = [getattr(patcher, "hook_backup", {}) or {}]
    groups += list((getattr(patcher, "cached_hook_patches", {}) or {}).values())
    for group in groups:
        for weight, *_ in list(group.values()):
            if str(weight.device) != name or weight.data_ptr() in seen:
                continue
            seen.add(weight.data_ptr())
            total += weight.numel() * weight.element_size()
    return total


def _counter_class(plain: Any, cache: _HookCache) -> type:
    class MemoryCounter(plain):
        __memledger__ = True

        def use(self, weight: Any) -> Any:
            nbytes = weight.nelement() * weight.element_size()
            if not self.is_useable(nbytes):
                return False
            try:
                if not cache.allows(nbytes):
                    return False
            except Exception as error:
                log.failed(NAME, error)
            return super().use(weight)

    MemoryCounter.__qualname__ = plain.__qualname__
    return MemoryCounter
