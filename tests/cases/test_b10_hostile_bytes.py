"""B10: bytes that nobody of ours wrote."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import memledger
from helpers.member import plain_device
from helpers.raw import MAGIC, POOL_COUNT, RECORD_OFFSET, SLOT_COUNT, Raw, forged
from helpers.units import GiB, count, seeded
from memledger import _native

FUZZ = """
import json, mmap, os, random, struct, sys
import memledger
from memledger import _native
from memledger.errors import LedgerError
from helpers.member import plain_device

path, seed, rounds = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
rng = random.Random(seed)
TOTAL = 24 << 30
fd = os.open(path, os.O_RDWR)
size = os.fstat(fd).st_size
image = mmap.mmap(fd, size)
def look(device):
    free, f = device.free(), device.figures()
    assert free is None or 0 <= free < 1 << 63
    snap = device.snapshot()
    for g in (f, snap.figures):
        known = [g.free, g.available, g.budget, g.total]
        assert known == [None] * 4 or max(known) == g.total < 1 << 63 and min(known) >= 0, g
    for row in snap.rows:
        assert row.releasable <= row.held < 1 << 63, row
ledger = memledger.join(label="fuzzed")
device = plain_device(ledger, "test:card", TOTAL)
device.publish(1 << 30)
joins = 0
for i in range(rounds):
    # Mostly where something is: header, first slots, first pools, their records and readings.
    area = rng.random()
    if area < 0.05:
        at = rng.randrange(64)
    elif area < 0.4:
        at = (4096 + rng.randrange(3) * 1024 + rng.randrange(1024)) // 8
    elif area < 0.6:
        at = (4096 + 256 * 1024 + rng.randrange(3) * 1024 + rng.randrange(1024)) // 8
    elif area < 0.9:
        at = (4096 + 288 * 1024 + rng.randrange(3) * 384 + rng.randrange(384)) // 8
    else:
        at = rng.randrange(size // 8)
    value = rng.choice([rng.getrandbits(64), 0, (1 << 64) - 1, rng.getrandbits(8), 1 << 63])
    # Never the size of the file or what says where the locks are: that is another test.
    struct.pack_into("<Q", image, 8 * at, value)
    try:
        look(device)
        device.publish(rng.randrange(4 << 30))
        claim = device.try_claim(1 << 28)
        if claim is not None:
            claim.settle(rng.randrange(2 << 30))
        if i % 50 == 0:
            ledger.members()
            ledger.sweep()
            info, parts = _native.read_image(path)
            json.dumps(parts, default=str)
            ledger._check()
        if i % 200 == 0:
            other = memledger.ledger.Ledger(label="other", role="other", path=path)
            look(plain_device(other, "test:card", TOTAL))
            other._leave()
            joins += 1
    except LedgerError as error:
        sys.exit(f"round {i}: word {at} = {value:#x}: {error!r}")
os.write(1, f"survived {rounds} rounds".encode())
os._exit(0)
"""


@pytest.mark.watchdog(400)
def test_b10_random_words_in_a_live_segment_never_crash_or_lie(segment: Path) -> None:
    rng = seeded("b10")
    root, inherited = str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")
    for _ in range(count(3, 20)):
        seed = rng.getrandbits(32)
        keeper = memledger.join(label="keeper")
        keeper.leave()
        done = subprocess.run(
            [sys.executable, "-X", "faulthandler", "-c", FUZZ, str(segment), str(seed),
             str(count(2000, 20_000))],
            env={**os.environ, "PYTHONPATH": os.pathsep.join([root, inherited])},
            capture_output=True, text=True, timeout=300,
        )  # fmt: skip
        assert done.returncode == 0, f"seed {seed}: {done.returncode}: {done.stderr[-2000:]}"
        assert done.stdout.startswith("survived")
        segment.unlink()


BUSY = """
import random
rng = random.Random({seed})
wrong = []
for i in range({rounds}):
    device.publish(rng.randrange(4 << 30))
    claim = device.try_claim(1 << 28)
    free, f, snapshot = device.free(), device.figures(), device.snapshot()
    if claim is not None:
        claim.settle(rng.randrange(2 << 30))
    if f.total is not None and not (max(f.free, f.available, f.budget) <= f.total):
        wrong.append(repr(f))
    if free is not None and not 0 <= free < 1 << 63:
        wrong.append(free)
    if i % 50 == 0:
        ledger.members(), ledger.sweep(), ledger._check()
wrong[:3]
"""


def test_b10_bits_that_flip_while_members_run_harm_none_of_them(spawn: Any, segment: Path) -> None:
    """As a wild store of one of them would, or bad memory: each goes on, and nobody is told of
    more than there is."""
    rng = seeded("b10 bits")
    members = [spawn(name, total=24 * GiB) for name in "abc"]
    for member in members:
        member.send_run(BUSY.format(seed=rng.getrandbits(32), rounds=count(400, 20_000)))
    flips = 0
    with Raw(segment) as raw:
        used = 4096 + 288 * 1024 + 3 * 448 * 256  # header, slots, pools, the first records
        deadline = time.monotonic() + count(60, 600)
        while (
            any(not member._selector.select(0) for member in members)
            and time.monotonic() < deadline
        ):
            at = rng.randrange(used // 8 if rng.random() < 0.9 else len(raw))
            raw[at] = raw[at] ^ 1 << rng.randrange(64)
            flips += 1
    assert [member.receive(90) for member in members] == [[], [], []]
    print(f"{flips} bits flipped")
    assert flips > 1000


@pytest.mark.parametrize(
    "header",
    [
        {"slot_count": (1 << 64) - 1},
        {"pool_count": (1 << 64) - 1},
        {"slot_count": 0},
        {"record_offset": (1 << 64) - 64},
        {"record_stride": 0},
        {"slot_stride": 1 << 62},
        {"reading_pool_stride": (1 << 63)},
        {"pool_offset": 7},
        {"magic": 0},
        {"fingerprint": 1},
        {"lock_kind": 99},
        {"size": 1 << 40},
    ],
)
def test_b10_header_out_of_bounds_is_refused_with_a_reason(
    spawn: Any, segment: Path, header: dict[str, int]
) -> None:
    maker = spawn("maker")
    maker.call("leave")
    bad = segment.with_name("forged")
    forged(bad, segment, **header)
    before = bad.read_bytes()
    member = spawn("m", join=False)
    info = member.join("m", path=str(bad))
    assert info["mode"] == 2
    assert member.run("ledger.scope") == "private"
    assert str(bad) in member.run("ledger.degraded_reason")
    member.open_plain("test:card", 8 * GiB)
    member.publish(GiB)
    assert member.free() == 7 * GiB
    assert not member.figures()["complete"]
    assert bad.read_bytes() == before, "a foreign segment was written to"
    info, parts = _native.read_image(str(bad))
    if "size" not in header:  # a copy of a file that was cut can still be looked at
        assert parts is None
        assert info["status"] < 0


def test_b10_counts_changed_in_a_live_segment_are_never_used(
    ledger: memledger.Ledger, segment: Path
) -> None:
    """Strides and counts are read once, at attach."""
    device = plain_device(ledger, "test:card", 8 * GiB)
    device.publish(GiB)
    with Raw(segment) as raw:
        for word in (SLOT_COUNT, POOL_COUNT, RECORD_OFFSET, MAGIC):
            raw[word] = (1 << 64) - 1
    device.publish(2 * GiB)
    assert device.free() == 6 * GiB
    assert [row.held for row in device.snapshot().rows] == [2 * GiB]
    assert len(ledger.members()) == 1


def test_b10_random_files_are_looked_at_without_harm(segment: Path) -> None:
    rng = seeded("b10 image")
    ledger = memledger.join(label="maker")
    plain_device(ledger, "test:card", 8 * GiB).publish(GiB)
    good = segment.read_bytes()
    ledger.leave()
    shot = segment.with_name("shot")
    for _ in range(count(60, 2000)):
        data = bytearray(good)
        for _ in range(rng.choice([1, 10, 1000])):
            data[rng.randrange(len(data) if rng.random() < 0.5 else 8192)] = rng.getrandbits(8)
        if rng.random() < 0.2:
            data = data[: rng.randrange(len(data))]
        shot.write_bytes(data)
        shot.chmod(0o600)
        info, parts = _native.read_image(str(shot))
        assert parts is not None or info["status"] < 0
        json.dumps(parts, default=str)
