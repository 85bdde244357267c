"""Workers of the real comfy-env: they join by the file that it runs before ComfyUI's
modules."""

from __future__ import annotations

import os
import signal
import sys
import threading
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from helpers.system import missing
from helpers.waiting import wait_until

GIB = 1 << 30
HERE = Path(__file__).parent
PACKS = HERE / "packs"
ROOT = HERE.parent.parent


class Pack:
    """One node pack in a worker of its own."""

    def __init__(self, worker: Any) -> None:
        self.worker = worker

    def __call__(self, method: str, **kwargs: Any) -> Any:
        return self.worker.call_method("memledger_test_nodes", "Node", method, kwargs=kwargs)

    @property
    def pid(self) -> int:
        return int(self.worker._process.pid)


@pytest.fixture
def comfy_env() -> Any:
    try:
        from comfy_env.isolation.workers import subprocess
    except ImportError as error:
        missing(f"comfy-env ({error})")
    return subprocess


@pytest.fixture
def pack(
    comfy: Any, host: Any, comfy_env: Any, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., Pack]]:
    """pack() starts a worker as comfy-env's pool does."""
    from comfy_env.isolation import pool

    doubles = HERE / "doubles"
    workers: list[Any] = []

    def start(**options: Any) -> Pack:
        # The worker puts each in front of the others.
        places = [doubles / "common", doubles / comfy.generation]
        worker = comfy_env.SubprocessWorker(
            python=sys.executable, working_dir=PACKS, sys_path=[*map(str, places)], **options
        )
        workers.append(worker)
        worker.register_callback("report_progress", pool._handle_progress)
        key = f"pack {len(workers)}"
        known = types.SimpleNamespace(worker=worker, held=0)
        monkeypatch.setitem(pool._WORKER_POOL, key, known)
        worker.register_callback(
            "request_vram_budget",
            lambda request: pool._handle_vram_budget(request, worker_key=key),
        )
        return Pack(worker)

    yield start
    for worker in workers:
        worker.shutdown()


@pytest.fixture
def files(tmp_path: Path) -> dict[str, str]:
    return {"flag": str(tmp_path / "begun"), "until": str(tmp_path / "enough")}


def held_by_others(host: Any) -> int:
    figures = host.link.device("cuda:0").figures()
    return int(figures.held - figures.own_held)


def run_prompt(comfy: Any, prompt_id: str, node: Callable[[], Any]) -> tuple[Any, threading.Thread]:
    """A prompt of one node on a thread of its own; what came of it is in the executor's `error`."""
    executor = comfy.module("execution").PromptExecutor(None)
    executor.outcome = None

    def run() -> None:
        try:
            executor.outcome = node()
        except BaseException as error:
            executor.outcome = error
            raise

    thread = threading.Thread(target=executor.execute, args=([run], prompt_id), daemon=True)
    thread.start()
    return executor, thread


def test_it_joins_the_hosts_group(host: Any, pack: Any) -> None:
    known = pack()("tell")
    assert (known["joined"], known["why"], known["leader"]) == (True, None, "named by the group")
    import memledger

    assert known["library"] == str(Path(memledger.__file__).parent)
    adapters = ROOT / "comfy_integration"
    assert not {str(adapters), str(adapters / "memledger_comfy")} & set(known["path"])
    for behaviour in ("free", "interrupt", "progress", "comfy_env"):
        assert known["status"][behaviour] == "on"
    members = {member.role: member for member in host.link.ledger.members()}
    assert members["worker"].label == PACKS.name
    assert members["worker"].pid == known["pid"]


def test_a_pack_with_serializers_of_its_own_joins_too(pack: Any) -> None:
    own = {"COMFY_ENV_SERIALIZER_FILES": str(PACKS / "serialization.py")}
    inside = pack(env=own)
    assert inside("tell")["joined"] is True
    loaded = inside("evaluate", source="[n for n in sys.modules if n.endswith('_serialization')]")
    assert len(loaded) == 1


