"""G7, G8, G9, G10, G11: a segment that vanishes, is full, foreign, newer or hostile; and figures
that never pretend."""

from __future__ import annotations

import os
import shutil
import signal
import struct
import subprocess
import sys
import threading
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import memledger
from helpers.member import plain_device
from helpers.members import Member
from helpers.raw import (
    LAYOUT,
    POOL_OFFSET,
    POOL_STRIDE,
    READING_OFFSET,
    READING_POOL_STRIDE,
    READING_STRIDE,
    RECORD_OFFSET,
    RECORD_POOL_STRIDE,
    RECORD_STRIDE,
    SIZE,
    SLOT_COUNT,
    SLOT_OFFSET,
    SLOT_STRIDE,
    Raw,
    forged,
)
from helpers.system import linux_only
from helpers.units import UNIT, GiB, MiB, count
from helpers.waiting import wait_until
from memledger import _native, sim
from memledger.device import Device
from memledger.model import DeviceSpec, PoolSpec, Reading

TOTAL = 24 * GiB

# ---- G7


@pytest.mark.parametrize("how", ["unlinked", "replaced by a newcomer", "replaced by a copy"])
def test_g7_members_converge_and_carry_values_and_claims_over_once(
    spawn: Any, segment: Path, how: str
) -> None:
    members = [spawn(label, total=TOTAL) for label in "abc"]
    for number, member in enumerate(members, 1):
        member.publish(number * GiB, GiB, GiB)
        member.run(f"device.headroom({number} << 20)")
    claim = members[0].call("claim", 2 * GiB)
    if how == "replaced by a copy":
        copy = segment.with_name("copy")
        shutil.copy(segment, copy)
        copy.chmod(0o600)
        os.rename(copy, segment)
    else:
        segment.unlink()
    watched = list(members)
    if how == "replaced by a newcomer":
        watched.append(spawn("newcomer", total=TOTAL))
        watched[-1].publish(4 * GiB)
    held = 10 * GiB if len(watched) == 4 else 6 * GiB

    def view(member: Member) -> tuple[Any, ...]:
        f = member.figures()
        return f["held"], f["claimed"], f["pinned"], f["headroom"]

    wanted = (held, 2 * GiB, 3 * GiB, 3 * MiB)

    def sees(member: Member) -> bool:
        return view(member) == wanted

    def all_on_the_named_one() -> bool:
        files = {m.call("info")["file_id"] for m in watched}
        return segment.exists() and files == {segment.stat().st_ino}

    wait_until(all_on_the_named_one, what="all move to the named segment")
    for member in watched:
        wait_until(partial(sees, member), what="all meet on the named segment")
        member.call("sweep")
        assert view(member) == wanted
        assert len(member.call("members")) == len(watched)
        assert not member.run("ledger.degraded")
    # The claim goes on where it was: it pays for what lands, and ends.
    members[0].call("settle", claim, 3 * GiB)
    assert members[1].figures()["claimed"] == 0
    assert members[1].figures()["held"] == held + 2 * GiB
    assert members[2].run("ledger._check()") == []


def test_g7_unlinked_again_and_again(spawn: Any, segment: Path) -> None:
    a, b = spawn("a", total=TOTAL), spawn("b", total=TOTAL)
    a.publish(GiB)
    b.publish(2 * GiB)

    def has_moved(member: Member) -> bool:
        return (
            segment.exists()
            and member.call("info")["file_id"] == segment.stat().st_ino
            and member.figures()["held"] == 3 * GiB
        )

    for _ in range(count(3, 30)):
        segment.unlink()
        for member in (a, b):
            wait_until(partial(has_moved, member))
    assert len(a.call("members")) == 2


def test_g7_leave_and_exit_never_unlink(spawn: Any, segment: Path) -> None:
    for end in ("leave", "exit", "kill"):
        member: Member = spawn("m", total=TOTAL)
        inode = segment.stat().st_ino
        member.publish(GiB)
        member.call("leave") if end == "leave" else getattr(member, end)()
        assert segment.stat().st_ino == inode


# ---- G8


