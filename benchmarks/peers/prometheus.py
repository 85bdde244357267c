"""prometheus_client's multiprocess mode: a file per process, which a reader collects."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

from benchmarks.peers.peer import FIRST, Peer, Triple

NAMES = ("held", "releasable", "pinned")
VARIABLE = "PROMETHEUS_MULTIPROC_DIR"
FORKS = """
import os, sys
from benchmarks.peers.prometheus import Prometheus
peer = Prometheus(sys.argv[1])
for index in range(int(sys.argv[2])):
    child = os.fork()
    if child == 0:
        peer.attach(index)
        os._exit(0)
    os.waitpid(child, 0)
"""


class Prometheus(Peer):
    name = "prometheus_client files"
    by_process = True

    @classmethod
    def unavailable(cls) -> str | None:
        found = importlib.util.find_spec("prometheus_client")
        return None if found else "prometheus_client is not installed"

    @contextlib.contextmanager
    def prepared(self, members: int) -> Iterator[list[int]]:
        environment = {**os.environ, VARIABLE: self.directory}
        command = [sys.executable, "-c", FORKS, self.directory, str(members - 1)]
        subprocess.run(command, env=environment, check=True)
        yield []

    def attach(self, me: int) -> None:
        os.environ[VARIABLE] = self.directory
        from prometheus_client import CollectorRegistry, Gauge
        from prometheus_client.multiprocess import MultiProcessCollector

        own, self.registry = CollectorRegistry(), CollectorRegistry()
        self.gauges: list[Any] = [
            Gauge(name, name, multiprocess_mode="livesum", registry=own) for name in NAMES
        ]
        MultiProcessCollector(self.registry, self.directory)
        self.publish(*FIRST)

    def publish(self, held: int, releasable: int, pinned: int) -> None:
        self.gauges[0].set(held)
        self.gauges[1].set(releasable)
        self.gauges[2].set(pinned)

    def read(self) -> Triple:
        sums = {metric.name: metric.samples[0].value for metric in self.registry.collect()}
        return int(sums["held"]), int(sums["releasable"]), int(sums["pinned"])

    def enter(self, triple: Triple) -> None:
        self.gauges[0].set(triple[0])
