"""Control groups: where a process stands, from files as v1, v2, hybrids, containers and namespaces
show them; and what a level's figures are."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from helpers.units import GiB, MiB, count, seeded
from memledger import model
from memledger.errors import UnknownDevice
from memledger.readings import RamWatch, resolve
from memledger.readings.cgroup import CgroupSource, parse_stat, split
from memledger.readings.cgroup_tree import own_place
from memledger.readings.ram import swap

BOOT = "0d4bbd6c-1ee5-4e0a-b1a4-3f6f3c2f7d00"
KIB = 1024


class Tree:
    """A machine's /proc and cgroup folders, below `root`."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.write("proc/sys/kernel/random/boot_id", BOOT + "\n")
        self.meminfo(64 * GiB, 50 * GiB)

    def write(self, path: str, text: str) -> Path:
        target = self.root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)
        return target

    def meminfo(self, total: int, available: int, swap: int = 0, free: int | None = None) -> None:
        fields = {
            "MemTotal": total,
            "MemFree": available // 2 if free is None else free,
            "MemAvailable": available,
            "SwapTotal": swap,
            "SwapFree": swap,
        }
        lines = (f"{name}: {value // KIB} kB\n" for name, value in fields.items())
        self.write("proc/meminfo", "".join(lines))

    def own(self, *lines: str) -> None:
        self.write("proc/self/cgroup", "".join(f"{line}\n" for line in lines))

    def mounts(self, *mounts: tuple[str, str, str, str]) -> None:
        """(type, root, mount point, super options)"""
        lines = [
            f"{30 + n} 23 0:{28 + n} {top} {point} rw,nosuid shared:{n} - {kind} {kind} {options}\n"
            for n, (kind, top, point, options) in enumerate(mounts)
        ]
        self.write("proc/self/mountinfo", "23 1 8:1 / / rw - ext4 /dev/sda1 rw\n" + "".join(lines))

    def v2(self, path: str, limit: object = "max", current: int = 0, **files: object) -> str:
        self.write(f"{path}/memory.max", f"{limit}\n")
        self.write(f"{path}/memory.current", f"{current}\n")
        for name, value in files.items():
            self.write(f"{path}/memory.{name}", f"{value}\n")
        return self.key(path)

    def v1(self, path: str, limit: object = 9223372036854771712, usage: int = 0) -> str:
        self.write(f"{path}/memory.limit_in_bytes", f"{limit}\n")
        self.write(f"{path}/memory.usage_in_bytes", f"{usage}\n")
        return self.key(path)

    def key(self, path: str) -> str:
        return f"cgroup:{BOOT}:{(self.root / path).stat().st_ino}"

    def spec(self, name: str = "ram") -> model.DeviceSpec:
        return resolve(name, root=str(self.root), environ={})

    def keys(self, name: str = "ram") -> list[str]:
        return [pool.key for pool in self.spec(name).levels]

    def names(self) -> list[str]:
        return [group.name for group in own_place(root=str(self.root)).groups]


RAM = f"ram:{BOOT}"
V2 = ("cgroup2", "/", "/sys/fs/cgroup", "rw")
V1 = ("cgroup", "/", "/sys/fs/cgroup/memory", "rw,memory")


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path)


# ---- where a process stands


def test_cgroup_v2_every_level_with_a_limit_leaf_first(tree: Tree) -> None:
    tree.own("0::/user.slice/app.slice/job")
    tree.mounts(V2)
    leaf = tree.v2("sys/fs/cgroup/user.slice/app.slice/job", 2 * GiB, GiB)
    tree.v2("sys/fs/cgroup/user.slice/app.slice")
    outer = tree.v2("sys/fs/cgroup/user.slice", 8 * GiB, 3 * GiB)
    spec = tree.spec()
    assert [pool.key for pool in spec.levels] == [leaf, outer, RAM]
    assert [pool.kind for pool in spec.levels] == [model.KIND_CGROUP] * 2 + [model.KIND_RAM]
    readings = [source.read() for source in spec.sources if source is not None]
    assert [reading.total for reading in readings] == [2 * GiB, 8 * GiB, 64 * GiB]
    assert [reading.free for reading in readings] == [GiB, 5 * GiB, 50 * GiB]
    assert [reading.source for reading in readings] == ["cgroup2", "cgroup2", "meminfo"]


