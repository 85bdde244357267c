"""Against a real ComfyUI: COMFYUI_PATH names its tree, COMFYUI_PYTHON the Python that has what its
requirements.txt names (else this one). Without a tree all of it is skipped. See docs/comfyui.md.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import memledger
from helpers.raw import LAYOUT, Raw
from helpers.waiting import wait_until

from .conftest import ADAPTERS
from .tree import server as tree_server
from .tree.pack.worker_side import HELD
from .tree.server import INVERT, Server

if tree_server.tree() is None:
    pytest.skip("COMFYUI_PATH names no ComfyUI tree", allow_module_level=True)

pytestmark = pytest.mark.watchdog(600)

HERE = Path(__file__).parent
PACKAGE = {"memledger": ADAPTERS}

PATCHER = "comfy.model_patcher:ModelPatcher"


def in_mm(*names: str) -> tuple[str, ...]:
    return tuple(f"comfy.model_management:{name}" for name in names)


# By behaviour, what it needs of ComfyUI: with all of it there it must be on and whole, else the log
# must name what is missing.
NEEDS: dict[str, tuple[str, ...]] = {
    "holder": in_mm("register_memory_holder"),
    "free": in_mm("get_free_memory", "get_torch_device"),
    "patcher": (f"{PATCHER}.get_free_memory",),
    "multigpu": ("comfy.samplers:_calc_cond_batch_multigpu",),
    "vae": ("comfy.sd:VAE.decode", "comfy.sd:VAE.encode", *in_mm("get_total_memory")),
    "dtype": in_mm(
        "maximum_vram_for_weights", "minimum_inference_memory", "unet_dtype", "should_use_fp16",
        "should_use_bf16",
    ),
    "ram": in_mm("get_free_memory"),
    "loads": in_mm("load_models_gpu", "current_loaded_models", "minimum_inference_memory"),
    "asks": in_mm("get_free_memory", "free_memory", "soft_empty_cache"),
    "windows": ("torch:cuda.graph",),
    "oom": in_mm("OOM_EXCEPTION", "is_oom", "soft_empty_cache"),
    "free_request": (
        "execution:PromptQueue.set_flag", "execution:PromptQueue.get_flags",
        "execution:PromptExecutor.reset",
    ),
    "prompt": ("execution:PromptExecutor.execute",),
    "hooks": ("comfy.model_patcher:MemoryCounter", f"{PATCHER}.patch_hooks"),
    "backups": in_mm("current_loaded_models"),
    "clones": (f"{PATCHER}.deepclone_multigpu",),
    "pins": in_mm(
        "ensure_pin_budget", "free_pins", "TOTAL_PINNED_MEMORY", "MAX_PINNED_MEMORY"
    ),
    "interrupt": in_mm("interrupt_current_processing"),
    "view": ("server:PromptServer.add_routes",),
    "steps": ("comfy.samplers:calc_cond_batch",),
    "nodes": ("execution:PromptExecutor.execute", "execution:execute"),
    "workers": (),
}  # fmt: skip


@pytest.fixture(scope="module")
def private() -> Iterator[Path]:
    """A directory for segments, in memory where there is such."""
    place = "/dev/shm" if os.path.isdir("/dev/shm") else None
    directory = Path(tempfile.mkdtemp(prefix="memledger-test-", dir=place))
    yield directory
    shutil.rmtree(directory, ignore_errors=True)


def run_in_tree(segment: Path, **extra: str) -> dict[str, Any]:
    names = sorted({name for needs in NEEDS.values() for name in needs})
    env = tree_server.environment(segment, **extra)
    done = subprocess.run(
        [tree_server.python(), str(HERE / "tree" / "in_tree.py"), str(ADAPTERS), json.dumps(names)],
        cwd=tree_server.tree(), env=env, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return dict(json.loads(done.stdout.splitlines()[-1]))


@pytest.fixture(scope="module")
def answers(private: Path) -> dict[str, Any]:
    return run_in_tree(private / "alone")


class TestInTheTree:
    """Our entry points around the tree's own imports, in a process without a server."""

    def test_every_name_is_found_or_reported_missing(self, answers: dict[str, Any]) -> None:
        assert answers["joined"]
        assert not answers["torch_was_early"], "the prestartup script imported torch"
        unlisted = set(answers["status"]) - set(NEEDS)
        assert not unlisted, f"say in NEEDS what these need: {unlisted}"
        for behaviour, status in answers["status"].items():
            said = f"{status} {answers['lacks'].get(behaviour, [])}"
            missing = [name for name in NEEDS[behaviour] if not answers["names"][name]]
            assert (said == "on []") == (not missing), f"{behaviour}: {said}; missing: {missing}"
            for name in missing:
                assert name.rpartition(":")[2].rpartition(".")[2] in said, f"{behaviour}: {name}"

    def test_the_log_says_in_one_line_what_is_on(self, answers: dict[str, Any]) -> None:
        (line,) = (line for line in answers["lines"] if "host in ledger" in line)
        for behaviour, status in answers["status"].items():
            assert behaviour in line
            assert status == "on" or status in line
        for lacking in answers["lacks"].values():
            assert ", ".join(lacking) in line

    def test_alone_every_figure_is_upstreams(self, answers: dict[str, Any]) -> None:
        assert answers["conds"] == answers["conds_raw"] == [4]
        assert answers["latents"] == answers["latents_raw"] == [8]

    def test_backups_of_patched_weights_are_seen(self, answers: dict[str, Any]) -> None:
        assert answers["backup_bytes"] == 64
        assert answers["backup_bytes_later"] == 0

    def test_a_figure_of_nothing_is_floored(self, answers: dict[str, Any]) -> None:
        assert answers["floor"] >= 64 << 20
        assert answers["attention_survives"]

    @pytest.mark.parametrize("switched_on", ["on", "free", "ram"])
    def test_what_a_sibling_was_promised_makes_batches_smaller(
        self, segment: Path, spawn: Any, switched_on: str
    ) -> None:
        """On the CPU rows 6 and 8 both know the figure, and each must by itself."""
        sibling = spawn("sibling")
        sibling.call("open", "ram")
        half = sibling.free() // 2
        sibling.call("claim", half)
        answers = run_in_tree(segment, MEMLEDGER_COMFY=switched_on)
        assert answers["free"] < answers["raw"] * 0.6
        assert 0 < answers["pair"][1] <= answers["pair"][0] < answers["raw"] * 0.6
        assert (answers["conds_raw"], answers["conds"]) == ([4], [2, 2])
        assert (answers["latents_raw"], answers["latents"]) == ([8], [4, 4])
        assert answers["floor"] >= 64 << 20
        assert answers["attention_survives"]

    def test_switched_off_nothing_is_joined(self, segment: Path) -> None:
        answers = run_in_tree(segment, MEMLEDGER_COMFY="off")
        assert not answers["joined"]
        assert not segment.exists()
        assert answers["lines"] == ["[memledger] off: MEMLEDGER_COMFY=off"]


