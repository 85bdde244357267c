"""What this package says: one line at the start, and one line per kind of failure."""

from __future__ import annotations

import logging

logger = logging.getLogger("memledger.comfy")
_said: set[str] = set()


def once(kind: str, text: str, *, level: int = logging.WARNING) -> None:
    """Log `text` at the first event of this `kind` in this process."""
    if kind not in _said:
        _said.add(kind)
        logger.log(level, "[memledger] %s", text)


def failed(where: str, error: BaseException) -> None:
    """An error of ours at `where`; ComfyUI went on with its own value. One line per place and type
    of error."""
    kind = type(error).__name__
    key = f"{where}:{kind}"
    if key in _said:
        return
    _said.add(key)
    try:
        logger.warning("[memledger] %s: %s: %s; ComfyUI's own value is used", where, kind, error)
    except Exception:  # a message that cannot be made, a log that cannot be written
        return


def info(text: str) -> None:
    logger.info("[memledger] %s", text)


def forget() -> None:
    """For tests: everything may be said again."""
    _said.clear()
