"""Simulated cards: `sim:<name>` devices, for the demo, the tests, and the benchmark of truth.

A card is bookkeeping in a shared file that all processes of one user open by name. Its capacity is
enforced, bytes may land over time, an allocation that does not fit raises `OutOfMemory` (which
torch's own handlers catch where torch is loaded), and what a killed process held comes back, after
a delay if one is set. No byte of memory is allocated.

The file is a fixed table of processes. Every change is made under an advisory lock that the kernel
releases at death, and every sum is made anew from the table, so a process may be killed at any
instruction: each change is a single store, or several in an order that counts bytes rather twice
than not at all. A process lives as long as it holds the lock on its byte of the file, which no pid,
clock or namespace can confuse; where the system has no such lock the card says so in its header and
pid with start time must do. Times are those of the machine's monotonic clock.

Works on Linux, and by pid on other POSIX systems (not tested there). Not on Windows, which has
neither lock: opening a card raises SimError.

A card stays after its last process, as a card in a machine does: `remove(name)` deletes it.
"""

from __future__ import annotations

import errno
import mmap
import os
import stat
import struct
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from memledger.errors import InvalidFigure, LedgerError, UnknownDevice
from memledger.model import BYTES_MAX
from memledger.sizes import format_size, parse_size

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

__all__ = [
    "Allocation",
    "Allocator",
    "Block",
    "Card",
    "OutOfMemory",
    "SimError",
    "existing",
    "open_url",
    "remove",
]

# The file is an array of 64-bit words, header first. A word is stored by one machine instruction
# (memoryview.cast), so a killed writer leaves the old value or the new one.
_MAGIC = int.from_bytes(b"mlsim\x00\x00\x02", "little")
(
    _H_MAGIC,
    _H_TOTAL,
    _H_RESERVED,
    _H_LAND,
    _H_FREE_DELAY,
    _H_DEATH_DELAY,
    _H_LATENCY,
    _H_FRAGMENTATION,
) = range(8)
_H_LIVENESS = 8  # creator: _BY_LOCK or _BY_PID; everybody does as it says
_H_FOREIGN = 9  # any, under the lock
_HEADER_WORDS = 64
_BY_LOCK, _BY_PID = 1, 2

_ENTRIES = 256
_TICKETS = 16
_E_STATE, _E_PID, _E_START, _E_TOKEN, _E_DIED_NS, _E_SETTLED = range(6)
_ENTRY_HEAD = 8
_T_KIND, _T_SIZE, _T_BEGIN_NS, _T_LANDED = range(4)
_TICKET_WORDS = 4
_ENTRY_WORDS = _ENTRY_HEAD + _TICKETS * _TICKET_WORDS
_FILE_BYTES = 8 * (_HEADER_WORDS + _ENTRIES * _ENTRY_WORDS)

_FREE, _LIVE, _DEAD = 0, 1, 2
_LANDING, _FREEING = 1, 2
_FAILED = 1 << 63  # in _T_LANDED: this landing hit the end of the card; no further byte lands

_LOCK_BYTE = 1 << 40  # liveness lock of entry i; beyond the data, so that it locks nothing else
_LOCK_WAIT_S = 5.0
_PPM = 1_000_000
_S = 1_000_000_000

_LEAST_TOTAL = 4096  # one unit: below, free would be 0 for ever
_PARAMETERS = ("total", "reserved", "land", "free_delay", "death_delay", "latency", "fragmentation")


class SimError(LedgerError):
    """The card's file cannot be used: absent, not ours, full, or locked for too long."""


class OutOfMemory(RuntimeError):
    """An allocation did not fit. Where torch is already loaded, what is raised is also a
    torch.cuda.OutOfMemoryError.

    wanted, free, total: bytes; for a landing block `wanted` is its whole size.
    """

    def __init__(self, card: str, wanted: int, free: int, total: int) -> None:
        self.card, self.wanted, self.free, self.total = card, wanted, free, total
        super().__init__(
            f"sim:{card} out of memory. Tried to allocate {format_size(wanted)}; "
            f"{format_size(free)} of {format_size(total)} is free."
        )

    def __reduce__(self) -> tuple[object, ...]:
        # The torch class is made per process, so what travels is the parts.
        return out_of_memory, (self.card, self.wanted, self.free, self.total)


def out_of_memory(card: str, wanted: int, free: int, total: int) -> OutOfMemory:
    """The exception for an allocation that did not fit: OutOfMemory, of torch's class too where
    torch is loaded."""
    return _oom_class()(card, wanted, free, total)


_oom_classes: dict[object, type[OutOfMemory]] = {}


def _oom_class() -> type[OutOfMemory]:
    # sys.modules only: importing torch takes seconds and memory, and a test without torch must not
    # need it.
    theirs = getattr(getattr(sys.modules.get("torch"), "cuda", None), "OutOfMemoryError", None)
    if not (isinstance(theirs, type) and issubclass(theirs, Exception)):
        return OutOfMemory
    made = _oom_classes.get(theirs)
    if made is None:
        body = {"__module__": __name__, "__doc__": OutOfMemory.__doc__}
        made = _oom_classes[theirs] = type("OutOfMemory", (OutOfMemory, theirs), body)
    return made