Start = Callable[..., Server]


@pytest.fixture(scope="module")
def start(private: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Start]:
    """start(segment, packs, **environment) -> Server; all of them are stopped at the end."""
    started: list[Server] = []

    def start(segment: Path, packs: dict[str, Path], **extra: str) -> Server:
        base = tmp_path_factory.mktemp("comfyui")
        server = Server(base, packs, tree_server.environment(segment, **extra))
        started.append(server)
        return server

    yield start
    for server in started:
        server.stop()


@pytest.fixture(scope="module")
def with_us(start: Start, private: Path) -> Server:
    """The package and the test's own pack."""
    packs = {**PACKAGE, "memledger_test_pack": HERE / "tree" / "pack"}
    return start(private / "with", packs)


@pytest.fixture(scope="module")
def without_us(start: Start, private: Path) -> Server:
    return start(private / "without", {})


def succeeded(history: dict[str, Any]) -> bool:
    return bool(history["status"]["status_str"] == "success" and history["outputs"]["3"]["images"])


def shape_of(value: Any, without: tuple[str, ...] = ()) -> Any:
    """Names and types, no values."""
    if isinstance(value, dict):
        return {key: shape_of(item) for key, item in value.items() if key not in without}
    if isinstance(value, list):
        return [shape_of(item) for item in value]
    return type(value).__name__


