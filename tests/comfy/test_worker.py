"""Workers: what they join, whose word they hear, what becomes of what they hold."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

import memledger
from helpers import pythons, raw
from helpers.system import linux_only, need_root, unshare
from helpers.waiting import wait_until

GIB = 1 << 30
UNLOAD, CACHE = 1, 2
JOINED = "context is not None and context.link.ledger is not None"
LEADER = "context.link.ledger.leader.pid, context.link.ledger.leader_reason"
LOAD = (
    "import torch, comfy.model_patcher as patchers\n"
    "gpu, cpu = torch.device('cuda', 0), torch.device('cpu')\n"
    "model = patchers.ModelPatcher({nbytes}, gpu, cpu)\n"
    "mm.load_models_gpu([model])\n"
)

one_generation = pytest.mark.parametrize("comfy", ["new"], indirect=True)
"""What does not depend on ComfyUI's version."""


@pytest.fixture
def host(comfy: Any) -> Any:
    return comfy.start_host()


def others_hold(host: Any) -> int:
    figures = host.link.device("cuda:0").figures()
    return int(figures.held - figures.own_held)


def test_it_joins_the_group_of_the_host_that_started_it(host: Any, worker: Any) -> None:
    inside = worker()
    assert inside.run(LEADER) == [os.getpid(), "named by the group"]
    assert inside.run("context.link.ledger.role") == "worker"
    assert inside.run("worker.start() is context") is True
    for behaviour in ("free", "interrupt", "progress", "prompt"):
        assert inside.run("context.status")[behaviour] == "on"


def test_the_host_itself_is_no_worker(host: Any) -> None:
    from memledger_comfy import worker

    assert worker.start() is None


def test_what_it_loads_is_seen_and_goes_with_it(host: Any, worker: Any) -> None:
    inside = worker()
    inside.run(LOAD.format(nbytes=3 * GIB))
    assert others_hold(host) >= 3 * GIB
    inside.kill()
    wait_until(lambda: others_hold(host) == 0)


def test_while_it_works_it_answers_at_its_steps_alone(host: Any, worker: Any) -> None:
    """A process whose loop is not known may work at any time: nobody but its own main thread takes
    models away."""
    inside = worker()
    inside.run(LOAD.format(nbytes=3 * GIB) + "worker.boundary()")
    device = host.link.device("cuda:0")
    asked = device.ask(GIB, timeout=0.3)
    assert [answer.state for answer in asked.members] == ["no_answer"]
    assert others_hold(host) >= 3 * GIB
    inside.send_run(
        "import time\n"
        "bar, end = comfy.utils.ProgressBar(1 << 30), time.monotonic() + 30\n"
        "while context.link.device(gpu).figures().own_held >= 3 << 30 and time.monotonic() < end:\n"
        "    bar.update(1); time.sleep(0.002)\n"
        "len(mm.current_loaded_models)"
    )
    assert device.ask(GIB, timeout=20).credited >= GIB
    inside.receive()


def test_another_thread_of_a_node_answers_nothing(host: Any, worker: Any) -> None:
    inside = worker()
    inside.run(LOAD.format(nbytes=3 * GIB) + "worker.boundary()")
    inside.run(
        "import threading\n"
        "bar, enough = comfy.utils.ProgressBar(1 << 30), threading.Event()\n"
        "def report():\n"
        "    while not enough.wait(0.002): bar.update(1)\n"
        "thread = threading.Thread(target=report, daemon=True); thread.start()"
    )
    asked = host.link.device("cuda:0").ask(GIB, timeout=0.3)
    assert [answer.state for answer in asked.members] == ["no_answer"]
    inside.run("enough.set(); thread.join(10)")


def test_while_it_waits_it_answers_at_once(host: Any, worker: Any) -> None:
    inside = worker()
    inside.run(LOAD.format(nbytes=3 * GIB))
    inside.run("wait = worker.waiting(); wait.__enter__()")
    assert host.link.device("cuda:0").ask(GIB, timeout=20).credited >= GIB
    inside.run("wait.__exit__(None, None, None)")
    asked = host.link.device("cuda:0").ask(GIB, timeout=0.3)
    assert [answer.state for answer in asked.members] == ["no_answer"]


def test_a_cache_that_cannot_be_dropped_stops_nothing(comfy: Any, host: Any, worker: Any) -> None:
    inside = worker(quiet=False)
    inside.run(LOAD.format(nbytes=GIB) + "worker.on_free(lambda *_: 1 / 0)")
    comfy.module("execution").PromptQueue(None).set_flag("unload_models", True)
    assert inside.run("worker.boundary(); len(mm.current_loaded_models)") == 0
    assert "free: ZeroDivisionError" in inside.stderr()


