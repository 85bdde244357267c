"""B53: an allocator's cache is neither used nor free: what could be released is free only once it
was."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from helpers.fake_nvml import Card, FakeDriver, uuid
from helpers.members import Member
from helpers.system import linux_only
from helpers.units import UNIT, GiB, MiB
from helpers.waiting import wait_until

pytestmark = linux_only
A = uuid(0)
AFTER_TRIM = 4403 * MiB  # 4.3 GiB: some of the cache could not go


def test_b53_cache_is_free_only_once_it_was_released(
    spawn: Callable[..., Member], segment: Path
) -> None:
    driver = FakeDriver(segment.parent, Card(A, total=24 * GiB, free=24 * GiB))
    owner, other = (spawn(name, env=driver.env()) for name in ("owner", "other"))
    owner.call("open", A)
    # torch: reserved 10, allocated 4.
    owner.publish(held=10 * GiB, releasable=6 * GiB)
    driver.set(0, free=14 * GiB)
    other.call("open", A)
    wait_until(
        lambda: other.run(f"ledger.device({A!r}).reading.free") == 14 * GiB, what="a reading"
    )
    wait_until(lambda: 14 * GiB - other.free() <= UNIT, what="unaccounted settles")
    assert other.run(f"ledger.device({A!r}).available()") >= 20 * GiB - UNIT
    owner.publish(held=AFTER_TRIM, releasable=0)
    driver.set(0, free=24 * GiB - AFTER_TRIM)
    wait_until(lambda: 24 * GiB - AFTER_TRIM - other.free() <= 2 * UNIT, what="the real figure")
    assert other.free() <= 24 * GiB - AFTER_TRIM, "+5.7, not +6"
