"""Who leads this process: a ComfyUI host, or any member with role "host".

The group comes from the argument, else from MEMLEDGER_GROUP, else from the nearest ancestor that is
a member with role host, else it is that of the only live leader; else there is none. Two servers on
one machine never hear each other's clicks.
"""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING

from memledger import _native
from memledger.arguments import as_text
from memledger.views import Member

if TYPE_CHECKING:
    from memledger.ledger import Ledger

ENVIRONMENT = "MEMLEDGER_GROUP"
ONLY_HOST = "the only host"
_ANCESTORS_MAX = 32
_ID_BYTES_MAX = 63


def short_id(text: str, name: str = "id") -> str:
    """`text` where it fits 63 bytes of UTF-8, else a hash of it that does: the same everywhere."""
    data = as_text(text, name).encode("utf-8", "surrogatepass")
    with contextlib.suppress(UnicodeEncodeError):  # a lone surrogate, which is no UTF-8
        if len(text.encode()) <= _ID_BYTES_MAX and "\0" not in text:
            return text
    import hashlib  # 2 ms of import time that few processes ever need

    return hashlib.sha256(data).hexdigest()[:_ID_BYTES_MAX]


class Job(_native.Job):
    """A job of the group. `Ledger.job(id)` makes it; keep it and ask `interrupted()` at every
    step."""

    id: str

    def __new__(cls, ledger: Ledger, job_id: str) -> Job:
        self = super().__new__(cls, ledger, short_id(job_id, "job_id"))
        self.id = job_id
        return self

    def __repr__(self) -> str:
        return f"<memledger.Job {self.id!r}>"


def find_leader(
    hosts: tuple[Member, ...], own_slot: int, group: int, *, forked: bool = False
) -> tuple[Member | None, str]:
    """The member to follow and why (or why none), in one line.

    hosts: members with role host. forked: this process is a forked child; one of a host has that
    role too, but works for its parent.
    """
    hosts = tuple(m for m in hosts if m.state in ("live", "unverified"))
    own = next((host for host in hosts if host.slot == own_slot), None)
    if own is not None:
        parent = _nearest_ancestor(tuple(h for h in hosts if h is not own)) if forked else None
        if parent is None:
            return own, "it is a host itself"
        return parent, f"forked from it (pid {parent.pid})"
    if not hosts:
        return None, "no host has joined"
    if group:
        named = [m for m in hosts if m.group == group]
        if named:
            # The oldest: a host's forked children carry its name too.
            return min(named, key=lambda m: m.joined_ns), "named by the group"
        return None, "no live host has joined with this group's name"
    ancestor = _nearest_ancestor(hosts)
    if ancestor is not None:
        return ancestor, f"an ancestor (pid {ancestor.pid})"
    if len(hosts) == 1:
        return hosts[0], ONLY_HOST
    return None, f"{len(hosts)} hosts, none of them an ancestor; name one by group="


def _nearest_ancestor(hosts: tuple[Member, ...]) -> Member | None:
    namespace = own_pid_namespace()
    for pid in ancestors() if hosts else ():
        for host in hosts:
            if (host.pid, host.pid_namespace) == (pid, namespace):
                return host
    return None


def why_followed(member: Member, leader: Member) -> str:
    """Why `member` follows `leader`, as it looks from outside."""
    if member.slot == leader.slot:
        return "a host itself"
    if member.role == "host":
        return "forked from it"
    if member.group:
        return "named by the group"
    same = member.pid_namespace == leader.pid_namespace
    if same and leader.pid in ancestors(member.parent_pid):
        return "an ancestor"
    return ONLY_HOST


def why_alone(member: Member, hosts: int) -> str:
    """Why `member` follows nobody, with so many live hosts."""
    if not hosts:
        return "no host has joined"
    if member.group:
        return "no live host has joined with its group's name"
    return f"{hosts} hosts, none of them an ancestor"


def own_pid_namespace() -> int:
    """As members publish it: the namespace's inode, 0 where there is no such thing."""
    try:
        return os.stat("/proc/self/ns/pid").st_ino
    except OSError:
        return 0


def ancestors(parent_pid: int | None = None) -> list[int]:
    """Pids from that parent (by default this process's) up, as far as can be seen. Linux; elsewhere
    the parent alone."""
    pids: list[int] = []
    pid = os.getppid() if parent_pid is None else parent_pid
    while pid > 0 and len(pids) < _ANCESTORS_MAX:
        pids.append(pid)
        try:
            with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
                # The name in parentheses may contain anything; what follows the last one does not.
                pid = int(file.read().rpartition(")")[2].split()[1])
        except (OSError, IndexError, ValueError):
            break
    return pids
