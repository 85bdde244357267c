"""How a claim is come by: with room that own models will make, with what siblings give. Not a
row."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from memledger_comfy.context import Context

SETTLE_S = 0.02
"""How long a claim waits for bytes that siblings said they gave."""


def claim(
    context: Context, name: str, size: int, own: int = 0, ttl: float | None = None
) -> Any | None:
    """`size` bytes, of which as much as is missing may come from `own` held bytes that ComfyUI will
    give up; they fill the claim as they go. None: refused."""
    account, device = context.link.account(name), context.link.device(name)
    if account is None or device is None or size <= 0:
        return None
    own = min(own, size, account.amounts[0])
    missing = max(0, size - room(device))
    for replacing in dict.fromkeys((min(missing, own), own)):
        # A figure may have moved meanwhile: then with all of it.
        found = first(context, name, [size], replacing, ttl)
        if found is not None:
            return found
    return None


def claim_or_ask(context: Context, name: str, size: int, own: int = 0) -> Any | None:
    """The same, and once more after siblings were asked for what is missing."""
    found = claim(context, name, size, own)
    device = context.link.device(name)
    if found is not None or device is None or size <= 0:
        return found
    account = context.link.account(name)
    own = min(own, size, account.amounts[0] if account is not None else 0)
    if not context.serving.ask(name, size - own - room(device)):
        return None
    from memledger import ClaimRefused

    try:
        return None if account is None else account.claim(size, SETTLE_S, replacing=own)
    except ClaimRefused:
        return None


def room(device: Any) -> int:
    """What a claim may be, beside the own open ones."""
    now = device.figures()
    return 0 if now.free is None else max(0, now.free - now.own_claimed)


def first(
    context: Context, name: str, sizes: list[int], replacing: int = 0, ttl: float | None = None
) -> Any | None:
    """The first of `sizes` that fits; None: none does. Contention alone is no refusal."""
    from memledger import ClaimRefused

    account = context.link.account(name)
    if account is None or not sizes:
        return None
    try:
        return account.claim_first(sizes, replacing=replacing, ttl=ttl)[1]
    except ClaimRefused:
        return None
