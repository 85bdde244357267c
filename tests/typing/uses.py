"""What a typed caller writes. mypy --strict and pyright read this file; nothing runs it."""

from __future__ import annotations

from typing_extensions import assert_type

import memledger


def decide(ledger: memledger.Ledger) -> int:
    gpu = ledger.device("cuda:0", total="24GiB")
    assert_type(gpu, memledger.Device)
    assert_type(gpu.free(), int | None)
    assert_type(gpu.figures().complete, bool)
    with gpu.claim(1 << 30, timeout=0.5) as claim:
        assert_type(claim, memledger.Claim)
        claim.publish(held=1)
        claim.settle(held=2, releasable=1)
    index, first = gpu.claim_first([24 << 30, 12 << 30], replacing=1)
    assert_type(index, int)
    first.cancel()
    maybe = gpu.try_claim(5)
    if maybe is not None:
        maybe.resize(6)
        maybe.renew(3.0)
    gpu.account("weights").publish(held=3)
    assert_type(gpu.reading.reason, str | None)
    assert_type(gpu.snapshot().rows, tuple[memledger.Row, ...])
    free = gpu.free()
    return free if free is not None else 0


ledger = memledger.join(label="typed", role="host")
assert_type(ledger.degraded_reason, str | None)
assert_type(ledger.members(), tuple[memledger.Member, ...])