def test_a_pack_may_stay_out(pack: Any) -> None:
    assert pack(env={"MEMLEDGER_COMFY": "off"})("tell") == {"joined": False}


def test_what_it_holds_is_published_and_goes_with_it(host: Any, pack: Any) -> None:
    inside = pack()
    assert inside("load", nbytes=3 * GIB) == 1
    wait_until(lambda: held_by_others(host) >= 3 * GIB)
    os.kill(inside.pid, signal.SIGKILL)
    wait_until(lambda: held_by_others(host) == 0)
    assert [member.role for member in host.link.ledger.members()] == ["host"]


@pytest.mark.parametrize("how", ["steps", "checks"])
def test_an_interrupt_ends_the_node_and_not_the_worker(
    comfy: Any, pack: Any, files: dict[str, str], how: str
) -> None:
    """comfy-env's own way looks at the host's flag when progress is reported; a node that reports
    none is ended by the word. What the host sees is what it sees of its own nodes."""
    inside = pack()
    pid = inside("tell")["pid"]
    executor, thread = run_prompt(comfy, "a", lambda: inside(how, **files))
    wait_until(lambda: os.path.exists(files["flag"]))
    comfy.module("nodes").interrupt_processing()
    thread.join(30)
    assert getattr(executor.outcome, "error_kind", None) == "interrupt"
    after = inside("tell")
    assert after["pid"] == pid
    assert after["prompt"][1:] == ["a", False]


def test_it_drops_its_models_when_the_user_frees(comfy: Any, host: Any, pack: Any) -> None:
    """Idle, without a further node: it waits for one, and hears it all the same."""
    inside = pack()
    inside("load", nbytes=3 * GIB)
    wait_until(lambda: held_by_others(host) >= 3 * GIB)
    comfy.module("execution").PromptQueue(None).set_flag("free_memory", True)
    wait_until(lambda: held_by_others(host) < GIB)
    assert inside("evaluate", source="len(mm.current_loaded_models)") == 0


def test_a_free_in_the_middle_of_a_node_waits_for_its_end(
    comfy: Any, host: Any, pack: Any, files: dict[str, str]
) -> None:
    inside = pack()
    inside("load", nbytes=3 * GIB)
    loaded: list[Any] = []
    node = threading.Thread(
        target=lambda: loaded.append(inside("steps_after_a_free", flag=files["flag"])), daemon=True
    )
    node.start()
    wait_until(lambda: os.path.exists(files["flag"]))
    comfy.module("execution").PromptQueue(None).set_flag("unload_models", True)
    node.join(60)
    assert loaded == [1]
    wait_until(lambda: held_by_others(host) < GIB)


def test_an_interrupt_is_no_business_of_a_release(comfy: Any, host: Any, pack: Any) -> None:
    """Between two nodes nobody would answer comfy-env's progress hook: it would wait for ever."""
    inside = pack()
    inside("load", nbytes=3 * GIB)
    inside("check_in_releases")
    host.link.ledger.prompt_begin("a")
    comfy.module("nodes").interrupt_processing()
    reply = inside.worker.send_command("full_release")
    assert reply["receipt"]["errors"] == []
    assert inside("evaluate", source="len(mm.current_loaded_models)") == 0
    host.link.ledger.prompt_end("a")


def test_a_release_for_the_host_asks_nobody(host: Any, pack: Any, sibling: Any) -> None:
    """What comfy-env wants free for somebody else's load, its worker does not ask others for."""
    inside = pack()
    inside("load", nbytes=2 * GIB)
    sibling.call("publish", 6 * GIB, 6 * GIB)
    receipt = inside.worker.send_command("partial_release", size=8 * GIB)["receipt"]
    assert receipt["freed_bytes"] == 2 * GIB
    counters = next(m for m in host.link.ledger.members() if m.role == "worker").counters
    assert counters.asks_sent == 0


def test_it_answers_an_ask_while_it_waits(host: Any, pack: Any) -> None:
    inside = pack()
    inside("load", nbytes=3 * GIB)
    device = host.link.device("cuda:0")
    wait_until(lambda: device.figures().releasable > 2 * GIB)
    assert device.ask(2 * GIB, timeout=20).credited >= 2 * GIB
    assert held_by_others(host) <= 2 * GIB