# ---- other Pythons, other libraries


@pytest.mark.parametrize("version", pythons.VERSIONS)
@one_generation
def test_another_python_joins_with_the_hosts_folder(
    comfy: Any, host: Any, spawn: Any, version: str
) -> None:
    """Nothing is installed there: -S leaves site-packages out."""
    from memledger_comfy import handover

    python = pythons.find(version)
    if python is None:
        pytest.skip(f"no Python {version} here")
    bootstrap = Path(handover.__file__).parent / "bootstrap.py"
    inside = spawn(join=False, python=python, flags=("-S", str(bootstrap)))
    inside.run("from memledger_comfy import worker; context = worker.context()")
    assert inside.run(LEADER) == [os.getpid(), "named by the group"]
    assert inside.run("'%d.%d' % sys.version_info[:2]") == version
    seen: list[Any] = []

    def node() -> None:
        seen.append(inside.run("context.link.ledger.prompt()[1:]"))
        comfy.module("nodes").interrupt_processing()
        seen.append(inside.run("context.link.ledger.interrupted()"))

    comfy.module("execution").PromptExecutor(None).execute([node], "a")
    assert seen == [["a", True], True]
    inside.run("context.link.device('cuda:0').publish(2 << 30)")
    assert others_hold(host) == 2 * GIB


@one_generation
def test_an_unrelated_package_of_the_name_is_not_taken_for_ours(
    host: Any, worker: Any, tmp_path: Path
) -> None:
    library = pythons.copy_package(tmp_path / "library") / "memledger"
    (tmp_path / "other" / "memledger").mkdir(parents=True)
    (tmp_path / "other" / "memledger" / "__init__.py").write_text("raise SystemError('it was run')")
    where = {"PYTHONPATH": str(tmp_path / "other")}
    inside = worker(modules=False, env={**where, "MEMLEDGER_COMFY_LIBRARY": str(library)})
    assert inside.run(JOINED) is True
    assert inside.run("sys.modules['memledger'].__file__") == str(library / "__init__.py")
    assert inside.run(f"{str(library.parent)!r} in sys.path") is False
    inside = worker(modules=False, quiet=False, env={**where, "MEMLEDGER_COMFY_LIBRARY": ""})
    assert inside.run("context is None") is True
    line = "[memledger] off in this worker: MEMLEDGER_COMFY_LIBRARY is not set, and memledger is"
    assert inside.stderr() == f"{line} not installed\n"


@one_generation
def test_where_the_hosts_library_does_not_load_the_installed_one_serves(
    host: Any, worker: Any, tmp_path: Path
) -> None:
    """As one that was built for another platform, or for another kind of Python."""
    broken = pythons.copy_package(tmp_path) / "memledger"
    for native in broken.glob("_native*.so"):
        native.write_bytes(b"not a library")
    inside = worker(modules=False, env={"MEMLEDGER_COMFY_LIBRARY": str(broken)})
    assert inside.run(JOINED) is True
    assert inside.run("sys.modules['memledger'].__file__") == memledger.__file__


def test_a_ledger_of_another_layout_costs_a_line(
    comfy: Any, host: Any, worker: Any, segment: Path
) -> None:
    other = segment.with_name("memledger-v99-0")
    raw.forged(other, copy_of=segment, layout=(99 << 32))
    inside = worker(quiet=False, env={"MEMLEDGER_PATH": str(other)})
    seen: list[Any] = []

    def node() -> None:
        comfy.module("nodes").interrupt_processing()
        seen.append(inside.run("mm.throw_exception_if_processing_interrupted()"))
        seen.append(inside.run("mm.get_free_memory() > 0"))
        seen.append(inside.run("worker.boundary()"))

    comfy.module("execution").PromptExecutor(None).execute([node], "a")
    assert seen == [None, True, None]
    lines = inside.stderr().splitlines()
    assert len(lines) == 1, lines
    assert "this worker shares no ledger with its host: the segment has another layout" in lines[0]


