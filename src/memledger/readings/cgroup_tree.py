"""Where this process stands among the memory control groups (Linux): v1, v2, or both at once, at
any mount point, in or out of a cgroup namespace.

`/proc/self/cgroup` gives the path inside the hierarchy, `/proc/self/mountinfo` says which part of
the hierarchy is mounted where; neither is of use alone. Formats: proc(5), cgroups(7) and
cgroup_namespaces(7).
"""

from __future__ import annotations

import os
import re
from typing import NamedTuple

from memledger.readings.files import listed, word

_DELETED = " (deleted)"
_SEARCH_MOST = 4096


_found_before: dict[tuple[str, int], tuple[str, ...]] = {}
"""Where a search ended, by mount point and depth: looked at first, since a machine may have
thousands of groups and the question comes with every housekeeping round."""


class Group(NamedTuple):
    """One control group that this process is in, directly or through a group inside it.

    folder: where its files are. name: its path as this process sees it. inode: of the folder; the
    same in every namespace and under every mount, and not given again while the machine runs.
    version: 1 or 2.
    """

    folder: str
    name: str
    inode: int
    version: int


class Place(NamedTuple):
    """groups: from the process's own one up to the outermost that can be seen. detail: why there
    are none, or why some are missing; "" otherwise."""

    groups: tuple[Group, ...]
    detail: str = ""


class _Mount(NamedTuple):
    top: tuple[str, ...]
    """The group that is mounted, from the root of the (namespaced) hierarchy."""
    point: str
    version: int


def own_place(*, root: str = "/") -> Place:
    """The memory control groups of this process. Reads two files of /proc, then looks at one folder
    per level: 60 us and some 10 us more per level. Never raises."""
    own = _whole(os.path.join(root, "proc", "self", "cgroup"))
    if not own:
        return Place((), "no /proc/self/cgroup")
    version, path = _own_path(own)
    if not version:
        return Place((), "/proc/self/cgroup names no memory hierarchy")
    mounts = [mount for mount in _mounts(root) if mount.version == version]
    if not mounts:
        return Place((), f"the memory hierarchy (cgroup v{version}) is not mounted here")
    parts = _parts(path)
    # The mount that shows most levels first; of equals the latest, since it covers the others.
    mounts.reverse()
    for mount in sorted(mounts, key=_hidden_levels):
        inside = _inside(parts, mount, root)
        if inside is not None:
            groups = tuple(_climb(root, mount, inside))
            if groups:
                return Place(groups)
    return Place((), f"the own cgroup {path} lies outside of what is mounted")


def is_mounted_over(path: str, *, root: str = "/") -> bool:
    """Whether something of its own is mounted on `path`: an emulation of that file, such as lxcfs
    makes for containers. Reads mountinfo: some 50 us."""
    lines = _whole(os.path.join(root, "proc", "self", "mountinfo")).splitlines()
    return any(len(fields := line.split(" ", 5)) > 4 and fields[4] == path for line in lines)


def _own_path(own: str) -> tuple[int, str]:
    """(1 or 2, path) of the hierarchy that has the memory controller; (0, "") for none. A line of
    v1 that names the controller rules: v2 has a controller only while no v1 hierarchy does."""
    unified = ""
    for line in own.splitlines():
        number, _, rest = line.partition(":")
        controllers, colon, path = rest.partition(":")
        if not colon:
            continue
        if "memory" in controllers.split(","):
            return 1, path
        if number == "0" and not controllers:
            unified = path
    return (2, unified) if unified else (0, "")


def _mounts(root: str) -> list[_Mount]:
    text = _whole(os.path.join(root, "proc", "self", "mountinfo"))
    if not text:
        # Some sandboxes hide it. The usual places, where they look like what they should be.
        usual = (_Mount((), "/sys/fs/cgroup", 2), _Mount((), "/sys/fs/cgroup/memory", 1))
        return [mount for mount in usual if os.path.isdir(_under(root, mount.point))]
    found = []
    for line in text.splitlines():
        before, dash, after = line.partition(" - ")
        fields, kind = before.split(" "), after.split(" ")
        if not dash or len(fields) < 6 or len(kind) < 3:
            continue
        version = {"cgroup2": 2, "cgroup": 1}.get(kind[0], 0)
        if not version or (version == 1 and "memory" not in kind[2].split(",")):
            continue
        found.append(_Mount(_parts(_unescaped(fields[3])), _unescaped(fields[4]), version))
    return found


def _hidden_levels(mount: _Mount) -> int:
    """How many levels above what is mounted it does not show, counted from the root of this
    process's namespace; below zero where it shows some from outside of that."""
    return -len(mount.top) if ".." in mount.top else len(mount.top)


def _inside(parts: tuple[str, ...], mount: _Mount, root: str) -> tuple[str, ...] | None:
    """The own group's path below the mount point; None where it is not below it."""
    top = mount.top
    if parts[: len(top)] == top:
        rest = parts[len(top) :]
        return None if ".." in rest else rest
    if top and all(part == ".." for part in top) and ".." not in parts:
        # What is mounted is that many levels above the root of this process's namespace, whose own
        # name up there nobody tells: it is the group that lists this process.
        return _searched(_under(root, mount.point), len(top), parts)
    if _lists_this_process(_under(root, mount.point)):
        return ()
    return None


def _searched(folder: str, depth: int, parts: tuple[str, ...]) -> tuple[str, ...] | None:
    known = _found_before.get((folder, depth))
    if known is not None and _lists_this_process(os.path.join(folder, *known, *parts)):
        return (*known, *parts)
    level: list[tuple[str, ...]] = [()]
    for _ in range(depth):
        level = [
            (*path, name)
            for path in level
            for name in listed(os.path.join(folder, *path))
            if os.path.isdir(os.path.join(folder, *path, name))
        ][:_SEARCH_MOST]
    for path in level:
        if _lists_this_process(os.path.join(folder, *path, *parts)):
            _found_before[folder, depth] = path
            return (*path, *parts)
    return None


def _lists_this_process(folder: str) -> bool:
    return str(os.getpid()) in _whole(os.path.join(folder, "cgroup.procs")).split()


def _climb(root: str, mount: _Mount, inside: tuple[str, ...]) -> list[Group]:
    """The groups from the own one up to the mount point. A group that was removed under a process
    (its path ends in "(deleted)") is passed over: what lies above it still bounds."""
    point = _under(root, mount.point)
    found: list[Group] = []
    for length in range(len(inside), -1, -1):
        folder = os.path.join(point, *inside[:length])
        try:
            inode = os.stat(folder).st_ino
        except (OSError, ValueError):  # ValueError: a NUL in the path
            continue
        if mount.version == 1 and found and word(folder, "memory.use_hierarchy") == "0":
            continue  # it bounds only the processes directly in it
        name = "/" + "/".join((*mount.top, *inside[:length]))
        found.append(Group(folder, name, inode, mount.version))
    return found


def _parts(path: str) -> tuple[str, ...]:
    return tuple(part for part in path.removesuffix(_DELETED).split("/") if part)


def _under(root: str, path: str) -> str:
    return os.path.join(root, path.lstrip("/"))


def _unescaped(text: str) -> str:
    """mountinfo writes space, tab, newline and backslash as octal (proc(5))."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match.group(1), 8)), text)


def _whole(path: str) -> str:
    """All of a file that may be longer than a page; "" where it cannot be read."""
    try:
        with open(path, encoding="utf-8", errors="surrogateescape") as file:
            return file.read()
    except (OSError, ValueError):
        return ""
