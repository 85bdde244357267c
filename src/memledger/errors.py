"""The exceptions that people catch.

All of them derive from `LedgerError`. None is raised on a hot path for an expected outcome: a claim
that may be refused quietly is `try_claim`, and an unknown figure is None with a reason. Every one
can be pickled, so that a worker may send it to its host.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from memledger.sizes import format_size

__all__ = [
    "ClaimRefused",
    "InvalidFigure",
    "LayoutMismatch",
    "LedgerClosed",
    "LedgerError",
    "UnknownDevice",
]


class LedgerError(Exception):
    """Base of all that memledger raises on purpose, except `TypeError` for an argument of the wrong
    type."""

    def __reduce__(self) -> tuple[object, ...]:
        # The default calls the class with the finished message, where subclasses take the parts.
        return _rebuilt, (type(self), self.args, self.__dict__)


class ClaimRefused(LedgerError):
    """The claimed bytes do not fit.

    wanted: bytes asked for.
    free: bytes that would have fitted at that moment, None when unknown.
    holders: (label, held bytes) of the members that hold memory there, the largest first.
    reason: one line that says why, "" when plain lack of room is the reason.
    """

    def __init__(
        self,
        wanted: int,
        free: int | None = None,
        *,
        holders: Iterable[tuple[str, int]] = (),
        reason: str = "",
        device: str = "",
    ) -> None:
        self.wanted = wanted
        self.free = free
        self.holders = tuple(sorted(holders, key=lambda holder: -holder[1]))
        self.reason = reason
        self.device = device
        super().__init__(self._text())

    def _text(self) -> str:
        where = f" on {self.device}" if self.device else ""
        room = "free is unknown" if self.free is None else f"{format_size(self.free)} free"
        text = f"claim of {format_size(self.wanted)}{where} refused: {room}"
        if self.reason:
            text += f"; {self.reason}"
        if self.holders:
            held = ", ".join(f"{label} {format_size(held)}" for label, held in self.holders)
            text += f"; held by {held}"
        return text


class LedgerClosed(LedgerError):
    """The handle was left or closed; join again for a new one. `what` names the handle."""

    def __init__(self, what: str = "this ledger") -> None:
        self.what = what
        super().__init__(f"{what} has been left; memledger.join() gives a new one")


class LayoutMismatch(LedgerError):
    """A segment was written by another major layout.

    expected, found: (major, minor) of this build and of the segment.
    """

    def __init__(self, expected: tuple[int, int], found: tuple[int, int], path: str = "") -> None:
        self.expected = expected
        self.found = found
        self.path = path
        where = f"{path}: " if path else ""
        super().__init__(
            f"{where}expected layout {expected[0]}.{expected[1]}, found {found[0]}.{found[1]}; "
            "processes with that layout are not in this total"
        )


class UnknownDevice(LedgerError):
    """A device name that leads to no stable key. candidates: names that would have worked here."""

    def __init__(self, name: object, reason: str = "", candidates: Sequence[str] = ()) -> None:
        self.name = str(name)
        self.reason = reason
        self.candidates = tuple(candidates)
        text = f"unknown device {self.name!r}"
        if reason:
            text += f": {reason}"
        if self.candidates:
            text += f"; known here: {', '.join(self.candidates)}"
        super().__init__(text)


class InvalidFigure(LedgerError, ValueError):
    """A number of bytes that cannot be: negative, above 2^63-1, or releasable above held. Nothing
    was changed."""


def _rebuilt(
    kind: type[LedgerError], args: tuple[object, ...], state: dict[str, object]
) -> LedgerError:
    error = kind.__new__(kind, *args)
    error.args = args
    error.__dict__.update(state)
    return error
