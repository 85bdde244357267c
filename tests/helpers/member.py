"""A process that obeys: reads one JSON command a line, answers one JSON line each.

Run as a script, also by other Pythons and without site-packages; so it needs only the standard
library and memledger. Commands are {"call": verb, "args": [...], "kwargs": {...}} for the verbs
below, or {"run": source}: statements executed in one lasting namespace, whose last expression is
the answer. helpers/members.py is the other end.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import sys
from typing import Any

NAMESPACE: dict[str, Any] = {"__name__": "member"}


def plain_device(ledger: Any, key: str, total: int | None, levels: tuple[str, ...] = ()) -> Any:
    """A device without any source: figures come from `total` and the ledger alone. `levels` are the
    keys of further pools of its chain, outwards."""
    from memledger.device import Device
    from memledger.model import DeviceSpec, PoolSpec

    pools = tuple(PoolSpec(name) for name in (key, *levels))
    device = Device(ledger, DeviceSpec(key, pools, (None,) * len(pools), total))
    if total is not None:
        device._set_limit(total)
    return device


class Obeying:
    """The verbs. `device` is the one opened last; `claims` by number."""

    def __init__(self) -> None:
        self.ledger: Any = None
        self.device: Any = None
        self.claims: dict[int, Any] = {}

    def join(self, label: str = "", role: str = "other", path: str | None = None) -> dict[str, Any]:
        import memledger

        self.ledger = NAMESPACE["ledger"] = memledger.join(label=label, role=role, path=path)
        return self.info()

    def info(self) -> dict[str, Any]:
        return dict(self.ledger._info())

    def open(self, name: str, total: int | None = None) -> str:
        self.device = NAMESPACE["device"] = self.ledger.device(name, total=total)
        return str(self.device.key)

    def open_plain(self, key: str, total: int | None = None, levels: tuple[str, ...] = ()) -> str:
        self.device = plain_device(self.ledger, key, total, tuple(levels))
        NAMESPACE["device"] = self.device
        return key

    def publish(self, held: int, releasable: int = 0, pinned: int = 0) -> None:
        self.device.publish(held, releasable=releasable, pinned=pinned)

    def free(self) -> int | None:
        value: int | None = self.device.free()
        return value

    def figures(self) -> dict[str, Any]:
        figures = self.device.figures()
        names = [
            n for n in dir(figures) if not n.startswith(("_", "n_")) and n not in ("count", "index")
        ]
        return {name: getattr(figures, name) for name in names}

    def claim(self, nbytes: int, timeout: float = 0.0, ttl: float | None = None) -> int:
        claim = self.device.claim(nbytes, timeout, ttl=ttl)
        return self._keep(claim)

    def try_claim(self, nbytes: int) -> int | None:
        claim = self.device.try_claim(nbytes)
        return None if claim is None else self._keep(claim)

    def settle(self, number: int, held: int) -> None:
        self.claims.pop(number).settle(held)

    def cancel(self, number: int) -> None:
        self.claims.pop(number).cancel()

    def members(self) -> list[dict[str, Any]]:
        return [member._asdict() for member in self.ledger.members()]

    def sweep(self) -> int:
        return int(self.ledger.sweep())

    def leave(self) -> None:
        self.ledger.leave()

    def pid(self) -> int:
        return os.getpid()

    def _keep(self, claim: Any) -> int:
        number = max(self.claims, default=0) + 1
        self.claims[number] = claim
        NAMESPACE["claims"] = self.claims
        return number


def run(source: str) -> Any:
    """Execute `source`; the value of its last statement where that is an expression."""
    tree = ast.parse(source)
    last = tree.body[-1] if tree.body else None
    if not isinstance(last, ast.Expr):
        exec(compile(tree, "<member>", "exec"), NAMESPACE)
        return None
    body = ast.Module(tree.body[:-1], type_ignores=[])
    exec(compile(body, "<member>", "exec"), NAMESPACE)
    return eval(compile(ast.Expression(last.value), "<member>", "eval"), NAMESPACE)


def answer(obeying: Obeying, line: str) -> dict[str, Any]:
    command = json.loads(line)
    try:
        if "run" in command:
            return {"ok": run(command["run"])}
        verb = getattr(obeying, command["call"])
        return {"ok": verb(*command["args"], **command["kwargs"])}
    except Exception as error:
        return {
            "error": type(error).__name__,
            "text": str(error),
            "free": getattr(error, "free", None),
        }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--package", help="folder that contains the memledger package")
    options = parser.parse_args()
    if options.package:
        sys.path.insert(0, options.package)
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    obeying = Obeying()
    NAMESPACE.update(me=obeying, os=os, sys=sys, plain_device=plain_device)
    out.write(json.dumps({"ok": os.getpid()}) + "\n")
    out.flush()
    for line in sys.stdin:
        if line.strip() == "exit":
            break
        out.write(json.dumps(answer(obeying, line), default=str) + "\n")
        out.flush()
    out.close()


if __name__ == "__main__":
    main()
