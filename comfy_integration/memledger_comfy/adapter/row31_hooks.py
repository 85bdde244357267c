"""Row 31: the cache of hook weights takes what one claim was granted, and no more.

ComfyUI starts its counter with the whole free figure of the card, so two processes would each fill
it. The counter in its place spends the same figure, but only as far as a claim follows; the copies
that exist are published as releasable.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from memledger_comfy import log
from memledger_comfy.publisher import Part

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
    cache = _HookCache(context)
    if not getattr(plain, "__memledger__", False):
        patcher.MemoryCounter = _counter_class(plain, cache)
        context.on_undo(lambda: setattr(patcher, "MemoryCounter", plain))
        context.publisher.contribute(NAME, cache.part)
        context.wraps.around(cls, "patch_hooks", NAME, cache.patching)
    return None


class _HookCache:
    """The claim behind the patching that is going on, and what stays of it."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._device: Any = None
        self._claim: Any = None
        self._granted = 0

    def patching(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        outer = self._device, self._claim, self._granted
        device = self._context.link.device(getattr(args[0], "load_device", "cpu"))
        self._device, self._claim, self._granted = device, None, 0

        def done(value: Any, error: BaseException | None) -> None:
            claim = self._claim
            self._device, self._claim, self._granted = outer
            # First what has landed, then the promise: the other way round it would be nobody's.
            self._context.publisher.at_safe_point()
            if claim is not None:
                claim.cancel()

        return done

    def allows(self, nbytes: int) -> bool:
        """Whether `nbytes` more may be cached on the card."""
        if self._device is None:
            return True
        if nbytes > self._granted:
            more = max(nbytes - self._granted, _CHUNK)
            claim = self._device.try_claim(more)
            if claim is None:
                return False
            self._adopt(claim)
            self._granted += more
        self._granted -= nbytes
        return True

    def _adopt(self, claim: Any) -> None:
        if self._claim is None:
            self._claim = claim
        else:
            self._claim = _Both(self._claim, claim)

    def part(self, name: str) -> Part | None:
        """The copies are torch's, so they are held already: only that they could be given back is
        new."""
        total = 0
        for loaded in getattr(self._context.mm, "current_loaded_models", ()):
            patcher = loaded.model
            if patcher is None or str(getattr(patcher, "load_device", "")) != name:
                continue
            if loaded.currently_used:
                continue
            total += _copies(patcher, name)
        return Part(releasable=total) if total else None


class _Both:
    def __init__(self, first: Any, second: Any) -> None:
        self._first, self._second = first, second

    def cancel(self) -> None:
        self._first.cancel()
        self._second.cancel()


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