class _Config(NamedTuple):
    total: int
    reserved: int
    land_bytes_per_s: int  # 0: at once
    free_delay_ns: int
    death_delay_ns: int
    latency_ns: int
    fragmentation_ppm: int


class Holder(NamedTuple):
    """Truth about one process on a card. bytes: landed, or not yet returned. alive: False while its
    bytes wait for the death delay."""

    pid: int
    bytes: int
    alive: bool


# ---- names and places


def _directory() -> str:
    """That of the ledger's segment, so that whoever is given a ledger of his own has cards of his
    own too."""
    override = os.environ.get("MEMLEDGER_PATH", "")
    if override:
        return override if os.path.isdir(override) else os.path.dirname(os.path.abspath(override))
    if sys.platform == "linux" and os.path.isdir("/dev/shm"):
        return "/dev/shm"
    import tempfile  # 4 ms that a process on Linux need not pay

    return tempfile.gettempdir()


def _uid() -> int:
    return os.geteuid() if hasattr(os, "geteuid") else 0


def _prefix() -> str:
    return f"memledger-sim-{_uid()}-"


def _path(name: str, directory: str | None) -> str:
    allowed = name.replace("-", "").replace("_", "").replace(".", "")
    if not (name.isascii() and allowed.isalnum() and len(name) <= 48):
        raise UnknownDevice(
            f"sim:{name}", "a card's name is 1 to 48 of A-Z a-z 0-9 . _ -", _names()
        )
    return os.path.join(directory or _directory(), _prefix() + name)


def existing(*, directory: str | None = None) -> tuple[str, ...]:
    """Names of the cards that exist, sorted. Opens none of them."""
    try:
        files = os.listdir(directory or _directory())
    except OSError:
        return ()
    return tuple(
        sorted(
            file[len(_prefix()) :]
            for file in files
            if file.startswith(_prefix()) and "~" not in file
        )
    )


def _names() -> tuple[str, ...]:
    return tuple(f"sim:{name}" for name in existing())


def remove(name: str, *, directory: str | None = None) -> bool:
    """Deletes a card. Processes that have it open go on with the old one and meet nobody there.
    False: there was none."""
    try:
        os.unlink(_path(name, directory))
    except FileNotFoundError:
        return False
    return True


def open_url(text: str, *, total: int | None = None) -> Card:
    """The card that
    "<name>[?total=24GiB&reserved=512MiB&land=2GiB/s&free_delay=0.1&death_delay=0.2&latency=0.01&
    fragmentation=0.1]" names (what follows "sim:"); delays in seconds. Raises UnknownDevice for
    anything else in it, InvalidFigure where the card exists with other values."""
    name, _, query = text.partition("?")
    given: dict[str, str] = {}
    for part in query.split("&") if query else ():
        key, separator, value = part.partition("=")
        if key not in _PARAMETERS or not separator or key in given:
            why = (
                "given twice"
                if key in given
                else f"expected {', '.join(_PARAMETERS)}, each as name=value"
            )
            raise UnknownDevice(f"sim:{text}", f"parameter {part!r}: {why}")
        given[key] = value
    size = parse_size(given["total"]) if "total" in given else total
    if total is not None and size != total:
        raise InvalidFigure(f"sim:{text} says total {size}, the argument says {total}")
    if size is not None and size < _LEAST_TOTAL:
        raise InvalidFigure(
            f"total: the ledger counts in units of {_LEAST_TOTAL} bytes, so a card needs at least "
            f"that, got {size}"
        )
    land = given.get("land")
    return Card(
        name,
        total=size,
        reserved=parse_size(given["reserved"]) if "reserved" in given else None,
        land_bytes_per_s=None
        if land is None
        else parse_size(land[:-2] if land.endswith("/s") else land),
        free_delay_s=_number(text, given, "free_delay"),
        death_delay_s=_number(text, given, "death_delay"),
        latency_s=_number(text, given, "latency"),
        fragmentation=_number(text, given, "fragmentation"),
    )


def _number(text: str, given: dict[str, str], key: str) -> float | None:
    if key not in given:
        return None
    try:
        return float(given[key])
    except ValueError:
        raise UnknownDevice(f"sim:{text}", f"{key}={given[key]!r}: expected a number") from None


# ---- the shared file

# Serialises the threads of this process, and is held over fork(), so that no child inherits a
# descriptor whose lock it would keep alive for its parent.
_process_lock = threading.RLock()
_tables: weakref.WeakValueDictionary[str, _Table] = weakref.WeakValueDictionary()
# Every table that is open here, those of removed cards too: a child must close the descriptors of
# all of them.
_opened: weakref.WeakSet[_Table] = weakref.WeakSet()
# Those on which this process has something: its bytes stay, whatever becomes of the Card objects.
_in_use: set[_Table] = set()


