"""`memledger doctor`: what works here, what does not, why, and what to do about it."""

from __future__ import annotations

import argparse
import json
import os
import platform
import stat
import sys
import tempfile
from collections.abc import Iterator
from typing import Any, NamedTuple

from memledger import _native, groups
from memledger.cli import screen
from memledger.cli.look import Look, add_path, age, choose_path, lasting_findings, look, short_name
from memledger.cli.reset import looks_like_a_segment
from memledger.cli.screen import Screen
from memledger.errors import LedgerError
from memledger.model import Reading
from memledger.sizes import format_size
from memledger.views import Member, Snapshot

_EPILOG = """\
Each line is "ok", "look" (something to look at; the line below says what to
do) or "info". It joins a throw-away segment beside the real one to see whether
joining works, and the real one only if it exists; both are left at once. As
any member would, it sweeps dead ones then. Sources are asked once.

--json prints {schema, ok, checks: [{state, subject, text, advice}]}.

exit codes: 0 all well; 1 something to look at; 2 usage; 130 interrupted
"""
_EXTRAS = (
    ("rich", "rich", "coloured tables"),
    ("textual", "textual", "top"),
    ("matplotlib", "matplotlib", "report"),
    ("prometheus_client", "prometheus_client", "export"),
    ("pynvml", "nvidia-ml-py", "NVIDIA readings"),
)
"""Module, package, what it is for."""
_LOCKS = ("none", "OFD locks", "flock on lock files", "Windows file locks")


class Check(NamedTuple):
    """state: "ok", "look" or "info". advice: what the user can do, "" for nothing."""

    state: str
    subject: str
    text: str
    advice: str = ""


def add_parser(commands: Any) -> None:
    parser = commands.add_parser(
        "doctor",
        help="what works here, what does not, and what to do",
        description="Check the installation, the segment, the devices and their sources.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--json", action="store_true", help="for programs")
    add_path(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    path, scope = choose_path(options.path)
    checks = []
    view = screen.open_screen()
    for check in _all(path, scope):
        checks.append(check)
        if not options.json:
            _show(view, check)
            sys.stdout.flush()
    trouble = [check for check in checks if check.state == "look"]
    if options.json:
        found = [check._asdict() for check in checks]
        print(json.dumps({"schema": 1, "ok": not trouble, "checks": found}, indent=2))
    else:
        view.line()
        summary = f"{len(trouble)} thing(s) to look at" if trouble else "all well"
        view.line(summary, "warn" if trouble else "good")
    return 1 if trouble else 0


def _show(view: Screen, check: Check) -> None:
    style = {"ok": "good", "look": "bad"}.get(check.state, "dim")
    short = short_name(check.subject)
    full = f"; key {check.subject}" if short != check.subject else ""
    view.entry(check.state, style, short, check.text + full)
    if check.advice:
        view.entry("", "", "", f"-> {check.advice}")


def _all(path: str, scope: str) -> Iterator[Check]:
    seen = look(path, scope)
    yield from _versions()
    yield from _segment(seen)
    yield from _joining(seen)
    yield from _members(seen)
    yield from _groups(seen)
    yield from _devices(seen)
    yield from _layouts(seen)
    yield from _findings(seen)


# ---- installation


def _versions() -> Iterator[Check]:
    from memledger import __version__

    layout = f"layout {_native.LAYOUT_MAJOR}.{_native.LAYOUT_MINOR}"
    yield Check(
        "ok",
        "version",
        f"memledger {__version__}, {layout}, Python {platform.python_version()} "
        f"on {platform.system()} {platform.machine()}",
    )
    missing = [f"{name} ({use})" for module, name, use in _EXTRAS if not _importable(module)]
    if missing:
        yield Check("info", "packages", f"not installed for this Python: {', '.join(missing)}")


def _importable(name: str) -> bool:
    import importlib.util

    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):
        return False


# ---- segment


def _segment(seen: Look) -> Iterator[Check]:
    if seen.status == "absent":
        yield from _absent_segment(seen)
        return
    if seen.status == "error":
        yield Check("look", "segment", seen.reason or "", "check that this user may read the file")
        return
    if seen.status == "layout":
        yield Check(
            "look", "segment", seen.reason or "",
            "use one version of memledger in all processes; members of the other are not in this "
            "total",
        )  # fmt: skip
        return
    if seen.status == "foreign":
        yield Check("look", "segment", seen.reason or "", _foreign_advice(seen.path))
        return
    yield from _sound_segment(seen)


def _foreign_advice(path: str) -> str:
    if looks_like_a_segment(path):
        return (
            "members run with private ledgers until it is gone: stop them and run "
            "`memledger reset`, or choose another path (MEMLEDGER_PATH)"
        )
    return (
        "members run with private ledgers here: move that file away (`memledger reset --force` "
        "would delete it), or choose another path (MEMLEDGER_PATH)"
    )


