"""What could make a prompt fail because of us: odd models, odd errors, interrupts at bad moments, a
ledger that is taken away or slow, forks, threads, and ten thousand prompts."""

from __future__ import annotations

import collections
import contextlib
import gc
import inspect
import os
import shutil
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from helpers import units
from memledger import sim

GIB = 1 << 30
MIB = 1 << 20


def card_figures(context: Any) -> Any:
    return context.link.device("cuda:0").figures()


def assert_nothing_is_left(context: Any) -> None:
    """No claim, no work that never ends, no thread limit."""
    assert card_figures(context).own_claimed == 0
    assert not any(context.publisher._claims.values())
    assert context.serving._working == 0
    assert getattr(context.serving._here, "depth", 0) == 0
    assert getattr(context.serving._here, "until", None) is None


def run_prompt(comfy: Any, *nodes: Callable[[], Any], name: str = "prompt") -> Any:
    executor = comfy.module("execution").PromptExecutor(None)
    executor.execute(list(nodes), name)
    return executor


def raises(error: BaseException) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        raise error

    return call


class TestOddModels:
    def test_models_that_can_be_read_once_are_left_to_comfyui(
        self, comfy: Any, host: Any, model: Any
    ) -> None:
        big = model(2 * GIB)
        comfy.mm.load_models_gpu(each for each in [big])
        assert big.loaded_size() == 2 * GIB
        assert_nothing_is_left(host)

    def test_one_that_cannot_say_its_size_hides_nobody_else(
        self, comfy: Any, host: Any, model: Any
    ) -> None:
        odd, good = model(GIB), model(2 * GIB)
        comfy.mm.load_models_gpu([odd])
        odd.loaded_size = raises(AttributeError("half made"))
        host.publisher.in_use = False
        good.partially_load(good.load_device, 2 * GIB)
        host.publisher.at_safe_point()
        assert card_figures(host).own_held == 3 * GIB

    def test_one_that_breaks_while_it_loads_leaves_no_claim(
        self, comfy: Any, host: Any, model: Any
    ) -> None:
        odd = model(2 * GIB)
        plain = odd.partially_load

        def partially_load(*args: Any) -> Any:
            loaded = plain(*args)
            comfy.mm.current_loaded_models.insert(0, comfy.mm.LoadedModel(odd))
            comfy.mm.current_loaded_models[0].currently_used = False
            odd.loaded_size = raises(RuntimeError("half made"))
            return loaded

        odd.partially_load = partially_load
        comfy.mm.load_models_gpu([odd])
        assert_nothing_is_left(host)

    @pytest.mark.parametrize("size", [None, "8 GiB", -5, float("nan"), float("inf"), 1e30, 2**70])
    def test_a_size_that_is_none(self, comfy: Any, host: Any, model: Any, size: Any) -> None:
        odd = model(GIB)
        odd.model_size = lambda: size
        from memledger_comfy.adapter import loads

        loads._load(host, ([odd],), {})(None, None)  # ComfyUI itself fails on such a one
        assert_nothing_is_left(host)

    def test_a_row_that_cannot_say_its_part_hides_nothing(self, host: Any) -> None:
        host.publisher.contribute("broken", raises(KeyError("part")))
        host.publisher.contribute("fine", lambda name: (3 * MIB, 0) if name == "cuda:0" else None)
        host.publisher.at_safe_point()
        assert card_figures(host).own_held == 3 * MIB

    def test_an_object_that_frees_memory_while_it_is_looked_at(
        self, comfy: Any, host: Any, model: Any
    ) -> None:
        """As a garbage collection in the middle of a measurement, whose finalizers free."""
        odd = model(GIB)
        plain = odd.loaded_size

        def loaded_size() -> Any:
            comfy.mm.soft_empty_cache()
            return plain()

        comfy.mm.load_models_gpu([odd])
        odd.loaded_size = loaded_size
        host.publisher.in_use = False
        host.publisher.at_safe_point()
        assert card_figures(host).own_held == GIB


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise ValueError("no words")


