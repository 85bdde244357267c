"""B29, B30, B32: whose segment, under which name, and how far it reaches."""

from __future__ import annotations

import os
import socket
import stat
from pathlib import Path
from typing import Any

import pytest

import memledger
from helpers.members import Member
from helpers.system import linux_only, need_root, unshare
from helpers.units import GiB
from memledger import _native, sim

TOTAL = 24 * GiB


@linux_only
def test_b29_default_name_is_per_user(spawn: Any) -> None:
    need_root()
    member: Member = spawn(join=False)
    mine = member.run("from memledger import _native; _native.default_path()")
    member.become(12345)
    theirs = member.run("_native.default_path()")
    assert mine.endswith("-0")
    assert theirs.endswith("-12345")
    assert theirs.startswith("/dev/shm/memledger-v")


@linux_only
def test_b29_second_user_gets_a_segment_of_his_own(spawn: Any, segment: Path) -> None:
    """Each user's default; here the same rule with the directory in place of /dev/shm."""
    need_root()
    segment.parent.chmod(0o1777)
    root: Member = spawn("root", total=TOTAL)
    root.publish(4 * GiB)
    own = segment.with_name("memledger-v1-12345")
    other: Member = spawn(join=False, env={"MEMLEDGER_PATH": str(own)})
    other.become(12345)
    assert other.join("other")["mode"] == 0
    other.open_plain("test:card", TOTAL)
    other.publish(GiB)
    assert other.figures()["held"] == GiB
    assert root.figures()["held"] == 4 * GiB
    assert own.stat().st_uid == 12345


@pytest.mark.parametrize("umask", [0o077, 0o000, 0o777])
def test_b29_mode_does_not_depend_on_the_umask(spawn: Any, segment: Path, umask: int) -> None:
    member: Member = spawn(join=False)
    member.run(f"os.umask({umask})")
    assert member.join("m")["mode"] == 0
    assert stat.S_IMODE(segment.stat().st_mode) == 0o600
    assert member.run("old = os.umask(0); os.umask(old); old") == umask


def plant_symlink(path: Path) -> None:
    target = path.with_name("target")
    target.write_bytes(b"precious")
    path.symlink_to(target)


def plant_dangling_symlink(path: Path) -> None:
    path.symlink_to(path.with_name("not-there"))


def plant_fifo(path: Path) -> None:
    os.mkfifo(path, 0o600)


def plant_directory(path: Path) -> None:
    path.mkdir()


def plant_foreign_file(path: Path) -> None:
    path.write_bytes(os.urandom(8 << 20))
    path.chmod(0o600)


def plant_open_to_all(path: Path) -> None:
    memledger.join(label="maker", path=path).leave()
    path.chmod(0o666)


def plant_other_owner(path: Path) -> None:
    need_root()
    memledger.join(label="maker", path=path).leave()
    os.chown(path, 4321, 4321)


def plant_hard_link(path: Path) -> None:
    memledger.join(label="maker", path=path).leave()
    os.link(path, path.with_name("second-name"))


def plant_symlink_loop(path: Path) -> None:
    path.symlink_to(path)


def plant_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))


def plant_huge_file(path: Path) -> None:
    """A terabyte of holes behind a good beginning."""
    memledger.join(label="maker", path=path).leave()
    os.truncate(path, 1 << 40)


def plant_device_node(path: Path) -> None:
    """/dev/zero by another name: endless, and it can be mapped."""
    need_root()
    try:
        os.mknod(path, stat.S_IFCHR | 0o600, os.makedev(1, 5))
    except PermissionError:
        pytest.skip("no device nodes can be made here")


PLANTS = {
    "symlink": plant_symlink,
    "dangling symlink": plant_dangling_symlink,
    "fifo": plant_fifo,
    "directory": plant_directory,
    "foreign file": plant_foreign_file,
    "open to all": plant_open_to_all,
    "other owner": plant_other_owner,
    "hard link": plant_hard_link,
    "symlink loop": plant_symlink_loop,
    "socket": plant_socket,
    "huge file": plant_huge_file,
    "device node": plant_device_node,
}