@linux_only
def test_g8_process_wide_state_is_left_alone(spawn: Any) -> None:
    """Signal handlers, umask, working directory, rlimits, and descriptors that a child could
    inherit."""
    member: Member = spawn(join=False)
    changed = member.run(
        """
import resource, signal
import memledger
def state():
    umask = os.umask(0); os.umask(umask)
    with open("/proc/self/status") as status:
        # 1 to 31: glibc takes two of the real-time ones when the first thread starts.
        masks = [int(l.split()[1], 16) & 0x7fffffff for l in status
                 if l.startswith(("SigBlk", "SigIgn", "SigCgt"))]
    return (umask, os.getcwd(), [signal.getsignal(n) for n in range(1, 32)],
            [resource.getrlimit(r) for r in range(16)], masks, sorted(os.environ.items()))
before = state()
ledger = memledger.join(label="m")
device = ledger.device("sim:card?total=24GiB")
device.publish(1 << 30)
claim = device.claim(1 << 30); claim.settle(2 << 30)
ledger.sweep(); ledger.members(); device.snapshot(); device.refresh(0)
during = state()
inheritable = [fd for fd in map(int, os.listdir("/proc/self/fd"))
               if fd > 2 and os.path.exists(f"/proc/self/fd/{fd}") and os.get_inheritable(fd)]
ledger.leave()
[before == during == state(), inheritable]
"""
    )
    assert changed == [True, []]


def test_g8_no_output_and_no_munmap_at_exit(segment: Path) -> None:
    """Threads that are inside a hot call while the interpreter ends: a mapping that goes away at
    exit kills them by SIGSEGV."""
    code = """
import threading, memledger
device = memledger.join(label="m").device("sim:card?total=24GiB")
def work():
    while True:
        device.publish(1 << 20)
        device.free()
        claim = device.try_claim(1)
        claim and claim.cancel()
for _ in range(4):
    threading.Thread(target=work, daemon=True).start()
"""
    for _ in range(count(8, 100)):
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, timeout=60
        )
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_g8_degraded_handle_joins_when_the_obstacle_has_gone(spawn: Any, segment: Path) -> None:
    segment.write_bytes(b"in the way")
    degraded: Member = spawn("degraded", total=TOTAL)
    degraded.publish(3 * GiB)
    number = degraded.call("claim", GiB)
    assert degraded.run("ledger.scope") == "private"
    segment.unlink()
    other: Member = spawn("other", total=TOTAL)
    wait_until(lambda: not degraded.run("ledger.degraded"), 60, "it tries again")
    assert degraded.run("ledger.degraded_reason") is None
    assert degraded.run("ledger.scope") == "path"
    assert other.figures()["held"] == 3 * GiB
    assert other.figures()["claimed"] == GiB
    degraded.call("settle", number, 4 * GiB)
    assert other.figures()["held"] == 4 * GiB


@pytest.mark.parametrize(
    "path", ["/proc/nowhere/x", "/dev/null", "/", "", "relative/none", "x" * 300]
)
def test_g8_absurd_paths_degrade(path: str, spawn: Any, tmp_path: Path) -> None:
    member: Member = spawn(join=False, cwd=tmp_path)
    member.join("m", path=path or "/")
    member.open_plain("test:card", TOTAL)
    assert member.run("ledger.scope") == "private"
    assert member.run("ledger.degraded_reason")
    member.publish(GiB)
    assert member.free() == TOTAL - GiB


def test_g8_too_many_pools_is_an_error_that_changes_nothing(ledger: memledger.Ledger) -> None:
    """32 pools fit the shared table; the next open privately; and where nothing is left the caller
    gets an exception, and everything that was open goes on."""
    devices: list[Device] = []

    def open_many() -> None:
        for i in range(200):
            devices.append(plain_device(ledger, f"test:{i}", TOTAL))

    with pytest.raises(memledger.LedgerError):
        open_many()
    assert len(devices) >= 32
    for number, device in enumerate(devices):
        device.publish(number + 1)
        assert device.figures().own_held == number + 1
        assert device.figures().complete is False
    private = devices[32:]
    assert all(device.snapshot().figures.complete is False for device in private)


# ---- G9