def _absent_segment(seen: Look) -> Iterator[Check]:
    directory = os.path.dirname(os.path.abspath(seen.path))
    if not os.path.isdir(directory):
        yield Check(
            "look", "segment", f"the folder of {seen.path} does not exist",
            "make it, or choose another path (MEMLEDGER_PATH)",
        )  # fmt: skip
    elif why := _unusable(directory):
        yield Check(
            "look", "segment", f"this user cannot make a file in {directory}: {why}",
            "let the user write there, or choose another path (MEMLEDGER_PATH)",
        )  # fmt: skip
    else:
        yield Check("info", "segment", f"none yet at {seen.path}; the first member makes it")


def _unusable(directory: str) -> str:
    """Why no file can be made there, "" where one can: permissions alone do not tell (/proc)."""
    try:
        with tempfile.NamedTemporaryFile(prefix="memledger-doctor-", dir=directory):
            return ""
    except OSError as error:
        return error.strerror or str(error)


def _sound_segment(seen: Look) -> Iterator[Check]:
    try:
        file = os.lstat(seen.path)
    except OSError as error:
        yield Check("look", "segment", f"{seen.path}: {error.strerror}", "run doctor again")
        return
    mode = stat.S_IMODE(file.st_mode)
    own = not hasattr(os, "geteuid") or file.st_uid == os.geteuid()
    owner = "yours" if own else f"of user {file.st_uid}"
    text = (
        f"{seen.path}, {format_size(file.st_size)}, mode {mode:04o}, {owner}, scope {seen.scope}, "
        f"layout {seen.layout[0]}.{seen.layout[1]}"
    )
    open_to_all = bool(mode & 0o007) and sys.platform != "win32"
    advice = ""
    if open_to_all:
        advice = "any user of the machine may write it, so members refuse it: chmod o= the file"
    elif not own:
        advice = "shared with its owner's processes only where an administrator meant it"
    yield Check("look" if open_to_all else "ok", "segment", text, advice)
    yield _locks(seen)


def _locks(seen: Look) -> Check:
    kind = int(seen.info["lock_kind"])
    name = _LOCKS[kind] if kind < len(_LOCKS) else f"unknown kind {kind}"
    alive = _native.has_live_members(seen.path)
    if alive is None:
        return Check(
            "look", "locks", f"{name}; this process cannot see who holds one",
            "dead members cannot be told from live ones here; check the file's permissions",
        )  # fmt: skip
    return Check("ok", "locks", f"{name}; members are {'' if alive else 'not '}holding them now")


# ---- joining


def _joining(seen: Look) -> Iterator[Check]:
    problem, where = _join_scratch(seen)
    if problem:
        yield Check(
            "look", "join", f"a ledger of its own: {problem}",
            "processes run with private ledgers here: make the folder writable, or choose another "
            "path (MEMLEDGER_PATH)",
        )  # fmt: skip
    else:
        yield Check("ok", "join", f"made, joined, published, read back and left one in {where}")
    if seen.status != "ok":
        return
    problem = _join_once(seen.path, publish=False)
    if not problem:
        yield Check("ok", "join", "joined and left the real one")
        return
    full = "table is full" in problem
    advice = "stop some members" if full else "run `memledger reset` once its members are stopped"
    yield Check("look", "join", f"the real one: {problem}", advice)


def _join_scratch(seen: Look) -> tuple[str, str]:
    """(what went wrong, "" for nothing; where): in the segment's folder, which may be of another
    file system than the one for temporary files."""
    problem = "no folder to try it in"
    for place in (os.path.dirname(os.path.abspath(seen.path)), tempfile.gettempdir()):
        try:
            with tempfile.TemporaryDirectory(prefix="memledger-doctor-", dir=place) as folder:
                return _join_once(os.path.join(folder, "segment"), publish=True), place
        except OSError as error:
            problem = f"{error.strerror}: {place}"
    return problem, ""


def _join_once(path: str, *, publish: bool) -> str:
    """What went wrong, "" for nothing."""
    import memledger

    try:
        with memledger.join("memledger doctor", path=path) as ledger:
            if ledger.degraded_reason:
                return ledger.degraded_reason
            if publish:
                ram = ledger.device("ram")
                ram.publish(held=4096)
                if ram.snapshot().figures.held != 4096:
                    return "what was published is not what is read"
    except (LedgerError, OSError, ValueError) as error:
        return f"{type(error).__name__}: {error}"
    return ""


# ---- members


