"""B49: the container's limit is the limit. On fixture trees with the figures that people reported,
and on real nested control groups with real processes in them where the tests may make some."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import memledger
from helpers.members import Member
from helpers.system import linux_only, unshare
from helpers.units import GiB, MiB
from helpers.waiting import wait_until
from memledger.readings import resolve
from memledger.readings.cgroup_tree import own_place
from memledger.readings.ram import swap

pytestmark = linux_only
Spawn = Callable[..., Member]
BOOT = "0d4bbd6c-1ee5-4e0a-b1a4-3f6f3c2f7d00"


def write(root: Path, files: dict[str, object]) -> None:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(f"{text}\n")


def machine(root: Path, group: str, limit: int, current: int) -> None:
    write(
        root,
        {
            "proc/sys/kernel/random/boot_id": BOOT,
            "proc/meminfo": "MemTotal: 791166868 kB\nMemFree: 600000000 kB\n"
            "MemAvailable: 700000000 kB\nSwapTotal: 33554432 kB\nSwapFree: 33554432 kB",
            "proc/self/cgroup": f"0::/{group}",
            "proc/self/mountinfo": "30 1 0:28 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw",
            f"sys/fs/cgroup/{group}/memory.max": limit,
            f"sys/fs/cgroup/{group}/memory.current": current,
            f"sys/fs/cgroup/{group}/memory.swap.max": 0,
        },
    )


def test_b49_the_limit_bounds_and_the_hosts_swap_does_not_count(tmp_path: Path) -> None:
    machine(tmp_path, "job", 96636764160, 30 * GiB)
    spec = resolve("ram", root=str(tmp_path), environ={})
    readings = [source.read() for source in spec.sources if source is not None]
    assert readings[-1].total == 810154872832
    assert min(reading.total or 0 for reading in readings) == 96636764160
    assert min(reading.free or 0 for reading in readings) == 60 * GiB
    found = swap(root=str(tmp_path))
    assert (found.total, found.free) == (0, 0)


def test_b49_two_containers_have_two_pools_and_one_machine(tmp_path: Path) -> None:
    specs = []
    for name in ("a", "b"):
        # Two containers see the same path, since each has a namespace of its own.
        machine(tmp_path / name, "job", 8 * GiB, GiB)
        specs.append(resolve("ram", root=str(tmp_path / name), environ={}))
    assert specs[0].key != specs[1].key
    assert specs[0].levels[-1] == specs[1].levels[-1]


# ---- real ones


class Groups:
    """Control groups below the outermost one that this process sees."""

    def __init__(self, parent: Path, version: int) -> None:
        self.version = version
        self._limit = "memory.max" if version == 2 else "memory.limit_in_bytes"
        self._made: list[Path] = []
        self.outer = self.make(parent / f"memledger-test-{os.getpid()}", 600 * MiB)

    def make(self, folder: Path, limit: int) -> Path:
        if self.version == 2:
            with contextlib.suppress(OSError):
                (folder.parent / "cgroup.subtree_control").write_text("+memory")
        folder.mkdir()
        self._made.append(folder)
        (folder / self._limit).write_text(str(limit))
        return folder

    def inner(self, name: str, limit: int) -> Path:
        return self.make(self.outer / name, limit)

    def remove(self) -> None:
        for folder in reversed(self._made):
            with contextlib.suppress(OSError):
                # A killed process leaves its group a moment after it was reaped.
                wait_until(lambda f=folder: not (f / "cgroup.procs").read_text(), what="empty")
                folder.rmdir()


@pytest.fixture
def groups(request: pytest.FixtureRequest) -> Iterator[Groups]:
    """Asked for before `spawn`, so that the processes are gone before the groups are."""
    place = own_place()
    if not place.groups:
        pytest.skip(f"no control groups here: {place.detail}")
    top = place.groups[-1]
    made = Groups.__new__(Groups)
    try:
        made.__init__(Path(top.folder), top.version)  # type: ignore[misc]
    except OSError as error:
        made.remove()
        pytest.skip(f"may not make control groups with a memory limit here: {error}")
    yield made
    made.remove()


def enter(member: Member, group: Path) -> None:
    (group / "cgroup.procs").write_text(str(member.pid))


def key(group: Path) -> str:
    return f"cgroup:{group.stat().st_ino}"


def own_keys(member: Member) -> list[str]:
    """Keys of the member's chain, without the boot id."""
    member.run("from memledger.readings import resolve, RamWatch")
    keys: list[str] = member.run("[pool.key for pool in resolve('ram').levels]")
    return [f"cgroup:{k.rsplit(':', 1)[1]}" if k.startswith("cgroup:") else "ram" for k in keys]