def test_g9_foreign_major_is_refused_with_both_versions_and_untouched(
    spawn: Any, segment: Path
) -> None:
    maker: Member = spawn("maker")
    maker.call("leave")
    foreign = segment.with_name("foreign")
    forged(foreign, segment, layout=(99 << 32) | 7)
    before = foreign.read_bytes()
    member: Member = spawn(join=False)
    member.join("m", path=str(foreign))
    reason = member.run("ledger.degraded_reason")
    ours = f"{_native.LAYOUT_MAJOR}.{_native.LAYOUT_MINOR}"
    assert ours in reason
    assert "99.7" in reason
    assert member.run("ledger.scope") == "private"
    member.open_plain("test:card", TOTAL)
    assert not member.figures()["complete"]
    assert foreign.read_bytes() == before


@linux_only
def test_g9_live_members_of_another_layout_make_figures_incomplete(
    spawn: Any, segment: Path
) -> None:
    """A member of memledger-v<other>-<uid> beside ours. It joined before the layout was forged."""
    ledger = memledger.join(label="m")
    device = ledger.device("sim:card?total=24GiB")
    device.publish(GiB)
    assert device.figures().complete
    uid = segment.name.rpartition("-")[2]
    other = segment.with_name(f"memledger-v{_native.LAYOUT_MAJOR + 8}-{uid}")
    stranger: Member = spawn(join=False)
    stranger.join("stranger", path=str(other))
    with Raw(other) as raw:
        raw[LAYOUT] = (_native.LAYOUT_MAJOR + 8) << 32

    def complete() -> bool:
        device.publish(GiB)
        return bool(device.figures().complete)

    wait_until(lambda: not complete(), 60, "housekeeping finds the other layout")
    assert device.free() == TOTAL - GiB
    stranger.kill()
    wait_until(complete, 60, "and that it has gone")


def stretched(path: Path, source: Path) -> None:
    """The segment of a newer minor layout: every structure longer by a cache line, every area
    somewhere else."""
    data = source.read_bytes()
    words = list(struct.unpack_from("<64Q", data))
    extra, slots, pools = 64, words[SLOT_COUNT], words[6]
    slot, pool = words[SLOT_STRIDE] + extra, words[POOL_STRIDE] + extra
    record, reading = words[RECORD_STRIDE] + extra, words[READING_STRIDE] + extra
    at = 8192
    new = dict(enumerate(words))
    new[SLOT_OFFSET], new[SLOT_STRIDE] = at, slot
    at += slot * slots
    new[POOL_OFFSET], new[POOL_STRIDE] = at, pool
    at += pool * pools
    new[RECORD_OFFSET], new[RECORD_STRIDE], new[RECORD_POOL_STRIDE] = at, record, record * slots
    at += record * slots * pools
    new[READING_OFFSET], new[READING_STRIDE] = at, reading
    new[READING_POOL_STRIDE] = reading * slots
    at += reading * slots * pools
    size = (at + 16383) // 16384 * 16384
    new[SIZE] = size
    new[LAYOUT] = _native.LAYOUT_MAJOR << 32 | (_native.LAYOUT_MINOR + 1)
    out = bytearray(size)
    struct.pack_into("<64Q", out, 0, *(new[i] for i in range(64)))
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(fd, "wb") as file:
        file.write(out)


