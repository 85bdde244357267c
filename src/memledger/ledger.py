"""Joining, and the handle of a process that has joined."""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import threading
import time
import warnings
import weakref

from memledger import _native, groups
from memledger.arguments import as_seconds, as_text
from memledger.asks import AllSiblings, Asks, Holders
from memledger.device import Device
from memledger.errors import LedgerClosed
from memledger.groups import Job, find_leader, short_id
from memledger.housekeeping import Housekeeping
from memledger.model import DeviceSpec, Reading, absent, plausible
from memledger.readings import RamWatch, Source, resolve
from memledger.readings.bounded import bounded
from memledger.sizes import parse_size
from memledger.views import Member, member_from

_ROLES = {"other": 0, "host": 1, "worker": 2}
_MODES = ("shared", "unregistered", "private")
_STATUS_TEXT = {
    5: "the slot table is full",
    -4: "the segment has another layout",
    -5: "what is under the name is not a segment of ours",
    -6: "the directory is missing",
    -7: "a system call failed",
    -8: "out of memory",
}
_LAYOUTS_EVERY_S = 10.0
_FULL_SWEEP_EVERY_S = 1.0
_SETTLE_S = 0.04
_NOT_READY = 4
_FIND_LEADER_EVERY_S = 1.0
_SOURCE_IDLE_S = 5.0