def test_b49_real_nested_groups_are_the_chain(groups: Groups, spawn: Spawn) -> None:
    inner = groups.inner("job", 300 * MiB)
    member = spawn("job", join=False)
    enter(member, inner)
    assert own_keys(member)[:2] == [key(inner), key(groups.outer)]
    totals = member.run("[source.read().total for source in resolve('ram').sources]")
    assert totals[:2] == [300 * MiB, 600 * MiB]
    frees = member.run("[source.read().free for source in resolve('ram').sources]")
    member.run(f"blob = bytearray({64 * MiB}); blob[::4096] = b'x' * len(blob[::4096])")
    after = member.run("[source.read().free for source in resolve('ram').sources]")
    for level in (0, 1):
        # The kernel charges in batches of some pages per CPU.
        assert abs(frees[level] - after[level] - 64 * MiB) < 8 * MiB


def test_b49_real_cgroup_namespace_still_shows_the_outer_limit(
    groups: Groups, spawn: Spawn
) -> None:
    """In a namespace the own path is "/", and the hierarchy that was mounted outside of it shows as
    "/../..": the levels above are there, though nobody names the own one."""
    flags = unshare("--cgroup")
    inner = groups.inner("job", 300 * MiB)
    script = f'echo $$ > "{inner}/cgroup.procs" && exec "$@"'
    member = spawn("job", join=False, prefix=("sh", "-c", script, "sh", *flags))
    assert own_keys(member)[:2] == [key(inner), key(groups.outer)]


def test_b55_real_page_cache_is_not_use(groups: Groups, spawn: Spawn, tmp_path: Path) -> None:
    inner = groups.inner("job", 300 * MiB)
    member = spawn("job", join=False)
    enter(member, inner)
    own_keys(member)
    member.run("source = resolve('ram').sources[0]; before = source.read()")
    member.run(
        f"f = open({str(tmp_path / 'cache')!r}, 'w+b'); f.write(bytes({100 * MiB})); f.flush(); "
        "os.fsync(f.fileno()); f.seek(0); n = len(f.read())"
    )
    charged = member.run(
        "import memledger.readings.cgroup as c; u = c.usage_of(source._group); [u.current, u.used]"
    )
    if charged[0] - charged[1] < 50 * MiB:
        pytest.skip("this file system keeps no page cache that is charged to the group")
    free, before = member.run("[source.read().free, before.free]")
    # `n = len(f.read())` has left nothing behind but what the allocator keeps.
    assert before - free < 30 * MiB, "100 MiB of cache counted as use"


def test_b49_move_to_another_group_is_noticed(groups: Groups, spawn: Spawn) -> None:
    first, second = groups.inner("first", 200 * MiB), groups.inner("second", 100 * MiB)
    member = spawn("job", join=False)
    enter(member, first)
    assert own_keys(member)[0] == key(first)
    member.run("watch = RamWatch()")
    assert member.run("watch.changed()") is False
    enter(member, second)
    assert member.run("watch.changed()") is True
    assert own_keys(member)[:2] == [key(second), key(groups.outer)]


def test_b49_members_of_two_groups_have_their_own_free_and_one_machine(
    groups: Groups, spawn: Spawn, ledger: memledger.Ledger
) -> None:
    small, large = groups.inner("small", 150 * MiB), groups.inner("large", 250 * MiB)
    one, two, three = (spawn(name, join=False) for name in ("one", "two", "three"))
    for member, group in ((one, small), (two, large), (three, large)):
        enter(member, group)
        member.join(group.name)
        member.call("open", "ram")
    one.publish(20 * MiB)
    two.publish(60 * MiB)
    three.publish(10 * MiB)
    assert one.figures()["total"] == 150 * MiB
    assert two.figures()["total"] == 250 * MiB
    snapshot = "ledger.device('ram').snapshot().figures.held"
    assert one.run(snapshot) == 20 * MiB
    assert two.run(snapshot) == three.run(snapshot) == 70 * MiB, "one group, one budget"
    assert one.free() is not None
    assert one.free() <= 130 * MiB
    # 70 of 250 are held, and 80 of 600 outside: the inner level binds.
    assert two.free() <= 180 * MiB
    pool = next(level.key for level in resolve("ram").levels if level.key.startswith("ram:"))
    assert ledger.device(pool).snapshot().figures.held == 90 * MiB
