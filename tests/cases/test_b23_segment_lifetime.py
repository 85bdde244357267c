"""B23, B24, B25, B27, B28: nothing takes the segment away, and nothing dies of its absence."""

from __future__ import annotations

import os
import subprocess
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import memledger
from helpers import pythons
from helpers.member import plain_device
from helpers.members import Member
from helpers.system import compiler, linux_only, unshare
from helpers.units import GiB, MiB, count
from helpers.waiting import wait_until

TOTAL = 24 * GiB


def available_pythons() -> list[Any]:
    return [
        pytest.param(v, marks=() if pythons.find(v) else pytest.mark.skip(reason=f"no Python {v}"))
        for v in pythons.VERSIONS
    ]


@pytest.mark.parametrize("version", available_pythons())
def test_b23_normal_exit_of_an_attached_process_leaves_the_name(
    spawn: Any, segment: Path, tmp_path: Path, version: str
) -> None:
    p1: Member = spawn("p1", total=TOTAL)
    inode = segment.stat().st_ino
    package = pythons.copy_package(tmp_path)
    p2: Member = spawn(
        "p2", total=TOTAL, python=pythons.find(version), flags=("-I", "-S"), package=package
    )
    p2.publish(GiB)
    assert p1.figures()["held"] == GiB
    assert p2.exit() == 0
    p3: Member = spawn("p3", total=TOTAL)
    assert segment.stat().st_ino == inode
    p3.publish(2 * GiB)
    p1.publish(3 * GiB)
    p1.call("sweep")
    assert p1.figures()["held"] == p3.figures()["held"] == 5 * GiB
    # The spawn fixture asserts that none of them printed anything.


@pytest.mark.parametrize("method", ["spawn", "forkserver", "fork"])
def test_b23_multiprocessing_children_do_not_take_the_segment_away(
    spawn: Any, segment: Path, tmp_path: Path, method: str
) -> None:
    p1: Member = spawn("p1", total=TOTAL)
    inode = segment.stat().st_ino
    script = tmp_path / "children.py"
    script.write_text(
        "import multiprocessing, sys\n"
        "import memledger\n"
        "def work(n):\n"
        "    device = memledger.join(label='mp').device('sim:card?total=24GiB')\n"
        "    device.publish(n)\n"
        "    assert device.figures().own_held == n\n"
        "if __name__ == '__main__':\n"
        f"    context = multiprocessing.get_context({method!r})\n"
        "    for i in range(3):\n"
        "        p = context.Process(target=work, args=(i + 1,))\n"
        "        p.start(); p.join()\n"
        "        assert p.exitcode == 0\n"
    )
    import sys

    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=90)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert segment.stat().st_ino == inode
    p1.call("sweep")
    assert [m["label"] for m in p1.call("members")] == ["p1"]


SHIM = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>

/* ENOMEM for shared file mappings above 1 MiB while FAIL_MMAP names a file that exists. */
#include <unistd.h>
static int on(const char *name) {
    const char *path = getenv(name);
    return path && access(path, F_OK) == 0;
}
void *mmap(void *at, size_t length, int protection, int flags, int fd, off_t offset) {
    static void *(*real)(void *, size_t, int, int, int, off_t);
    if (!real) real = dlsym(RTLD_NEXT, "mmap");
    if (fd >= 0 && (flags & MAP_SHARED) && length > (1 << 20) && on("FAIL_MMAP")) {
        errno = ENOMEM;
        return MAP_FAILED;
    }
    return real(at, length, protection, flags, fd, offset);
}
void *mmap64(void *at, size_t length, int protection, int flags, int fd, off_t offset) {
    return mmap(at, length, protection, flags, fd, offset);
}
static int reserve(const char *symbol, int fd, off_t offset, off_t length) {
    int (*real)(int, off_t, off_t) = dlsym(RTLD_NEXT, symbol);
    return on("FAIL_RESERVE") ? ENOSPC : real(fd, offset, length);
}
int posix_fallocate(int fd, off_t offset, off_t length) {
    return reserve("posix_fallocate", fd, offset, length);
}
int posix_fallocate64(int fd, off_t offset, off_t length) {
    return reserve("posix_fallocate64", fd, offset, length);
}
int fallocate(int fd, int mode, off_t offset, off_t length) {
    int (*real)(int, int, off_t, off_t) = dlsym(RTLD_NEXT, "fallocate");
    if (on("FAIL_RESERVE")) {
        errno = ENOSPC;
        return -1;
    }
    return real(fd, mode, offset, length);
}
int fallocate64(int fd, int mode, off_t offset, off_t length) {
    return fallocate(fd, mode, offset, length);
}
"""


@pytest.fixture
def shim(tmp_path: Path) -> dict[str, str]:
    """Environment in which mmap, or the reservation of blocks, fails while a file exists."""
    source, library = tmp_path / "shim.c", tmp_path / "shim.so"
    source.write_text(SHIM)
    subprocess.run(
        [compiler(), "-shared", "-fPIC", "-O1", "-o", str(library), str(source), "-ldl"],
        check=True, timeout=60,
    )  # fmt: skip
    return {
        "LD_PRELOAD": str(library),
        "FAIL_MMAP": str(tmp_path / "no-mmap"),
        "FAIL_RESERVE": str(tmp_path / "no-space"),
    }


@linux_only
def test_b24_failed_attach_leaves_the_owners_segment_alone(
    spawn: Any, segment: Path, shim: dict[str, str]
) -> None:
    owner: Member = spawn("owner", total=TOTAL)
    owner.publish(4 * GiB)
    inode = segment.stat().st_ino
    Path(shim["FAIL_MMAP"]).touch()
    failing: Member = spawn(join=False, env=shim)
    reasons = failing.run(
        f"""
