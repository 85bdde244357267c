"""Devices and their accounts: what a process publishes, claims and reads.

The hot methods (free, available, budget, claimed_by_others, figures, publish, add, try_claim) are
those of the native base classes: no system call, no lock between processes. What is here may block,
and gives the GIL up where it does.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NoReturn

from memledger import _native
from memledger.arguments import as_bytes, as_seconds, as_text
from memledger.errors import ClaimRefused, LedgerError, UnknownDevice
from memledger.sizes import format_size
from memledger.views import Snapshot, reading_from, snapshot_from

if TYPE_CHECKING:
    from memledger.asks import AskResult
    from memledger.ledger import Ledger
    from memledger.model import DeviceSpec, Reading
    from memledger.pins import PinClaim, Pins

_COUNT_OOM, _COUNT_REFUSED = 0, 1
_OK, _REFUSED, _WAITING, _BUSY, _EXPIRED = 0, 1, 2, 3, 6
_REASONS = {
    _REFUSED: "",
    _WAITING: "it would fit, but earlier waiters have the room",
    _BUSY: "too much contention; try again",
    _EXPIRED: "expired",
}


class _Claiming:
    """The claims that may wait. Mixed into Device and Account, whose native bases claim at once."""

    __slots__ = ()

    if TYPE_CHECKING:
        amounts: tuple[int, int, int]

        def _claim_run(
            self, nbytes: int, replacing: int, ttl: float | None, timeout: float
        ) -> tuple[int, _native.Claim | None, int | None]: ...

    def _owner(self) -> Device:
        raise NotImplementedError

    def claim(
        self, nbytes: int, timeout: float = 0.0, *, replacing: int = 0, ttl: float | None = None
    ) -> _native.Claim:
        """Promise `nbytes` (bytes by which held will grow) to this process before they are
        allocated.

        timeout: seconds to wait for room. The first 0.5 s of them with a place in line that later
        claimers respect. More than the whole device has is refused at once. Ctrl-C ends the wait.
        replacing: bytes of the own held that will go first; only `nbytes - replacing` is claimed
        now, and publishing the smaller held through the claim refills it.
        ttl: seconds after which what has not landed is dropped; None: with the process.

        Use it as a context manager: leaving it un-settled cancels it. Raises ClaimRefused.
        Before a refusal the dead are swept. Costs about a publish when it fits.
        """
        timeout = as_seconds(timeout, "timeout")
        status, claim, free = self._claim_try(nbytes, replacing, ttl)
        if claim is None and timeout > 0:
            status, claim, free = self._claim_run(nbytes, replacing, ttl, timeout)
        if claim is None:
            self._refuse(nbytes, status, free)
        return claim

    def claim_first(
        self, sizes: Sequence[int], *, replacing: int = 0, ttl: float | None = None
    ) -> tuple[int, _native.Claim]:
        """The first of `sizes` (bytes) that fits, as (index, claim): for choices such as a dtype,
        made once. Raises ClaimRefused, about the last size, when none does; never for
        contention."""
        if isinstance(sizes, (int, str)):
            raise TypeError(f"sizes: expected several sizes in bytes, got {sizes!r}")
        if not sizes:
            raise ValueError("sizes: expected at least one size, got none")
        for index, nbytes in enumerate(sizes):
            status, claim, free = self._claim_try(nbytes, replacing, ttl)
            while status == _BUSY:
                status, claim, free = self._claim_run(nbytes, replacing, ttl, 0.0)
            if claim is not None:
                return index, claim
        return self._refuse(sizes[-1], status, free)

    def _claim_slow(self, nbytes: int, replacing: int, ttl: float | None) -> _native.Claim | None:
        """Called by the native try_claim where it could not decide alone."""
        return self._claim_try(nbytes, replacing, ttl)[1]

    def _claim_try(
        self, nbytes: int, replacing: int, ttl: float | None
    ) -> tuple[int, _native.Claim | None, int | None]:
        """Without waiting, but with readings that are due, and a sweep before a refusal."""
        device = self._owner()
        device._ledger._read_if_due(device)
        result = self._claim_run(nbytes, replacing, ttl, 0.0)
        if result[0] in (_REFUSED, _WAITING) and device._ledger._sweep():
            result = self._claim_run(nbytes, replacing, ttl, 0.0)
        return result

    def _refuse(self, wanted: int, status: int, free: int | None = None) -> NoReturn:
        device = self._owner()
        device._ledger._count(_COUNT_REFUSED)
        if free is None:
            free = device.free()
        reason, total = _REASONS.get(status, f"status {status}"), device.total()
        if status == _REFUSED and total is not None and wanted > total:
            reason = f"the whole device has {format_size(total)}"
        raise ClaimRefused(
            wanted,
            free,
            holders=device._holders(),
            reason=reason,
            device=device.key,
        )


class Delta:
    """Whose doing a change of the free figure was, in signed bytes of free: minus is less room.

    own: what this process came to hold. others: what the siblings came to hold and claim.
    unaccounted: programs outside the ledger, and headroom; None where there is no reading at either
    end. Nothing is assumed about direction: free may grow while a claim is open. The three add up
    to the change of free as long as free is above 0 at both ends, up to a unit per member.
    """

    own: int
    others: int
    unaccounted: int | None

    def __init__(self, device: Device) -> None:
        self._device = device

    def __enter__(self) -> Delta:
        self._device.refresh(max_age_s=0)
        self._before = self._device.figures()
        return self

    def __exit__(self, *exc: object) -> None:
        self._device.refresh(max_age_s=0)
        before, after = self._before, self._device.figures()
        self.own = before.own_held - after.own_held
        self.others = _others(before) - _others(after)
        if before.unaccounted is None or after.unaccounted is None:
            self.unaccounted = None
        else:
            outside = (after.unaccounted - before.unaccounted) + (after.headroom - before.headroom)
            self.unaccounted = -outside


def _amounts(account: _native.Account) -> str:
    held, releasable, pinned = account.amounts
    return f"held={held} releasable={releasable} pinned={pinned}"


def _others(figures: _native.Figures) -> int:
    return figures.held - figures.own_held + figures.claimed_by_others


class Account(_Claiming, _native.Account):
    """A named part of what this process holds on a device ("weights", "lora-cache"); all accounts
    of a device are summed into one record. `Device.account(name)` makes it."""

    device: Device

    def __new__(cls, device: Device, name: str) -> Account:
        self = super().__new__(cls, device, name)
        self.device = device
        self.name = name
        return self

    name: str

    def __repr__(self) -> str:
        return f"<memledger.Account {self.name!r} of {self.device.name!r} {_amounts(self)}>"

    def _owner(self) -> Device:
        return self.device


class Device(_Claiming, _native.Device):
    """A device as this process sees it. `Ledger.device(name)` makes it; the same name or key gives
    the same object."""

    key: str
    """Stable and the same in every process, e.g. "GPU-<uuid>" or "ram:<boot id>"."""
    name: str
    """As it was first asked for in this process."""
    _ledger: Ledger
    _spec: DeviceSpec

    def __new__(cls, ledger: Ledger, spec: DeviceSpec) -> Device:
        self = super().__new__(cls, ledger, tuple(tuple(level) for level in spec.levels))
        self.key = spec.key
        self.name = spec.name
        self._ledger = ledger
        self._spec = spec
        self._accounts = {}
        self._pin_pools = None
        return self

    _accounts: dict[str, Account]

    def _follow_chain(self, spec: DeviceSpec) -> None:
        """This process draws from another chain now (it was moved to another control group): take
        everything that was published and claimed along. The object stays the same."""
        self._move(Device(self._ledger, spec))
        for account in list(self._accounts.values()):
            account._rebind(self)
        self._spec = spec
        self.key = spec.key
        if self._pin_pools is not None:
            self._pin_pools.follow_chain()

    def __repr__(self) -> str:
        return f"<memledger.Device {self.name!r} key={self.key!r} {_amounts(self)}>"

    def _owner(self) -> Device:
        return self

    def account(self, name: str) -> Account:
        """The account of that name (1 to 31 bytes), made at its first use."""
        account = self._accounts.get(as_text(name, "name"))
        if account is None:
            account = self._accounts[name] = Account(self, name)
        return account

    def headroom(self, nbytes: int) -> None:
        """Leave `nbytes` of this device alone. The largest of all members' counts; 0 takes it back.
        It ends with this process."""
        self._set_headroom(nbytes)

    @property
    def reading(self) -> Reading:
        """What the source said last, of the level that binds: total, free, reserved, source, scope,
        age_s, reader, reason. Makes no system call but a clock read."""
        level = self.figures().level
        return reading_from(self._ledger._reading(self._pools()[level]))

    def refresh(self, max_age_s: float = 0.05) -> Reading:
        """Ask the sources now where the newest reading is older than `max_age_s` seconds. Blocks in
        the driver, without the GIL."""
        max_age_s = as_seconds(max_age_s, "max_age_s")
        for pool in self._pools():
            self._ledger._read_if_older(pool, max_age_s)
        return self.reading

    def ask(self, nbytes: int, timeout: float = 0.15) -> AskResult:
        """Ask siblings to release `nbytes` (bytes) of this device: those with most to give first,
        those that are asking themselves, in a window or busy with a prompt last. Ends by `timeout`
        seconds. While it waits it answers asks of others from quick holders, or as busy."""
        timeout = as_seconds(timeout, "timeout")
        return self._ledger._asks.ask(self, nbytes, timeout)

    def note_oom(self, wanted: int = 0) -> None:
        """Count an out-of-memory event of this process, so that others can see it. `wanted`: bytes
        that could not be had; for the caller's log, and for symmetry with upstream hooks."""
        self._ledger._count(_COUNT_OOM)

    @contextlib.contextmanager
    def window(self, max_s: float = 0.25) -> Iterator[float | None]:
        """A short time in which siblings should leave this process alone on this device, such as a
        graph capture. Yields the seconds that were waited for earlier windows, or None when others
        kept opening theirs. Nobody waits for it longer than `max_s`."""
        waited = self._window_open(max_s)
        try:
            yield waited
        finally:
            self._window_close()

    def wait_clear(self, timeout: float = 0.25) -> bool:
        """Hold back, once before a heavy step, while a sibling has a window open. True: clear."""
        return self._wait_clear(timeout)

    # ---- page-locked RAM

    def try_pin(self, nbytes: int) -> PinClaim | None:
        """Claim `nbytes` of page-locked memory, in whole pages, in the one budget of all members.
        None when it does not fit, after siblings were asked for pins. RAM devices only."""
        nbytes = as_bytes(nbytes, "nbytes")
        claim = self._pins().claim(nbytes)
        if claim is None and self._pins().device.ask(nbytes, 0.05).credited:
            claim = self._pins().claim(nbytes)
        return claim

    def pin_budget(self) -> int | None:
        """Bytes that may still be page-locked by this process; None when unknown."""
        self._pins().apply()
        free, room = self._pins().device.free(), self._pin_room()
        known = [n for n in (free, room) if n is not None]
        return min(known) if known else None

    def pinned(self, nbytes: int, *, releasable: int | None = None) -> None:
        """This process has `nbytes` page-locked now, in all: after it has unlocked some.
        releasable: bytes of these that it would unlock if asked; None: all, where it has registered
        a holder, else none."""
        self._pins().settle(None, nbytes, releasable)

    def pin_ceiling(self, nbytes: int) -> None:
        """The most that all members together may pin, as this process sees it: the smallest of all
        members' counts. By default half of the RAM of each level."""
        self._pins().ceiling(as_bytes(nbytes, "nbytes"))

    def learn_limit(self, nbytes: int | None) -> None:
        """Pinning failed at `nbytes` in all: no member plans with more, until this process says
        None."""
        self._pins().learn(None if nbytes is None else as_bytes(nbytes, "nbytes"))

    def floor(self, nbytes: int) -> None:
        """RAM that pins must leave free; the highest of all members' counts."""
        self._set_floor(nbytes)

    def _pins(self) -> Pins:
        if self._pin_pools is None:
            from memledger.model import KIND_CGROUP, KIND_RAM
            from memledger.pins import Pins

            if self._spec.levels[0].kind not in (KIND_RAM, KIND_CGROUP):
                raise UnknownDevice(self.name, "pins are of RAM", ("ram",))
            self._pin_pools = Pins(self)
        return self._pin_pools

    _pin_pools: Pins | None

    def delta(self) -> Delta:
        """`with device.delta() as d:` and afterwards `d.own`, `d.others`, `d.unaccounted`: by how
        many bytes each changed the free figure meanwhile. Asks the sources at both ends."""
        return Delta(self)

    def snapshot(self) -> Snapshot:
        """Rows of all members and the figures, as one consistent cut of the device's own pool.
        About 10 us with few members."""
        return snapshot_from(self._ledger._snapshot(self._pools()[0]))

    def _holders(self) -> list[tuple[str, int]]:
        """(label, held) of the members that hold something here, for a message."""
        try:
            names = {m.slot: m.label or f"pid {m.pid}" for m in self._ledger.members()}
            rows = self.snapshot().rows
        except LedgerError:
            return []
        return [(names.get(row.slot, f"slot {row.slot}"), row.held) for row in rows if row.held]