def test_cgroup_v1_limits_are_those_of_the_memory_hierarchy(tree: Tree) -> None:
    tree.own("5:cpu,cpuacct:/other", "4:memory:/docker/abc", "1:name=systemd:/")
    tree.mounts(("cgroup", "/", "/sys/fs/cgroup/cpu", "rw,cpu,cpuacct"), V1)
    leaf = tree.v1("sys/fs/cgroup/memory/docker/abc", 4 * GiB, GiB)
    tree.v1("sys/fs/cgroup/memory/docker")
    tree.v1("sys/fs/cgroup/memory")
    assert tree.keys() == [leaf, RAM]
    source = tree.spec().sources[0]
    assert source is not None
    assert (source.read().free, source.read().source) == (3 * GiB, "cgroup1")


def test_cgroup_hybrid_takes_the_hierarchy_that_has_the_controller(tree: Tree) -> None:
    """Where systemd mounts both, v2 is there and has no memory controller."""
    tree.own("9:memory:/job", "0::/wrong")
    tree.mounts(V1, ("cgroup2", "/", "/sys/fs/cgroup/unified", "rw"))
    leaf = tree.v1("sys/fs/cgroup/memory/job", GiB)
    tree.write("sys/fs/cgroup/unified/wrong/memory.pressure", "")
    assert tree.keys() == [leaf, RAM]
    (tree.root / "proc/self/mountinfo").write_text("")
    assert tree.keys() == [leaf, RAM], "a sandbox that hides mountinfo: the usual place"


def test_cgroup_v1_only_other_controllers_falls_to_v2(tree: Tree) -> None:
    tree.own("2:cpu:/x", "0::/job")
    tree.mounts(("cgroup", "/", "/c1", "rw,cpu"), ("cgroup2", "/", "/c2", "rw"))
    assert [tree.v2("c2/job", GiB), RAM] == tree.keys()


def test_cgroup_mount_point_with_spaces(tree: Tree) -> None:
    tree.own("0::/my job")
    tree.mounts(("cgroup2", "/", r"/mnt/odd\040place", "rw"))
    assert [tree.v2("mnt/odd place/my job", GiB), RAM] == tree.keys()


def test_cgroup_part_of_the_hierarchy_bind_mounted(tree: Tree) -> None:
    """A container without a cgroup namespace: its own path begins with what is mounted."""
    tree.own("4:memory:/docker/abc/sub")
    tree.mounts(("cgroup", "/docker/abc", "/sys/fs/cgroup/memory", "rw,memory"))
    outer = tree.v1("sys/fs/cgroup/memory", 4 * GiB)
    inner = tree.v1("sys/fs/cgroup/memory/sub", 2 * GiB)
    assert tree.keys() == [inner, outer, RAM]
    assert tree.names() == ["/docker/abc/sub", "/docker/abc"]


def test_cgroup_of_another_container_is_never_taken(tree: Tree) -> None:
    """What is mounted is not an ancestor: its limit is somebody else's."""
    tree.own("4:memory:/docker/mine")
    tree.mounts(("cgroup", "/docker/other", "/sys/fs/cgroup/memory", "rw,memory"))
    tree.v1("sys/fs/cgroup/memory", GiB)
    tree.write("sys/fs/cgroup/memory/cgroup.procs", "1\n")
    spec = tree.spec()
    assert [pool.key for pool in spec.levels] == [RAM]
    assert "outside" in spec.detail
    tree.write("sys/fs/cgroup/memory/cgroup.procs", f"1\n{os.getpid()}\n")
    assert tree.keys()[0].startswith("cgroup:"), "it lists this process, so it is its own"


def test_cgroup_namespace_root_is_a_level(tree: Tree) -> None:
    """In a namespace the own path is "/", and the folder is that of the container."""
    tree.own("0::/")
    tree.mounts(V2)
    assert [tree.v2("sys/fs/cgroup", 4 * GiB), RAM] == tree.keys()


def test_cgroup_hierarchy_mounted_from_above_the_namespace(tree: Tree) -> None:
    """The host's hierarchy bind-mounted into a container with a namespace of its own shows as
    "/../..", and nobody tells the container's own name up there."""
    tree.own("0::/job")
    tree.mounts(("cgroup2", "/../..", "/host/cgroup", "ro"))
    tree.v2("host/cgroup/kubepods/pod1/job", 3 * GiB)
    mine = tree.v2("host/cgroup/kubepods/pod2/job", 2 * GiB)
    pod = tree.v2("host/cgroup/kubepods/pod2", 4 * GiB)
    tree.write("host/cgroup/kubepods/pod1/job/cgroup.procs", "7\n")
    tree.write("host/cgroup/kubepods/pod2/job/cgroup.procs", f"{os.getpid()}\n")
    assert tree.keys() == [mine, pod, RAM]