class TestErrors:
    def test_an_error_that_cannot_be_shown(
        self, comfy: Any, host: Any, model: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(comfy.mm, "minimum_inference_memory", raises(Unspeakable()))
        from memledger_comfy.adapter import loads

        loads._load(host, ([model(GIB)],), {})(None, None)
        assert_nothing_is_left(host)

    def test_a_logger_that_fails(
        self, comfy: Any, host: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        from memledger_comfy import log

        monkeypatch.setattr(log.logger, "log", raises(OSError("the pipe is closed")))
        device = host.link.device("cuda:0")
        monkeypatch.setattr(type(device), "claimed_by_others", raises(LookupError("x")))
        assert comfy.mm.get_free_memory() == 24 * GIB

    def test_reading_the_name_of_the_oom_error_never_raises(
        self, comfy: Any, host: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        mm = comfy.mm
        plain = vars(mm)["OOM_EXCEPTION"]

        class Odd(plain):  # type: ignore[misc,valid-type]
            def __getattr__(self, name: str) -> Any:
                raise ValueError(name)

        try:
            raise Odd()
        except mm.OOM_EXCEPTION:
            pass
        monkeypatch.delitem(sys.modules, "comfy.model_management")
        try:
            raise plain()
        except mm.OOM_EXCEPTION:
            pass

    @pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit, GeneratorExit, "interrupt"])
    @pytest.mark.parametrize("where", ["load", "vae", "node", "claim"])
    def test_an_interrupt_anywhere_leaves_nothing(
        self,
        comfy: Any,
        host: Any,
        model: Any,
        kind: Any,
        where: str,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        mm, sd = comfy.mm, comfy.module("comfy.sd")
        error = mm.InterruptProcessingException if kind == "interrupt" else kind
        big = model(2 * GIB)
        vae = sd.VAE(model(GIB), GIB)
        if where == "load":
            big.partially_load = raises(error())
        if where == "vae":
            vae.during = raises(error())
        if where == "claim":
            account = type(host.link.device("cuda:0").account("x"))
            monkeypatch.setattr(account, "claim_first", raises(error()))
        nodes = [
            lambda: mm.load_models_gpu([big]),
            lambda: vae.decode(sd.Samples(3, 4, 64, 64)),
            raises(error()) if where == "node" else lambda: None,
        ]
        with contextlib.suppress(error):
            run_prompt(comfy, *nodes)
        assert_nothing_is_left(host)
        assert not host.scopes.in_vae
        assert not host.scopes.decoding
        assert not host.link.is_raw

    def test_a_thread_that_cannot_be_started(
        self, comfy: Any, host: Any, model: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        big = model(2 * GIB)
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", raises(RuntimeError("can't start new thread")))
            comfy.mm.load_models_gpu([big])
        assert big.loaded_size() == 2 * GIB
        assert_nothing_is_left(host)
        assert card_figures(host).own_held == 2 * GIB

    def test_a_claim_that_cannot_be_settled_is_dropped(
        self, host: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        claim = host.link.account("cuda:0").try_claim(GIB)
        host.publisher.open_claim("cuda:0", claim)
        with monkeypatch.context() as patch:
            patch.setattr(type(claim), "settle", raises(RuntimeError("moved")))
            host.publisher.close_claim("cuda:0", claim)
        assert claim.ended
        assert_nothing_is_left(host)

    def test_an_interrupt_while_work_waits_to_begin(
        self, host: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        host.serving._releasing, host.serving._release_until = -1, float("inf")
        monkeypatch.setattr(host.serving._changed, "wait", raises(KeyboardInterrupt()))
        with pytest.raises(KeyboardInterrupt):
            host.serving.begin()
        host.serving._releasing = None
        assert_nothing_is_left(host)

    def test_a_release_that_hangs_is_waited_for_once(
        self, host: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        from memledger_comfy import serving

        monkeypatch.setattr(serving, "IDLE_RELEASE_MAX_S", 0.05)
        with host.serving.idle_release() as may:
            assert may
            host.serving.begin()
            monkeypatch.setattr(host.serving._changed, "wait", raises(AssertionError("once more")))
            for _ in range(3):
                host.serving.begin()
                host.serving.end()
            host.serving.end()
        assert_nothing_is_left(host)

    def test_an_end_on_another_thread_than_the_begin(self, host: Any) -> None:
        host.serving.begin()
        errors: list[BaseException] = []

        def end() -> None:
            try:
                host.serving.end()
            except BaseException as error:
                errors.append(error)

        thread = threading.Thread(target=end)
        thread.start()
        thread.join(10)
        assert not errors
        assert host.serving._working == 0


class TestFigures:
    @pytest.mark.parametrize(
        "value",
        [0, -1, -(2**40), 2**80, 1.5, 24.0 * GIB, float("nan"), float("inf"), None, "many", []],
    )
    @pytest.mark.parametrize("claimed", [0, 20 * GIB])
    def test_whatever_upstream_says_the_figure_is_positive_or_upstreams(
        self, comfy: Any, sibling: Any, value: Any, claimed: int
    ) -> None:
        comfy.load_all()
        comfy.mm.get_free_memory = lambda dev=None, torch_free_too=False: (
            (value, value) if torch_free_too else value
        )
        comfy.start_host()
        if claimed:
            sibling.call("claim", claimed)
        found = comfy.mm.get_free_memory()
        both = comfy.mm.get_free_memory(torch_free_too=True)
        assert found is value or (type(found) is int and found > 0)
        if type(found) is int and claimed and value > 0:
            assert found >= min(int(value), max(64 * MIB, int(value) // 64))
            assert found <= max(1, int(value))
        assert isinstance(both, tuple)
        assert both[0] is value or (type(both[0]) is int and both[0] > 0)
        assert both[1] is value or 0 <= both[1] <= max(1, both[0])

    def test_numpys_ints(self, comfy: Any, sibling: Any) -> None:
        class Int64(int):
            """numpy's scalars are no ints of Python's, and do not stay what they are."""

        comfy.load_all()
        comfy.mm.get_free_memory = lambda dev=None, torch_free_too=False: Int64(24 * GIB)
        comfy.start_host()
        sibling.call("claim", 6 * GIB)
        assert comfy.mm.get_free_memory() == 18 * GIB
        assert type(comfy.mm.get_free_memory()) is int

    def test_ram_is_never_more_than_upstreams(self, comfy: Any) -> None:
        policy = comfy.module("memledger_comfy.policy")
        assert policy.bounded_ram(10 * MIB, 5 * MIB) == 10 * MIB
        assert policy.bounded_ram(10 * GIB, 5 * MIB) == 160 * MIB
        assert policy.bounded_ram(0, 5) >= 1
        assert policy.bounded_ram(0, None) >= 1

    def test_a_limit_for_weights_is_positive_or_upstreams(self, comfy: Any) -> None:
        policy = comfy.module("memledger_comfy.policy")
        assert policy.vram_for_weights(10 * GIB, 1, 0, 2 * GIB) > 0
        assert policy.vram_for_weights(-5.0, 1, 0, 2 * GIB) == -5.0
        assert policy.refuse_dtype(10, 1) > 0

    @pytest.mark.parametrize(
        "odd", ["mps", "xpu", "xpu:1", "privateuseone:0", "", "cuda", "cpu:0", "meta"]
    )
    def test_odd_devices_are_upstreams(self, comfy: Any, host: Any, odd: str) -> None:
        torch = comfy.module("torch")
        for _ in range(2):
            host.link.device(odd)
            host.link.device(f"{odd}::")
            host.link.device(torch.device(odd))
            host.link.account(odd)
            host.publisher.publish(odd)
        if odd == "cpu:0":
            assert host.link.device(odd) is host.link.device("cpu")

    def test_devices_that_are_new_objects_each_time_fill_nothing(self, host: Any) -> None:
        class Adapter:
            def __str__(self) -> str:
                return "privateuseone:0"

        for _ in range(2000):
            host.link.device(Adapter())
        assert len(host.link._known) < 1000
        assert len(host.link._devices) < 10


class TestWraps:
    def test_what_was_a_coroutine_function_is_one(self, comfy: Any, host: Any) -> None:
        """Packs ask before they wrap it themselves."""
        execution = comfy.module("execution")
        assert inspect.iscoroutinefunction(execution.execute)
        assert inspect.iscoroutinefunction(execution.PromptExecutor.execute_async)
        assert not inspect.iscoroutinefunction(execution.PromptExecutor.execute)

    def test_undo_gives_copies_back(self, comfy: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        comfy.load_all()
        plain = comfy.mm.soft_empty_cache
        pack = ModuleType("a_pack")
        pack.empty = plain  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "a_pack", pack)
        context = comfy.start_host()
        assert pack.empty is not plain  # type: ignore[attr-defined]
        context.undo()
        assert pack.empty is plain  # type: ignore[attr-defined]

    def test_undo_gives_every_name_and_value_back(self, comfy: Any) -> None:
        comfy.load_all()
        modules = [
            name
            for name in sys.modules
            if name.partition(".")[0] in ("comfy", "execution", "nodes", "torch", "comfy_execution")
        ]

        def state() -> dict[tuple[str, str], Any]:
            found: dict[tuple[str, str], Any] = {}
            for name in modules:
                for key, value in vars(sys.modules[name]).items():
                    found[name, key] = value
                    if isinstance(value, type) and value.__module__ == name:
                        for attribute, inner in vars(value).items():
                            found[name, f"{key}.{attribute}"] = inner
            return found

        before = state()
        context = comfy.start_host()
        context.publisher.at_safe_point()
        context.undo()
        after = state()
        assert {
            k
            for k in after
            if k[1] not in ("__builtins__",)
            and before.get(k) is not after[k]
            and before.get(k) != after[k]
        } == set()
        assert set(after) == set(before)

    def test_undo_leaves_what_others_have_put_there(self, comfy: Any) -> None:
        context = comfy.start_host()
        torch, patcher = comfy.module("torch"), comfy.module("comfy.model_patcher")

        class Counter(patcher.MemoryCounter):  # type: ignore[misc]
            pass

        class Graph(torch.cuda.graph):  # type: ignore[misc]
            pass

        patcher.MemoryCounter, torch.cuda.graph = Counter, Graph
        context.undo()
        assert patcher.MemoryCounter is Counter
        assert torch.cuda.graph is Graph
        assert Counter(10 * GIB).use(torch.Sized(GIB))
        with Graph(torch.cuda.CUDAGraph()):
            pass

    def test_old_total_ram_is_given_back(self, comfy: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        if comfy.generation == "new":
            pytest.skip("the new generation's total_ram is its own")
        comfy.load_all()
        comfy.mm.total_ram = 1e9
        context = comfy.start_host()
        assert comfy.mm.total_ram < 1e9
        context.undo()
        assert comfy.mm.total_ram == 1e9


class TestCaptures:
    def test_graphs_that_are_dropped_are_forgotten_whatever_was_imported_first(
        self, comfy: Any
    ) -> None:
        if comfy.generation == "old":
            pytest.skip("the old generation captures nothing itself")
        context = comfy.start_host()
        torch, prefetch = comfy.module("torch"), comfy.module("comfy.model_prefetch")
        with torch.cuda.graph(torch.cuda.CUDAGraph()):
            kept = torch.empty(512 * MIB, device="cuda:0")
        part = context.publisher._parts["windows"]
        assert part("cuda:0").releasable == -512 * MIB
        prefetch.cleanup_prefetch_queues()
        assert part("cuda:0") is None
        del kept


class TestHookCache:
    def test_a_cache_of_thousands_of_chunks_leaves_no_claim(
        self,
        comfy: Any,
        host: Any,
        model: Any,
        monkeypatch: pytest.MonkeyPatch,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        from memledger_comfy.adapter import row31_hooks

        monkeypatch.setattr(row31_hooks, "_CHUNK", 1 * MIB)
        patcher = model(GIB)
        patcher.patch_hooks([MIB] * 3000)
        assert card_figures(host).own_claimed == 0
        assert not caplog.records

    def test_what_one_thread_was_granted_is_not_given_back_by_another(
        self, comfy: Any, host: Any, model: Any
    ) -> None:
        first_used, other_done = threading.Event(), threading.Event()
        patchers, seen = comfy.module("comfy.model_patcher"), []
        plain = patchers.MemoryCounter.use
        main = threading.current_thread()

        class Meeting(patchers.MemoryCounter):  # type: ignore[misc]
            def use(self, weight: Any) -> Any:
                found = plain(self, weight)
                if threading.current_thread() is main:
                    thread.start()
                    first_used.wait(30)
                else:
                    first_used.set()
                    other_done.wait(30)
                    seen.append(card_figures(host).own_claimed)
                return found

        patchers.MemoryCounter = Meeting
        thread = threading.Thread(target=model(GIB).patch_hooks, args=([64 * MIB],))
        model(GIB).patch_hooks([64 * MIB])
        other_done.set()
        thread.join(30)
        assert seen == [64 * MIB]
        assert card_figures(host).own_claimed == 0


class TestLedgerIsTakenAway:
    def work(self, comfy: Any, model: Any) -> None:
        mm, sd = comfy.mm, comfy.module("comfy.sd")
        samplers, torch = comfy.module("comfy.samplers"), comfy.module("torch")
        big, steps = model(2 * GIB), samplers.Model(MIB, model(MIB))
        vae = sd.VAE(model(GIB), GIB)
        latent = torch.empty(8, device="cuda:0")
        executor = run_prompt(
            comfy,
            lambda: mm.load_models_gpu([big]),
            lambda: samplers.calc_cond_batch(steps, [1, 2], latent, None, {}),
            lambda: vae.decode(sd.Samples(3, 4, 64, 64)),
            lambda: mm.unet_dtype(mm.get_torch_device(), 10**9),
            lambda: mm.free_memory(1e30, mm.get_torch_device()),
        )
        assert executor.success, getattr(executor, "error", None)
        assert vae.batches

    @pytest.mark.parametrize("how", ["deleted", "replaced", "garbage", "zeros", "folder", "left"])
    def test_in_the_middle_of_a_prompt(
        self, comfy: Any, host: Any, model: Any, segment: Path, how: str
    ) -> None:
        mm = comfy.mm
        big = model(2 * GIB)

        def away() -> None:
            path = Path(host.link.ledger.path)
            if how in ("deleted", "replaced"):
                path.unlink()
            if how == "replaced":
                path.write_bytes(b"not a ledger" * 1000)
            if how in ("garbage", "zeros"):
                size = path.stat().st_size
                with path.open("r+b") as file:
                    file.write(os.urandom(size) if how == "garbage" else bytes(size))
            if how == "folder":
                shutil.rmtree(path.parent)
            if how == "left":
                host.link.ledger.leave()

        executor = run_prompt(
            comfy,
            lambda: mm.load_models_gpu([big]),
            away,
            lambda: mm.load_models_gpu([model(GIB)], memory_required=GIB),
        )
        assert executor.success, getattr(executor, "error", None)
        assert big.loaded_size() == 2 * GIB
        self.work(comfy, model)
        assert host.serving._working == 0
        assert not any(host.publisher._claims.values())

    def test_a_slow_ledger_is_slow_and_right(
        self, comfy: Any, host: Any, model: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        device = host.link.device("cuda:0")
        account = device.account("comfyui")
        for owner, name in [
            (type(device), "figures"),
            (type(account), "publish"),
            (type(account), "claim_first"),
            (type(host.link.ledger), "serve"),
        ]:
            plain = getattr(owner, name)

            def slow(*args: Any, plain: Any = plain, **kwargs: Any) -> Any:
                time.sleep(0.02)
                return plain(*args, **kwargs)

            monkeypatch.setattr(owner, name, slow)
        self.work(comfy, model)
        assert_nothing_is_left(host)

    def test_clocks_that_jump(
        self, comfy: Any, host: Any, model: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(time, "time", lambda: -1e12)
        self.work(comfy, model)
        assert_nothing_is_left(host)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_fork_in_the_middle_of_a_publish(comfy: Any, host: Any, model: Any) -> None:
    """The child has the locks as they were, and not the threads that would let go of them."""
    held, go = threading.Event(), threading.Event()

    def hold() -> None:
        with host.publisher._lock, host.pledges._lock, host.serving._changed:
            host.publisher._measuring, host.publisher._pump = True, threading.current_thread()
            held.set()
            go.wait(60)
            host.publisher._measuring, host.publisher._pump = False, None

    thread = threading.Thread(target=hold)
    thread.start()
    assert held.wait(10)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            timer = threading.Timer(20, os._exit, (3,))
            timer.daemon = True
            timer.start()
            comfy.mm.soft_empty_cache()
            comfy.mm.get_free_memory()
            run_prompt(comfy, lambda: comfy.mm.load_models_gpu([model(GIB)]))
            code = 0 if host.serving._working == 0 else 2
            code = code if host.publisher.publish("cuda:0") else 4
            code = code if host.publisher._pump is not thread else 5
        finally:
            os._exit(code)
    try:
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    finally:
        go.set()
        thread.join(10)
    assert status == 0


def test_many_prompts_leave_nothing_behind(comfy: Any, host: Any, model: Any) -> None:
    mm, sd = comfy.mm, comfy.module("comfy.sd")
    samplers, torch = comfy.module("comfy.samplers"), comfy.module("torch")
    big, vae = model(2 * GIB), sd.VAE(model(GIB), GIB)
    latent = torch.empty(8, device="cuda:0")
    executor = comfy.module("execution").PromptExecutor(None)
    queue = comfy.module("execution").PromptQueue(None)
    steps = samplers.Model(MIB, model(MIB))

    def prompt(number: int) -> None:
        executor.execute(
            [
                lambda: mm.load_models_gpu([big]),
                lambda: samplers.calc_cond_batch(steps, [1], latent, None, {}),
                lambda: vae.decode(sd.Samples(1, 4, 64, 64)),
            ],
            f"prompt-{number}",
        )
        assert executor.success
        if number % 20 == 0:
            queue.set_flag("free_memory", True)
            queue.get_flags()
            mm.free_memory(1e30, mm.get_torch_device())
            steps.batches.clear()
            vae.batches.clear()

    def weigh() -> tuple[collections.Counter[str], int, int]:
        gc.collect()
        descriptors = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0
        kinds = collections.Counter(type(each).__name__ for each in gc.get_objects())
        for upstreams in ("finalize", "_Info", "ReferenceType"):  # one at each load of a model
            del kinds[upstreams]
        return kinds, threading.active_count(), descriptors

    count = units.count(150, 10_000)
    for number in range(40):
        prompt(number)
    before = weigh()
    for number in range(count):
        prompt(number)
    after = weigh()
    grown = {kind: more for kind, more in (after[0] - before[0]).items() if more > 40}
    assert not grown
    assert after[1] <= before[1] + 1, "threads"
    assert after[2] <= before[2], "descriptors"
    assert_nothing_is_left(host)


def test_many_threads_at_once(comfy: Any, host: Any, model: Any, sibling: Any) -> None:
    """The prompt's thread, the server's, the ledger's, the pump and a sibling that asks."""
    mm, sd = comfy.mm, comfy.module("comfy.sd")
    over = threading.Event()
    errors: list[BaseException] = []

    def server() -> None:
        queue = comfy.module("execution").PromptQueue(None)
        while not over.wait(0.001):
            try:
                assert mm.get_free_memory() > 0
                mm.soft_empty_cache()
                queue.set_flag("unload_models", True)
                mm.interrupt_current_processing(False)
                host.wraps.sweep_aliases()
            except BaseException as error:
                errors.append(error)
                return

    thread = threading.Thread(target=server)
    thread.start()
    try:
        for number in range(30):
            big, vae = model(6 * GIB), sd.VAE(model(GIB), GIB)
            executor = run_prompt(
                comfy,
                lambda big=big: mm.load_models_gpu([big]),
                lambda vae=vae: vae.decode(sd.Samples(2, 4, 64, 64)),
                name=f"prompt-{number}",
            )
            assert executor.success, getattr(executor, "error", None)
            if number % 10 == 0:
                sibling.run("device.ask(2 << 30, 0.05).credited")
    finally:
        over.set()
        thread.join(30)
    assert not errors
    assert_nothing_is_left(host)


def test_a_card_that_is_taken_out(comfy: Any, host: Any, card: sim.Card, model: Any) -> None:
    big = model(2 * GIB)
    sim.remove(card.name)
    executor = run_prompt(comfy, lambda: comfy.mm.load_models_gpu([big]))
    assert executor.success, getattr(executor, "error", None)
    assert host.serving._working == 0
