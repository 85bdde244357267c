"""Check the protocol models with Spin, and check that each broken variant is caught.

    python tests/model/run.py [--long] [--list] [--jobs N] [model ...]

Exit status: 0 all as expected; 1 a correct model failed, a search was not finished, or a broken
variant was not
caught; 2 wrong usage; 77 spin or gcc is missing (skipped).
"""

from __future__ import annotations

import argparse
import concurrent.futures
import dataclasses
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
SKIPPED = 77
MEMORY_LIMIT_MB = 4000
DEPTH_LIMIT = 1_000_000

ASSERTION = "assertion violated"
BLOCKED = "invalid end state"
CYCLE = "non-progress cycle"


@dataclasses.dataclass(frozen=True)
class Case:
    model: str
    variant: str
    defines: str = ""
    caught_as: str = (
        ""  # what the checker must say of a broken variant; empty: the model is correct
    )
    # safety or progress: exhaustive; bitstate: a sample of the states, finished or not
    search: str = "safety"
    long: bool = False

    @property
    def expectation(self) -> str:
        return "caught" if self.caught_as else "ok"


def broken(
    model: str, name: str, defines: str = "", caught_as: str = ASSERTION, search: str = "safety"
) -> Case:
    switch = "BROKEN_" + name.upper().replace(" ", "_")
    return Case(model, "broken: " + name, f"{defines} -D{switch}", caught_as, search)


