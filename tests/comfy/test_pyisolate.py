"""Children of the real pyisolate, in its sandbox: another pid namespace, an environment of its own,
and of the file system only what it lists."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from helpers.system import linux_only, missing
from helpers.waiting import wait_until

GIB = 1 << 30
HERE = Path(__file__).parent
PACKS = HERE / "packs"
pytestmark = linux_only


@pytest.fixture
def pyisolate(comfy: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    try:
        import pyisolate
        from pyisolate._internal import host
    except ImportError as error:
        missing(f"pyisolate ({error})")
    monkeypatch.syspath_prepend(str(PACKS))
    # A bare environment stands there already, and nothing is to be installed into it.
    monkeypatch.setattr(host, "create_venv", lambda *_: None)
    monkeypatch.setattr(host, "install_dependencies", lambda *_: None)
    yield pyisolate
    for name in ("memledger_test_extension", "memledger_test_nodes"):
        sys.modules.pop(name, None)


def config(comfy: Any, **more: Any) -> dict[str, Any]:
    listed = [str(PACKS), *comfy.paths[:2]]
    return {
        "name": "isolated",
        "module_path": str(PACKS / "isolated"),
        "isolated": True,
        "dependencies": [],
        "apis": [],
        "share_torch": False,
        "share_cuda_ipc": False,
        "sandbox": {"readonly_paths": listed},
        "env": {"COMFY_DOUBLE_CARDS": os.environ["COMFY_DOUBLE_CARDS"]},
        **more,
    }


@pytest.fixture
def isolated(comfy: Any, pyisolate: Any, tmp_path: Path) -> Callable[..., None]:
    """isolated(session) starts a child, runs `await session(child)`, and stops it."""
    from pyisolate._internal.sandbox_detect import detect_sandbox_capability

    can = detect_sandbox_capability()
    if not can.available:
        pytest.skip(f"no sandbox on this machine: {can.restriction_model.value} {can.raw_error}")
    subprocess.run(
        [sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "isolated")], check=True
    )

    def run(session: Callable[[Any], Awaitable[None]], **more: Any) -> None:
        import memledger_test_extension

        async def whole() -> None:
            manager = pyisolate.ExtensionManager(
                memledger_test_extension.TestExtension, {"venv_root_path": str(tmp_path)}
            )
            child = manager.load_extension(config(comfy, **more))
            try:
                await asyncio.wait_for(session(child), 60)
            finally:
                manager.stop_all_extensions()

        asyncio.run(whole())

    return run


def others_hold(host: Any) -> int:
    figures = host.link.device("cuda:0").figures()
    return int(figures.held - figures.own_held)


def test_a_sandboxed_child_is_a_worker_like_any_other(comfy: Any, isolated: Any) -> None:
    host = comfy.start_host()
    queue = comfy.module("execution").PromptQueue(None)

    async def session(child: Any) -> None:
        known = await child.tell()
        assert (known["joined"], known["why"]) == (True, None)
        assert known["leader"] == "named by the group"
        assert known["namespace"] != os.readlink("/proc/self/ns/pid")
        assert "MEMLEDGER_GROUP" in known["variables"]
        assert known["status"]["pyisolate"] == "on"
        assert [m.role for m in host.link.ledger.members()] == ["host", "worker"]

        assert await child.load(3 * GIB) == 1
        assert others_hold(host) >= 3 * GIB
        device = host.link.device("cuda:0")
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(None, lambda: wait_until(lambda: device.figures().releasable))
        asked = await loop.run_in_executor(None, lambda: device.ask(GIB, timeout=20))
        assert asked.credited >= GIB

        await child.load(GIB)
        queue.set_flag("free_memory", True)
        await loop.run_in_executor(None, lambda: wait_until(lambda: others_hold(host) < GIB // 2))

        host.link.ledger.prompt_begin("a")
        ended = asyncio.ensure_future(child.checks())
        while not await child.has_begun():
            pass
        comfy.mm.interrupt_current_processing()
        with pytest.raises(Exception, match="interrupted by user"):
            await ended
        host.link.ledger.prompt_end("a")
        assert (await child.tell())["joined"] is True

    isolated(session)
    wait_until(lambda: [m.role for m in host.link.ledger.members()] == ["host"])


def test_what_the_pack_asked_for_itself_stays(comfy: Any, pyisolate: Any, tmp_path: Path) -> None:
    from pyisolate._internal.host import Extension

    comfy.start_host()
    given = config(comfy, env={"OWN": "1", "MEMLEDGER_GROUP": "own"})
    given["sandbox"] = {"readonly_paths": {"/opt": "/opt"}, "network": True}
    extension = Extension(given["module_path"], pyisolate.ExtensionBase, given, str(tmp_path))
    assert extension.config["env"]["OWN"] == "1"
    assert extension.config["env"]["MEMLEDGER_GROUP"] == "own"
    assert extension.config["sandbox"]["network"] is True
    assert extension.config["sandbox"]["readonly_paths"]["/opt"] == "/opt"
    assert [api.__name__ for api in extension.config["apis"]] == ["MemledgerWorker"]


@pytest.mark.parametrize(
    "off", [{"execution_model": "sealed_worker"}, {"package_manager": "conda"}, {}]
)
def test_a_sealed_worker_is_left_alone(
    comfy: Any, pyisolate: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, off: Any
) -> None:
    """So is every extension where workers are switched off."""
    from pyisolate._internal.host import Extension

    if not off:
        monkeypatch.setenv("MEMLEDGER_COMFY_WORKERS", "off")
    comfy.start_host()
    given = config(comfy, **off)
    extension = Extension(given["module_path"], pyisolate.ExtensionBase, given, str(tmp_path))
    assert extension.config["env"] == config(comfy)["env"]
    assert extension.config["sandbox"] == config(comfy)["sandbox"]
    assert extension.config["apis"] == []
