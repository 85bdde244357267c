"""The metrics, and the server for them. Imported only by `export`, since prometheus_client may be
missing. Names and units keep to the conventions of Prometheus: base units, `_total` for counters.
"""

from __future__ import annotations

import re
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Sequence

from prometheus_client import CollectorRegistry, exposition
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.openmetrics import exposition as openmetrics_exposition
from prometheus_client.registry import Collector

from memledger.cli import screen
from memledger.cli.look import Look, look
from memledger.views import Member, Row, Snapshot

_POOL = ("device", "kind")
_MEMBER = ("member", "pid", "slot", "role")

_DEVICE_GAUGES: tuple[tuple[str, str, Callable[[Snapshot], int | float | None]], ...] = (
    ("size_bytes", "Usable total: the source's, or the configured one.",
     lambda pool: pool.figures.total),
    ("free_bytes", "What a process that holds nothing could take now.",
     lambda pool: pool.figures.free),
    ("available_bytes", "The same, if every member gave back what it can.",
     lambda pool: pool.figures.available),
    ("held_bytes", "Held by the members.", lambda pool: pool.figures.held),
    ("releasable_bytes", "Part of held that members could give back.",
     lambda pool: pool.figures.releasable),
    ("pinned_bytes", "Part of held that cannot move.", lambda pool: pool.figures.pinned),
    ("claimed_bytes", "Promised to members, not allocated yet.",
     lambda pool: pool.figures.claimed),
    ("unaccounted_bytes", "Used by somebody who is no member.",
     lambda pool: pool.figures.unaccounted),
    ("overcommit_bytes", "Held, claimed and unaccounted beyond the total.",
     lambda pool: pool.figures.overcommit),
    ("reserved_bytes", "What the source itself sets apart.", lambda pool: pool.figures.reserved),
    ("headroom_bytes", "What members want to be left alone.",
     lambda pool: pool.figures.headroom),
    ("reading_age_seconds", "Since the source was last asked with success.",
     lambda pool: pool.reading.age_s),
)  # fmt: skip

_MEMBER_GAUGES: tuple[tuple[str, str, Callable[[Row], int]], ...] = (
    ("held_bytes", "Held by the member on the device.", lambda row: row.held),
    ("releasable_bytes", "Part of held that it could give back.", lambda row: row.releasable),
    ("pinned_bytes", "Part of held that cannot move.", lambda row: row.pinned),
    ("claimed_bytes", "Promised to it, not allocated yet.", lambda row: row.claimed),
)

_MEMBER_COUNTERS: tuple[tuple[str, str, Callable[[Member], int]], ...] = (
    ("ooms", "Out-of-memory events.", lambda member: member.counters.ooms),
    ("claims_refused", "Claims that did not fit.", lambda member: member.counters.claims_refused),
    ("asks_sent", "Asks that it has sent.", lambda member: member.counters.asks_sent),
    ("asks_answered", "Asks that it has answered with bytes.",
     lambda member: member.counters.asks_answered),
    ("asks_declined", "Asks that it has declined.", lambda member: member.counters.asks_declined),
    ("interrupts_ignored", "Interrupts for a job that was not running.",
     lambda member: member.counters.interrupts_ignored),
)  # fmt: skip

_STATES = ("live", "joining", "dead", "unverified")


class LedgerCollector(Collector):
    """Looks at the segment anew for each scrape."""

    def __init__(self, look_now: Callable[[], Look]) -> None:
        self._look = look_now

    def collect(self) -> Iterable[Metric]:
        return families(self._look())


def families(seen: Look) -> list[Metric]:
    """All metrics, those without a sample too, so that each name is known from the first scrape."""
    names = device_names([pool.key for pool in seen.pools])
    return [
        *_about(seen),
        *_of_devices(seen.pools, names),
        *_of_members(seen, names),
        *_counted(seen.members),
    ]


def _about(seen: Look) -> list[Metric]:
    known = seen.status == "ok"
    up = GaugeMetricFamily("memledger_up", "Whether the segment could be read.", value=int(known))
    info = GaugeMetricFamily(
        "memledger_segment_info", "The segment; the value is 1.", labels=("scope", "layout")
    )
    members = GaugeMetricFamily(
        "memledger_members", "Processes that have joined, by state.", labels=("state",)
    )
    swept = CounterMetricFamily("memledger_members_swept", "Dead members taken back.")
    overflow = CounterMetricFamily(
        "memledger_table_full", "Processes that found no slot free, since the segment was made."
    )
    findings = GaugeMetricFamily(
        "memledger_findings", "Broken invariants; while members are at work some may pass."
    )
    others = GaugeMetricFamily(
        "memledger_other_layouts", "Segments of other versions with live members."
    )
    others.add_metric((), len(seen.other_layouts))
    if known:
        info.add_metric((seen.scope, f"{seen.layout[0]}.{seen.layout[1]}"), 1)
        for state in _STATES:
            members.add_metric((state,), sum(m.state == state for m in seen.members))
        swept.add_metric((), seen.info["sweep_count"])
        overflow.add_metric((), seen.info["overflow_count"])
        findings.add_metric((), len(seen.findings))
    return [up, info, members, swept, overflow, findings, others]