def _members(seen: Look) -> Iterator[Check]:
    if seen.status != "ok":
        return
    unsure = [m for m in seen.members if m.state == "unverified"]
    counts = f"{len(seen.live)} live, {len(seen.dead)} dead"
    taken_back = seen.info.get("sweep_count")
    if taken_back is not None:
        counts += f"; {taken_back} taken back so far"
    if seen.info.get("overflow_count"):
        counts += f", {seen.info['overflow_count']} found the table full"
    if seen.dead:
        left = {(m.slot, m.generation) for m in look(seen.path, seen.scope).dead}
        still = any((m.slot, m.generation) in left for m in seen.dead)
        yield Check(
            "look", "members", counts,
            "live members sweep within seconds; `memledger sweep` does it now" if still
            # Who joins sweeps, doctor too.
            else "swept meanwhile; run doctor again",
        )  # fmt: skip
    elif unsure:
        pids = ", ".join(str(m.pid) for m in unsure)
        yield Check(
            "look", "members", f"{counts}; cannot tell whether these live: pid {pids}",
            "they count as live; check the segment's permissions",
        )  # fmt: skip
    else:
        yield Check("ok", "members", counts)
    mixed = {m.version for m in seen.members if m.version}
    if len(mixed) > 1:
        yield Check("info", "members", f"of several versions: {', '.join(sorted(mixed))}")


def _groups(seen: Look) -> Iterator[Check]:
    """Who follows whom, and why: whose stop button, prompts and free requests reach a member."""
    if seen.status != "ok":
        return
    by_slot = {member.slot: member for member in seen.live}
    hosts = sum(member.role == "host" for member in seen.live)
    for leader in (m for m in seen.live if m.leader == m.slot):
        others = [m for m in seen.live if m.leader == leader.slot and m is not leader]
        text = ", ".join(f"{_title(m)} ({groups.why_followed(m, leader)})" for m in others)
        yield Check("ok", "group", f"{_title(leader)} leads {text or 'nobody yet'}")
    alone: dict[str, list[str]] = {}
    for member in seen.live:
        if member.leader is not None and member.leader in by_slot:
            continue
        why = groups.why_alone(member, hosts)
        # A worker that no stop button reaches; whoever has another role may want none.
        if member.role == "worker" and hosts:
            advice = f"give it its host's name: {groups.ENVIRONMENT}, or join(group=)"
            yield Check("look", "group", f"{_title(member)} follows nobody: {why}", advice)
        else:
            alone.setdefault(why, []).append(_title(member))
    for why, titles in alone.items():
        follow = "follow" if len(titles) > 1 else "follows"
        yield Check("info", "group", f"{', '.join(titles)} {follow} nobody: {why}")


def _title(member: Member) -> str:
    return f"{member.label or member.program or 'unnamed'} ({member.pid})"


# ---- devices


def _devices(seen: Look) -> Iterator[Check]:
    from memledger.readings import amd, intel, nvidia

    in_use = {name: pool for pool in seen.pools for name in (*pool.aliases, pool.key)}
    shown: set[str] = set()
    gpus = nvidia.enumerate_gpus()
    others = (*(gpu.key for gpu in amd.gpus()), *(gpu.key for gpu in intel.gpus()))
    yield from _device("ram", in_use, shown, seen)
    if not gpus.gpus:
        if not others:
            yield Check("info", "gpu", f"none: {gpus.detail}")
    elif "suspended" in gpus.detail:
        yield Check("info", "gpu", gpus.detail)
    elif gpus.seen_by != "nvml":
        yield Check(
            "look", "gpu", f"{len(gpus.gpus)} seen in {gpus.seen_by}, without figures: "
            f"{gpus.detail}", _nvml_advice(gpus.detail),
        )  # fmt: skip
    for gpu in gpus.gpus:
        if not gpu.answers:
            yield Check(
                "look", f"pci:{gpu.pci}", "is there, but does not answer",
                "see `nvidia-smi` and the kernel log; a reset or a reboot may be needed",
            )  # fmt: skip
    for key in (*gpus.keys(), *others):
        yield from _device(key, in_use, shown, seen)
    for name in _simulated():
        yield from _device(f"sim:{name}", in_use, shown, seen)
    for pool in seen.pools:
        if shown.isdisjoint((pool.key, *pool.aliases)) and pool.kind != "pin":
            yield _only_in_segment(pool, seen)


def _simulated() -> tuple[str, ...]:
    from memledger import sim

    return sim.existing()


def _nvml_advice(detail: str) -> str:
    if "not installed" in detail or "No module" in detail or "import" in detail:
        return "install nvidia-ml-py for this Python; until then another member reads for all"
    return "see `nvidia-smi`; in a container, give it the GPU with its driver's utilities"