@one_generation
def test_switched_off_it_is_not_there(
    comfy: Any, spawn: Any, worker: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    comfy.start_host()
    monkeypatch.setenv("MEMLEDGER_COMFY", "off")
    inside = worker()
    assert inside.run("context is None") is True
    assert inside.run("worker.boundary()") is None
    assert inside.run("hasattr(mm.get_free_memory, '__memledger__')") is False


# ---- several servers


@one_generation
def test_two_servers_never_hear_each_other(comfy: Any, host: Any, spawn: Any, worker: Any) -> None:
    """The second was started from the first, and has its environment: still it is no worker of
    it, nor are its workers."""
    places = os.pathsep.join(comfy.paths)
    second = spawn(join=False, env={"PYTHONPATH": places})
    second.run(
        "from memledger_comfy import host; host.start_early()\n"
        "import comfy.model_management, execution, nodes; host.start_late()\n"
        "queue, executor = execution.PromptQueue(None), execution.PromptExecutor(None)"
    )
    own = worker()
    of_second = worker(env=second.run("dict(os.environ)"))
    assert own.run(LEADER) == [os.getpid(), "named by the group"]
    assert of_second.run(LEADER) == [second.pid, "named by the group"]

    check = "context.link.ledger.prompt(), mm.processing_interrupted()"
    free = "context.link.ledger.free_epoch()[1]"
    seen: list[Any] = []

    def node() -> None:
        comfy.module("nodes").interrupt_processing()
        seen.append((own.run(check), of_second.run(check)))

    comfy.module("execution").PromptExecutor(None).execute([node], "first's")
    assert seen == [([[1, "first's", True], True], [None, False])]
    comfy.module("execution").PromptQueue(None).set_flag("free_memory", True)
    assert (own.run(free), of_second.run(free)) == (UNLOAD | CACHE, 0)
    second.run("queue.set_flag('unload_models', True)")
    assert (own.run(free), of_second.run(free)) == (0, UNLOAD)


@one_generation
def test_what_the_host_hands_over_goes_when_it_stops(comfy: Any) -> None:
    before = dict(os.environ)
    comfy.start_host()
    handed = {name for name in os.environ if name not in before}
    assert handed >= {"MEMLEDGER_GROUP", "MEMLEDGER_COMFY_LIBRARY", "COMFY_ENV_SERIALIZER_FILES"}
    comfy.module("memledger_comfy.host").stop()
    assert dict(os.environ) == before


# ---- other namespaces


@linux_only
@one_generation
def test_a_child_in_another_pid_namespace_with_nothing_in_its_environment(
    comfy: Any, host: Any, spawn: Any
) -> None:
    """Only what pyisolate's config can pass: our variables. It has the default segment's place, and
    neither its own pid nor its parents' tell who leads it."""
    from memledger_comfy import handover

    variables = handover.variables(host.link, os.environ)
    words = [f"{name}={value}" for name, value in variables.items()]
    own = unshare("--pid", "--fork", "--mount-proc", "--kill-child")
    prefix = (*own, "env", "-i", *words)
    bootstrap = Path(handover.__file__).parent / "bootstrap.py"
    inside = spawn(join=False, flags=("-S", str(bootstrap)), prefix=prefix)
    inside.run("from memledger_comfy import worker; context = worker.context()")
    assert inside.run(LEADER) == [os.getpid(), "named by the group"]
    assert inside.run("os.getpid()") != inside.process.pid
    seen: list[Any] = []

    def node() -> None:
        comfy.module("nodes").interrupt_processing()
        seen.append(inside.run("context.link.ledger.interrupted()"))

    comfy.module("execution").PromptExecutor(None).execute([node], "a")
    assert seen == [True]
    inside.run("context.link.device('cuda:0').publish(2 << 30)")
    assert others_hold(host) == 2 * GIB
    inside.kill()
    wait_until(lambda: others_hold(host) == 0)


@linux_only
def test_a_child_without_any_variable_finds_the_only_host(spawn: Any) -> None:
    """By the default path, in a /dev/shm of the test's own; MEMLEDGER_COMFY_LIBRARY is what the
    launcher's double has to say, for nothing is installed."""
    need_root()
    mounted = 'mount -t tmpfs tmpfs /dev/shm && exec "$@"'
    adapters = Path(__file__).parent.parent.parent / "comfy_integration"
    library = Path(memledger.__file__).parent
    inside_host = spawn(
        join=False,
        prefix=(*unshare("-m"), "env", "-u", "MEMLEDGER_PATH", "sh", "-c", mounted, "sh"),
    )
    answer = inside_host.run(
        f"import subprocess; sys.path.append({str(adapters)!r})\n"
        "from memledger_comfy import host; host.start_early()\n"
        "tell = 'from memledger_comfy import worker; ledger = worker.context().link.ledger; '\n"
        "tell += 'print(ledger.scope, ledger.degraded, ledger.leader_reason)'\n"
        "open('/dev/shm/tell.py', 'w').write(tell)\n"
        "words = ['unshare', '--pid', '--fork', '--mount-proc', 'env', '-i']\n"
        f"words += ['MEMLEDGER_COMFY_LIBRARY={library}', sys.executable, '-S']\n"
        f"words += [{str(adapters / 'memledger_comfy' / 'bootstrap.py')!r}, '/dev/shm/tell.py']\n"
        "done = subprocess.run(words, capture_output=True, text=True, timeout=60)\n"
        "done.stdout + done.stderr"
    )
    assert answer == "user False the only host\n"