class Ledger(_native.Ledger):
    """A joined process. `memledger.join()` makes it. Threads may share it; a forked child becomes a
    member of its own at its first use."""

    label: str
    role: str
    _devices: dict[str, Device]
    _pool_locks: dict[int, threading.Lock]
    _pool_sources: dict[int, Source]
    _source_retry: dict[int, tuple[float, float]]
    _read_at: dict[int, float]

    def __new__(
        cls,
        *,
        label: str,
        role: str,
        path: str | os.PathLike[str] | None,
        group: str | None = None,
        slots: int = 0,
    ) -> Ledger:
        if role not in _ROLES:
            raise ValueError(f"role: expected one of {', '.join(_ROLES)}, got {role!r}")
        from memledger import __version__

        path = absolute(path)
        label = as_text(label, "label")
        if "\0" in label:
            raise ValueError("label: expected no NUL character")
        group = None if group is None else as_text(group, "group")
        # A host without a name gets one, so that its workers can be told whose they are.
        name = group or os.environ.get(groups.ENVIRONMENT, "")
        if role == "host" and not name:
            name = f"host-{os.getpid()}-{os.urandom(4).hex()}"
        self = super().__new__(
            cls,
            path=path,
            label=label,
            role=_ROLES[role],
            program=os.path.basename(sys.argv[0] if sys.argv else "") or "python",
            version=__version__,
            slots=slots,
            group=_native.job_key(short_id(name)) if name else 0,
        )
        try:
            self._set_up(label, role, name, explicit_path=path is not None)
        except BaseException:
            # Nobody has the handle to leave with: the slot would stay taken for the life of this
            # process.
            self._leave()
            raise
        return self

    def _set_up(self, label: str, role: str, group: str, *, explicit_path: bool) -> None:
        self.label = label
        self.role = role
        self._explicit_path = explicit_path
        self._devices = {}
        self._pool_sources = {}
        self._source_retry = {}
        self._read_at = {}
        self._pool_locks = {}
        self._layouts_at = 0.0
        self._settling = []
        self._ram_device = None
        self._ram_watch = None
        self._ram_moved = False
        self._full_sweep_at = 0.0
        self._closed = False
        self.group = group
        self.holders = Holders()
        self._asks = Asks(self)
        self._leader_reason = ""
        self._leader_at = 0.0
        self._forked = False
        self._reset_locks()
        self._find_leader()
        self._housekeeping = Housekeeping(self)
        self._housekeeping.start()
        _alive.add(self)
        if self.scope == "private":
            _warn_private(self.degraded_reason)

    group: str
    """Name of the group; hand it to workers as MEMLEDGER_GROUP. "" where none was given: then the
    leader is found (`leader_reason`)."""
    holders: Holders
    """What siblings may ask this process to release."""
    _asks: Asks
    _leader_reason: str
    _leader_at: float
    _forked: bool
    _explicit_path: bool
    _closed: bool
    _layouts_at: float
    _settling: list[tuple[float, int, bytes, bool]]
    _ram_device: Device | None
    _ram_watch: RamWatch | None
    _ram_moved: bool
    _full_sweep_at: float
    _housekeeping: Housekeeping

    def __repr__(self) -> str:
        why = self.degraded_reason
        tail = f" degraded: {why}" if why else ""
        return f"<memledger.Ledger {self.label!r} scope={self.scope} path={self.path!r}{tail}>"

    # ---- what this ledger is

    @property
    def path(self) -> str:
        """Of the segment that was asked for, also when it could not be used."""
        return str(self._info()["path"])

    @property
    def scope(self) -> str:
        """Who shares these figures: "user" (the per-user default), "path" (whoever uses that path),
        "session" (Windows), or "private" (nobody)."""
        if self._info()["mode"] == 2:
            return "private"
        if self._explicit_path:
            return "path"
        return "session" if sys.platform == "win32" else "user"

    @property
    def degraded(self) -> bool:
        """True when this process is not a full member of a shared ledger."""
        return bool(self._info()["mode"] != 0)

    @property
    def degraded_reason(self) -> str | None:
        """Why, in one line; None when nothing is degraded. Retried in the background."""
        info = self._info()
        if info["mode"] == 0:
            return None
        return degraded_text(info)

    # ---- devices and members

    def device(self, name: object, *, total: int | str | None = None) -> Device:
        """The device of that name: "cuda:0", a torch.device, "GPU-<uuid>", "ram",
        "sim:card?total=24GiB"; or a DeviceSpec with a source of one's own.

        total: bytes (or "24GiB") to assume where there is no reading; the smallest of all members'
        counts.

        The same object again for the same device. Opening takes a reading, so the first figure is
        fresh: it may block in a driver. Raises UnknownDevice, and InvalidFigure for a bad total.
        """
        known = self._devices.get(name) if isinstance(name, str) and total is None else None
        if known is not None:
            return known
        self._housekeeping.start()  # if it could not when this process joined
        if isinstance(name, DeviceSpec):
            spec = name if total is None else name._replace(total=parse_size(total))
        else:
            spec = resolve(name, total=total)
        with self._lock:
            device = self._devices.get(spec.key) or Device(self, spec)
            # Each step on its own and each time: memory may have run out after the one before.
            self._adopt_sources(device)
            self._devices[spec.key] = device
            if spec.name in ("ram", "cpu") and self._ram_device is None:
                self._ram_device, self._ram_watch = device, RamWatch()
            if spec.total is not None:
                device._set_limit(spec.total)
            if isinstance(name, str) and "?" not in name:
                self._devices[name] = device
        device.refresh()
        return device

    def devices(self) -> tuple[Device, ...]:
        """The devices that this process has opened. Raises LedgerClosed after `leave`."""
        if self._closed:
            raise LedgerClosed()
        return tuple(dict.fromkeys(self._devices.values()))

    def members(self) -> tuple[Member, ...]:
        """All processes that have joined, this one included. Probes each one's lock: about a
        microsecond each."""
        self._housekeeping.start()
        return tuple(member_from(fields) for fields in self._members())

    # ---- asks

    def serve(self, timeout: float = 0.0) -> int:
        """Answer what siblings ask of this process, now and on this thread: call it at safe points.
        Waits up to `timeout` seconds for the first; returns how many were answered. `pending() & 1`
        says without cost whether there is one. Holders run in it, so it costs what they cost."""
        return self._asks.serve(timeout)

    def as_holder(self, bound_s: float = 0.02) -> AllSiblings:
        """One object with `release_memory(device, size)` that stands for all siblings. It answers
        within about `bound_s` seconds."""
        return AllSiblings(self, as_seconds(bound_s, "bound_s"))

    # ---- the group

    @property
    def leader(self) -> Member | None:
        """The member whose interrupt, prompt and free words this process reads; None: nobody's."""
        found = self._leader()
        if found is None:
            return None
        return next((m for m in self.members() if (m.slot, m.generation) == found), None)

    @property
    def leader_reason(self) -> str:
        """Why that one, or why none, in one line."""
        return self._leader_reason

    def job(self, job_id: str) -> Job:
        """A handle for the job of that id (any string), for `interrupt()` and `interrupted()`."""
        return Job(self, job_id)

    def prompt_begin(self, prompt_id: str) -> bool:
        """Leaders: a prompt begins; every member of the group sees its id. Clears the interrupt.
        False when this process leads no group."""
        return self._prompt_begin(short_id(prompt_id, "prompt_id"))

    def prompt_end(self, prompt_id: str | None = None) -> bool:
        """Leaders: the prompt has ended. `prompt_id` is for the caller's symmetry."""
        return self._prompt_end()

    def prompt(self) -> tuple[int, str, bool] | None:
        """(sequence, id, active) of the leader's latest prompt; None where there was none."""
        return self._prompt()

    def request_free(
        self, *, unload: bool = True, cache: bool = True, scope: str = "group"
    ) -> bool:
        """Ask the group (scope "group") or every member ("all") to drop models and caches, at each
        one's next safe point. False when there is no group."""
        if scope not in ("group", "all"):
            raise ValueError(f"scope: expected 'group' or 'all', got {scope!r}")
        flags = (1 if unload else 0) | (2 if cache else 0)
        if not flags:
            raise ValueError("expected unload=True or cache=True, got neither")
        return self._request_free(flags, scope == "all")

    def free_epoch(self) -> tuple[int, int]:
        """(epoch, flags): the epoch grows with each request that concerns this process; flags (1
        unload, 2 cache) are of the requests since the last call."""
        return self._free_epoch()

    def _find_leader(self) -> None:
        """Follow somebody, where nobody alive is followed yet. Looks at most once a second."""
        now = time.monotonic()
        followed = self._leader()
        # "The only host" is a guess: one that is named or an ancestor may have joined since.
        if now < self._leader_at or (followed and self._leader_reason != groups.ONLY_HOST):
            return
        self._leader_at = now + _FIND_LEADER_EVERY_S
        key = _native.job_key(short_id(self.group)) if self.group else 0
        hosts = tuple(member_from(fields) for fields in self._hosts())
        found, reason = find_leader(hosts, self._info()["slot"], key, forked=self._forked)
        if found is None and followed:
            return
        self._leader_reason = reason
        if found is not None and (found.slot, found.generation) != followed:
            self._follow(found.slot, found.generation)

    def _device_of(self, pool: int) -> Device | None:
        """The device whose own pool that is, else one that draws from it."""
        known = list(self.devices())
        known += [device._pin_pools.device for device in known if device._pin_pools is not None]
        own = (device for device in known if device._pools()[0] == pool)
        return next(own, None) or next((d for d in known if pool in d._pools()), None)

    def sweep(self) -> int:
        """Take back what dead members left; returns how many were removed. Housekeeping does the
        same by itself."""
        return self._sweep()

    def leave(self) -> None:
        """Publish zeros and give the slot back. Devices of this ledger raise LedgerClosed from then
        on. Harmless a second time."""
        self._leave()  # first: it is what matters, and it needs no memory
        self._closed = True
        self._housekeeping.stop()
        self._close_idle_sources(0.0)
        # Devices refer to this handle from C, where the garbage collector does not look: a cycle
        # through them would keep the mapping.
        self._devices = {}
        self._ram_device = None
        self.holders._clear()
        # Without the lock: `join` puts a handle only where none is, and takes none away.
        for key in [key for key, ledger in list(_joined.items()) if ledger is self]:
            _joined.pop(key, None)

    def __enter__(self) -> Ledger:
        return self

    def __exit__(self, *exc: object) -> None:
        self.leave()

    # ---- readings

    def _follow_ram(self) -> None:
        """A process that was moved to another control group draws from another chain: once a round,
        0.2 ms, where a RAM device is open."""
        device = self._ram_device
        if device is None or self._ram_watch is None:
            return
        # Kept until the work is done: what fails half-way is tried again.
        self._ram_moved = self._ram_watch.changed() or self._ram_moved
        if not self._ram_moved:
            return
        spec = resolve(device.name)
        with self._lock:
            device._follow_chain(spec)
            self._adopt_sources(device)
            self._devices = {k: d for k, d in self._devices.items() if d is not device}
            self._devices[spec.key] = self._devices[device.name] = device
        self._ram_moved = False

    def _adopt_sources(self, device: Device) -> None:
        for pool, source in zip(device._pools(), device._spec.sources, strict=True):
            if source is not None and pool not in self._pool_sources:
                self._pool_locks[pool] = threading.Lock()
                # Finding the device has opened its driver's session already, reading or not.
                self._read_at[pool] = time.monotonic()
                self._set_reader(pool, True)
                self._pool_sources[pool] = bounded(source)  # last: says that all of it is done

    def _read_if_older(self, pool: int, max_age_s: float) -> None:
        fields = self._reading(pool)
        known = fields["sequence"] and fields["total"] is not None
        if known and fields["age_s"] <= max_age_s:
            return
        retry_at, _ = self._source_retry.get(pool, (0.0, 0.0))
        if pool in self._pool_sources and time.monotonic() >= retry_at:
            self._take_reading(pool)

    def _read_if_due(self, device: Device) -> None:
        """Before a claim: a reading older than two periods is taken anew."""
        for pool in device._pools():
            self._read_if_older(pool, 2.0 if not device.figures().held else 0.5)

    def _take_reading(self, pool: int, dead: bytes | None = None) -> bool:
        """Ask the pool's source and publish what it says. True when it became the newest reading.
        An absent answer is published only where there is nothing better."""
        asked = self._ask_source(pool, dead)
        return asked is not None and self._publish_reading(pool, *asked)

    def _ask_source(self, pool: int, dead: bytes | None) -> tuple[bytes, Reading] | None:
        """The begun reading and the source's answer; None where there is no source, or another
        thread has it for longer than it may take."""
        source = self._pool_sources.get(pool)
        lock = self._pool_locks.get(pool)
        if source is None or lock is None or not lock.acquire(timeout=source.timeout_s):
            return None
        try:
            self._read_at[pool] = time.monotonic()
            begun = self._reading_begin(pool, dead)
            try:
                reading = plausible(source.read())
            except Exception as error:
                reading = absent(source.name, "probe_failed", repr(error))
        finally:
            lock.release()
        return begun, reading

    def _take_settling_reading(self, pool: int, *, again: bool = True) -> None:
        """A reading that is looked at again some 40 ms later: a member that had freed bytes just
        before the source was asked has published that by then. Until it has been looked at, the
        figure errs on the safe side. again: ask once more when somebody's held has fallen."""
        asked = self._ask_source(pool, None)
        if asked is not None and self._publish_reading(pool, *asked):
            self._settling.append((time.monotonic() + _SETTLE_S, pool, asked[0], again))

    def _settle_readings(self) -> None:
        now = time.monotonic()
        ripe = [entry for entry in self._settling if entry[0] <= now]
        self._settling = [entry for entry in self._settling if entry[0] > now]
        for _, pool, begun, again in ripe:
            if self._reading_settle(begun) == _NOT_READY and again:
                self._take_settling_reading(pool, again=False)

    def _publish_reading(self, pool: int, begun: bytes, reading: Reading) -> bool:
        if not reading.known:
            self._reader_failed(pool, reading.reason)
            newest = self._reading(pool)
            if newest["sequence"] and newest["total"] is not None:
                return False
        elif pool in self._source_retry:
            del self._source_retry[pool]
            self._set_reader(pool, True)
        fields = (
            reading.source,
            reading.total,
            reading.free,
            reading.reserved,
            reading.immediate,
            reading.soft_limit,
            reading.scope,
            reading.reason,
            reading.flags,
        )
        if reading.scope == "process":
            # One process's view never enters the segment: others would take it for the device's.
            self._reading_local(pool, *fields)
            return True
        status = self._reading_end(begun, *fields)
        if status == _NOT_READY:
            self._reader_failed(pool, "probe_failed")  # slower than a period: let another try
        return bool(status == 0)

    def _reader_failed(self, pool: int, reason: str | None) -> None:
        """Leave the pool to members that can read it; try again with a growing back-off. A GPU that
        sleeps has not failed: it may be awake in a second, and looking costs nothing."""
        _, step = self._source_retry.get(pool, (0.0, 0.5))
        step = 1.0 if reason == "suspended" else min(step * 2, 60.0)
        self._source_retry[pool] = (time.monotonic() + step, step)
        self._set_reader(pool, False)

    def _close_idle_sources(self, idle_s: float) -> None:
        """An open session with a driver keeps a laptop's GPU awake, so who has not read for
        `idle_s` closes his: members that do not refresh, and everybody once nobody asks."""
        now = time.monotonic()
        for pool in [pool for pool, at in list(self._read_at.items()) if now - at >= idle_s]:
            close = getattr(self._pool_sources.get(pool), "close", None)
            lock = self._pool_locks.get(pool)
            if close is None or lock is None:
                self._read_at.pop(pool, None)
            elif lock.acquire(blocking=False):  # else it is being read just now
                try:
                    self._read_at.pop(pool, None)
                    close()
                finally:
                    lock.release()

    def _retry_sources(self) -> None:
        now = time.monotonic()
        for pool in [pool for pool, (at, _) in self._source_retry.items() if now >= at]:
            self._take_reading(pool)

    def _sweep(self, *, full: bool = True) -> int:
        """Members removed. Where they held bytes in a pool with a source, a reading without them is
        published first, so that what the driver still has goes to unaccounted, not to free."""
        begun = self._sweep_begin(full)
        if begun is None:
            return 0
        capsule, dead, wanted, count = begun
        try:
            for pool in _bits(wanted):
                self._take_reading(pool, dead)
        finally:
            self._sweep_commit(capsule)
        return int(count)

    # ---- housekeeping

    def _housekeep(self) -> float:
        """One round; returns seconds until the next. Raises LedgerClosed after leave()."""
        self._settle_readings()
        due, next_s, changed = self._tick()
        if changed and self.scope == "private":
            _warn_private(self.degraded_reason)
        now = time.monotonic()
        full = now >= self._full_sweep_at
        if full:
            self._full_sweep_at = now + _FULL_SWEEP_EVERY_S
        self._sweep(full=full)
        self._find_leader()
        next_take_back = self._asks.take_back()
        if self.pending() & 1:
            self._asks.serve_on_housekeeping()
        self._follow_ram()
        for pool in _bits(due):
            self._take_settling_reading(pool)
        if self._settling:
            next_s = min(next_s, _SETTLE_S)
        if self._source_retry:
            self._retry_sources()
        self._close_idle_sources(_SOURCE_IDLE_S)
        if now >= self._layouts_at:
            self._layouts_at = now + _LAYOUTS_EVERY_S
            self._set_foreign_layout(bool(live_foreign_layouts(self.path)))
        return next_s if next_take_back is None else min(next_s, next_take_back)

    def _reset_locks(self) -> None:
        self._lock = threading.Lock()
        self.holders._reset_lock()
        self._asks._reset()
        self._pool_locks = {pool: threading.Lock() for pool in self._pool_sources}

    _lock: threading.Lock

    def _after_fork(self) -> None:
        """Called by the native module once this process has found itself to be a forked child."""
        # A fork that went past Python (raw clone, fork() in C) leaves the interpreter's own locks
        # as they were in the parent: a new thread might wait on them for ever. The child is a
        # member all the same, without housekeeping of its own.
        if not self._closed and _hooked_pid == os.getpid():
            self._leader_at = 0.0
            self._forked = True
            self._find_leader()
            self._housekeeping = Housekeeping(self)
            self._housekeeping.start()


