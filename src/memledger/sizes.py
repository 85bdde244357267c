"""Sizes as people write them. Inside memledger every size is an int number of bytes; only what a
person types (an environment variable, a command line, a `sim:` device name) passes through here.

No floating point: what is written is what is meant, to the byte.
"""

from __future__ import annotations

BYTES_MAX = (1 << 63) - 1

_BINARY = ("KiB", "MiB", "GiB", "TiB", "PiB")
_UNITS = {"": 1, "b": 1}
for _power, _unit in enumerate(_BINARY, 1):
    _UNITS[_unit.lower()] = 1 << (10 * _power)
    _UNITS[_unit[0].lower() + "b"] = int(10 ** (3 * _power))

_DIGITS = frozenset("0123456789")


def parse_size(size: int | str) -> int:
    """Bytes meant by `size`: an int, or a string such as "24GiB", "24 GB", "1.5 GiB", "123".

    KiB, MiB, GiB, TiB, PiB are powers of 1024; KB, MB, GB, TB, PB are powers of 1000; upper or
    lower case. A fraction of a byte is cut off ("0.1GiB" is 107374182). A bare letter ("24G") is
    refused, since half of the world's tools mean GiB by it and half mean GB.

    Raises InvalidFigure for text that is no size, a negative one, or one above 2^63-1; TypeError
    for anything but int and str (bool and float included).
    """
    if isinstance(size, bool) or not isinstance(size, (int, str)):
        raise TypeError(
            f"a size is an int of bytes or a string such as '24GiB', not {type(size).__name__}"
        )
    nbytes = size if isinstance(size, int) else _parse_text(size)
    if nbytes < 0:
        raise _invalid(f"a size cannot be negative: {size!r}")
    if nbytes > BYTES_MAX:
        raise _invalid(f"a size is at most 2^63-1 bytes: {size!r}")
    return nbytes


def format_size(nbytes: int | None) -> str:
    """`nbytes` for people: "24.0 GiB", "512 B"; "-1.5 GiB" for a difference; "unknown" for None.
    Rounded to the nearest tenth, half away from zero."""
    if nbytes is None:
        return "unknown"
    sign, magnitude = ("-", -nbytes) if nbytes < 0 else ("", nbytes)
    if magnitude < 1024:
        return f"{sign}{magnitude} B"
    for power, unit in enumerate(_BINARY, 1):
        scale = 1 << (10 * power)
        tenths = (magnitude * 10 + scale // 2) // scale
        # 1023.96 MiB would round to "1024.0 MiB": the next unit says it better.
        if tenths < 10240 or unit == _BINARY[-1]:
            return f"{sign}{tenths // 10}.{tenths % 10} {unit}"
    raise AssertionError("unreachable: the last unit takes everything")


def _parse_text(text: str) -> int:
    stripped = text.strip()
    sign = -1 if stripped.startswith("-") else 1
    rest = stripped[1:] if sign < 0 else stripped
    end = 0
    while end < len(rest) and (rest[end] in _DIGITS or rest[end] == "."):
        end += 1
    number, unit = rest[:end], rest[end:].strip()
    whole, _, fraction = number.partition(".")
    if (not whole and not fraction) or "." in fraction or len(number) > 40:
        raise _invalid(f"expected a size such as '24GiB', '1.5 GB' or '123', got {text!r}")
    scale = _UNITS.get(unit.lower())
    if scale is None:
        raise _invalid(_unit_complaint(text, number, unit))
    return sign * (int(whole + fraction) * scale // int(10 ** len(fraction)))


def _unit_complaint(text: str, number: str, unit: str) -> str:
    letter = unit.upper()
    if len(letter) == 1 and letter in "KMGTP":
        return (
            f"{text!r} is ambiguous: write '{number}{letter}iB' (powers of 1024) "
            f"or '{number}{letter}B' (powers of 1000)"
        )
    expected = ", ".join(("B", *_BINARY, "KB, MB, GB, TB, PB"))
    return f"unknown unit {unit!r} in {text!r}: expected one of {expected}"


def _invalid(message: str) -> ValueError:
    # errors.py writes sizes into its messages, so it imports this module first.
    from memledger.errors import InvalidFigure

    return InvalidFigure(message)