def test_cgroup_process_outside_of_its_namespace_sees_no_level(tree: Tree) -> None:
    tree.own("0::/../elsewhere")
    tree.mounts(V2)
    tree.v2("sys/fs/cgroup", GiB)
    assert tree.keys() == [RAM]


def test_cgroup_of_two_mounts_the_one_that_shows_more_levels(tree: Tree) -> None:
    tree.own("0::/pod/job")
    tree.mounts(("cgroup2", "/pod/job", "/inner", "rw"), ("cgroup2", "/", "/all", "rw"))
    tree.v2("inner", GiB)
    leaf, pod = tree.v2("all/pod/job", GiB), tree.v2("all/pod", 2 * GiB)
    assert tree.keys() == [leaf, pod, RAM]


def test_cgroup_of_two_mounts_the_one_from_above_the_namespace(tree: Tree) -> None:
    tree.own("0::/")
    tree.mounts(("cgroup2", "/", "/own", "rw"), ("cgroup2", "/..", "/host", "ro"))
    tree.v2("own", GiB)
    leaf, outer = tree.v2("host/pod", GiB), tree.v2("host", 4 * GiB)
    tree.write("host/pod/cgroup.procs", f"{os.getpid()}\n")
    assert tree.keys() == [leaf, outer, RAM]
    tree.write("host/pod/cgroup.procs", "1\n")
    assert len(tree.keys()) == 2, "no longer there: the other mount serves"


def test_cgroup_removed_under_the_process_leaves_the_outer_ones(tree: Tree) -> None:
    tree.own("0::/pod/job (deleted)")
    tree.mounts(V2)
    assert [tree.v2("sys/fs/cgroup/pod", 2 * GiB), RAM] == tree.keys()


def test_cgroup_v1_without_hierarchy_binds_only_its_own_processes(tree: Tree) -> None:
    tree.own("4:memory:/a/b")
    tree.mounts(V1)
    leaf = tree.v1("sys/fs/cgroup/memory/a/b", GiB)
    tree.v1("sys/fs/cgroup/memory/a", 2 * GiB)
    tree.write("sys/fs/cgroup/memory/a/memory.use_hierarchy", "0\n")
    assert tree.keys() == [leaf, RAM]


def test_cgroup_more_than_three_limits_keeps_the_tightest_and_says_so(tree: Tree) -> None:
    tree.own("0::/a/b/c/d")
    tree.mounts(V2)
    d = tree.v2("sys/fs/cgroup/a/b/c/d", 4 * GiB)
    tree.v2("sys/fs/cgroup/a/b/c", 9 * GiB)
    b = tree.v2("sys/fs/cgroup/a/b", 3 * GiB)
    a = tree.v2("sys/fs/cgroup/a", 8 * GiB)
    spec = tree.spec()
    assert [pool.key for pool in spec.levels] == [d, b, a, RAM]
    assert "/a/b/c" in spec.detail
    assert "left out" in spec.detail


def test_cgroup_of_equal_limits_the_outer_ones_stay(tree: Tree) -> None:
    """They are shared by more processes, so without them more could be handed out in all."""
    tree.own("0::/a/b/c/d")
    tree.mounts(V2)
    for path in ("a/b/c/d", "a/b/c", "a/b", "a"):
        tree.v2(f"sys/fs/cgroup/{path}", GiB)
    kept = [tree.key(f"sys/fs/cgroup/{path}") for path in ("a/b/c", "a/b", "a")]
    assert tree.keys() == [*kept, RAM]


@pytest.mark.parametrize(
    "own", ["", "nonsense", "0::", ":::", "4:memory", "x:y:z", "0::/a\n0::/b\n\x00\xff"]
)
def test_cgroup_odd_own_file_is_no_level(tree: Tree, own: str) -> None:
    tree.write("proc/self/cgroup", own)
    tree.mounts(V2)
    assert tree.keys()[-1] == RAM


def test_cgroup_no_file_at_all_is_the_machine_alone(tree: Tree) -> None:
    spec = tree.spec()
    assert [pool.key for pool in spec.levels] == [RAM]


@pytest.mark.parametrize(
    "text", ["max", "9223372036854771712", "9223372036854710272", "-1", "", "many"]
)
def test_cgroup_no_limit_in_any_spelling_is_no_level(tree: Tree, text: str) -> None:
    tree.own("0::/job")
    tree.mounts(V2)
    tree.v2("sys/fs/cgroup/job", text)
    assert tree.keys() == [RAM]