def _device(name: str, in_use: dict[str, Snapshot], shown: set[str], seen: Look) -> Iterator[Check]:
    from memledger.readings import resolve

    try:
        spec = resolve(name)
    except (LedgerError, OSError, ValueError) as error:
        yield Check("look", name, str(error), _sim_advice(name))
        return
    for level, source in zip(spec.levels, spec.sources, strict=True):
        if level.key in shown:
            continue
        shown.add(level.key)
        subject = "ram" if level.key.startswith("ram:") else level.key
        pool = in_use.get(level.key)
        if source is None:
            yield Check("info", subject, f"no source for it here; {_in_ledger(pool, seen)}")
            continue
        reading = source.read()
        about = f"{_in_ledger(pool, seen)}; {source.explain()}"
        if level is spec.levels[0] and spec.detail:
            about += f" [{spec.detail}]"
        if subject == "ram":
            about += _swap()
        yield _sourced(subject, reading, pool, about)


def _swap() -> str:
    """Swap that this process may use, which is never part of a free figure."""
    from memledger.readings.ram import swap

    found = swap()
    return f"; swap {format_size(found.free)} of {format_size(found.total)}, {found.detail}"


def _sourced(subject: str, reading: Reading, pool: Snapshot | None, about: str) -> Check:
    """about: who reads it for the members, how, and what could be better."""
    detail = f" ({reading.detail})" if reading.detail else ""
    if not reading.known:
        return Check(
            "info" if reading.reason in ("suspended", "idle") else "look",
            subject,
            f"{reading.source}: {reading.reason}{detail}; {about}",
            _advice(reading.reason or ""),
        )
    text = (
        f"{reading.source}: {format_size(reading.free)} of {format_size(reading.total)} free, "
        f"scope {reading.scope}"
        f"{', unified with the RAM' if reading.unified else ''}{detail}; {about}"
    )
    if pool is not None and pool.reading.reason:
        return Check("look", subject, text, _advice(pool.reading.reason))
    if reading.suspect:
        return Check(
            "info", subject, text, "the source contradicts itself; a cgroup's limit is surer"
        )
    return Check("ok", subject, text)


def _in_ledger(pool: Snapshot | None, seen: Look) -> str:
    """Who reads it for the members, and how old that is."""
    if pool is None:
        return "no member has opened it"
    reading = pool.reading
    if reading.age_s is None:
        return "members have no reading of it"
    reader = next((m for m in seen.members if m.slot == reading.reader), None)
    by = f"{reader.label or reader.program} ({reader.pid})" if reader else "a member that has left"
    why = f", {reading.reason}" if reading.reason else ""
    return f"for the members read by {by}, {age(reading.age_s)} ago{why}"


def _only_in_segment(pool: Snapshot, seen: Look) -> Check:
    text = f"known to members only; {_in_ledger(pool, seen)}"
    if pool.figures.free is None:
        return Check(
            "look", pool.key, text,
            "a process that can read it should open it, or give a total (MEMLEDGER_TOTAL)",
        )  # fmt: skip
    return Check("info", pool.key, text)


def _sim_advice(name: str) -> str:
    card = name.partition(":")[2]
    if not name.startswith("sim:"):
        return ""
    return f"remove it: python -c 'import memledger; memledger.sim.remove(\"{card}\")'"


def _advice(reason: str) -> str:
    return {
        "no_probe": "install nvidia-ml-py for this Python, or leave it to members that have it",
        "probe_failed": "see the kernel log and `nvidia-smi`; it is tried again by itself",
        "not_supported": "give a total: MEMLEDGER_TOTAL=24GiB, or ledger.device(name, total=...)",
        "no_permission": "let this user read it, or leave it to members that may",
        "gpu_lost": "the GPU fell off the bus: a reset or a reboot is needed",
        "implausible": "the driver's figures contradict each other; update it",
        "suspended": "the GPU sleeps and is not woken for a reading",
        "stale": "no member can read it now; start one that can, or look at the one that should",
        "idle": "nobody asked lately; a new reading comes with the next question",
        "frozen": "the driver repeats one value whatever members do; claims are not checked by it",
        "private": "",
    }.get(reason, "")


# ---- the rest


def _layouts(seen: Look) -> Iterator[Check]:
    for path in seen.other_layouts:
        yield Check(
            "look", "layouts", f"another version of memledger has live members, in {path}: not in "
            "this total", "use one version of memledger in all processes",
        )  # fmt: skip
    if not seen.other_layouts:
        yield Check("ok", "layouts", "no live members of another version")


def _findings(seen: Look) -> Iterator[Check]:
    if seen.status != "ok":
        return
    findings = lasting_findings(seen.path, seen.scope) if seen.findings else ()
    for finding in findings:
        where = "".join(
            f", {what} {index}"
            for what, index in (("pool", finding.pool), ("slot", finding.slot))
            if index is not None
        )
        yield Check(
            "look", "checker", f"invariant {finding.invariant}{where}: {finding.text} "
            f"(expected {finding.expected}, found {finding.actual})",
            "a member stopped inside a call shows like this; else stop the members and run "
            "`memledger reset`",
        )  # fmt: skip
    if not findings:
        yield Check("ok", "checker", "no broken invariant")