CASES = [
    Case("record", "ring of 4", "-DSWEEPERS=1 -DPUBLISHES=5"),
    Case("record", "ring of 2, 3 sweepers", "-DNB=2 -DPUBLISHES=1 -DSWEEPERS=3 -DAGAIN=1"),
    Case("record", "readers end", "-DNB=2 -DPUBLISHES=3 -DSWEEPERS=1", search="progress"),
    Case("record", "ring of 4, 2 sweepers", long=True),
    Case("record", "readers end, 2 sweepers", "-DNB=2 -DPUBLISHES=3", search="progress", long=True),
    broken("record", "seqlock", "-DNB=2 -DPUBLISHES=3 -DSWEEPERS=1", CYCLE, "progress"),
    broken("record", "version first", "-DNB=2 -DPUBLISHES=3"),
    broken("record", "off by one", "-DNB=2 -DPUBLISHES=3"),
    broken("record", "no recheck", "-DNB=2 -DPUBLISHES=3"),
    broken("record", "sweep stores version", "-DNB=2 -DPUBLISHES=2 -DSWEEPERS=3 -DAGAIN=1"),
    #
    Case("claim", "3 members"),
    Case("claim", "2 members, 2 claims, 2 attempts", "-DN=2 -DCLAIMS=2 -DATTEMPTS=2"),
    Case("claim", "2 members, crash, re-use", "-DN=2 -DCRASH -DCAP=1 -DBIG=1"),
    Case("claim", "alone among stopped ones", "-DMEMBERS=2 -DLONE -DCLAIMS=2 -DATTEMPTS=2"),
    Case("claim", "2 members, CAP 2, crash, re-use", "-DN=2 -DCRASH", long=True),
    Case(
        "claim",
        "3 members, CAP 3, 2 attempts",
        "-DCAP=3 -DATTEMPTS=2",
        search="bitstate",
        long=True,
    ),
    Case(
        "claim", "3 members, crash, re-use", "-DCRASH -DCAP=1 -DBIG=1", search="bitstate", long=True
    ),
    broken("claim", "no CAS"),
    broken("claim", "scan first"),
    broken("claim", "abort by store"),
    broken("claim", "pending not counted"),
    broken("claim", "sweep without lock", "-DN=2 -DCRASH"),
    broken("claim", "word before free"),
    broken("claim", "own not counted", "-DN=2 -DCLAIMS=2"),
    broken("claim", "late bit"),
    broken("claim", "no abort", "-DMEMBERS=2 -DLONE"),
    #
    Case("refusal", "by record", "-DMEMBERS=2 -DROUNDS=3"),
    Case("refusal", "by counter", "-DMEMBERS=2 -DROUNDS=3 -DBY_COUNTER"),
    Case("refusal", "by record, 3 members", long=True),
    Case("refusal", "by counter, 3 members", "-DBY_COUNTER", long=True),
    broken("refusal", "single scan", "-DMEMBERS=2 -DROUNDS=3"),
    broken("refusal", "pairs alone", "-DMEMBERS=2 -DROUNDS=3"),
    #
    Case("chain", "3 members"),
    Case("chain", "3 members, outer CAP 2", "-DOUTER_CAP=2"),
    Case("chain", "2 members, crash, re-use", "-DMEMBERS=2 -DCRASH"),
    Case("chain", "3 members, 2 attempts", "-DATTEMPTS=2", long=True),
    Case("chain", "3 members, crash, re-use", "-DCRASH", search="bitstate", long=True),
    broken("chain", "no undo"),
    broken("chain", "undo without publish", "-DOUTER_CAP=2 -DATTEMPTS=2"),
    broken("chain", "sweep by record alone", "-DMEMBERS=2 -DCRASH"),
    #
    Case("ticket", "2 members, 2 rounds", "-DN=2"),
    Case("ticket", "3 members", "-DROUNDS=1"),
    Case("ticket", "2 members, both may stop, crash, re-use", "-DN=2 -DROUNDS=1 -DSTOPS=2 -DCRASH"),
    Case("ticket", "2 members, 2 rounds, both may stop", "-DN=2 -DSTOPS=2", long=True),
    Case("ticket", "3 members, 2 may stop", "-DROUNDS=1 -DSTOPS=2", search="bitstate", long=True),
    Case(
        "ticket",
        "2 members, 2 rounds, crash, re-use",
        "-DN=2 -DCRASH",
        search="bitstate",
        long=True,
    ),
    Case("ticket", "3 members, 2 rounds", search="bitstate", long=True),
    broken("ticket", "note later", "-DN=2"),
    broken("ticket", "note any", "-DN=2"),
    broken("ticket", "not honoured", "-DN=2"),
    broken("ticket", "clear by store", "-DN=2"),
    broken("ticket", "no clock", "-DN=2", BLOCKED),
    #
    Case("slots", "2 owners, 1 kill"),
    Case("slots", "3 owners, 2 kills", "-DOWNERS=3 -DKILLS=2"),
    Case("slots", "4 owners, 3 kills, 3 sweepers", "-DOWNERS=4 -DKILLS=3 -DSWEEPERS=3", long=True),
    broken("slots", "exclusive sweep"),
    broken("slots", "sweep without lock"),
    broken("slots", "leave unlocks first"),
    broken("slots", "join does not clear"),
    #
    Case("reading", "2 threads, crash, re-use", "-DREADINGS=1"),
    Case("reading", "2 threads, 2 readings, crash, re-use", search="bitstate", long=True),
    broken("reading", "store newest", "-DREADINGS=1"),
    broken("reading", "ring of one", "-DREADINGS=1"),
    broken("reading", "no recheck", "-DREADINGS=1"),
    broken("reading", "join clears ring", "-DREADINGS=1"),
    #
    Case("ask", "2 members, 2 asks, no deadline", "-DASKS=2"),
    Case("ask", "2 members, 2 asks", "-DASKS=2 -DDEADLINE -DDROP"),
    Case("ask", "crash, re-use", "-DKILLS=1 -DDEADLINE -DDROP"),
    Case("ask", "victim with 2 threads", "-DASKS=2 -DASKERS=1 -DTHREADS=2 -DDEADLINE"),
    Case("ask", "2 asks, crash, re-use", "-DASKS=2 -DKILLS=1 -DDEADLINE", long=True),
    broken("ask", "no busy", caught_as=BLOCKED),
    broken("ask", "no generation", "-DKILLS=1 -DDEADLINE"),
    broken("ask", "answer first", "-DASKS=2 -DDEADLINE"),
    broken("ask", "withdraw by store", "-DDEADLINE"),
    broken("ask", "late answer", "-DASKS=2 -DASKERS=1 -DTHREADS=2 -DDEADLINE"),
    broken("ask", "sweep forgets asks", "-DKILLS=1 -DDEADLINE"),
    #
    Case("window", "3 members"),
    Case("window", "3 members, one may stop", "-DSTOPS=1"),
    Case("window", "2 members, 2 rounds, one may stop", "-DMEMBERS=2 -DROUNDS=2 -DSTOPS=1"),
    broken("window", "look first"),
    broken("window", "later ignored"),
    broken("window", "new tickets"),
    broken("window", "wait open", caught_as=BLOCKED),
    broken("window", "no clock", "-DSTOPS=1", BLOCKED),
]

COMPILE_FLAGS = {
    "safety": ["-DSAFETY", "-DCOLLAPSE"],
    "progress": ["-DNP", "-DCOLLAPSE"],
    "bitstate": ["-DSAFETY", "-DBITSTATE"],
}
RUN_FLAGS = {
    "safety": [],
    "progress": ["-l"],
    "bitstate": ["-w33"],
}


@dataclasses.dataclass
class Result:
    case: Case
    as_expected: bool
    verdict: str
    states: str
    depth: str
    seconds: float


def checked(command: list[str], cwd: str) -> str:
    """Run a tool that must succeed; what it says otherwise is the verdict."""
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError((done.stdout + done.stderr).strip() or f"{command[0]} failed")
    return done.stdout