def test_g9_newer_minor_layout_with_longer_structures_works(spawn: Any, segment: Path) -> None:
    """Capacity 32, so that the stretched copy stays within the largest size."""
    maker: Member = spawn(join=False)
    maker.run(
        "import memledger.ledger as m\n"
        "m.Ledger(label='maker', role='other', path=None, slots=32).leave()"
    )
    newer = segment.with_name("newer")
    stretched(newer, segment)
    a, b = (spawn(join=False) for _ in range(2))
    for member in (a, b):
        info = member.join("m", path=str(newer))
        assert info["mode"] == 0, member.run("ledger.degraded_reason")
        assert info["layout"] == [_native.LAYOUT_MAJOR, _native.LAYOUT_MINOR + 1]
        member.open_plain("test:card", TOTAL)
    a.publish(2 * GiB, GiB, GiB)
    b.call("claim", 3 * GiB)
    assert b.figures()["held"] == 2 * GiB
    assert a.figures()["claimed_by_others"] == 3 * GiB
    # Both lie where the header says, not where a build with shorter structures would put them.
    with Raw(newer) as raw:
        committed = [raw[raw.record_word(0, slot) + 1] >> 30 & ((1 << 30) - 1) for slot in (0, 1)]
        assert committed == [2 * GiB // UNIT, 3 * GiB // UNIT]
        assert raw.slots_in_use() == [0, 1]
    assert a.free() == TOTAL - 5 * GiB
    a.call("open", "sim:card?total=24GiB")
    a.publish(GiB)
    b.call("open", "sim:card?total=24GiB")
    assert b.figures()["held"] == GiB
    assert b.figures()["source"] == "sim"
    assert a.run("ledger._check()") == []
    a.kill()
    b.call("sweep")
    assert b.figures()["held"] == 0
    with Raw(newer) as raw:
        assert len(raw.slots_in_use()) == 1


# ---- G10 (tests/cases/test_b10_hostile_bytes.py has more)


@pytest.mark.watchdog(300)
def test_g10_a_member_survives_garbage_everywhere_but_the_header(spawn: Any, segment: Path) -> None:
    """All of it at once, again and again, while others read, claim and join."""
    from helpers.units import seeded

    rng = seeded("g10")
    victims = [spawn(f"v{i}", total=TOTAL) for i in range(2)]
    for i in range(count(25, 500)):
        with Raw(segment) as raw:
            for _ in range(2000):
                raw[rng.randrange(64, len(raw))] = rng.getrandbits(64)
        for victim in victims:
            looked = victim.run(
                f"""
try:
    device.publish({i} << 20)
    c = device.try_claim(1 << 20)
    c and c.cancel()
except Exception as error:
    assert type(error).__module__ == "memledger.errors", repr(error)
f = device.figures()
device.free(); device.snapshot(); ledger.members(); ledger.sweep(); ledger._check()
f.free is None or f.total is None or 0 <= f.free <= f.total
"""
            )
            assert looked
        newcomer: Member = spawn("newcomer", total=TOTAL)
        newcomer.figures()
        newcomer.kill()


# ---- G11


def test_g11_complete_needs_a_shared_segment_and_a_device_wide_reading(
    ledger: memledger.Ledger,
) -> None:
    with_source = ledger.device("sim:card?total=24GiB").figures()
    assert (with_source.complete, with_source.source, with_source.scope) == (True, "sim", "device")
    assert with_source.reason is None
    configured = plain_device(ledger, "test:configured", TOTAL).figures()
    assert (configured.complete, configured.source, configured.scope) == (False, "ledger", "none")
    assert configured.reason == "no_probe"
    assert configured.free == TOTAL
    nothing = plain_device(ledger, "test:nothing", None)
    figures = nothing.figures()
    for value in (figures.free, figures.available, figures.budget, figures.total,
                  figures.unaccounted, figures.overcommit, nothing.free(), nothing.available(),
                  nothing.budget(), nothing.total()):  # fmt: skip
        assert value is None
    assert (figures.complete, figures.reason) == (False, "no_probe")


def test_g11_claims_without_anything_to_check_against_say_so(ledger: memledger.Ledger) -> None:
    nothing = plain_device(ledger, "test:nothing", None)
    claim = nothing.claim(GiB)
    assert not claim.checked
    assert nothing.figures().claimed == GiB
    claim.cancel()
    checked = plain_device(ledger, "test:configured", TOTAL).claim(GiB)
    assert checked.checked
    checked.cancel()


def test_g11_private_ledger_says_so_everywhere(segment: Path) -> None:
    segment.mkdir()
    ledger = memledger.join(label="m")
    device = ledger.device("sim:card?total=24GiB")
    device.publish(GiB)
    assert ledger.scope == "private"
    assert ledger.degraded
    assert not device.figures().complete
    assert not device.snapshot().complete
    assert not device.claim(GiB).checked
    assert device.free() is not None


class Scripted:
    """A source that says what it is told to."""

    @property
    def name(self) -> str:
        return "script"

    @property
    def timeout_s(self) -> float:
        return 5.0

    def __init__(self, total: int) -> None:
        self.answer = Reading("script", total=total, free=total)

    def read(self) -> Reading:
        return self.answer

    def explain(self) -> str:
        return ""


def scripted(ledger: memledger.Ledger, key: str, total: int) -> tuple[Device, Scripted]:
    source = Scripted(total)
    device = Device(ledger, DeviceSpec(key, (PoolSpec(key),), (source,), None))
    ledger._adopt_sources(device)
    device.refresh(0)
    return device, source


@pytest.mark.parametrize("absent", ["probe_failed", "gpu_lost", "no_permission", "not_supported"])
def test_g11_failed_probe_is_a_reason_and_never_a_number(
    ledger: memledger.Ledger, absent: str
) -> None:
    source = Scripted(8 * GiB)
    source.answer = Reading("script", scope="none", reason=absent)
    device = Device(ledger, DeviceSpec("test:lost", (PoolSpec("test:lost"),), (source,), None))
    ledger._adopt_sources(device)
    device.refresh(0)
    assert device.free() is None
    assert device.figures().reason == absent
    assert device.reading.total is None
    assert device.reading.reason == absent


@pytest.mark.parametrize(
    "answer", [(0, 0), (8 * GiB, 9 * GiB), (1 << 63, 1), (8 * GiB, -1)], ids=str
)
def test_g11_implausible_answers_are_dropped(
    ledger: memledger.Ledger, answer: tuple[int, int]
) -> None:
    device, source = scripted(ledger, "test:odd", 8 * GiB)
    good = device.free()
    source.answer = Reading("script", total=answer[0], free=answer[1])
    device.refresh(0)
    assert device.free() == good
    total, free = device.total(), device.free()
    assert total is not None
    assert free is not None
    assert free <= total


def test_g11_process_wide_answers_never_enter_the_segment(ledger: memledger.Ledger) -> None:
    device, source = scripted(ledger, "test:wddm", 8 * GiB)
    source.answer = Reading("script", total=8 * GiB, free=GiB, scope="process")
    device.refresh(0)
    assert device.snapshot().reading.scope != "process"
    assert device.snapshot().figures.unaccounted == 0


def test_g11_frozen_source_is_named_and_its_free_does_not_rise_with_the_ledger(
    ledger: memledger.Ledger,
) -> None:
    """Free stays the same to the bit while the ledger moves by more than 256 MiB: the source is not
    measuring. 3 GiB of 8 are foreign; the members' bytes come and go and it says the same."""
    device, source = scripted(ledger, "test:frozen", 8 * GiB)
    device.publish(4 * GiB)
    source.answer = Reading("script", total=8 * GiB, free=GiB)
    device.refresh(0)
    assert device.figures().unaccounted == 3 * GiB
    device.publish(0)

    def read_again() -> bool:
        device.refresh(0)
        return device.figures().reason == "frozen"

    wait_until(read_again, what="it is called frozen")
    figures = device.figures()
    # Not below what it was before. It may be more: the second reading of such a run may raise it,
    # since the first may have been taken before a member published what it had freed.
    assert figures.unaccounted is not None
    assert figures.free is not None
    assert figures.unaccounted >= 3 * GiB
    assert figures.free == 8 * GiB - figures.unaccounted
    source.answer = Reading("script", total=8 * GiB, free=2 * GiB)
    device.refresh(0)
    assert device.figures().reason is None


def test_g11_claim_settled_late_and_for_less_does_not_make_its_source_frozen(
    ledger: memledger.Ledger,
) -> None:
    """A load has claimed 5 GiB, of which 4 land; the publish comes many readings later. Nothing has
    moved on the card meanwhile, as nothing should have."""
    device, source = scripted(ledger, "test:late", 8 * GiB)
    device.publish(GiB)
    source.answer = Reading("script", total=8 * GiB, free=7 * GiB)
    device.refresh(0)
    claim = device.claim(5 * GiB)
    source.answer = Reading("script", total=8 * GiB, free=3 * GiB)
    for _ in range(5):
        device.refresh(0)
    claim.settle(5 * GiB)

    def right() -> bool:
        device.refresh(0)
        assert device.figures().reason is None
        return device.free() == 3 * GiB

    wait_until(right, what="what has landed is held and no longer unaccounted")


def test_g11_claim_beyond_a_frozen_reading_is_granted_unchecked(ledger: memledger.Ledger) -> None:
    """The value of U from before the source froze refuses it, what the frozen reading says would
    not: so it is granted, and says that nothing was checked."""
    device, source = scripted(ledger, "test:frozen", 8 * GiB)
    device.publish(GiB)
    source.answer = Reading("script", total=8 * GiB, free=4 * GiB)  # 3 GiB are foreign
    device.refresh(0)
    assert device.figures().unaccounted == 3 * GiB
    device.publish(4 * GiB)  # and the source says the same

    def read_again() -> bool:
        device.refresh(0)
        return device.figures().reason == "frozen"

    wait_until(read_again, what="it is called frozen")
    assert device.free() == GiB, "it falls with the ledger"
    fits = device.claim(GiB)
    assert fits.checked
    fits.cancel()
    claim = device.claim(2 * GiB)
    assert not claim.checked
    claim.cancel()
    with pytest.raises(memledger.ClaimRefused):
        device.claim(5 * GiB)


def test_g11_chain_is_complete_only_if_every_level_is(ledger: memledger.Ledger) -> None:
    """The binding level has a reading, an inner one only a configured total: what is shown is no
    better than that assumption."""
    outer, source = scripted(ledger, "test:outer", 8 * GiB)
    pools = (PoolSpec("test:inner"), PoolSpec("test:outer"))
    device = Device(ledger, DeviceSpec("test:inner", pools, (None, source), 16 * GiB))
    device._set_limit(16 * GiB)
    figures = device.figures()
    assert figures.free == outer.free() == 8 * GiB
    assert figures.level == 1
    assert not figures.complete


def test_g11_level_without_a_figure_is_not_made_good_by_the_next(ledger: memledger.Ledger) -> None:
    _, source = scripted(ledger, "test:outer", 8 * GiB)
    _, own = scripted(ledger, "test:inner", 16 * GiB)
    pools = (PoolSpec("test:inner"), PoolSpec("test:unknown"), PoolSpec("test:outer"))
    device = Device(ledger, DeviceSpec("x", (PoolSpec("test:own"), *pools[1:]),
                                       (own, None, source), None))  # fmt: skip
    ledger._adopt_sources(device)
    device.refresh(0)
    assert device.free() == 8 * GiB
    assert not device.figures().complete


def test_g11_stale_reading_becomes_absent(spawn: Any, ledger: memledger.Ledger) -> None:
    """Its only reader dies; nobody else can read. After 20 periods the figure is gone, with the
    reason, not kept for ever."""
    reader: Member = spawn("reader")
    reader.call("open", "sim:card?total=24GiB")
    device = plain_device(ledger, "sim:card", None)
    device.publish(GiB)
    assert device.free() == 23 * GiB
    reader.kill()
    ledger.sweep()
    assert device.free() == 23 * GiB
    wait_until(lambda: device.free() is None, 60, "the reading is called stale")
    assert device.figures().reason == "stale"
    assert device.reading.total is None


def test_g11_reading_says_who_and_when(ledger: memledger.Ledger) -> None:
    device = ledger.device("sim:card?total=24GiB")
    reading = device.refresh(0)
    assert reading.source == "sim"
    assert reading.scope == "device"
    assert reading.reader == ledger._info()["slot"]
    assert reading.age_s is not None
    assert reading.age_s >= 0
    never = plain_device(ledger, "test:nothing", None).reading
    assert (never.total, never.free, never.age_s, never.reader) == (None, None, None, None)


def test_g8_threads_that_join_at_once_share_one_handle(segment: Path) -> None:
    handles: list[memledger.Ledger] = []
    barrier = threading.Barrier(8)

    def work() -> None:
        barrier.wait()
        handles.append(memledger.join(label="t"))

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(map(id, handles))) == 1
    assert len(handles[0].members()) == 1


def test_g8_the_same_path_in_another_spelling_is_the_same_member(
    segment: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second member of one process would count its own bytes as another's."""
    first = memledger.join(label="first")
    spellings: list[Any] = [
        str(segment),
        segment,
        f"{segment.parent}/./{segment.name}",
        os.fsencode(segment),
    ]
    monkeypatch.chdir(segment.parent)
    spellings.append(segment.name)
    for spelling in spellings:
        assert memledger.join(label="again", path=spelling) is first, spelling
    assert len(first.members()) == 1
    assert signal.getsignal(signal.SIGBUS) == signal.SIG_DFL
    assert sim.existing() == ()