def test_cgroup_key_names_that_very_level(tree: Tree) -> None:
    tree.own("0::/a/b")
    tree.mounts(V2)
    inner, outer = tree.v2("sys/fs/cgroup/a/b", GiB), tree.v2("sys/fs/cgroup/a", 2 * GiB)
    assert tree.keys(inner) == [inner, outer, RAM]
    assert tree.keys(outer) == [outer, RAM]
    assert tree.keys(RAM) == [RAM]
    with pytest.raises(UnknownDevice) as caught:
        tree.spec(f"cgroup:{BOOT}:1")
    assert inner in caught.value.candidates


# ---- a move


def test_cgroup_move_and_new_limits_are_noticed(tree: Tree) -> None:
    tree.own("0::/a")
    tree.mounts(V2)
    tree.v2("sys/fs/cgroup/a", GiB)
    other = tree.v2("sys/fs/cgroup/b", 2 * GiB)
    watch = RamWatch(root=str(tree.root))
    assert not watch.changed()
    tree.own("0::/b")
    assert watch.changed()
    assert not watch.changed()
    assert tree.keys() == [other, RAM]
    tree.v2("sys/fs/cgroup/b", "max")
    assert watch.changed()
    tree.v2("sys/fs/cgroup/b", 4 * GiB)
    assert watch.changed()
    tree.v2("sys/fs/cgroup/b", 5 * GiB)
    assert not watch.changed(), "the same level, with another figure"


def test_cgroup_made_anew_under_the_same_name_is_another_pool(tree: Tree) -> None:
    tree.own("0::/a")
    tree.mounts(V2)
    tree.v2("sys/fs/cgroup/a", GiB)
    spec = tree.spec()
    assert spec.sources[0] is not None
    (tree.root / "sys/fs/cgroup/a").rename(tree.root / "sys/fs/cgroup/old")
    assert spec.sources[0].read().reason == "no_probe"
    tree.v2("sys/fs/cgroup/a", 2 * GiB)
    reading = spec.sources[0].read()
    assert (reading.free, reading.reason) == (None, "no_probe")
    assert "anew" in reading.detail
    assert tree.keys()[0] != spec.key


# ---- figures


@pytest.mark.parametrize(
    ("current", "stat", "used", "strict"),
    [
        (51, {"inactive_file": 46}, 5, 5),
        (2048086016, {"active_file": 1942446080, "inactive_file": 0}, 105639936, 2048086016),
        (30, {"file": 10, "shmem": 8}, 28, 30),
        (30, {"file": 10, "shmem": 8, "inactive_file": 5, "active_file": 5}, 28, 28),
        (30, {}, 30, 30),
        (30, {"anon": 28, "inactive_file": 10}, 28, 28),
        (
            30,
            {"anon": 10, "shmem": 5, "kernel": 9, "slab_reclaimable": 4, "inactive_file": 25},
            20,
            20,
        ),
        (30, {"anon": 10, "slab_unreclaimable": 6, "pagetables": 2, "active_file": 25}, 18, 30),
        (5, {"inactive_file": 46}, 0, 0),
        (5, {"anon": 46}, 5, 5),
    ],
)
def test_cgroup_b55_page_cache_is_not_use(
    current: int, stat: dict[str, int], used: int, strict: int
) -> None:
    usage = split(current, stat)
    assert (usage.used, usage.strict) == (used, strict)


def test_cgroup_b55_any_figures_stay_in_order() -> None:
    random = seeded("split")
    names = ("inactive_file", "active_file", "file", "shmem", "anon", "kernel", "slab_reclaimable",
             "slab_unreclaimable", "pagetables")  # fmt: skip
    for _ in range(2000):
        stat = {
            name: random.choice((0, 1, random.randrange(1 << 40), (1 << 64) - 1))
            for name in names
            if random.random() < 0.6
        }
        current = random.randrange(1 << 41)
        usage = split(current, stat)
        assert 0 <= usage.used <= usage.strict <= current, (current, stat)
        assert usage.used >= min(current, stat.get("anon", 0) + stat.get("shmem", 0))