class TestServer:
    def test_prompts_run(self, with_us: Server) -> None:
        assert succeeded(with_us.run(INVERT))
        assert any("host in ledger" in line for line in with_us.lines())
        assert "Traceback" not in "\n".join(with_us.lines())

    def test_system_stats_keep_their_fields(self, with_us: Server, without_us: Server) -> None:
        ours, plain = with_us.get("/system_stats"), without_us.get("/system_stats")
        assert shape_of(ours, without=("memledger",)) == shape_of(plain)
        for name in ("vram_total", "torch_vram_total", "name", "type"):
            assert ours["devices"][0][name] == plain["devices"][0][name]

    def test_the_server_is_a_member_and_leads_a_group(self, with_us: Server, private: Path) -> None:
        with looking_at(private / "with") as ledger:
            (host,) = (m for m in ledger.members() if m.pid == with_us.process.pid)
            assert host.role == "host"

    def test_stats_are_served(self, with_us: Server) -> None:
        stats = with_us.get("/memledger/stats")
        assert str(with_us.process.pid) in json.dumps(stats)
        assert shape_of(with_us.get("/api/memledger/stats")) == shape_of(stats)
        block = with_us.get("/system_stats")["memledger"]
        (ram,) = block["devices"]
        assert ram["total"] >= ram["available"] > 0

    def test_the_panel_is_served_once(self, with_us: Server) -> None:
        listed = [name for name in with_us.get("/extensions") if name.endswith("memledger.js")]
        assert len(listed) == 1
        assert with_us.status_of(listed[0]) == 200

    def test_free_and_interrupt_are_heard_without_harm(self, with_us: Server) -> None:
        with_us.post("/free", {"unload_models": True, "free_memory": True})
        with_us.post("/interrupt", {})
        assert succeeded(with_us.run(INVERT))

    def test_a_click_on_stop_ends_a_prompt_and_not_the_next(self, with_us: Server) -> None:
        node = {"class_type": "MemledgerTestSteps", "inputs": {"round": 1}}
        number = with_us.post("/prompt", {"prompt": {"1": node}})["prompt_id"]
        wait_until(lambda: "memledger test: step 3" in with_us.log(), 60, "the prompt runs")
        with_us.post("/interrupt", {})
        history = with_us.history(number)
        said = [name for name, _ in history["status"]["messages"]]
        assert "execution_interrupted" in said
        assert succeeded(with_us.run({**INVERT, "3": saved_as("after the click")}))

    def test_a_killed_worker_ends_its_prompt_and_leaves_nothing(
        self, with_us: Server, private: Path
    ) -> None:
        need_comfy_env()
        pid = call_in_worker(with_us, "hold", 1)["outputs"]["1"]["answer"][0]
        with looking_at(private / "with") as ledger:
            members = {member.pid: member for member in ledger.members()}
            assert held_by(ledger, pid) >= HELD
            assert members[pid].role == "worker"
            assert members[pid].leader == members[with_us.process.pid].slot
            died = call_in_worker(with_us, "die", 1)
            assert died["status"]["status_str"] == "error"
            ledger.sweep()
            assert pid not in [member.pid for member in ledger.members()]
        assert call_in_worker(with_us, "hold", 2)["status"]["status_str"] == "success"
        assert succeeded(with_us.run(INVERT))

    def test_scribbled_over_while_it_runs_prompts_go_on(self, start: Start, private: Path) -> None:
        segment = private / "scribbled"
        server = start(segment, PACKAGE)
        assert succeeded(server.run(INVERT))
        with Raw(segment) as raw:
            for word in range(len(raw)):
                raw[word] = 0xA5A5A5A5A5A5A5A5
        assert succeeded(server.run({**INVERT, "3": saved_as("again")}))
        assert server.get("/system_stats")["devices"][0]["vram_free"] > 0

    def test_switched_off_there_is_no_ledger(self, start: Start, private: Path) -> None:
        segment = private / "off"
        server = start(segment, PACKAGE, MEMLEDGER_COMFY="off")
        assert succeeded(server.run(INVERT))
        assert not segment.exists()
        assert [line for line in server.lines() if "MEMLEDGER_COMFY=off" not in line] == []
        assert server.status_of("/memledger/stats") == 404

    @pytest.mark.parametrize("how", ["garbage", "another version"])
    def test_a_segment_that_cannot_be_used_costs_one_line(
        self, start: Start, private: Path, how: str
    ) -> None:
        segment = private / how.replace(" ", "_")
        if how == "garbage":
            segment.write_bytes(b"\xa5" * (1 << 20))
            segment.chmod(0o600)
        else:
            memledger.join(label="maker", path=str(segment)).leave()
            with Raw(segment) as raw:
                raw[LAYOUT] += 1 << 32
        server = start(segment, PACKAGE)
        assert succeeded(server.run(INVERT))
        assert server.get("/system_stats")["devices"][0]["vram_free"] > 0
        (line,) = server.lines()
        assert "(private" in line


def saved_as(prefix: str) -> dict[str, Any]:
    save = {**INVERT["3"]}
    save["inputs"] = {**save["inputs"], "filename_prefix": prefix}
    return save


def need_comfy_env() -> None:
    code = "import importlib.util, sys; sys.exit(importlib.util.find_spec('comfy_env') is None)"
    if subprocess.run([tree_server.python(), "-c", code], check=False).returncode:
        pytest.skip("ComfyUI's Python has no comfy-env")
    if importlib.util.find_spec("memledger._native") is None:
        pytest.skip("memledger is not built in this checkout")


def call_in_worker(server: Server, function: str, number: int) -> dict[str, Any]:
    node = {"class_type": "MemledgerTestCallInWorker"}
    return server.run({"1": {**node, "inputs": {"function": function, "round": number}}})


class looking_at:
    """This process's own handle on a segment."""

    def __init__(self, path: Path) -> None:
        self._ledger = memledger.join(label="test", path=str(path))

    def __enter__(self) -> memledger.Ledger:
        return self._ledger

    def __exit__(self, *error: object) -> None:
        self._ledger.leave()


def held_by(ledger: memledger.Ledger, pid: int) -> int:
    """Bytes of RAM that a member says it holds."""
    (member,) = (m for m in ledger.members() if m.pid == pid)
    rows = ledger.device("ram").snapshot().rows
    return sum(row.held for row in rows if row.slot == member.slot)
