"""`memledger export`: what Prometheus gets, and how the server starts and ends."""

from __future__ import annotations

import json
import re
import select
import signal
import socket
import subprocess
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics
from prometheus_client.parser import text_string_to_metric_families as prometheus
from test_cli_helpers import (
    GIB,
    WATCHDOG_S,
    Member,
    command,
    dump_json,
    environment,
    one_line,
    run,
    segment,
)

from helpers.system import need_program
from memledger.cli import export_metrics
from memledger.cli.look import look

__all__ = ["segment"]

ROOT = Path(__file__).resolve().parents[2]


def values(text: str, parse: Any = prometheus) -> dict[tuple[str, ...], float]:
    """(name, device, member) to value; each may stand only once."""
    found: dict[tuple[str, ...], float] = {}
    for family in parse(text):
        for sample in family.samples:
            key = (sample.name, *(sample.labels.get(n, "") for n in ("device", "member", "state")))
            assert key not in found, key
            found[key] = sample.value
    return found


def promtool(*arguments: str, text: str = "") -> str:
    done = subprocess.run(
        [need_program("promtool"), *arguments], input=text, capture_output=True, text=True,
        timeout=WATCHDOG_S,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


# ---- what is told


def test_export_tells_devices_and_members_as_dump_does(segment: Path) -> None:
    with (
        Member(segment, "alpha", held=12 * GIB, releasable=3 * GIB),
        Member(segment, "beta", held=3 * GIB, claim=3 * GIB),
    ):
        shown = run("export", path=segment)
        (device,) = dump_json(segment)["devices"]
    assert (shown.returncode, shown.stderr) == (0, "")
    found = values(shown.stdout)
    assert found["memledger_up", "", "", ""] == 1
    assert found["memledger_members", "", "", "live"] == 2
    assert found["memledger_device_size_bytes", "sim:card", "", ""] == device["total"]
    for name in ("free", "available", "held", "releasable", "claimed", "pinned", "overcommit"):
        assert found[f"memledger_device_{name}_bytes", "sim:card", "", ""] == device[name], name
    assert found["memledger_member_held_bytes", "sim:card", "alpha", ""] == 12 * GIB
    assert found["memledger_member_releasable_bytes", "sim:card", "alpha", ""] == 3 * GIB
    assert found["memledger_member_claimed_bytes", "sim:card", "beta", ""] == 3 * GIB


def test_claims_refused_and_ooms_are_counted_per_member(segment: Path, spawn: Any) -> None:
    member = spawn(join=False)
    member.join("counted", path=str(segment))
    member.open_plain("test:card", GIB)
    member.run("device.note_oom(5); device.note_oom(5)")
    member.run(
        "from memledger import ClaimRefused\n"
        "try: device.claim(2 << 30)\n"
        "except ClaimRefused: pass\n"
    )
    seen = look(str(segment), "path")
    found = values(export_metrics.text_of(seen))
    assert found["memledger_member_ooms_total", "", "counted", ""] == 2
    assert found["memledger_member_claims_refused_total", "", "counted", ""] == 1


def test_unknown_figures_are_absent_never_0(segment: Path, spawn: Any) -> None:
    """A device without a reading and without a total: nobody may read its free as 0 or as all."""
    member = spawn(join=False)
    member.join("blind", path=str(segment))
    member.open_plain("test:dark", None)
    member.publish(GIB)
    seen = look(str(segment), "path")
    found = values(export_metrics.text_of(seen))
    told = {name for name, device, *_ in found if device == "test:dark"}
    assert "memledger_device_held_bytes" in told
    for name in ("size", "free", "available", "unaccounted", "overcommit"):
        assert f"memledger_device_{name}_bytes" not in told
    assert "memledger_device_reading_age_seconds" not in told
    assert found["memledger_device_complete", "test:dark", "", ""] == 0


@pytest.mark.parametrize(
    "label", ['a"b', "a\\b", "a\nb", "a{b}=,", "\u202egnp", "é" * 31, "\x1b[2J"]
)
def test_hostile_labels_stay_one_label(segment: Path, label: str) -> None:
    with Member(segment, label, held=GIB):
        seen = look(str(segment), "path")
        for strict, parse in ((False, prometheus), (True, openmetrics)):
            shown = export_metrics.text_of(seen, openmetrics=strict)
            held = {key: n for key, n in values(shown, parse).items() if "member_held" in key[0]}
            assert list(held.values()) == [GIB]
            assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f\u202e]", shown)