def test_cgroup_v1_counts_are_those_of_the_whole_subtree(tree: Tree) -> None:
    tree.own("4:memory:/job")
    tree.mounts(V1)
    tree.v1("sys/fs/cgroup/memory/job", 10 * GiB, 6 * GiB)
    tree.write(
        "sys/fs/cgroup/memory/job/memory.stat",
        f"cache {MiB}\ninactive_file 5\ntotal_cache {4 * GiB}\ntotal_shmem {GiB}\n"
        f"total_inactive_file {GiB}\ntotal_active_file {2 * GiB}\ntotal_rss {2 * GiB}\n"
        "bad line x\n",
    )
    source = tree.spec().sources[0]
    assert source is not None
    reading = source.read()
    assert (reading.free, reading.immediate) == (7 * GiB, 5 * GiB)


def test_cgroup_memory_high_is_the_soft_limit_and_use_above_the_limit_is_full(tree: Tree) -> None:
    tree.own("0::/job")
    tree.mounts(V2)
    tree.v2("sys/fs/cgroup/job", 2 * GiB, 3 * GiB, high=GiB)
    source = tree.spec().sources[0]
    assert source is not None
    reading = source.read()
    assert (reading.total, reading.free, reading.immediate) == (2 * GiB, 0, 0)
    assert reading.soft_limit == GiB
    tree.v2("sys/fs/cgroup/job", 0, 0)
    assert (source.read().free, source.read().reason) == (0, None)


@pytest.mark.parametrize("text", ["", "some", "-5", "1 2"])
def test_cgroup_nonsense_in_a_file_is_probe_failed(tree: Tree, text: str) -> None:
    tree.own("0::/job")
    tree.mounts(V2)
    tree.v2("sys/fs/cgroup/job", GiB)
    spec = tree.spec()
    assert spec.sources[0] is not None
    tree.write("sys/fs/cgroup/job/memory.current", text)
    assert spec.sources[0].read().reason == "probe_failed"
    (tree.root / "sys/fs/cgroup/job/memory.current").unlink()
    assert spec.sources[0].read().reason == "no_probe"