_joined: dict[str, Ledger] = {}
_joined_lock = threading.Lock()
_hooked_pid = os.getpid()  # of the process in which Python's own fork hooks ran last
_alive: weakref.WeakSet[Ledger] = weakref.WeakSet()


def join(
    label: str = "",
    role: str = "other",
    *,
    group: str | None = None,
    path: str | os.PathLike[str] | None = None,
) -> Ledger:
    """Join the ledger; the same handle again for the same path in one process. The first call's
    label, role and group count, and leave() on it is for all of the process.

    label: what people see, cut at 63 bytes.
    role: "host", "worker" or "other".
    group: name shared by a host and its workers; else MEMLEDGER_GROUP, else found (groups.py).
    path: of the segment; else MEMLEDGER_PATH, else the per-user default. A relative one is taken
    from the working directory of this moment, so give children an absolute one.

    Never fails on account of the segment: then the ledger is private (`scope`, `degraded_reason`,
    and one warning of the logger "memledger"), works the same, and tries again in the background.
    RuntimeWarning where the handle was there already with another role or group. TypeError and
    ValueError for arguments. Under 5 ms.
    """
    path = absolute(path)
    key = os.fsdecode(path) if path else _native.default_path() or ""
    # Not `with`, whose end needs memory for its arguments: where there is none, the lock would stay
    # held, and the next join would wait for ever.
    lock = _joined_lock
    lock.acquire()
    try:
        ledger = _joined.get(key)
        if ledger is None:
            ledger = Ledger(label=label, role=role, path=path, group=group)
            _joined[key] = ledger
            return ledger
    finally:
        lock.release()
    if role not in ("other", ledger.role) or group not in (None, ledger.group):
        warnings.warn(
            f"this process has joined {key} already, as {ledger.role!r} of group "
            f"{ledger.group!r}; that handle is returned, and role={role!r}, group={group!r} do not "
            "count",
            RuntimeWarning,
            stacklevel=2,
        )
    return ledger