def test_two_members_of_one_name_and_one_pid_are_two_series(segment: Path) -> None:
    """In containers both may be pid 1; the same series twice would spoil the whole scrape."""
    with Member(segment, "twin", held=GIB), Member(segment, "twin", held=2 * GIB):
        seen = look(str(segment), "path")
    seen = seen._replace(members=tuple(m._replace(pid=1) for m in seen.members))
    shown = export_metrics.text_of(seen)
    lines = [line for line in shown.splitlines() if line.startswith("memledger_member_held_bytes{")]
    assert len(lines) == len({line.rpartition(" ")[0] for line in lines}) == 2


def test_device_label_has_no_boot_id() -> None:
    boot = "e53c459a-1798-4586-b1c3-7c9ba0e6efb9"
    keys = [f"ram:{boot}", f"cgroup:{boot}:771", f"pin:ram:{boot}", "GPU-" + boot, "sim:card"]
    names = export_metrics.device_names(keys)
    assert list(names.values()) == ["ram", "cgroup:771", "pin:ram", "GPU-" + boot, "sim:card"]
    other = "00000000-1798-4586-b1c3-7c9ba0e6efb9"
    both = export_metrics.device_names([f"ram:{boot}", f"ram:{other}"])
    assert list(both.values()) == [f"ram:{boot}", f"ram:{other}"]


def test_promtool_finds_nothing_to_complain_about(segment: Path) -> None:
    with Member(segment, "alpha", held=12 * GIB, claim=GIB):
        shown = run("export", path=segment).stdout
        strict = run("export", "--openmetrics", path=segment).stdout
    assert promtool("check", "metrics", text=shown) == ""
    assert strict.endswith("# EOF\n")
    # Its parser is the strict one of the format's own test suite.
    assert {name for name, *_ in values(strict, openmetrics)} == {
        name for name, *_ in values(shown)
    }


def test_without_a_ledger_up_is_0_and_the_code_is_1(segment: Path) -> None:
    shown = run("export", path=segment)
    assert shown.returncode == 1
    one_line(shown.stderr)
    found = values(shown.stdout)
    assert found["memledger_up", "", "", ""] == 0
    assert not [key for key in found if "device" in key[0] or "member" in key[0]]


def test_without_prometheus_client_names_the_extra(segment: Path, tmp_path: Path) -> None:
    (tmp_path / "prometheus_client.py").write_text("raise ModuleNotFoundError('not here')\n")
    shown = run("export", path=segment, PYTHONPATH=str(tmp_path))
    assert (shown.returncode, shown.stdout) == (1, "")
    assert "'memledger-shm[export]'" in one_line(shown.stderr)


# ---- the server