def test_cgroup_forbidden_file_is_no_permission(
    tree: Tree, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree.own("0::/job")
    tree.mounts(V2)
    tree.v2("sys/fs/cgroup/job", GiB)
    source = CgroupSource(own_place(root=str(tree.root)).groups[0])

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied", "memory.max")

    monkeypatch.setattr("builtins.open", refuse)
    assert source.read().reason == "no_permission"


def test_cgroup_stat_lines_that_are_none_are_left_out() -> None:
    assert parse_stat(b"a 1\nb\nc x\nd 2 3\n\xff 4\n e 5 \n")["e"] == 5


# ---- swap


def test_swap_b49_only_where_every_group_allows_it(tree: Tree) -> None:
    tree.meminfo(64 * GiB, 50 * GiB, swap=32 * GiB)
    assert swap(root=str(tree.root)).total == 32 * GiB
    tree.own("0::/pod/job")
    tree.mounts(V2)
    tree.v2("sys/fs/cgroup/pod/job", GiB)
    pod = "sys/fs/cgroup/pod"
    tree.v2(pod)
    tree.write(f"{pod}/memory.swap.max", f"{4 * GiB}\n")
    tree.write(f"{pod}/memory.swap.current", f"{GiB}\n")
    found = swap(root=str(tree.root))
    assert (found.total, found.free) == (4 * GiB, 3 * GiB)
    assert "/pod" in found.detail
    tree.write("sys/fs/cgroup/pod/job/memory.swap.max", "0\n")
    assert swap(root=str(tree.root))[:2] == (0, 0)


def test_swap_v1_is_what_memory_and_swap_together_leave(tree: Tree) -> None:
    tree.meminfo(64 * GiB, 50 * GiB, swap=32 * GiB)
    tree.own("4:memory:/job")
    tree.mounts(V1)
    job = "sys/fs/cgroup/memory/job"
    tree.v1(job, 4 * GiB, GiB)
    tree.write(f"{job}/memory.memsw.limit_in_bytes", f"{6 * GiB}\n")
    tree.write(f"{job}/memory.memsw.usage_in_bytes", f"{2 * GiB}\n")
    assert swap(root=str(tree.root))[:2] == (2 * GiB, GiB)
    tree.write(f"{job}/memory.swappiness", "0\n")
    assert swap(root=str(tree.root))[:2] == (0, 0)


# ---- the machine beside a limit


def test_ram_b57_emulated_meminfo_beside_a_limit_gives_no_figure(tree: Tree) -> None:
    tree.meminfo(4 * GiB, 4760 * KIB, free=4760 * KIB)
    tree.own("0::/")
    tree.mounts(V2)
    tree.v2("sys/fs/cgroup", 4 * GiB, GiB)
    cgroup, machine = tree.spec().sources
    assert cgroup is not None
    assert machine is not None
    assert cgroup.read().free == 3 * GiB
    assert (machine.read().free, machine.read().reason) == (None, "implausible")
    assert "meminfo_suspect" in machine.read().detail


def test_ram_b57_meminfo_mounted_over_is_not_the_machines(tree: Tree) -> None:
    """lxcfs of today shows sound figures, of the container: as the machine's they would bind every
    process outside of it."""
    tree.mounts(("fuse.lxcfs", "/proc/meminfo", "/proc/meminfo", "rw"), V2)
    tree.meminfo(4 * GiB, 3 * GiB)
    (alone,) = tree.spec().sources
    assert alone is not None
    assert (alone.read().free, alone.read().suspect) == (3 * GiB, True)
    tree.own("0::/")
    tree.v2("sys/fs/cgroup", 4 * GiB, GiB)
    machine = tree.spec().sources[-1]
    assert machine is not None
    assert machine.read().reason == "implausible"
    assert "lxcfs" in machine.read().detail


def test_ram_zfs_cache_is_named_and_not_free(tree: Tree) -> None:
    tree.write(
        "proc/spl/kstat/zfs/arcstats",
        f"13 1 0x01 123 33456 1 2\nname type data\nsize 4 {12 * GiB}\nc_min 4 {2 * GiB}\n",
    )
    reading = tree.spec().sources[-1].read()  # type: ignore[union-attr]
    assert reading.free == 50 * GiB
    assert "12.0 GiB" in reading.detail
    assert "10.0 GiB" in reading.detail
    tree.write("proc/spl/kstat/zfs/arcstats", "nonsense\n")
    assert tree.spec().sources[-1].read().detail == ""  # type: ignore[union-attr]


def test_ram_every_source_explains_itself_in_one_line(tree: Tree) -> None:
    tree.own("0::/job")
    tree.mounts(V2)
    tree.v2("sys/fs/cgroup/job", GiB)
    for source in tree.spec().sources:
        assert source is not None
        assert source.explain()
        assert "\n" not in source.explain()


# ---- hostile files


PIECES = (
    b"0", b"9" * 19, b"9" * 5000, b"-1", b"max", b"\n", b" ", b":", b"::", b"/", b"\x00", b"\xff",
    b"..", b"/..", b"0::/job\n", b"4:memory:/job\n", b"MemTotal: 5 kB\n", b"MemFree: 9 kB\n",
    b"\\040", b"\\777", b"inactive_file 5\n", b" - cgroup2 cgroup2 rw\n", b"size 4 7\n",
    b"30 1 0:28 / /sys/fs/cgroup rw",
)  # fmt: skip
CARD = "sys/bus/pci/devices/0000:03:00.0"
FILES = (
    "proc/self/cgroup",
    "proc/self/mountinfo",
    "proc/meminfo",
    "proc/spl/kstat/zfs/arcstats",
    *(f"sys/fs/cgroup/job/memory.{n}" for n in ("max", "current", "stat", "high", "swap.max")),
    *(f"{CARD}/{n}" for n in ("mem_info_vram_total", "mem_info_vram_used", "unique_id")),
    "sys/class/kfd/kfd/topology/nodes/1/properties",
)


def test_readers_random_files_never_raise_and_never_lie(tree: Tree) -> None:
    """Whatever stands in a file of /proc or /sys, the answer is a figure that can be, or a
    reason."""
    random = seeded("hostile files")
    for _ in range(count(300, 3000)):
        tree.own("0::/job")
        tree.mounts(V2)
        tree.meminfo(64 * GiB, 50 * GiB)
        tree.v2("sys/fs/cgroup/job", 2 * GiB, GiB, stat="inactive_file 4", high="max")
        for name, text in (("vendor", "0x1002"), ("class", "0x03"), ("mem_info_vram_total", "9")):
            tree.write(f"{CARD}/{name}", text)
        for name in random.sample(FILES, random.randrange(1, 5)):
            content = b"".join(random.choices(PIECES, k=random.randrange(8)))
            tree.write(name, "").write_bytes(content)
        for name in ("ram", "hip:0"):
            try:
                sources = tree.spec(name).sources
            except UnknownDevice:
                continue
            for source in sources:
                assert source is not None
                reading = source.read()
                assert model.plausible(reading) == reading
                assert reading.known or reading.reason
        swapped = swap(root=str(tree.root))
        assert 0 <= swapped.free <= swapped.total
        RamWatch(root=str(tree.root)).changed()