def absolute(path: str | os.PathLike[str] | None) -> str | None:
    """The path that is meant: the argument, else MEMLEDGER_PATH, made absolute, since a segment is
    opened anew when it is replaced and the working directory may be another by then; None: the
    default."""
    if path is not None and not isinstance(path, (str, bytes, os.PathLike)):
        raise TypeError(f"path: expected a str or a path, got {type(path).__name__}")
    asked = path or os.environ.get("MEMLEDGER_PATH")
    return os.path.abspath(os.fsdecode(asked)) if asked else None


def _warn_private(reason: str | None) -> None:
    # G8: joining never fails on account of this. A process that has changed its user or its root
    # may be unable to import anything more, and a handler of the program may raise.
    with contextlib.suppress(Exception):
        import logging  # late: most processes never need it

        logger = logging.getLogger("memledger")
        if logger.hasHandlers():  # else Python would print it, where no logging is set up
            logger.warning("private ledger, shared with nobody: %s", reason)


def degraded_text(info: dict[str, object]) -> str:
    """One line from the fields that the native module gives about a degraded handle or a segment
    that could not be read."""
    status = int(str(info["status"]))
    text = _STATUS_TEXT.get(status, f"status {status}")
    code, call = int(str(info["system_code"])), info["system_call"]
    if status == -4:
        layout = info["layout"]
        major, minor = layout if isinstance(layout, tuple) else (0, 0)
        ours = f"{_native.LAYOUT_MAJOR}.{_native.LAYOUT_MINOR}"
        text += f": expected {ours}, found {major}.{minor}"
    elif code:
        text += f": {call}: {os.strerror(code)}"
    elif call:
        text += f": {call}"
    return f"{text} ({info['path']})" if status != 5 else text