def _hear_ctrl_c() -> None:
    """Who started the tests in the background had it ignored, and a child inherits that."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


@contextmanager
def served(segment: Path, *options: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """(process, address) of a running server."""
    process = subprocess.Popen(
        command("export", "--listen", *options), env=environment(segment), text=True,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        preexec_fn=_hear_ctrl_c,
    )  # fmt: skip
    try:
        assert process.stderr is not None
        assert select.select([process.stderr], [], [], WATCHDOG_S)[0], "does not start"
        line = process.stderr.readline()
        assert line.startswith("memledger: serving http://"), line
        yield process, line.split("http://")[1].strip()
    finally:
        process.kill()
        process.communicate()


def fetch(address: str, accept: str = "") -> tuple[str, str]:
    request = urllib.request.Request(f"http://{address}", headers={"Accept": accept})
    with urllib.request.urlopen(request, timeout=WATCHDOG_S) as answer:
        return answer.headers["Content-Type"], answer.read().decode()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 0)])
def test_server_looks_anew_per_request_and_ends_cleanly(
    segment: Path, number: signal.Signals, code: int
) -> None:
    with served(segment, "127.0.0.1:0") as (process, address):
        assert values(fetch(address)[1])["memledger_up", "", "", ""] == 0
        with Member(segment, "alpha", held=GIB):
            kind, text = fetch(address)
            assert kind.startswith("text/plain")
            assert values(text)["memledger_member_held_bytes", "sim:card", "alpha", ""] == GIB
            kind, text = fetch(address, "application/openmetrics-text; version=1.0.0")
            assert kind.startswith("application/openmetrics-text")
            assert values(text, openmetrics)["memledger_up", "", "", ""] == 1
        process.send_signal(number)
        assert process.wait(WATCHDOG_S) == code
        assert process.stderr is not None
        assert process.stderr.read() == ""


def test_server_listens_on_loopback_unless_told(segment: Path) -> None:
    with served(segment, ":0") as (_, address):
        assert address.startswith("127.0.0.1:")


def test_port_in_use_is_one_clear_error(segment: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        shown = run("export", "--listen", f"127.0.0.1:{port}", path=segment)
    assert shown.returncode == 1
    assert f"cannot listen on 127.0.0.1:{port}" in one_line(shown.stderr)


@pytest.mark.parametrize("address", ["nonsense", "127.0.0.1:", "127.0.0.1:70000", ":-1"])
def test_wrong_address_is_usage(segment: Path, address: str) -> None:
    assert run("export", f"--listen={address}", path=segment).returncode == 2


# ---- what stands in the docs


def _names_in(expressions: str) -> set[str]:
    return set(re.findall(r"\bmemledger_\w+", expressions))


def test_dashboard_names_only_metrics_that_exist(segment: Path, tmp_path: Path) -> None:
    with Member(segment, "alpha", held=GIB):
        seen = look(str(segment), "path")
    exported = {name for name, *_ in values(export_metrics.text_of(seen))}
    dashboard = json.loads((ROOT / "docs/grafana/memledger.json").read_text(encoding="utf-8"))
    asked = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    asked += [v["definition"] for v in dashboard["templating"]["list"] if "definition" in v]
    named = set().union(*map(_names_in, asked))
    assert len(named) > 10
    assert named <= exported, named - exported
    rules = [
        {"record": f"test:rule:{index}", "expr": expression.replace("$__rate_interval", "1m")}
        for index, expression in enumerate(asked)
        if "label_values" not in expression
    ]
    place = tmp_path / "dashboard.yml"
    place.write_text(json.dumps({"groups": [{"name": "dashboard", "rules": rules}]}))
    assert "SUCCESS" in promtool("check", "rules", str(place))


def test_docs_list_each_metric_and_no_other(segment: Path) -> None:
    with Member(segment, "alpha", held=GIB):
        seen = look(str(segment), "path")
    exported = {name for name, *_ in values(export_metrics.text_of(seen))}
    page = (ROOT / "docs/export.md").read_text(encoding="utf-8")
    listed = set(re.findall(r"^\| `(memledger_\w+)`", page, flags=re.M))
    assert listed == exported


def test_prometheus_configurations_in_the_docs_are_valid(tmp_path: Path) -> None:
    page = (ROOT / "docs/export.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```yaml\n(.*?)```", page, flags=re.S)
    assert len(blocks) >= 2
    for index, block in enumerate(blocks):
        place = tmp_path / f"{index}.yml"
        place.write_text(block)
        kind = "rules" if block.startswith("groups:") else "config"
        promtool("check", kind, str(place))