def _of_devices(pools: Sequence[Snapshot], names: dict[str, str]) -> list[Metric]:
    found: list[Metric] = []
    for name, text, value_of in _DEVICE_GAUGES:
        family = GaugeMetricFamily(f"memledger_device_{name}", text, labels=_POOL)
        for pool in pools:
            value = value_of(pool)
            if value is not None:
                family.add_metric((names[pool.key], pool.kind), value)
        found.append(family)
    source = GaugeMetricFamily(
        "memledger_device_reading_info",
        "Who reads the device, and why there is no better figure; the value is 1.",
        labels=(*_POOL, "source", "reason"),
    )
    complete = GaugeMetricFamily(
        "memledger_device_complete",
        "Whether the figures lack neither a device-wide reading nor any process.",
        labels=_POOL,
    )
    for pool in pools:
        reading = pool.reading
        absent = reading.age_s is None
        told = "none" if absent else reading.source
        reason = (reading.reason or "no_probe") if absent else reading.reason or ""
        source.add_metric((names[pool.key], pool.kind, told, reason), 1)
        complete.add_metric((names[pool.key], pool.kind), int(pool.complete))
    return [*found, source, complete]


def _of_members(seen: Look, names: dict[str, str]) -> list[Metric]:
    owners = {(m.slot, m.generation): m for m in seen.members}
    rows = [
        (pool, owners[row.slot, row.generation], row)
        for pool in seen.pools
        for row in pool.rows
        if (row.slot, row.generation) in owners
    ]
    found: list[Metric] = []
    for name, text, value_of in _MEMBER_GAUGES:
        family = GaugeMetricFamily(f"memledger_member_{name}", text, labels=("device", *_MEMBER))
        for pool, member, row in rows:
            family.add_metric((names[pool.key], *_member_labels(member)), value_of(row))
        found.append(family)
    return found


def _counted(members: Sequence[Member]) -> list[Metric]:
    found: list[Metric] = []
    for name, text, value_of in _MEMBER_COUNTERS:
        family = CounterMetricFamily(f"memledger_member_{name}", text, labels=_MEMBER)
        for member in members:
            family.add_metric(_member_labels(member), value_of(member))
        found.append(family)
    return found


def device_names(keys: Sequence[str]) -> dict[str, str]:
    """The `device` label of each key: the key, without the boot id of those that have one, since a
    reboot must not begin a new series; the whole key where that would be ambiguous."""
    short = {
        key: re.sub(r"((?:^|:)(?:ram|cgroup)):[0-9a-fA-F-]{36}", r"\1", screen.clean(key))
        for key in keys
    }
    taken = list(short.values())
    return {
        key: name if taken.count(name) == 1 else screen.clean(key) for key, name in short.items()
    }


def _member_labels(member: Member) -> tuple[str, str, str, str]:
    """The slot keeps two members of one label apart whose pids are of different namespaces."""
    name = screen.clean(member.label or member.program or "unnamed")
    return name, str(member.pid), str(member.slot), member.role


# ---- given out


def _registry(look_now: Callable[[], Look]) -> CollectorRegistry:
    registry = CollectorRegistry()
    registry.register(LedgerCollector(look_now))
    return registry


def text_of(seen: Look, *, openmetrics: bool = False) -> str:
    registry = _registry(lambda: seen)
    write = openmetrics_exposition.generate_latest if openmetrics else exposition.generate_latest
    return write(registry).decode("utf-8")


def serve(path: str, scope: str, host: str, port: int) -> int:
    """Until SIGTERM (0); Ctrl-C is KeyboardInterrupt, which `command_line` answers for."""
    registry = _registry(lambda: look(path, scope))
    ended = threading.Event()
    try:
        server, thread = exposition.start_http_server(port, host, registry)
    except (OSError, OverflowError) as error:
        why = getattr(error, "strerror", None) or error
        print(f"memledger: cannot listen on {_shown(host, port)}: {why}", file=sys.stderr)
        return 1
    before = signal.signal(signal.SIGTERM, lambda *_: ended.set())
    try:
        where = _shown(host, server.server_port)
        print(f"memledger: serving http://{where}/metrics", file=sys.stderr, flush=True)
        ended.wait()
    finally:
        signal.signal(signal.SIGTERM, before)
        server.shutdown()
        server.server_close()
        thread.join()
    return 0


def _shown(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
