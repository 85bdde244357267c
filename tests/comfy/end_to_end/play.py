"""What a ComfyUI process does in the end-to-end scenarios, by the doubles' own functions. Runs in
the processes; the test tells each what to do and when."""

from __future__ import annotations

import contextlib
import itertools
import os
import queue
import threading
import time
from collections.abc import Callable
from typing import Any

import execution
import torch

import comfy.model_management as mm
import comfy.model_patcher
import comfy.samplers
import comfy.sd

GIB = 1 << 30
MIB = 1 << 20
GPU = torch.device("cuda", 0) if torch.cuda.is_available() else None
CPU = torch.device("cpu")


class Process:
    """`adapter`: memledger_comfy's context where it is on, or None."""

    def __init__(self, adapter: Any) -> None:
        self.adapter = adapter
        self.is_worker = adapter is not None and adapter.role == "worker"
        self.executor = execution.PromptExecutor(None)
        self.models: dict[str, Any] = {}
        self.ooms = 0
        self._half = threading.Event()
        self._go_on = threading.Event()
        self._loading: threading.Thread | None = None
        self._load_error: BaseException | None = None
        if self.is_worker:
            self.adapter.points.wait()

    # ---- what it is told

    def load(self, name: str, nbytes: int) -> int:
        """Load a model; bytes of it that are on the card."""
        return int(self._job(lambda: self._load(name, nbytes)))

    def begin_load(self, name: str, nbytes: int) -> None:
        """Load a model on a thread; returns when a quarter of it has landed and the rest waits for
        `finish_load`."""
        self._half.clear()
        self._go_on.clear()

        def run() -> None:
            try:
                self._load(name, nbytes, self._pause)
            except BaseException as error:
                self._load_error = error
                self._half.set()

        self._loading = threading.Thread(target=run, daemon=True)
        self._loading.start()
        if not self._half.wait(30):
            raise TimeoutError("the load did not begin")

    def finish_load(self) -> int:
        """The rest of it; bytes that are on the card, -1 for out of memory."""
        assert self._loading is not None
        self._go_on.set()
        self._loading.join(60)
        error, self._load_error = self._load_error, None
        if isinstance(error, torch.OutOfMemoryError):
            self.ooms += 1
            return -1
        if error is not None:
            raise error
        return max(int(model.loaded_size()) for model in self.models.values())

    def batches(self, conds: int, each: int) -> list[int]:
        """How many conds of `each` bytes the sampler runs at once."""
        model = comfy.samplers.Model(each, self._patcher(MIB))

        class X:
            device = GPU

        def step() -> list[int]:
            comfy.samplers.calc_cond_batch(model, [None] * conds, X, None, {})
            return list(model.batches)

        return list(self._job(step))

    def decode(self, samples: int, each: int) -> list[int]:
        """How many samples of `each` bytes the VAE decodes at once; a 0 behind them where it had to
        fall back to tiles."""
        vae = comfy.sd.VAE(self._patcher(MIB), each)

        def run() -> list[int]:
            vae.decode(comfy.sd.Samples(samples, 4, 64, 64))
            return [*vae.batches, *([0] if vae.tiled else [])]

        return list(self._job(run))

    def dtype(self, parameters: int) -> str:
        chosen = mm.unet_dtype(GPU, parameters)
        return "fp16" if chosen is torch.float16 else "fp8"

    def dtype_and_begin_load(self, name: str, parameters: int) -> str:
        """Choose a dtype and begin to load the model in it."""
        chosen = self.dtype(parameters)
        self.begin_load(name, parameters * (2 if chosen == "fp16" else 1))
        return chosen

    def pins(self, count: int, nbytes: int) -> int:
        """How many of `count` buffers could be pinned."""
        return int(self._job(lambda: sum(mm.pin(nbytes) for _ in range(count))))

    def held_by_others(self) -> int:
        figures = self.adapter.link.device(GPU).figures()
        return int(figures.held - figures.own_held)

    def releasable(self) -> int:
        return int(self.adapter.link.device(GPU).figures().releasable)

    def free(self) -> int:
        """By the ledger: lower for up to two readings after bytes have landed unpublished."""
        return int(self.adapter.link.device(GPU).free())

    # ---- how

    def _job(self, work: Callable[[], Any]) -> Any:
        """As a prompt of one node in the host, as a job between two waits in a worker."""
        found: list[Any] = []
        if self.is_worker:
            self.adapter.points.resume()
            try:
                found.append(work())
            except torch.OutOfMemoryError:
                self.ooms += 1
                raise
            finally:
                self.adapter.points.wait()
            return found[0]
        self.executor.execute([lambda: found.append(work())], f"prompt-{os.getpid()}")
        if not found:
            self.ooms += isinstance(getattr(self.executor, "error", None), mm.OOM_EXCEPTION)
            raise self.executor.error
        return found[0]

    def _patcher(self, nbytes: int) -> Any:
        return comfy.model_patcher.ModelPatcher(nbytes, GPU, CPU)

    def _load(
        self, name: str, nbytes: int, landing: Callable[[int, int], None] | None = None
    ) -> int:
        patcher = self.models[name] = self._patcher(nbytes)
        if landing is not None:
            plain = patcher.partially_load

            def in_parts(device: Any, extra: float, **more: Any) -> int:
                part = int(min(nbytes // 4, extra))
                first = plain(device, part, **more)
                landing()
                return int(first + plain(device, extra - part, **more))

            patcher.partially_load = in_parts
        mm.load_models_gpu([patcher])
        return int(patcher.loaded_size())

    def _pause(self) -> None:
        self._half.set()
        self._go_on.wait(60)


def publish_late(seconds: float, serving: Any) -> None:
    """Every publish of this process reaches the ledger that much later. Claims are made at once,
    and so is the publish that is the answer to an ask."""
    import memledger

    waiting: queue.SimpleQueue[tuple[float, int, Callable[..., Any], Any, Any]] = (
        queue.SimpleQueue()
    )
    newest = [0]
    """Of an answer: what was to be published before it is overtaken."""

    def deliver() -> None:
        while True:
            due, number, call, args, kwargs = waiting.get()
            time.sleep(max(0.0, due - time.monotonic()))
            if number >= newest[0]:
                _quietly(call, args, kwargs)

    numbers = itertools.count(1)

    def later(call: Callable[..., Any]) -> Callable[..., None]:
        def wait_and_call(*args: Any, **kwargs: Any) -> None:
            number = next(numbers)
            if serving.is_serving:
                newest[0] = number
                call(*args, **kwargs)
            else:
                waiting.put((time.monotonic() + seconds, number, call, args, kwargs))

        return wait_and_call

    threading.Thread(target=deliver, daemon=True).start()

    class LateClaim:
        def __init__(self, claim: Any) -> None:
            self._claim = claim
            self.publish = later(claim.publish)
            self.settle = later(claim.settle)

        def __getattr__(self, name: str) -> Any:
            return getattr(self._claim, name)

    plain_publish = memledger.Account.publish
    plain_try, plain_claim = memledger.Account.try_claim, memledger.Account.claim
    plain_first = memledger.Account.claim_first

    def late_publish(self: Any, *args: Any, **kwargs: Any) -> None:
        later(lambda: plain_publish(self, *args, **kwargs))()

    def late_try(self: Any, *args: Any, **kwargs: Any) -> Any:
        claim = plain_try(self, *args, **kwargs)
        return None if claim is None else LateClaim(claim)

    def late_claim(self: Any, *args: Any, **kwargs: Any) -> Any:
        return LateClaim(plain_claim(self, *args, **kwargs))

    def late_first(self: Any, *args: Any, **kwargs: Any) -> Any:
        index, claim = plain_first(self, *args, **kwargs)
        return index, LateClaim(claim)

    cls: Any = memledger.Account
    cls.publish, cls.try_claim, cls.claim = late_publish, late_try, late_claim
    cls.claim_first = late_first


def _quietly(call: Callable[..., Any], args: Any, kwargs: Any) -> None:
    import memledger

    with contextlib.suppress(memledger.LedgerError):
        call(*args, **kwargs)
