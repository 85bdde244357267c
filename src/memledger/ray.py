"""For placement over machines: what is free on each node of a Ray cluster.

Ray's own resources are counted, not measured, and fixed when a node starts: since 2.0 nothing may
change them (`ray.experimental.set_resource` raises). So there are two parts:

`resources()` is what a node has at its start, for `ray start --resources` or `ray.init`; from there
Ray counts by what its tasks ask for.

`watch()` starts one small actor on each node, `nodes()` has each look at its node's ledger, and
`strategy(nbytes)` places a task on the node with most room. Two tasks may be placed into the same
bytes: on the node, the claim decides.

Needs ray (not among the extras); importing this module does not import it. Looks as `memledger
dump` does: no node is joined.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping
from importlib import import_module
from typing import Any, NamedTuple

FREE, AVAILABLE = "memledger_free_bytes", "memledger_available_bytes"
RAM_FREE, RAM_AVAILABLE = "memledger_ram_free_bytes", "memledger_ram_available_bytes"
"""Names of the resources. The first two are of the one device of the node that has most."""

_NAMESPACE = "memledger"


class NodeFigures(NamedTuple):
    """What one node's ledger says, in bytes; None: unknown. resources: as `resources()` gives them.
    reason: why there are no figures; None: there are."""

    node_id: str
    resources: dict[str, float]
    devices: dict[str, tuple[int | None, int | None]]
    """key -> (free, available)"""
    reason: str | None


def resources(path: str | None = None) -> dict[str, float]:
    """Free and available bytes of this machine, by the names above. A figure that is unknown is
    absent. Costs one look at the segment, about 10 ms; joins nothing."""
    return _resources(_look(path)[0])


def _look(path: str | None) -> tuple[dict[str, tuple[str, int | None, int | None]], str | None]:
    """key -> (kind, free, available); and why there is none."""
    from memledger.cli.look import choose_path, look

    where, scope = choose_path(path)
    seen = look(where, scope)
    pools = {
        pool.key: (pool.kind, pool.figures.free, pool.figures.available) for pool in seen.pools
    }
    return pools, seen.reason


def _resources(pools: Mapping[str, tuple[str, int | None, int | None]]) -> dict[str, float]:
    found: dict[str, float] = {}
    for name, kinds, index in (
        (FREE, ("device", "sim"), 1), (AVAILABLE, ("device", "sim"), 2),
        (RAM_FREE, ("ram",), 1), (RAM_AVAILABLE, ("ram",), 2),
    ):  # fmt: skip
        figures = [entry[index] for entry in pools.values() if entry[0] in kinds]
        known = [int(figure) for figure in figures if figure is not None]
        if known:
            found[name] = float(max(known))
    return found


# ---- in a cluster


class _Watcher:
    """An actor on one node."""

    def __init__(self, node_id: str, path: str | None) -> None:
        self._node_id, self._path = node_id, path

    def look(self) -> tuple[Any, ...]:
        pools, reason = _look(self._path)
        devices = {key: entry[1:] for key, entry in pools.items() if entry[0] != "pin"}
        return (self._node_id, _resources(pools), devices, reason)


def watch(path: str | None = None) -> int:
    """Start a watcher on each node that is alive and has none; how many were started. Call it again
    when nodes have joined. path: of the segment on the nodes; None: as their environment says.
    Needs ray.init() before, and memledger installed on each node."""
    ray = import_module("ray")
    actor = ray.remote(_Watcher)
    strategies = import_module("ray.util.scheduling_strategies")
    started = 0
    for node_id in _alive(ray):
        if _watcher(ray, node_id) is not None:
            continue
        actor.options(
            name=_name(node_id), namespace=_NAMESPACE, lifetime="detached", num_cpus=0,
            scheduling_strategy=strategies.NodeAffinitySchedulingStrategy(node_id, soft=False),
        ).remote(node_id, path)  # fmt: skip
        started += 1
    return started


def unwatch() -> None:
    """Ends the watchers of all nodes."""
    ray = import_module("ray")
    for node_id in _alive(ray):
        actor = _watcher(ray, node_id)
        if actor is not None:
            ray.kill(actor)


def nodes(timeout: float = 5.0) -> dict[str, NodeFigures]:
    """What each watched node's ledger says now, by node id. A node that does not answer within
    `timeout` seconds is absent."""
    ray = import_module("ray")
    watchers = [actor for node_id in _alive(ray) if (actor := _watcher(ray, node_id)) is not None]
    waiting = [actor.look.remote() for actor in watchers]
    done, _ = ray.wait(waiting, num_returns=len(waiting), timeout=timeout) if waiting else ([], [])
    found = {}
    for answer in done:
        try:
            figures = NodeFigures(*ray.get(answer))
        except ray.exceptions.RayError:
            continue  # the node went away meanwhile
        found[figures.node_id] = figures
    return found


def strategy(nbytes: int, *, by: str = AVAILABLE) -> Any:
    """A scheduling strategy that places a task or an actor on the node with most of `by` (one of
    the four names), for `.options(scheduling_strategy=...)`. Raises LookupError where no node has
    `nbytes`."""
    best = max(nodes().values(), key=lambda n: n.resources.get(by, -1.0), default=None)
    most = -1.0 if best is None else best.resources.get(by, -1.0)
    if best is None or most < nbytes:
        from memledger.sizes import format_size

        known = "unknown" if most < 0 else format_size(int(most))
        raise LookupError(f"no node has {format_size(nbytes)} of {by}: the most is {known}")
    strategies = import_module("ray.util.scheduling_strategies")
    return strategies.NodeAffinitySchedulingStrategy(best.node_id, soft=False)


def _alive(ray: Any) -> list[str]:
    return sorted(node["NodeID"] for node in ray.nodes() if node["Alive"])


def _name(node_id: str) -> str:
    return f"memledger-{node_id}"


def _watcher(ray: Any, node_id: str) -> Any:
    try:
        return ray.get_actor(_name(node_id), namespace=_NAMESPACE)
    except ValueError:
        return None


def _main() -> int:
    """python -m memledger.ray: the resources as JSON, for `ray start --resources`."""
    parser = argparse.ArgumentParser(
        prog="python -m memledger.ray",
        description="Print this machine's free and available bytes as JSON, for "
        'ray start --resources="$(python -m memledger.ray)"',
    )
    parser.add_argument("--path", metavar="FILE", help="the segment; default as for memledger dump")
    print(json.dumps(resources(parser.parse_args().path)))
    return 0


if __name__ == "__main__":
    sys.exit(_main())