@linux_only
@pytest.mark.parametrize("name", PLANTS)
def test_b29_hostile_name_is_refused_with_a_reason_and_left_alone(
    spawn: Any, segment: Path, name: str
) -> None:
    PLANTS[name](segment)
    before = os.lstat(segment)
    listing = sorted(os.listdir(segment.parent))
    member: Member = spawn("m", total=TOTAL)
    assert member.call("info")["mode"] == 2
    assert member.run("ledger.scope") == "private"
    reason = member.run("ledger.degraded_reason")
    assert str(segment) in reason
    assert len(reason) > len(str(segment)) + 10
    member.publish(GiB)
    assert member.free() == TOTAL - GiB
    assert not member.figures()["complete"]
    claim = member.run("c = device.claim(1 << 30); c.checked")
    assert claim is False
    after = os.lstat(segment)
    assert (after.st_ino, after.st_mode, after.st_uid, after.st_size) == (
        before.st_ino, before.st_mode, before.st_uid, before.st_size,
    )  # fmt: skip
    assert sorted(os.listdir(segment.parent)) == listing
    member.call("leave")
    if name == "symlink":
        assert segment.with_name("target").read_bytes() == b"precious"


@linux_only
def test_b29_segment_of_mine_that_i_may_not_open_is_left_alone(spawn: Any, segment: Path) -> None:
    """Mode 000: its owner is refused like anybody else."""
    need_root()
    memledger.join(label="maker", path=segment).leave()
    segment.parent.chmod(0o755)
    os.chown(segment, 4321, 4321)
    segment.chmod(0)
    member: Member = spawn("m", join=False)
    member.become(4321)
    assert member.join("m")["mode"] == 2
    assert "Permission denied" in member.run("ledger.degraded_reason")
    assert stat.S_IMODE(segment.stat().st_mode) == 0


@linux_only
def test_b29_segment_of_mine_in_a_directory_i_cannot_write_to_is_used(
    spawn: Any, segment: Path
) -> None:
    """An administrator makes the place; its user needs no right to add files there."""
    need_root()
    segment.parent.chmod(0o1777)
    maker: Member = spawn(join=False)
    maker.become(12345)
    assert maker.join("maker")["mode"] == 0
    segment.parent.chmod(0o555)
    user: Member = spawn(join=False)
    user.become(12345)
    info = user.join("user")
    assert info["mode"] == 0, user.run("ledger.degraded_reason")
    assert len(maker.call("members")) == 2


@linux_only
def test_b30_longest_name_fits_the_shortest_system(spawn: Any) -> None:
    """30 bytes with the slash, for the largest uid and a layout of three digits. The 16 KiB pages
    and the single ftruncate of that system are in the C suite, which fakes them."""
    need_root()
    member: Member = spawn(join=False)
    member.become(4294967294)
    path = member.run("from memledger import _native; _native.default_path()")
    name = "/" + os.path.basename(path)
    assert name.endswith("-4294967294")
    digits = len(str(_native.LAYOUT_MAJOR))
    assert len(name) - digits + 3 <= 30


def test_b30_segment_size_is_a_multiple_of_every_page_size(ledger: memledger.Ledger) -> None:
    assert os.stat(ledger.path).st_size % 16384 == 0
    assert os.stat(ledger.path).st_size <= 8 << 20


def test_b32_bytes_that_no_member_holds_are_subtracted(ledger: memledger.Ledger) -> None:
    device = ledger.device("sim:card?total=24GiB")
    card = sim.Card("card")
    try:
        block = card.alloc(4 * GiB)
        device.publish(4 * GiB)
        card.foreign(10 * GiB)
        device.refresh(0)
        figures = device.figures()
        assert figures.held == 4 * GiB
        assert figures.unaccounted == 10 * GiB
        assert figures.free == 10 * GiB
        assert figures.total == 24 * GiB
        assert figures.complete
        block.free()
    finally:
        card.close()


@linux_only
def test_b32_no_permission_degrades_and_says_so(spawn: Any, segment: Path) -> None:
    need_root()
    segment.parent.chmod(0o755)  # root's: others may look and not add
    member: Member = spawn(join=False)
    member.become(12345)
    assert member.join("m")["mode"] == 2
    assert os.strerror(13) in member.run("ledger.degraded_reason")
    assert member.run("ledger.scope") == "private"


@linux_only
def test_b32_another_mount_namespaces_directory_is_another_ledger(
    spawn: Any, segment: Path
) -> None:
    """Undetectable from inside, so what is shown is "path" and never "machine"."""
    outside: Member = spawn("outside", total=TOTAL)
    outside.publish(4 * GiB)
    mount = f'mount -t tmpfs -o size=16m tmpfs {segment.parent} && exec "$@"'
    inside: Member = spawn("inside", total=TOTAL, prefix=(*unshare("-m"), "sh", "-c", mount, "sh"))
    assert inside.figures()["held"] == 0
    assert inside.run("ledger.scope") == "path"
    ids = [(m.call("info")["file_device"], m.call("info")["file_id"]) for m in (inside, outside)]
    assert ids[0] != ids[1]


def test_b32_scope_is_never_the_machine(ledger: memledger.Ledger) -> None:
    assert ledger.scope == "path"
