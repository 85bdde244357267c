"""Asking siblings, and answering them: memory given back where that is safe.

Working (a prompt runs, models are loaded): asks are answered at safe points on ComfyUI's own
thread. Idle: at once, by the ledger's thread, and whoever starts to work meanwhile waits for it.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from memledger_comfy import forks, log

if TYPE_CHECKING:
    from memledger_comfy.context import Context

ASK_S = 0.15
"""An ask waits no longer; several for one load share it."""
WINDOW_S = 0.1
IDLE_RELEASE_MAX_S = 10.0
BYTES_MAX = 2**63 - 1

Releaser = Callable[[str, int], object]


class Serving:
    def __init__(self, context: Context) -> None:
        self._context = context
        self._changed: Any
        forks.afresh(self, "_changed", threading.Condition)
        self._working = 0
        self._releasing: int | None = None
        """The thread on which an idle process gives memory back."""
        self._release_until = 0.0
        self._here = threading.local()
        self._unregister: Callable[[], None] | None = None
        self._releasers: dict[str, Releaser] = {}
        self._sharers: dict[str, Callable[[Any, int], object]] = {}
        forks.in_child(self, Serving._forget_parent)

    def _forget_parent(self) -> None:
        """Other threads' work is not done here, and no other thread gives anything back."""
        self._working, self._releasing = getattr(self._here, "depth", 0), None

    # ---- what there is to give

    def add(self, key: str, releaser: Releaser) -> None:
        """Have `releaser(torch device name, nbytes)` called when siblings ask, after those that
        were added before; once per key. What it gave is measured."""
        self._releasers[key] = releaser

    def share(self, key: str, release: Callable[[Any, int], object]) -> None:
        """Have `release(ledger device, nbytes)` called when siblings ask for a device that is no
        torch device of ours, such as RAM's pins; once per key. What it gave is measured."""
        self._sharers[key] = release

    quick: Releaser | None = None
    """One that gives what is idle, without touching a model."""

    # ---- whether this process works

    def start(self) -> None:
        """From now on this process answers; it is idle."""
        with self._changed:
            self._register(idle=not self._working)

    def stop(self) -> None:
        with self._changed:
            if self._unregister is not None:
                self._unregister()
                self._unregister = None

    def begin(self) -> None:
        """Work begins on this thread: nothing is given back but at its safe points, until `end`.
        Nests, also over threads."""
        if self.is_serving:
            return
        with self._changed:
            self._working += 1
            self._here.depth = getattr(self._here, "depth", 0) + 1
            try:
                if self._working == 1 and self._unregister is not None:
                    self._register(idle=False)
                self._wait_for_release()
            except BaseException:  # whoever is interrupted here does not come to its end
                self.end()
                raise

    def _wait_for_release(self) -> None:
        """One that hangs is waited for once, and not at each load of the prompt."""
        while self._releasing is not None and time.monotonic() < self._release_until:
            self._changed.wait(0.1)

    def end(self) -> None:
        if self.is_serving:
            return
        with self._changed:
            self._working = max(0, self._working - 1)
            self._here.depth = max(0, getattr(self._here, "depth", 0) - 1)
            if not self._working and self._unregister is not None:
                self._register(idle=True)

    def at_safe_point(self) -> None:
        """Answer what siblings ask, now and on this thread, where it is one that works: another
        one knows nothing of the kernels that run on that. Costs one hot call where nobody asks.
        Never raises."""
        ledger = self._context.link.ledger
        try:
            if ledger is None or not ledger.pending() & 1 or self.is_serving:
                return
            if not self._working or getattr(self._here, "depth", 0):
                ledger.serve()
        except Exception as error:
            log.failed("serve", error)

    @property
    def is_serving(self) -> bool:
        """Whether this thread is giving memory back right now."""
        return bool(getattr(self._here, "serving", False))

    def _register(self, *, idle: bool) -> None:
        """Never raises: whoever begins must be able to end."""
        ledger, before = self._context.link.ledger, self._unregister
        if ledger is None:
            return
        try:
            # The new one first: with no holder at all an ask is refused at once.
            holder = _IdleHolder(self) if idle else _Holder(self)
            self._unregister = ledger.holders.register(holder, thread_safe=idle)
            if before is not None:
                before()
        except Exception as error:
            log.failed("registering", error)

    # ---- giving

    def release(self, device: Any, size: int) -> int:
        """Give back `size` bytes of a ledger's device; bytes that were. On ComfyUI's thread, or
        while it has nothing to do."""
        if size <= 0 or self.is_serving:
            return 0
        name = self._context.link.torch_name(device)
        self._here.serving = True
        try:
            if name is None:
                return self._share(device, size)
            device.wait_clear(WINDOW_S)
            return self._give(name, size)
        finally:
            self._here.serving = False

    def release_quick(self, device: Any, size: int) -> int:
        """Give back what is idle, and nothing else."""
        name = self._context.link.torch_name(device)
        if name is None or size <= 0 or self.quick is None:
            return 0
        before = self._held(name)
        self.quick(name, size)
        after = self._held(name)
        return 0 if before is None or after is None else max(0, before - after)

    @contextlib.contextmanager
    def idle_release(self) -> Iterator[bool]:
        """False: this process works, so not on this thread."""
        with self._changed:
            may = not self._working and self._releasing is None
            if may:
                self._releasing = threading.get_ident()
                self._release_until = time.monotonic() + IDLE_RELEASE_MAX_S
        try:
            yield may
        finally:
            if may:
                with self._changed:
                    self._releasing = None
                    self._changed.notify_all()

    def _give(self, name: str, size: int) -> int:
        first = now = self._held(name)
        for releaser in list(self._releasers.values()):
            if first is None or now is None or first - now >= size:
                break
            try:
                releaser(name, size - (first - now))
            except Exception as error:
                log.failed("release", error)
            now = self._held(name)
        return 0 if first is None or now is None else max(0, first - now)

    def _share(self, device: Any, size: int) -> int:
        first = device.amounts[0]
        for release in list(self._sharers.values()):
            missing = size - (first - device.amounts[0])
            if missing <= 0:
                break
            try:
                release(device, missing)
            except Exception as error:
                log.failed("release", error)
        return max(0, first - int(device.amounts[0]))

    def _held(self, name: str) -> int | None:
        measured = self._context.publisher.publish(name)
        return None if measured is None else measured.held

    # ---- asking

    def ask(self, torch_device: Any, nbytes: int) -> int:
        """Ask siblings for `nbytes` of a torch device: bytes that they gave. Waits ASK_S, or what
        is left of the thread's limit. 0 while answering an ask. Never raises."""
        until = getattr(self._here, "until", None)
        wait = ASK_S if until is None else until - time.monotonic()
        if nbytes <= 0 or wait <= 0 or self.is_serving:
            return 0
        try:
            device = self._context.link.device(torch_device)
            ledger = self._context.link.ledger
            if device is None or ledger is None:
                return 0
            # While this thread waits its idle cache is safe to give, from the ledger's thread too.
            unregister = ledger.holders.register(_Quick(self), thread_safe=True, quick=True)
            try:
                return int(device.ask(min(int(nbytes), BYTES_MAX), wait).credited)
            finally:
                unregister()
        except Exception as error:
            log.failed("ask", error)
            return 0

    def start_asking(self) -> float | None:
        """From now on this thread's asks together wait no longer than one. What it returns goes to
        `limit_asks` at the end."""
        return self.limit_asks(time.monotonic() + ASK_S)

    def limit_asks(self, until: float | None) -> float | None:
        """This thread's asks end at that time of time.monotonic(), or earlier where it has such a
        limit already; None: each has its own. Returns the limit before."""
        before: float | None = getattr(self._here, "until", None)
        self._here.until = until if before is None or until is None else min(until, before)
        return before


class _Holder:
    """Asked in `Ledger.serve()`: on ComfyUI's thread, at a safe point."""

    def __init__(self, serving: Serving) -> None:
        self._serving = serving

    def release_memory(self, device: Any, size: int) -> int:
        return self._serving.release(device, size)


class _IdleHolder(_Holder):
    """Asked by the ledger's thread, while this process has nothing to do."""

    def release_memory(self, device: Any, size: int) -> int:
        with self._serving.idle_release() as may:
            return self._serving.release(device, size) if may else 0


class _Quick(_Holder):
    """Asked while this process is itself inside an ask."""

    def release_memory(self, device: Any, size: int) -> int:
        return self._serving.release_quick(device, size)
