"""`memledger.ray` on a real local Ray of two nodes: `make test-ray`; not in the default run."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import memledger.ray as on_ray

GIB = 1 << 30
ray = pytest.importorskip("ray", reason="needs ray: run `make test-ray`")

_MEMBER = """
import sys, memledger
gpu = memledger.join("member", path=sys.argv[1]).device("sim:card?total=24GiB")
gpu.publish(held=int(sys.argv[2]), releasable=int(sys.argv[3]))
print("up", flush=True)
sys.stdin.read()
"""


def member(path: Path, held: int, releasable: int) -> subprocess.Popen[bytes]:
    process = subprocess.Popen(
        [sys.executable, "-c", _MEMBER, str(path), str(held), str(releasable)],
        env={**os.environ, "MEMLEDGER_PATH": str(path)}, stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stdout.readline() == b"up\n"
    return process


@pytest.fixture(scope="module")
def cluster() -> Iterator[tuple[Any, Path, Path]]:
    """Two nodes, each with a ledger of its own: on the first 4 GiB free and 20 available, on the
    second 14 free and available."""
    from ray.cluster_utils import Cluster

    base = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    folder = Path(tempfile.mkdtemp(prefix="memledger-test-ray-", dir=base))
    for name in "ab":
        (folder / name).mkdir()
    first, second = folder / "a" / "segment", folder / "b" / "segment"
    members = [member(first, 20 * GIB, 16 * GIB), member(second, 10 * GIB, 0)]
    nodes = Cluster()
    try:
        for path in (first, second):
            nodes.add_node(
                num_cpus=1, env_vars={"MEMLEDGER_PATH": str(path)},
                resources=on_ray.resources(str(path)),
            )  # fmt: skip
        ray.init(address=nodes.address, log_to_driver=False)
        yield nodes, first, second
    finally:
        ray.shutdown()
        nodes.shutdown()
        for process in members:
            process.kill()
            process.communicate()
        shutil.rmtree(folder)


def test_resources_are_of_the_ledger_and_absent_where_unknown(tmp_path: Path) -> None:
    assert on_ray.resources(str(tmp_path / "none")) == {}


def test_ray_counts_the_resources_of_the_nodes_start(cluster: tuple[Any, Path, Path]) -> None:
    found = ray.cluster_resources()
    assert found[on_ray.FREE] == (4 + 14) * GIB
    assert found[on_ray.AVAILABLE] == (20 + 14) * GIB

    @ray.remote(num_cpus=0, resources={on_ray.FREE: 10 * GIB})
    def where() -> str:
        return os.environ["MEMLEDGER_PATH"]

    assert ray.get(where.remote(), timeout=60) == str(cluster[2])


def test_the_resources_on_the_command_line_are_the_same(cluster: tuple[Any, Path, Path]) -> None:
    shown = subprocess.run(
        [sys.executable, "-m", "memledger.ray", "--path", str(cluster[1])],
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    assert json.loads(shown.stdout) == {on_ray.FREE: 4 * GIB, on_ray.AVAILABLE: 20 * GIB}


def test_watchers_tell_what_is_so_now_and_place_by_it(cluster: tuple[Any, Path, Path]) -> None:
    _, first, second = cluster
    assert on_ray.nodes() == {}
    assert on_ray.watch() == 2
    assert on_ray.watch() == 0
    try:
        by_free = sorted(on_ray.nodes(60).values(), key=lambda node: node.resources[on_ray.FREE])
        assert [node.resources[on_ray.FREE] for node in by_free] == [4 * GIB, 14 * GIB]
        assert by_free[0].devices == {"sim:card": (4 * GIB, 20 * GIB)}
        assert by_free[0].reason is None

        @ray.remote(num_cpus=0)
        def where() -> str:
            return os.environ["MEMLEDGER_PATH"]

        def placed(nbytes: int, by: str) -> str:
            chosen = on_ray.strategy(nbytes, by=by)
            task = where.options(scheduling_strategy=chosen)
            return str(ray.get(task.remote(), timeout=60))

        assert placed(10 * GIB, on_ray.FREE) == str(second)
        assert placed(10 * GIB, on_ray.AVAILABLE) == str(first)
        with pytest.raises(LookupError, match=r"the most is 14\.0 GiB"):
            on_ray.strategy(15 * GIB, by=on_ray.FREE)

        # What Ray has counted at the start stays; what the watchers say moves.
        late = member(second, 12 * GIB, 0)
        try:
            free = sorted(node.resources[on_ray.FREE] for node in on_ray.nodes().values())
            assert free == [2 * GIB, 4 * GIB]
            assert ray.cluster_resources()[on_ray.FREE] == (4 + 14) * GIB
        finally:
            late.kill()
            late.communicate()
    finally:
        on_ray.unwatch()