def live_foreign_layouts(path: str) -> list[str]:
    """Segments of other layout versions beside `path` that some process is a member of."""
    directory, name = os.path.split(path)
    prefix, dash, uid = name.rpartition("-")
    stem = prefix.rstrip("0123456789")
    if not dash or not stem.endswith("-v"):
        return []
    found = []
    with contextlib.suppress(OSError):
        for other in os.listdir(directory):
            version = other[len(stem) : len(other) - len(uid) - 1]
            if other != name and other.startswith(stem) and other.endswith(f"-{uid}"):
                where = os.path.join(directory, other)
                if version.isdigit() and _native.has_live_members(where):
                    found.append(where)
    return found


def _bits(word: int) -> list[int]:
    return [index for index in range(word.bit_length()) if word >> index & 1]


def _reset_after_fork() -> None:
    """A lock that another thread held at the fork stays locked in the child: make them anew."""
    global _joined_lock, _hooked_pid
    _joined_lock = threading.Lock()
    _hooked_pid = os.getpid()
    for ledger in list(_alive):
        ledger._reset_locks()


def _stop_threads() -> None:
    # Bytes are not given up here: the driver still has them, and the kernel drops the lock last.
    for ledger in list(_alive):
        ledger._housekeeping.stop()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_reset_after_fork)
atexit.register(_stop_threads)