def _after_fork_in_child() -> None:
    global _process_lock
    _process_lock = threading.RLock()
    for table in list(_opened):
        table.forget_entry()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=lambda: _process_lock.acquire(),
        after_in_parent=lambda: _process_lock.release(),
        after_in_child=_after_fork_in_child,
    )


class _Table:
    """The mapped file, and this process's entry in it. Shared by all Cards of one file in a
    process.

    All methods but `transaction` expect to be called inside one.
    """

    def __init__(self, path: str, wanted: dict[str, int]) -> None:
        self.path = path
        self.epoch = 0
        self._entry: int | None = None
        self._lock_fd = -1
        fd, created = _open_or_create(path, wanted)
        try:
            self._identity = _identity(os.fstat(fd))
            self._map = mmap.mmap(fd, _FILE_BYTES)
            can_lock = _ofd_locks(fd)
        finally:
            os.close(fd)
        self._words = memoryview(self._map).cast("Q")
        self.by_lock = self._words[_H_LIVENESS] == _BY_LOCK
        self.config = _Config(*self._words[_H_TOTAL : _H_FRAGMENTATION + 1].tolist())
        if self.by_lock and not can_lock:
            raise SimError(
                f"{path} tells the living by file locks, which this system does not have"
            )
        if not created:
            self.compare(wanted)
        # Now, while the path leads here: a card that is removed later can be used on.
        self._lock_fd = self._own_descriptor()
        _opened.add(self)

    def __del__(self) -> None:
        if self._lock_fd >= 0:
            os.close(self._lock_fd)

    def compare(self, wanted: dict[str, int]) -> None:
        for field, value in wanted.items():
            there = getattr(self.config, field)
            if there != value:
                shown = [
                    f"{format_size(n)} ({n})" if field in ("total", "reserved") else str(n)
                    for n in (there, value)
                ]
                raise InvalidFigure(
                    f"card {self.path} exists with {field} {shown[0]}, opened with {shown[1]}; "
                    "memledger.sim.remove(name) deletes it"
                )

    def is_current(self) -> bool:
        """Whether the path still leads to the file that is mapped here."""
        try:
            return _identity(os.lstat(self.path)) == self._identity
        except OSError:
            return False

    @contextmanager
    def transaction(self) -> Iterator[int]:
        """Alone on the card, with all that time and death have done to it since the last look
        applied. Yields now, in monotonic ns. Raises SimError when others keep the lock for 5 s (a
        stopped process)."""
        deadline = time.monotonic() + _LOCK_WAIT_S
        while True:
            with _process_lock:
                if self._try_lock():
                    try:
                        now = time.monotonic_ns()
                        self._bury(now)
                        self._advance(now)
                        yield now
                    finally:
                        fcntl.flock(self._lock_fd, fcntl.LOCK_UN)
                    return
            if time.monotonic() > deadline:
                raise SimError(
                    f"{self.path} has been locked for {_LOCK_WAIT_S} s by another process"
                )
            time.sleep(0.0002)

    def _try_lock(self) -> bool:
        if self._lock_fd < 0:
            self._lock_fd = self._own_descriptor()
        try:
            fcntl.flock(self._lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in (errno.EWOULDBLOCK, errno.EACCES, errno.EINTR):
                return False
            raise SimError(f"flock {self.path}: {error.strerror}") from None
        return True

    def _own_descriptor(self) -> int:
        """An open file description that carries this process's locks and nothing else: not the
        mapping's, which a child inherits and which would keep a dead parent alive."""
        try:
            fd = _open_valid(self.path)
        except FileNotFoundError:
            raise SimError(f"{self.path} was removed; open the card again") from None
        if _identity(os.fstat(fd)) != self._identity:
            os.close(fd)
            raise SimError(f"{self.path} was removed and made anew; open the card again")
        return fd

    # -- this process's entry

    def entry(self) -> int:
        """First word of this process's entry, taken on first use."""
        if self._entry is None:
            self._entry = self._take_entry()
            _in_use.add(self)
        return _first_word(self._entry)

    def own_entry(self) -> int | None:
        """The same, None where this process has not used the card."""
        return None if self._entry is None else _first_word(self._entry)

    def _take_entry(self) -> int:
        for index, state in enumerate(self._states()):
            if state == _FREE and self._lock_life(index):
                at = _first_word(index)
                # The state says LIVE last: until then nobody counts what the last owner left here.
                for word in range(at + 1, at + _ENTRY_WORDS):
                    self._words[word] = 0
                self._words[at + _E_PID] = os.getpid()
                self._words[at + _E_START] = _start_ticks(os.getpid())
                self._words[at + _E_TOKEN] = int.from_bytes(os.urandom(8), "little")
                self._words[at + _E_STATE] = _LIVE
                return index
        raise SimError(f"{self.path} has no room for another process ({_ENTRIES})")

    def release_entry(self) -> None:
        """Gives everything of this process back at once."""
        if self._entry is not None:
            self._words[_first_word(self._entry) + _E_STATE] = _FREE
            if self.by_lock:
                _ofd_lock(self._lock_fd, fcntl.F_UNLCK, self._entry)
        self._entry = None
        self.epoch += 1
        _in_use.discard(self)

    def forget_entry(self) -> None:
        """In a forked child: the entry is the parent's, and so is the description that holds its
        lock."""
        if self._lock_fd >= 0:
            os.close(self._lock_fd)
        self._lock_fd, self._entry = -1, None
        self.epoch += 1
        _in_use.discard(self)

    # -- life and death

    def _lock_life(self, index: int) -> bool:
        return not self.by_lock or _ofd_lock(self._lock_fd, fcntl.F_WRLCK, index)

    def _is_alive(self, index: int) -> bool:
        if self.by_lock:
            return _ofd_is_locked(self._lock_fd, index)
        at = _first_word(index)
        return _pid_is_alive(self._words[at + _E_PID], self._words[at + _E_START])

    def _bury(self, now: int) -> None:
        for index, state in enumerate(self._states()):
            at = _first_word(index)
            if state == _LIVE and index != self._entry and not self._is_alive(index):
                # The time first: a burier that is killed in between leaves a live entry, which the
                # next one finds.
                self._words[at + _E_DIED_NS] = now
                self._words[at + _E_STATE] = state = _DEAD
            if state == _DEAD and now - self._words[at + _E_DIED_NS] >= self.config.death_delay_ns:
                self._words[at + _E_STATE] = _FREE

    # -- sums

    def _states(self) -> list[int]:
        return self._words[_HEADER_WORDS::_ENTRY_WORDS].tolist()

    def used(self, now: int) -> int:
        total = self._words[_H_FOREIGN]
        for index, state in enumerate(self._states()):
            if state != _FREE:
                at = _first_word(index)
                total += self.held(at) + self._leaving(at, now)
        return total

    def free(self, now: int) -> int:
        return max(0, self.config.total - self.config.reserved - self.used(now))

    def held(self, at: int) -> int:
        """Bytes that the process of the entry at word `at` has on the card."""
        total = self._words[at + _E_SETTLED]
        for ticket in _tickets(at):
            if self._words[ticket + _T_KIND] == _LANDING:
                total += self._words[ticket + _T_LANDED] & ~_FAILED
        return total

    def _leaving(self, at: int, now: int) -> int:
        """Bytes that it has freed and that are still taken."""
        words = self._words
        return sum(
            words[ticket + _T_SIZE]
            for ticket in _tickets(at)
            if words[ticket + _T_KIND] == _FREEING and now < words[ticket + _T_BEGIN_NS]
        )

    def settled(self, at: int) -> int:
        return self._words[at + _E_SETTLED]

    def holders(self, now: int) -> tuple[Holder, ...]:
        found = []
        for index, state in enumerate(self._states()):
            if state != _FREE:
                at = _first_word(index)
                held = self.held(at) + self._leaving(at, now)
                found.append(Holder(self._words[at + _E_PID], held, state == _LIVE))
        return tuple(found)

    @property
    def foreign(self) -> int:
        return self._words[_H_FOREIGN]

    @foreign.setter
    def foreign(self, nbytes: int) -> None:
        self._words[_H_FOREIGN] = nbytes

    # -- bytes that come and go. Several stores are ordered so that a kill between them counts bytes
    # twice, in an entry whose process is then dead; never not at all, in one that lives.

    def settle(self, nbytes: int) -> None:
        self._words[self.entry() + _E_SETTLED] += nbytes

    def unsettle(self, nbytes: int, now: int) -> None:
        at = self.entry()
        self._start_leaving(at, nbytes, now)
        self._words[at + _E_SETTLED] -= nbytes

    def start_landing(self, nbytes: int, now: int) -> int:
        ticket = self._free_ticket(self.entry(), now)
        if ticket is None:
            raise SimError(
                f"{self.path}: {_TICKETS} blocks of this process are landing or leaving already"
            )
        self._words[ticket + _T_SIZE] = nbytes
        self._words[ticket + _T_BEGIN_NS] = now
        self._words[ticket + _T_LANDED] = 0
        self._words[ticket + _T_KIND] = _LANDING
        return ticket

    def landing(self, ticket: int) -> tuple[int, bool]:
        """(landed bytes, whether it has hit the end of the card)"""
        word = self._words[ticket + _T_LANDED]
        return word & ~_FAILED, bool(word & _FAILED)

    def end_landing(self, ticket: int, now: int, *, keep: bool) -> None:
        """The landed bytes become settled ones, or go."""
        landed, _ = self.landing(ticket)
        if keep:
            self.settle(landed)
        else:
            self._start_leaving(self.entry(), landed, now)
        self._words[ticket + _T_KIND] = 0

    def _start_leaving(self, at: int, nbytes: int, now: int) -> None:
        if self.config.free_delay_ns == 0 or nbytes == 0:
            return
        due = now + self.config.free_delay_ns
        ticket = self._free_ticket(at, now)
        if ticket is None:
            leaving = [t for t in _tickets(at) if self._words[t + _T_KIND] == _FREEING]
            if not leaving:
                return  # sixteen landings at once: these bytes go without the delay
            self._words[leaving[-1] + _T_BEGIN_NS] = due
            self._words[leaving[-1] + _T_SIZE] += nbytes
            return
        self._words[ticket + _T_SIZE] = nbytes
        self._words[ticket + _T_BEGIN_NS] = due
        self._words[ticket + _T_KIND] = _FREEING

    def _free_ticket(self, at: int, now: int) -> int | None:
        for ticket in _tickets(at):
            kind = self._words[ticket + _T_KIND]
            if kind == 0 or (kind == _FREEING and now >= self._words[ticket + _T_BEGIN_NS]):
                self._words[ticket + _T_KIND] = 0
                return ticket
        return None

    def _advance(self, now: int) -> None:
        """Lands what has come due since the last look, the longest running block first. Anybody
        does it for all, one store per block; a block that meets the end of the card keeps what
        fitted and is marked failed."""
        words = self._words
        running = []
        for index, state in enumerate(self._states()):
            if state == _LIVE:
                for ticket in _tickets(_first_word(index)):
                    if (
                        words[ticket + _T_KIND] == _LANDING
                        and not words[ticket + _T_LANDED] & _FAILED
                    ):
                        running.append((words[ticket + _T_BEGIN_NS], ticket))
        if not running:
            return
        room = self.free(now)
        for begin, ticket in sorted(running):
            landed = words[ticket + _T_LANDED]
            due = min(
                words[ticket + _T_SIZE], max(0, now - begin) * self.config.land_bytes_per_s // _S
            )
            step = max(0, due - landed)
            if step <= room:
                words[ticket + _T_LANDED] = landed + step
                room -= step
            else:
                words[ticket + _T_LANDED] = (landed + room) | _FAILED
                room = 0


def _first_word(index: int) -> int:
    return _HEADER_WORDS + index * _ENTRY_WORDS


def _tickets(at: int) -> range:
    return range(at + _ENTRY_HEAD, at + _ENTRY_WORDS, _TICKET_WORDS)


def _identity(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino


def _open_valid(path: str) -> int:
    """A descriptor of a card's file that is ours and whole. FileNotFoundError, or SimError that
    says what is wrong."""
    # O_NONBLOCK: a FIFO planted under the name must not hang the open.
    flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY
    try:
        fd = os.open(path, flags)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise SimError(f"open {path}: {error.strerror}") from None
    status = os.fstat(fd)
    complaint = (
        "not a regular file"
        if not stat.S_ISREG(status.st_mode)
        else f"owned by uid {status.st_uid}, expected {_uid()}"
        if status.st_uid != _uid()
        else f"mode {status.st_mode & 0o777:o}, expected 600"
        if status.st_mode & 0o077
        else f"{status.st_size} bytes, expected {_FILE_BYTES}"
        if status.st_size != _FILE_BYTES
        else "not a card of this version"
        if os.pread(fd, 8, 0) != _MAGIC.to_bytes(8, sys.byteorder)
        else ""
    )
    if complaint:
        os.close(fd)
        raise SimError(f"{path}: {complaint}")
    return fd


def _open_or_create(path: str, wanted: dict[str, int]) -> tuple[int, bool]:
    """(descriptor, whether this call made the file). A file has its name only once it is
    complete."""
    for _ in range(100):
        try:
            return _open_valid(path), False
        except FileNotFoundError:
            pass
        if "total" not in wanted:
            name = os.path.basename(path)[len(_prefix()) :]
            raise UnknownDevice(
                f"sim:{name}",
                "no such card yet; give its size, as in 'sim:card?total=24GiB'",
                _names(),
            )
        if _create(path, _Config(**{**dict.fromkeys(_Config._fields, 0), **wanted})):
            return _open_valid(path), True
    raise SimError(f"{path} is made and removed again all the time")


def _create(path: str, config: _Config) -> bool:
    """Makes the file; False where another process was faster."""
    draft = f"{path}~{os.getpid()}-{os.urandom(4).hex()}"
    try:
        fd = os.open(
            draft, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600
        )
    except OSError as error:
        why = f"{error.strerror}; a simulated card is a file beside the segment (MEMLEDGER_PATH)"
        raise SimError(f"create {path}: {why}") from None
    try:
        words = (_MAGIC, *config, _BY_LOCK if _ofd_locks(fd) else _BY_PID)
        content = struct.pack(f"={len(words)}Q", *words).ljust(_FILE_BYTES, b"\0")
        os.fchmod(fd, 0o600)  # a umask may have taken the owner's bits
        os.write(
            fd, content
        )  # written, not only sized: a full tmpfs must fail here and not at the first store
        os.link(draft, path)
    except FileExistsError:
        return False
    except OSError as error:
        raise SimError(f"create {path}: {error.strerror}") from None
    finally:
        os.close(fd)
        os.unlink(draft)
    return True


# ---- liveness


def _ofd_locks(fd: int) -> bool:
    """Whether that file can have locks that belong to an open file description: Linux, 64 bit (the
    layout of struct flock below). Some sandboxes know the name and answer EINVAL."""
    if sys.platform != "linux" or sys.maxsize <= 1 << 32 or not hasattr(fcntl, "F_OFD_SETLK"):
        return False
    try:
        fcntl.fcntl(fd, fcntl.F_OFD_GETLK, _flock(fcntl.F_RDLCK, 0))
    except OSError:
        return False
    return True


def _flock(kind: int, index: int) -> bytes:
    return struct.pack("hhqqi4x", kind, os.SEEK_SET, _LOCK_BYTE + index, 1, 0)


def _ofd_lock(fd: int, kind: int, index: int) -> bool:
    try:
        fcntl.fcntl(fd, fcntl.F_OFD_SETLK, _flock(kind, index))
    except OSError as error:
        if error.errno in (errno.EAGAIN, errno.EACCES):
            return False
        raise SimError(f"fcntl F_OFD_SETLK: {error.strerror}") from None
    return True


def _ofd_is_locked(fd: int, index: int) -> bool:
    answer = fcntl.fcntl(fd, fcntl.F_OFD_GETLK, _flock(fcntl.F_RDLCK, index))
    return bool(struct.unpack("hhqqi4x", answer)[0] != fcntl.F_UNLCK)


def _start_ticks(pid: int) -> int:
    """When the process started, in ticks since boot; 0 where the system does not say, or there is
    no such process."""
    return int(_stat_fields(pid)[19]) if _stat_fields(pid) else 0


def _stat_fields(pid: int) -> list[bytes]:
    """Fields of /proc/<pid>/stat from the third on: what stands before may contain spaces and
    brackets."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()
    except OSError:
        return []


def _pid_is_alive(pid: int, start_ticks: int) -> bool:
    """Where there are no locks to ask. Wrong across pid namespaces; "no permission" and silence
    count as alive."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    fields = _stat_fields(pid)
    if not fields:
        return True
    return fields[0] not in (b"Z", b"X") and (start_ticks == 0 or int(fields[19]) == start_ticks)


# ---- cards, blocks


class Card:
    """A simulated card, opened or made. All Cards of one name in a process are one user of the
    card.

    name: 1 to 48 of A-Z a-z 0-9 . _ -
    total: bytes; needed by whoever makes the card.
    reserved: bytes of total that the driver keeps.
    land_bytes_per_s: how fast the bytes of an allocation land; 0 (default): at once.
    free_delay_s: how long freed bytes stay taken. death_delay_s: how long those of a dead process
    do, from when any process first notices the death.
    latency_s: how long each allocation, free and `read` takes at least.
    fragmentation: the part of the free bytes, 0 to 1, that a single allocation cannot have.
    directory: where the file lies; default beside the ledger's segment.

    Values left out are those of the existing card, or 0 for a new one. Raises InvalidFigure where
    the card exists with another value, UnknownDevice where it does not exist and `total` is
    missing, SimError where its file is not usable.
    """

    def __init__(
        self,
        name: str,
        *,
        total: int | None = None,
        reserved: int | None = None,
        land_bytes_per_s: int | None = None,
        free_delay_s: float | None = None,
        death_delay_s: float | None = None,
        latency_s: float | None = None,
        fragmentation: float | None = None,
        directory: str | None = None,
    ) -> None:
        if fcntl is None:
            raise SimError("simulated cards need file locks that this system does not have")
        self.name = name
        path = _path(name, directory)
        wanted = {
            "total": _bytes("total", total),
            "reserved": _bytes("reserved", reserved),
            "land_bytes_per_s": _bytes("land_bytes_per_s", land_bytes_per_s),
            "free_delay_ns": _scaled("free_delay_s", free_delay_s, _S, 3600),
            "death_delay_ns": _scaled("death_delay_s", death_delay_s, _S, 3600),
            "latency_ns": _scaled("latency_s", latency_s, _S, 3600),
            "fragmentation_ppm": _scaled("fragmentation", fragmentation, _PPM, 1),
        }
        given = {field: value for field, value in wanted.items() if value is not None}
        if "total" in given and given.get("reserved", 0) >= given["total"]:
            raise InvalidFigure(
                f"reserved {given.get('reserved', 0)} must be below total {given['total']}"
            )
        with _process_lock:
            table = _tables.get(path)
            if table is None or not table.is_current():
                table = _tables[path] = _Table(path, given)
            else:
                table.compare(given)
        self._table = table

    @property
    def path(self) -> str:
        return self._table.path

    @property
    def total(self) -> int:
        return self._table.config.total

    @property
    def reserved(self) -> int:
        return self._table.config.reserved

    def alloc(self, nbytes: int) -> Block:
        """Takes `nbytes`. Raises OutOfMemory where they do not fit now; on a card where bytes land
        over time only the landing finds out, see Block."""
        _check_bytes("nbytes", nbytes)
        self._latency()
        table = self._table
        with table.transaction() as now:
            if table.config.land_bytes_per_s:
                return Block(self, nbytes, table.start_landing(nbytes, now))
            free = table.free(now)
            if nbytes > free * (_PPM - table.config.fragmentation_ppm) // _PPM:
                raise out_of_memory(self.name, nbytes, free, self.total)
            table.settle(nbytes)
            return Block(self, nbytes, None)

    def used(self) -> int:
        """Bytes taken by everybody, foreign ones included, the driver's reserve not."""
        with self._table.transaction() as now:
            return self._table.used(now)

    def free(self) -> int:
        """Bytes that are not taken."""
        with self._table.transaction() as now:
            return self._table.free(now)

    def read(self) -> tuple[int, int, int]:
        """(used, reserved, total), as slowly as a driver with this latency answers."""
        self._latency()
        return self.used(), self.reserved, self.total

    def held_by_me(self) -> int:
        """Bytes that this process has on the card: landed and not freed."""
        with self._table.transaction():
            at = self._table.own_entry()
            return 0 if at is None else self._table.held(at)

    def holders(self) -> tuple[Holder, ...]:
        """Who really holds what: the truth that a ledger is measured against."""
        with self._table.transaction() as now:
            return self._table.holders(now)

    def foreign(self, nbytes: int) -> None:
        """Sets what other programs, no members of any ledger, use on the card; it stays until set
        again, whoever dies. Raises OutOfMemory where that does not fit."""
        _check_bytes("nbytes", nbytes)
        table = self._table
        with table.transaction() as now:
            free = table.free(now)
            if nbytes > table.foreign + free:
                raise out_of_memory(self.name, nbytes - table.foreign, free, self.total)
            table.foreign = nbytes

    def foreign_bytes(self) -> int:
        """What `foreign` last set, in this or another process."""
        return self._table.foreign

    def close(self) -> None:
        """Gives back, at once, all that this process has on the card. Its blocks are void; the card
        can be used on."""
        with self._table.transaction():
            self._table.release_entry()

    def give_back(self, nbytes: int) -> None:
        """Frees bytes of blocks that have landed, without naming the blocks; for allocators, which
        cut them up."""
        self._latency()
        with self._table.transaction() as now:
            at = self._table.own_entry()
            settled = 0 if at is None else self._table.settled(at)
            if nbytes > settled:
                raise InvalidFigure(
                    f"cannot give back {nbytes} bytes, this process has {settled} landed ones"
                )
            self._table.unsettle(nbytes, now)

    def _latency(self) -> None:
        if self._table.config.latency_ns:
            time.sleep(self._table.config.latency_ns / _S)


class Block:
    """An allocation on a card. Freed by `free`, by leaving its `with`, by the process's death;
    never by the garbage collector.

    Where bytes land over time it starts empty, and lands while nobody looks, too. At the end of the
    card it stops, and keeps what has landed until its owner calls `poll` or `wait`, which give that
    back and raise OutOfMemory; so whoever lands beside it may meet the end as well, as on a card.

    In a forked child, and after `card.close()`, a block is void: it has 0 bytes and freeing it does
    nothing.
    """

    def __init__(self, card: Card, nbytes: int, ticket: int | None) -> None:
        self.card = card
        self.nbytes = nbytes
        self._table = card._table
        self._epoch = self._table.epoch
        self._ticket = ticket
        self._freed = False

    @property
    def landed(self) -> int:
        """Bytes of it that are on the card now."""
        if self._void():
            return 0
        if self._ticket is None:
            return self.nbytes
        with self._table.transaction():
            return 0 if self._void() else self._landed()[0]

    def poll(self) -> bool:
        """Whether all has landed. Raises OutOfMemory when the rest never will; the block is freed
        then."""
        if self._void():
            raise SimError(
                f"this block of sim:{self.card.name} was freed, or belongs to the parent process"
            )
        if self._ticket is None:
            return True
        with self._table.transaction() as now:
            landed, failed = self._landed()
            if failed:
                self._end(now, keep=False)
                self._freed = True
                raise out_of_memory(
                    self.card.name, self.nbytes, self._table.free(now), self.card.total
                )
            if self._ticket is not None and landed == self.nbytes:
                self._end(now, keep=True)
            return self._ticket is None

    def wait(self, timeout: float | None = None) -> bool:
        """Waits until all has landed; False when `timeout` seconds did not suffice. Raises as
        `poll` does."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while not self.poll():
            rest = 0.005 if deadline is None else min(0.005, deadline - time.monotonic())
            if rest <= 0:
                return False
            time.sleep(rest)
        return True

    def free(self) -> None:
        """Gives the bytes back. Again: nothing."""
        if self._void():
            return
        self.card._latency()
        with self._table.transaction() as now:
            if self._void():
                return
            if self._ticket is None:
                self._table.unsettle(self.nbytes, now)
            else:
                self._end(now, keep=False)
            self._freed = True

    def __enter__(self) -> Block:
        return self

    def __exit__(self, *_: object) -> None:
        self.free()

    def _void(self) -> bool:
        return self._freed or self._epoch != self._table.epoch

    def _landed(self) -> tuple[int, bool]:
        return (self.nbytes, False) if self._ticket is None else self._table.landing(self._ticket)

    def _end(self, now: int, *, keep: bool) -> None:
        if self._ticket is not None:
            self._table.end_landing(self._ticket, now, keep=keep)
            self._ticket = None


class Allocator:
    """A caching allocator, as deep-learning runtimes have one: what is freed stays reserved on the
    card for this process's next allocation, until `empty_cache`. One that cuts and joins blocks
    without loss.

    After a fork the child's is empty.
    """

    def __init__(self, card: Card) -> None:
        self.card = card
        self._reset()

    def _reset(self) -> None:
        self._epoch = self.card._table.epoch
        self._idle = 0
        self._live: set[Allocation] = set()

    def _check_epoch(self) -> None:
        if self._epoch != self.card._table.epoch:
            self._reset()

    @property
    def reserved(self) -> int:
        """Bytes on the card for this allocator, idle ones included. What a member publishes as
        held."""
        with _process_lock:
            self._check_epoch()
            idle, live = self._idle, tuple(self._live)
        return idle + sum(allocation.landed for allocation in live)

    @property
    def allocated(self) -> int:
        """Bytes of live allocations. reserved - allocated is what a member publishes as
        releasable."""
        with _process_lock:
            self._check_epoch()
            live = tuple(self._live)
        return sum(allocation.landed for allocation in live)

    def alloc(self, nbytes: int) -> Allocation:
        """Takes idle bytes first and the rest from the card. Raises as `Card.alloc`; nothing
        changes then."""
        _check_bytes("nbytes", nbytes)
        with _process_lock:
            self._check_epoch()
            reused = min(self._idle, nbytes)
            self._idle -= reused
        try:
            block = self.card.alloc(nbytes - reused) if nbytes > reused else None
        except BaseException:
            self._keep_idle(reused)
            raise
        allocation = Allocation(self, nbytes, reused, block)
        with _process_lock:
            self._live.add(allocation)
        return allocation

    def free(self, allocation: Allocation) -> None:
        """Makes an allocation idle. Again: nothing."""
        if not self._owns(allocation):
            return
        try:
            finished = allocation.poll()
        except OutOfMemory:
            return  # it is over already
        with _process_lock:
            if allocation not in self._live:
                return
            self._live.discard(allocation)
        if allocation._block is None or finished:
            self._keep_idle(allocation.nbytes)
            return
        # Still landing: what comes of it belongs to nobody, so the block goes back to the card.
        allocation._block.free()
        self._keep_idle(allocation._reused)

    def empty_cache(self) -> int:
        """Gives the idle bytes back to the card, and returns how many."""
        with _process_lock:
            self._check_epoch()
            idle, self._idle = self._idle, 0
        if idle:
            self.card.give_back(idle)
        return idle

    def _owns(self, allocation: Allocation) -> bool:
        with _process_lock:
            self._check_epoch()
            return allocation in self._live

    def _keep_idle(self, nbytes: int) -> None:
        with _process_lock:
            self._check_epoch()
            self._idle += nbytes

    def _failed(self, allocation: Allocation) -> None:
        with _process_lock:
            self._live.discard(allocation)
        self._keep_idle(allocation._reused)


class Allocation:
    """A live allocation of an Allocator. `poll` and `wait` as those of a Block."""

    def __init__(self, allocator: Allocator, nbytes: int, reused: int, block: Block | None) -> None:
        self.nbytes = nbytes
        self._allocator = allocator
        self._reused = reused
        self._block = block

    @property
    def landed(self) -> int:
        """Bytes of it that are on the card now."""
        if not self._allocator._owns(self):
            return 0
        return self._reused + (self._block.landed if self._block is not None else 0)

    def poll(self) -> bool:
        """True once all of it has landed. Raises OutOfMemory where the card is full."""
        return self._attempt(lambda block: block.poll())

    def wait(self, timeout: float | None = None) -> bool:
        """The same, after waiting for at most `timeout` seconds; None: until it has landed."""
        return self._attempt(lambda block: block.wait(timeout))

    def free(self) -> None:
        """Back to the allocator, which keeps it for the next allocation."""
        self._allocator.free(self)

    def _attempt(self, look: Callable[[Block], bool]) -> bool:
        if not self._allocator._owns(self):
            raise SimError("this allocation was freed, or belongs to the parent process")
        if self._block is None:
            return True
        try:
            return look(self._block)
        except OutOfMemory:
            self._allocator._failed(self)
            raise

    def __enter__(self) -> Allocation:
        return self

    def __exit__(self, *_: object) -> None:
        self.free()


def _check_bytes(what: str, nbytes: int) -> None:
    if isinstance(nbytes, bool) or not isinstance(nbytes, int):
        raise TypeError(f"{what} is an int of bytes, not {type(nbytes).__name__}")
    if not 0 <= nbytes <= BYTES_MAX:
        raise InvalidFigure(f"{what} is 0 to 2^63-1 bytes, not {nbytes}")


def _bytes(what: str, nbytes: int | None) -> int | None:
    if nbytes is not None:
        _check_bytes(what, nbytes)
    return nbytes


def _scaled(what: str, value: float | None, scale: int, most: float) -> int | None:
    if value is None:
        return None
    if not 0 <= value <= most:
        raise InvalidFigure(f"{what} is 0 to {most}, not {value}")
    return round(value * scale)