def test_a_node_that_cannot_be_imported_leaves_it_waiting(host: Any, pack: Any) -> None:
    inside = pack()
    inside("load", nbytes=3 * GIB)
    with pytest.raises(Exception, match="memledger_test_no_such_module"):
        inside.worker.call_method("memledger_test_no_such_module", "Node", "run")
    device = host.link.device("cuda:0")
    wait_until(lambda: device.figures().releasable > 2 * GIB)
    assert device.ask(2 * GIB, timeout=20).credited >= 2 * GIB


def test_it_answers_an_ask_between_two_steps(host: Any, pack: Any, files: dict[str, str]) -> None:
    inside = pack()
    inside("load", nbytes=3 * GIB)
    answers: list[Any] = []
    node = threading.Thread(target=lambda: answers.append(inside("steps", **files)), daemon=True)
    node.start()
    wait_until(lambda: os.path.exists(files["flag"]))
    asked = host.link.device("cuda:0").ask(GIB, timeout=20)
    assert [answer.state for answer in asked.members] == ["done"]  # before the node has ended
    assert asked.credited >= GIB
    Path(files["until"]).touch()
    node.join(30)
    assert answers == ["ended"]


def test_its_reserve_is_not_booked_twice(comfy: Any, host: Any, pack: Any, sibling: Any) -> None:
    """comfy-env has a worker reserve what the host sees less of than it does itself: nothing, now
    that both know what siblings were promised; nor what the worker itself was promised."""
    inside = pack()
    sibling.call("claim", 6 * GIB)
    inside("load", nbytes=2 * GIB)
    margin = comfy.mm.EXTRA_RESERVED_VRAM
    assert inside("evaluate", source="mm.EXTRA_RESERVED_VRAM") == margin
    inside("promise", nbytes=3 * GIB)
    assert host.link.device("cuda:0").claimed_by_others() == 9 * GIB
    inside("load", nbytes=GIB)
    assert inside("evaluate", source="mm.EXTRA_RESERVED_VRAM") == margin


def test_models_that_stand_for_a_workers_are_not_the_hosts(
    comfy: Any, host: Any, sibling: Any
) -> None:
    """comfy-env lists them beside the host's own. The worker publishes them, and is asked."""
    torch, patchers = comfy.module("torch"), comfy.module("comfy.model_patcher")
    figures = comfy.module("memledger_comfy.adapter.figures")
    gpu, cpu = torch.device("cuda", 0), torch.device("cpu")

    class Stand(patchers.ModelPatcher):
        __module__ = "comfy_env.isolation.model_patcher"

    own, stand = patchers.ModelPatcher(2 * GIB, gpu, cpu), Stand(GIB, gpu, cpu)
    comfy.mm.load_models_gpu([own])
    comfy.mm.load_models_gpu([stand])
    host.publisher.in_use = False
    assert figures.evictable(host, "cuda:0") == 2 * GIB
    host.publisher.at_safe_point()
    assert host.link.device("cuda:0").figures().releasable == 2 * GIB
    assert sibling.run(f"me.device.ask({4 * GIB}, timeout=20).credited") == 2 * GIB
    assert [entry.model for entry in comfy.mm.current_loaded_models] == [stand]


def test_what_row_6_corrects_comfy_env_does_not_correct_again(
    comfy: Any, comfy_env: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On Windows, where a process sees itself alone."""
    from comfy_env import state_sync
    from comfy_env.isolation import pool

    monkeypatch.setattr(state_sync, "blind_free_is_process_local", lambda platform: True)
    host = comfy.start_host()
    assert pool._blind_free_is_process_local() is False
    comfy.module("memledger_comfy.host").stop()
    assert pool._blind_free_is_process_local() is True
    monkeypatch.setenv("MEMLEDGER_COMFY_FREE", "off")
    assert comfy.start_host() is not host
    assert pool._blind_free_is_process_local() is True