import memledger
reasons = set()
for _ in range({count(100, 100)}):
    ledger = memledger.ledger.Ledger(label="x", role="other", path=None)
    reasons.add(ledger.degraded_reason)
    assert ledger.scope == "private"
    ledger.leave()
sorted(reasons)
""",
        watchdog_s=150,
    )
    assert len(reasons) == 1
    assert "mmap" in reasons[0]
    assert os.strerror(12) in reasons[0]
    assert segment.stat().st_ino == inode
    assert owner.figures()["held"] == 4 * GiB
    assert len(owner.call("members")) == 1
    Path(shim["FAIL_MMAP"]).unlink()
    failing.join("healed")
    failing.open_plain("test:card", TOTAL)
    assert failing.figures()["held"] == 4 * GiB


@linux_only
def test_b24_no_space_at_creation_leaves_no_name(
    spawn: Any, segment: Path, shim: dict[str, str]
) -> None:
    Path(shim["FAIL_RESERVE"]).touch()
    member: Member = spawn("m", env=shim)
    assert os.strerror(28) in member.run("ledger.degraded_reason")
    assert os.listdir(segment.parent) == []
    Path(shim["FAIL_RESERVE"]).unlink()
    healthy: Member = spawn("next", total=TOTAL)
    assert healthy.call("info")["mode"] == 0
    wait_until(lambda: not member.run("ledger.degraded"), 60, "it tries again by itself")
    assert len(healthy.call("members")) == 2


def test_b25_many_first_joiners_make_one_segment(spawn: Any, segment: Path) -> None:
    starter: Member = spawn(join=False)
    for _ in range(count(10, 300)):
        answers = starter.run(
            """
import memledger, signal
go, let = os.pipe()
told, tell = os.pipe()
pids = []
for i in range(20):
    pid = os.fork()
    if pid == 0:
        os.close(let)
        os.read(go, 1)
        ledger = memledger.join(label=str(i))
        info = ledger._info()
        os.write(tell, f"{info['file_id']}:{info['mode']}\\n".encode())
        while True:
            signal.pause()
    pids.append(pid)
os.close(go); os.close(let)
got = b""
while got.count(b"\\n") < 20:
    got += os.read(told, 4096)
ledger = memledger.join(label="counter")
members = len(ledger.members())
ledger.leave()
for pid in pids:
    os.kill(pid, signal.SIGKILL)
for pid in pids:
    os.waitpid(pid, 0)
[sorted(set(got.decode().split())), members]
"""
        )
        assert answers == [[f"{segment.stat().st_ino}:0"], 21]
        assert os.listdir(segment.parent) == [segment.name]
        segment.unlink()


def test_b25_creator_killed_anywhere_leaves_nothing_in_the_way(spawn: Any, segment: Path) -> None:
    starter: Member = spawn(join=False)
    left = starter.run(
        f"""
import memledger, random, signal, time
rng = random.Random(25)
left = []
for i in range({count(150, 3000)}):
    pid = os.fork()
    if pid == 0:
        memledger.join(label="creator")
        signal.pause()
    time.sleep(rng.uniform(0, 0.004))
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    names = os.listdir({str(segment.parent)!r})
    if names:
        ledger = memledger.join(label="next")
        ledger.sweep()
        while [m.label for m in ledger.members()] != ["next"]:
            pass                # its own housekeeping may be in the middle of a sweep
        if ledger.degraded:
            left.append([names, ledger.degraded_reason])
        ledger.leave()
        for name in os.listdir({str(segment.parent)!r}):
            if name != {segment.name!r}:
                left.append(name)
        os.unlink({str(segment)!r})
