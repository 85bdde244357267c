"""Breaks the core on purpose, one line at a time, and shows which test notices.

    python tests/c/mutants.py [--only NAME] [--storm]

Each mutant is a copy of the tree with one replacement. It is caught when a program fails, or does
not end. A mutant whose line is no longer there counts as not caught: change it here too.
With --storm the storm runs for every mutant, not only for those which no other program has caught.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import run as runner

ROOT = runner.ROOT
BUILD = runner.Build("gcc", "gcc", ("-O2", "-Wno-error"))
QUICK = ("test_core", "test_readings", "test_segment")


@dataclass(frozen=True)
class Mutant:
    """`change`: pairs of old and new text in csrc/core. `phase`: that of the storm which shows it,
    where it does not need all of them."""

    name: str
    file: str
    change: tuple[tuple[str, str], ...]
    phase: str = ""


PENDING_STORE = "ml_exchange_seq_cst(own_word(a, i), a->mine[i]);"
COMMIT = "if (!ml_cas_acq_rel(own_word(a, l), a->mine[l], ML_WORD(total, 0, 0))) {"
ABORT = "(void)ml_cas_acq_rel((ml_u64 *)word_of(a, level, i), seen[i],"
SHARE = "os_probe_share(&state->probe, i)"
S_OF_READING = "ml_min_u64(op->held_before[i], f.held)"
OWN_WANTED = "a->wanted[i] = (bytes >> pool->shift) +"
RING = ("(version + 1) % ML_RING_COPIES", "version * 0")

MUTANTS = (
    Mutant(
        "grant without CAS",
        "claim.c",
        ((COMMIT, "if ((ml_store_release(own_word(a, l), ML_WORD(total, 0, 0)), false)) {"),),
    ),
    Mutant(
        "pending stored with release",
        "claim.c",
        ((PENDING_STORE, "ml_store_release(own_word(a, i), a->mine[i]);"),),
        phase="duel",
    ),
    Mutant(
        "pendings not counted",
        "claim.c",
        (("s.pending += ML_WORD_PENDING(word);", "s.pending += 0;"),),
    ),
    Mutant("sweep without the lock", "sweep.c", ((SHARE, "OS_OK"),), phase="kill"),
    Mutant(
        "sweep with an exclusive lock",
        "sweep.c",
        ((SHARE, "os_probe_exclude(&state->probe, i, 0)"),),
    ),
    Mutant(
        "word lowered before the record",
        "publish.c",
        (("if (growing) {", "if (true || growing) {"),),
    ),
    Mutant(
        "record raised before the word",
        "publish.c",
        (("if (growing) {", "if (false && growing) {"),),
    ),
    Mutant("no undo", "claim.c", (("            undo(a, l);\n", ""),)),
    Mutant(
        "abort by a plain store",
        "claim.c",
        ((ABORT, "ml_store_release((ml_u64 *)word_of(a, level, i),"),),
    ),
    Mutant(
        "single copy ring",
        "record.c",
        (RING, ("before % ML_RING_COPIES", "before * 0")),
    ),
    Mutant(
        "own claims not counted",
        "claim.c",
        ((OWN_WANTED, "bytes = a->bytes; " + OWN_WANTED),),
    ),
    Mutant(
        "larger held of before and after the source call",
        "readings.c",
        ((S_OF_READING, S_OF_READING.replace("ml_min_u64", "ml_max_u64")),),
    ),
    Mutant("no carry at the sweep", "sweep.c", (("    carry_all(ledger, sweep);\n", ""),)),
    Mutant(
        "a publish does not raise the counter",
        "publish.c",
        (('ML_KILL_POINT("publish.change");\n    ml_fetch_add_seq_cst(', "(void)("),),
    ),
    Mutant(
        "the joiner does not clear its slot",
        "slots.c",
        (('    ml_slot_clear(view, index);\n    ML_KILL_POINT("join.joining");', ""),),
    ),
)


def mutate(mutant: Mutant, folder: Path) -> None:
    """A copy of the tree in `folder`, with the change."""
    for part in ("csrc", "tests/c"):
        shutil.copytree(ROOT / part, folder / part, ignore=shutil.ignore_patterns("__pycache__"))
    path = folder / "csrc/core" / mutant.file
    text = path.read_text()
    for old, new in mutant.change:
        if old not in text:
            raise LookupError(f"not in {mutant.file}: {old!r}")
        text = text.replace(old, new)
    path.write_text(text)


def verdict_of(name: str, folder: Path, arguments: tuple[str, ...]) -> str:
    """Empty: the program passed; else the line that says what it noticed."""
    program = next(program for program in runner.PROGRAMS if program.name == name)
    output = folder / name
    line = runner.command(program, BUILD, output)
    line = [word.replace(str(ROOT), str(folder)) for word in line if word != "-Werror"]
    status, text = runner.run(line, 300, dict(runner.os.environ))
    if status != 0:
        raise SystemExit(f"{name} does not build:\n{text}")
    status, text = runner.run([str(output), *arguments], 90, dict(runner.os.environ))
    if status == 0:
        return ""
    told = [row for row in text.splitlines() if row.startswith("FAILED")]
    told = told or [row for row in text.splitlines() if ".c:" in row]
    return told[0] if told else f"ended with {status}"


def judge(mutant: Mutant, storm: bool) -> dict[str, str]:
    """What each program that was run said."""
    said: dict[str, str] = {}
    with tempfile.TemporaryDirectory(prefix="ml-mutant-") as name:
        folder = Path(name)
        mutate(mutant, folder)
        for program in QUICK:
            said[program] = verdict_of(program, folder, ())
            if said[program] and not storm:
                return said
        arguments = ("10", "0", mutant.phase) if mutant.phase else ("10",)
        said["storm"] = verdict_of("storm", folder, arguments)
    return said


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="mutants whose name contains this")
    parser.add_argument("--storm", action="store_true", help="run the storm for every mutant")
    options = parser.parse_args()
    if not shutil.which("gcc"):
        print("skipped: no gcc")
        return runner.SKIPPED
    sound = judge(Mutant("none", "claim.c", ()), storm=True)
    if any(sound.values()):
        print(f"not judged: the core as it is fails: {sound}")
        return 1
    missed = 0
    for mutant in MUTANTS:
        if options.only not in mutant.name:
            continue
        try:
            said = judge(mutant, options.storm)
        except LookupError as error:
            missed += 1
            print(f"{mutant.name:50} OUT OF DATE: {error}", flush=True)
            continue
        caught = {program: text for program, text in said.items() if text}
        missed += not caught
        print(f"{mutant.name:50} {'caught' if caught else 'NOT CAUGHT'}", flush=True)
        for program, text in caught.items():
            print(f"    {program}: {text}", flush=True)
    print(f"{missed} not caught")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