def judge(case: Case, output: str) -> tuple[bool, str]:
    """Whether the checker's report is what the case expects, and the report in a few words."""
    found = re.search(r"^pan:\d+: (.*?) \(at depth", output, re.MULTILINE)
    if found:
        if not case.caught_as:
            return False, "FAILED: " + found.group(1)
        return case.caught_as in found.group(1), found.group(1)
    if not re.search(r"errors: 0$", output, re.MULTILINE):
        return False, "NO RESULT: " + " ".join(output.split()[-12:])
    if re.search(r"search not completed|max search depth too small|MEMLIM", output, re.IGNORECASE):
        return False, "NOT FINISHED"
    if case.caught_as:
        return False, "NOT CAUGHT"
    return True, "no error"


def run_case(case: Case, time_limit: float) -> Result:
    began = time.monotonic()
    output = ""
    with tempfile.TemporaryDirectory(prefix="memledger-model-") as folder:
        try:
            shutil.copy(HERE / f"{case.model}.pml", folder)
            checked(["spin", *case.defines.split(), "-a", f"{case.model}.pml"], folder)
            # -w: the generated C is not ours to tidy.
            checked(
                [
                    "gcc",
                    "-w",
                    "-O2",
                    f"-DMEMLIM={MEMORY_LIMIT_MB}",
                    *COMPILE_FLAGS[case.search],
                    "-o",
                    "pan",
                    "pan.c",
                ],
                folder,
            )
            began = time.monotonic()
            done = subprocess.run(
                ["./pan", f"-m{DEPTH_LIMIT}", *RUN_FLAGS[case.search]],
                cwd=folder,
                capture_output=True,
                text=True,
                timeout=time_limit,
            )
            output = done.stdout + done.stderr
            as_expected, verdict = judge(case, output)
        except subprocess.TimeoutExpired:
            as_expected, verdict = False, f"NOT FINISHED in {time_limit:.0f} s"
        except RuntimeError as failure:
            as_expected, verdict = False, "TOOL FAILED: " + str(failure)
    states = re.search(r"^\s*([0-9.e+]+) states, stored", output, re.MULTILINE)
    depth = re.search(r"depth reached (\d+)", output)
    return Result(
        case,
        as_expected,
        verdict,
        f"{float(states.group(1)):.0f}" if states else "-",
        depth.group(1) if depth else "-",
        time.monotonic() - began,
    )


ROW = "{:8} {:40} {:7} {:>11} {:>6} {:10} {:>7}  {}"


def print_row(result: Result) -> None:
    case = result.case
    kind = (
        "bitstate" if case.search == "bitstate" else "until hit" if case.caught_as else "exhaustive"
    )
    print(
        ROW.format(
            case.model,
            case.variant,
            case.expectation,
            result.states,
            result.depth,
            kind,
            f"{result.seconds:.1f}",
            ("" if result.as_expected else "!! ") + result.verdict,
        ),
        flush=True,
    )


def main() -> int:
    parser = argparse.ArgumentParser(description="Check the protocol models with Spin.")
    parser.add_argument("models", nargs="*", metavar="model", help="default: all of them")
    parser.add_argument(
        "--long", action="store_true", help="add the larger configurations (an hour or so)"
    )
    parser.add_argument("--list", action="store_true", help="show what would run, and stop")
    parser.add_argument(
        "--jobs",
        type=int,
        default=min(2, os.cpu_count() or 1),
        help="at once (default %(default)s)",
    )
    parser.add_argument(
        "--time-limit",
        type=float,
        default=None,
        metavar="SECONDS",
        help="for one search (default 300, with --long 3600)",
    )
    arguments = parser.parse_args()

    known = sorted({case.model for case in CASES})
    for name in arguments.models:
        if name not in known:
            parser.error(f"no model {name!r}; there are: {', '.join(known)}")
    chosen = [
        case
        for case in CASES
        if (arguments.long or not case.long)
        and (not arguments.models or case.model in arguments.models)
    ]
    if arguments.list:
        for case in chosen:
            print(
                f"{case.model:8} {case.variant:40} {case.expectation:7} "
                f"{case.search:9} {case.defines.strip()}"
            )
        return 0
    missing = [tool for tool in ("spin", "gcc") if shutil.which(tool) is None]
    if missing:
        print(
            f"SKIPPED: the models were not checked, {' and '.join(missing)} not found", flush=True
        )
        return SKIPPED

    time_limit = arguments.time_limit or (3600 if arguments.long else 300)
    print(
        ROW.format("model", "variant", "expect", "states", "depth", "search", "seconds", "result"),
        flush=True,
    )
    began = time.monotonic()
    wrong = 0
    with concurrent.futures.ThreadPoolExecutor(max(1, arguments.jobs)) as pool:
        for result in pool.map(lambda case: run_case(case, time_limit), chosen):
            print_row(result)
            wrong += not result.as_expected
    print(
        f"{len(chosen)} searches in {time.monotonic() - began:.0f} s: "
        + (f"{wrong} NOT as expected" if wrong else "all as expected")
    )
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