left
""",
        watchdog_s=900,
    )
    assert left == []


@pytest.mark.parametrize("content", [b"", b"x", b"\0" * 4096, b"short" * 100])
def test_b25_short_file_under_the_name_is_foreign_and_stays(
    spawn: Any, segment: Path, content: bytes
) -> None:
    segment.write_bytes(content)
    segment.chmod(0o600)
    inode = segment.stat().st_ino
    member: Member = spawn("m", total=TOTAL)
    reason = member.run("ledger.degraded_reason")
    assert "not a segment of ours" in reason
    assert str(segment) in reason
    member.publish(GiB)
    assert member.free() == TOTAL - GiB
    assert segment.read_bytes() == content
    assert segment.stat().st_ino == inode
    # What `reset` does after it has looked for owners.
    from memledger import _native

    assert _native.unlink_segment(str(segment))[0] == 0
    healthy: Member = spawn("h", total=TOTAL)
    wait_until(lambda: not member.run("ledger.degraded"), 60, "the degraded one joins")
    assert healthy.figures()["held"] == GiB


IN_TMPFS = r"""
set -e
mount -t tmpfs -o size=%(size)s,mode=1777 tmpfs %(where)s
%(before)s
exec "$@"
"""


def in_tmpfs(spawn: Any, where: Path, size: str, before: str = "", **options: Any) -> Member:
    """A member to whom `where` is a tmpfs of that size, in a mount namespace of its own."""
    script = IN_TMPFS % {"size": size, "where": where, "before": before}
    prefix = (*unshare("-m"), "sh", "-c", script, "sh")
    member: Member = spawn(prefix=prefix, **options)
    return member


@linux_only
@pytest.mark.parametrize("size", ["4k", "64k", "1m"])
def test_b27_small_shm_degrades_without_a_signal_or_a_name(
    spawn: Any, segment: Path, size: str
) -> None:
    member = in_tmpfs(spawn, segment.parent, size, label="m", total=TOTAL)
    reason = member.run("ledger.degraded_reason")
    assert reason is not None
    assert os.strerror(28) in reason
    assert member.run(f"os.listdir({str(segment.parent)!r})") == []
    member.publish(GiB)
    assert member.free() == TOTAL - GiB
    assert not member.figures()["complete"]


@linux_only
def test_b27_shm_nearly_full_degrades(spawn: Any, segment: Path) -> None:
    where = segment.parent
    fill = f"head -c {60 * MiB} /dev/zero > {where}/other"
    member = in_tmpfs(spawn, where, "64m", fill, label="m", total=TOTAL)
    # 4 MiB are left, and the segment takes more.
    assert os.strerror(28) in member.run("ledger.degraded_reason")
    assert member.run(f"os.listdir({str(where)!r})") == ["other"]
    member.run(f"os.unlink({str(where / 'other')!r})")
    wait_until(lambda: not member.run("ledger.degraded"), 60, "room again, so it joins")


@linux_only
def test_b27_shm_filled_after_the_join_harms_nobody(spawn: Any, segment: Path) -> None:
    where = segment.parent
    member = in_tmpfs(spawn, where, "16m", label="m", total=TOTAL)
    left = member.run(
        f"""
with open({str(where / "filler")!r}, "wb", buffering=0) as filler:
    try:
        while True:
            filler.write(bytes(4096))
    except OSError as error:
        full = error.errno
for i in range(32):     # every pool and record of ours, first touched now
    d = plain_device(ledger, f"test:{{i}}", {TOTAL})
    d.publish({GiB}, releasable=1, pinned=1)
    assert d.free() == {TOTAL - GiB}
    d.snapshot()
    c = d.claim(1)
    c.cancel()
full
"""
    )
    assert left == 28
    assert member.call("info")["mode"] == 0


def test_b28_vanished_name_is_routine(spawn: Any, segment: Path) -> None:
    a, b = spawn("a", total=TOTAL), spawn("b", total=TOTAL)
    a.publish(2 * GiB)
    b.publish(3 * GiB)
    number = b.call("claim", GiB)
    segment.unlink()
    a.publish(4 * GiB)
    b.figures()
    c: Member = spawn("c", total=TOTAL)

    def holds(member: Member, held: int) -> bool:
        return bool(member.figures()["held"] == held)

    wait_until(partial(holds, c, 7 * GiB), what="both carry over")
    for member in (a, b, c):
        wait_until(partial(holds, member, 7 * GiB))
        assert member.figures()["claimed"] == GiB
        assert len(member.call("members")) == 3
    b.call("settle", number, 4 * GiB)
    assert a.figures()["held"] == 8 * GiB
    assert a.figures()["claimed"] == 0
    segment.unlink()
    for member in (a, b, c):
        member.call("leave")


def test_b28_leave_after_the_directory_has_gone(segment: Path) -> None:
    import shutil

    ledger = memledger.join(label="x")
    device = plain_device(ledger, "test:card", TOTAL)
    device.publish(GiB)
    shutil.rmtree(segment.parent)
    device.publish(2 * GiB)
    assert device.figures().held == 2 * GiB
    wait_until(lambda: ledger.scope == "private", what="it notices")
    assert os.strerror(2) in (ledger.degraded_reason or "")
    assert device.figures().held == 2 * GiB
    ledger.leave()
