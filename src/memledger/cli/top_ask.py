"""The one thing that `memledger top` does to others, when it is told to: ask a member to release.

It joins for that ask and leaves again, so that a view which only looks is no member.
"""

from __future__ import annotations

import time

from memledger.cli.top_draw import MemberRow
from memledger.sizes import format_size

TIMEOUT_S = 2.0

_STATES = {
    "done": "released {}",
    "partial": "released {}, less than was asked for",
    "refused": "refused: it has nothing that it may give now",
    "busy": "busy: another ask is there, or it is asking itself",
    "no_answer": "no answer within {timeout:g} s",
    "gone": "is gone",
}


def ask_member(path: str, entry: MemberRow, nbytes: int, timeout_s: float = TIMEOUT_S) -> str:
    """Ask that member for `nbytes` on that device; one line that says what came of it. Takes up to
    `timeout_s` seconds."""
    import memledger

    with memledger.join("memledger top", path=path) as ledger:
        if ledger.scope == "private":
            return f"cannot ask: {ledger.degraded_reason}"
        wanted = (entry.member.slot, entry.member.generation)
        if not any((m.slot, m.generation) == wanted for m in ledger.members()):
            return f"{entry.name}: {_STATES['gone']}"
        return f"{entry.name}: {_ask(ledger, entry, nbytes, timeout_s)}"


def _ask(ledger: object, entry: MemberRow, nbytes: int, timeout_s: float) -> str:
    from memledger.device import Device
    from memledger.ledger import Ledger
    from memledger.model import DeviceSpec, PoolSpec

    assert isinstance(ledger, Ledger)
    # Without a source: an onlooker's ask must not wake a driver.
    device = Device(ledger, DeviceSpec(entry.key, (PoolSpec(entry.key),), (None,)))
    begun = time.monotonic()
    result = ledger._asks.ask(device, nbytes, timeout_s, only=entry.member.slot)
    if not result.members:
        return "has nothing releasable there, or waits for an ask of its own"
    state = result.members[-1].state if not result.credited else result.state
    text = _STATES.get(state, state).format(format_size(result.credited), timeout=timeout_s)
    return f"{text} ({time.monotonic() - begun:.1f} s)"
