"""What several commands' options mean, and the one wording for a package that is not there."""

from __future__ import annotations

import argparse
import sys

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}


def seconds(text: str) -> float:
    """An interval: 0.05 to 86400 seconds."""
    try:
        value = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected seconds, got {text!r}") from None
    if not 0.05 <= value <= 86400:
        raise argparse.ArgumentTypeError(f"expected 0.05 to 86400 seconds, got {text}")
    return value


def duration(text: str) -> float:
    """Seconds meant by "30s", "1.5 h", "500ms", "10min"; a bare number is seconds."""
    number = text.strip().rstrip("abcdefghijklmnopqrstuvwxyz").rstrip()
    unit = text.strip()[len(number) :].strip() or "s"
    try:
        value = float(number) * _UNITS[unit]
    except (ValueError, KeyError):
        raise argparse.ArgumentTypeError(
            f"expected a time such as 30s, 10min or 2h, got {text!r}"
        ) from None
    if not 0 < value <= 366 * 86400:
        raise argparse.ArgumentTypeError(f"expected more than 0 and at most a year, got {text!r}")
    return value


def rate(text: str) -> float:
    """Times per second meant by "4/s", "30/min", "12/h"; a bare number is per second."""
    number, _, unit = text.partition("/")
    try:
        value = float(number) / _UNITS[unit.strip() or "s"]
    except (ValueError, KeyError):
        raise argparse.ArgumentTypeError(
            f"expected a rate such as 4/s or 30/min, got {text!r}"
        ) from None
    if not 1 / 86400 <= value <= 20:
        raise argparse.ArgumentTypeError(f"expected 1/d to 20/s, got {text!r}")
    return value


def missing_extra(command: str, package: str, error: ImportError) -> int:
    """Says which extra brings `package`, and why it could not be imported where it is there; the
    exit code."""
    extra = f"'memledger-shm[{command}]'"
    why = "" if isinstance(error, ModuleNotFoundError) else f" ({error})"
    print(
        f"memledger: {command} needs {package}{why}: pip install {extra}, "
        f"or pip install '.[{command}]' in a clone",
        file=sys.stderr,
    )
    return 1
