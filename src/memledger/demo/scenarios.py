"""The scenarios: who plays, on what card, what is done to them, and what must come out.

Each is played without the ledger and with it, and its log is decided anew by the oracle. Sizes are
powers of 1024 throughout: a "48 GiB" card has 48 * 2**30 bytes.

A sentence about each stands in `shown`: what is shown and what to look at.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import Any

from memledger.demo.cast import Cast
from memledger.demo.log import Log, Request, request_event
from memledger.demo.oracle import compare
from memledger.demo.policy import GIB
from memledger.demo.scenarios_together import one_pin_budget, sibling_gives_back, stop_click
from memledger.demo.stage import (
    Outcome,
    Played,
    Row,
    Run,
    Stage,
    oom_row,
    oracle_run,
    problems_of,
    size_rows,
)
from memledger.sim import Card
from memledger.sizes import format_size

MIB = 1 << 20


def two_loaders(stage: Stage) -> Outcome:
    """a dtype from the size of the card: both upcast, or one"""
    names = ("loader-a", "loader-b")
    total = 48 * GIB
    races = 25

    def play(mode: str) -> Played:
        def start(cast: Cast) -> None:
            for name in names:
                cast.start(
                    name,
                    "loader",
                    mode=mode,
                    fp8_bytes=12 * GIB,
                    activation_bytes=2 * GIB,
                    races=races if mode == "ledger" else 0,
                )
            cast.wait("decide")

        def direct(cast: Cast, card: Card, log: Log) -> None:
            cast.meet("decide")
            cast.meet("load")
            cast.meet("unload")
            for number in range(races if mode == "ledger" else 0):
                for point in ("race", "raced", "over"):
                    cast.meet(f"{point} {number}")

        return stage.run(
            "loaders", mode, direct, start=start, total=total, land_bytes_per_s=24 * GIB
        )

    without, ledger = play("without"), play(stage.ledger_mode)
    verdict, disagreements = compare(ledger.events, total)
    runs = {
        "without": without.run({n: without.results[n]["dtype"] for n in names}),
        "ledger": ledger.run({n: ledger.results[n]["dtype"] for n in names}),
        "oracle": oracle_run(verdict, {n: verdict.decisions.get(f"{n}/model") for n in names}),
    }
    pairs = [
        sorted(pair)
        for pair in zip(*(ledger.results[n].get("races", []) for n in names), strict=False)
    ]
    runs["ledger"].more["races_right"] = sum(pair == ["fp16", "fp8"] for pair in pairs)
    runs["ledger"].more["races"] = len(pairs)
    gib = {"fp16": "24", "fp8": "12"}
    rows = [
        oom_row(runs),
        Row(
            "weights (GiB)",
            ["{" + ", ".join(_chosen_gib(run, gib)) + "}" for run in runs.values()],
        ),
        *(Row(name, [str(run.choices[name]) for run in runs.values()]) for name in names),
        *size_rows(runs, total),
    ]
    problems = problems_of(runs["ledger"], disagreements)
    if stage.ledger_mode == "ledger" and runs["ledger"].more["races_right"] != races:
        problems.append(
            f"of {races} races without the lock of the log, {runs['ledger'].more['races_right']} "
            "ended with one fp16 and one fp8"
        )
    raced = (
        f" Raced {len(pairs)} times more without any lock: "
        f"{runs['ledger'].more['races_right']} times {{24, 12}}."
        if pairs
        else ""
    )
    return Outcome(
        "loaders",
        "Two loaders, one 48 GiB card",
        "Each has a 12 GiB fp8 checkpoint that would be 24 GiB in fp16, and 2 GiB of activations. "
        "Both look at the same moment. Look at the weights: two that each fit alone, and one that "
        f"knows of the other.{raced}",
        rows,
        runs,
        disagreements=disagreements,
        problems=problems,
    )


def two_samplers(stage: Stage) -> Outcome:
    """a batch per step from what is free, while a sibling loads and frees"""
    names = ("sampler-a", "sampler-b")
    total, steps = 24 * GIB, 30
    rng = random.Random(stage.seed)
    loads = [
        {
            "fp8_bytes": rng.choice((2, 3, 4, 5)) * GIB,
            "from_step": begin + rng.randrange(3),
            "until_step": begin + 6 + rng.randrange(3),
        }
        for begin in (2, 12, 21)
    ]

    def play(mode: str) -> Played:
        def start(cast: Cast) -> None:
            for name in names:
                cast.start(
                    name,
                    "sampler",
                    mode=mode,
                    model_bytes=5 * GIB,
                    image_bytes=1 * GIB,
                    most=8,
                    steps=steps,
                )
            cast.start("sibling", "sibling", mode=mode, loads=loads, parts=4, steps=steps)
            cast.wait("load 0")

        def direct(cast: Cast, card: Card, log: Log) -> None:
            for number in range(steps):
                for point in ("load", "read", "take", "free"):
                    cast.meet(f"{point} {number}")
            cast.meet("end")

        return stage.run("samplers", mode, direct, start=start, total=total)

    without, ledger = play("without"), play(stage.ledger_mode)
    verdict, disagreements = compare(ledger.events, total)
    runs = {
        "without": without.run(_sampled(without, names)),
        "ledger": ledger.run(_sampled(ledger, names)),
        "oracle": oracle_run(
            verdict,
            {n: [verdict.decisions.get(f"{n}/step {s}") for s in range(steps)] for n in names}
            | {
                "sibling": [
                    dtype
                    for subject, dtype in verdict.decisions.items()
                    if subject.startswith("sibling/")
                ]
            },
        ),
    }
    images = {
        key: sum(sum(filter(None, run.choices[n])) for n in names) for key, run in runs.items()
    }
    for key, run in runs.items():
        run.more["images"] = images[key]
    rows = [
        oom_row(runs),
        Row("images made", [str(images[key]) for key in runs]),
        Row(
            "sibling's loads", [" ".join(map(str, run.choices["sibling"])) for run in runs.values()]
        ),
        *size_rows(runs, total),
    ]
    return Outcome(
        "samplers",
        "Two samplers and a sibling that loads, one 24 GiB card",
        "Each step takes up to two thirds of what is free, at most 8 images of 1 GiB. Look for x: "
        "a step lost to an OOM, because both took the same bytes. With the ledger one takes what "
        "the other left, and every step counts.",
        rows,
        runs,
        strips=[
            (key, name, "".join(_glyph(batch) for batch in run.choices[name]))
            for key, run in runs.items()
            for name in names
        ],
        strips_title="batch of each of the 30 steps (x: out of memory)",
        disagreements=disagreements,
        problems=problems_of(runs["ledger"], disagreements),
    )


def killed_worker(stage: Stage) -> Outcome:
    """SIGKILL in the middle of a load: its bytes and its promise come back by themselves"""
    total = 24 * GIB
    killed_at: dict[str, float] = {}
    peaks: dict[str, int] = {}
    """as the parent sees it: a killed process reports none"""

    def play(mode: str) -> Played:
        def start(cast: Cast) -> None:
            cast.start("victim", "victim", mode=mode, fp8_bytes=20 * GIB, first_bytes=5 * GIB)
            cast.start("waiter", "waiter", mode=mode, own_bytes=GIB, fp8_bytes=12 * GIB)
            cast.wait("half loaded", ["victim"])
            cast.wait("ready", ["waiter"])

        def direct(cast: Cast, card: Card, log: Log) -> None:
            # The waiter looks while the victim stands still.
            cast.go(["waiter"])
            cast.meet("half loaded")

            def is_far() -> bool:
                most = max((holder.bytes for holder in card.holders()), default=0)
                peaks[mode] = max(peaks.get(mode, 0), card.used())
                return most >= 17 * GIB or cast.has_ended("victim")

            cast.until(is_far)
            if not cast.has_ended("victim"):
                # In the lock, so that nobody's grant of these bytes comes before their end.
                with log.in_order():
                    killed_at[mode] = time.monotonic()
                    cast.kill("victim")
                    log.write(request_event(Request("died", "victim", "victim")))

        return stage.run(
            "killed",
            mode,
            direct,
            start=start,
            total=total,
            land_bytes_per_s=10 * GIB,
            death_delay_s=0.1,
        )

    without, ledger = play("without"), play(stage.ledger_mode)
    verdict, disagreements = compare(ledger.events, total)
    runs = {
        "without": without.run(_loaded(without)),
        "ledger": ledger.run(_loaded(ledger)),
        "oracle": oracle_run(
            verdict,
            {
                "victim": "killed",
                "waiter": "loaded" if verdict.decisions.get("waiter/model") else "waits",
            },
        ),
    }
    for key, mode in (("without", "without"), ("ledger", stage.ledger_mode)):
        runs[key].peak_bytes = max(runs[key].peak_bytes, peaks.get(mode, 0))
    back_s = (
        ledger.results["waiter"]["granted_at_s"] - killed_at[stage.ledger_mode]
        if stage.ledger_mode in killed_at
        else None
    )
    runs["ledger"].more["granted_after_kill_s"] = back_s
    problems = problems_of(runs["ledger"], disagreements)
    if runs["ledger"].choices["waiter"] != "loaded":
        problems.append("the waiting sibling's load did not succeed")
    if back_s is not None and back_s < 0:
        problems.append("the waiting sibling was let in before the victim was dead")
    return Outcome(
        "killed",
        "A worker killed in the middle of its load, 24 GiB card",
        "The victim loads 20 GiB and is killed (SIGKILL) when 17 are there. When 5 are there, a "
        "sibling wants 12; the driver says 18 are free. Look at the waiter: with the ledger it "
        "waits, for the other 15 are promised, and is let in by the victim's death alone.",
        [
            oom_row(runs),
            *(
                Row(
                    f"{name} ({size} GiB)",
                    [run.choices[name] for run in runs.values()],
                    [False if run.choices[name] == "OOM" else None for run in runs.values()],
                )
                for name, size in (("victim", 20), ("waiter", 12))
            ),
            Row(
                "let in",
                [
                    "at once" if without.results["waiter"]["fitted_at_once"] else "later",
                    "before the kill"
                    if back_s is None or back_s < 0
                    else f"{back_s:.1f} s after kill",
                    "after the kill",
                ],
            ),
            *size_rows(runs, total),
        ],
        runs,
        disagreements=disagreements,
        problems=problems,
    )


def slow_load(stage: Stage) -> Outcome:
    """what a sibling reads while bytes land: with a claim that drains, and without"""
    total, load_bytes = 24 * GIB, 16 * GIB
    rate = 8 * GIB

    def play(key: str, mode: str, drains: bool) -> Played:
        def start(cast: Cast) -> None:
            cast.start("loader", "slow_loader", mode=mode, fp8_bytes=load_bytes, drains=drains)
            cast.start(
                "watcher",
                "watcher",
                mode=mode,
                card_bytes=total,
                promised_bytes=load_bytes,
                image_bytes=GIB,
            )
            cast.wait("load")

        def direct(cast: Cast, card: Card, log: Log) -> None:
            cast.meet("load")
            cast.meet("look")

        return stage.run(key, mode, direct, start=start, total=total, land_bytes_per_s=rate)

    played = {
        "without": play("slow", "without", True),
        "undrained": play("slow-undrained", stage.ledger_mode, False),
        "ledger": play("slow", stage.ledger_mode, True),
    }
    verdict, disagreements = compare(played["ledger"].events, total)
    seen = {key: one.results["watcher"] for key, one in played.items()}
    runs = {
        key: one.run(
            {"loader": "fp8"},
            mean_error_bytes=seen[key]["mean_error_bytes"],
            too_high_bytes=seen[key]["too_high_bytes"],
            too_low_bytes=seen[key]["too_low_bytes"],
            samples=seen[key]["samples"],
        )
        for key, one in played.items()
    }
    runs["oracle"] = oracle_run(verdict, {"loader": verdict.decisions.get("loader/model")})
    right = total - load_bytes
    problems = problems_of(runs["ledger"], disagreements)
    drained, undrained = runs["ledger"].more, runs["undrained"].more
    if drained["too_high_bytes"] > 0:
        problems.append(
            f"free was {format_size(drained['too_high_bytes'])} too high while bytes landed"
        )
    if 2 * drained["mean_error_bytes"] > undrained["mean_error_bytes"]:
        problems.append("draining the claim did not halve the error")
    return Outcome(
        "slow",
        "A slow load of 16 GiB on a 24 GiB card, seen by a sibling",
        f"From the first moment {format_size(right)} are left for others. Look at the mean error: "
        "the driver shows what has not landed as free; a claim that is settled only at the end "
        "counts what has landed twice; one that drains is right within what landed in the last "
        f"period ({format_size(rate // 4)}), and never too high.",
        [
            Row("mean error", _errors(runs, "mean_error_bytes"), [False, False, True, None]),
            Row("worst, too high", _errors(runs, "too_high_bytes"), _no_error(runs)),
            Row("worst, too low", _errors(runs, "too_low_bytes")),
            Row("samples", [str(run.more.get("samples", "-")) for run in runs.values()]),
            oom_row(runs),
        ],
        runs,
        columns=("driver", "settled at end", "drains, 10 Hz", "oracle"),
        strips=[
            (key, "free", _sparkline([free for _, free in one["curve"]], total))
            for key, one in seen.items()
        ]
        + [("oracle", "free", _sparkline([right] * 30, total))],
        strips_title="free during the load, 0 to 9: tenths of the card",
        disagreements=disagreements,
        problems=problems,
    )


def real_ram(stage: Stage) -> Outcome:
    """real memory of this machine, kept to a budget that all processes share"""
    names = ("taker-a", "taker-b", "taker-c")
    limit, block, rounds = 128 * MIB, 32 * MIB, 5

    def play(mode: str) -> Played:
        def start(cast: Cast) -> None:
            for name in names:
                cast.start(
                    name,
                    "ram_taker",
                    mode=mode,
                    limit_bytes=limit,
                    block_bytes=block,
                    rounds=rounds,
                )
            cast.wait("up")

        def direct(cast: Cast, card: Card, log: Log) -> None:
            cast.meet("up")
            cast.meet("decide")
            for number in range(rounds):
                for point in ("read", "choose", "take"):
                    cast.meet(f"{point} {number}")
            cast.meet("end")

        return stage.run("ram", mode, direct, start=start, total=GIB)

    without, ledger = play("without"), play(stage.ledger_mode)
    runs = {}
    for key, one in (("without", without), ("ledger", ledger)):
        held = {name: one.results[name]["held_bytes"] for name in names}
        runs[key] = one.run(held)
        runs[key].peak_bytes = sum(held.values())
    over = {key: max(0, run.peak_bytes - limit) for key, run in runs.items()}
    problems = []
    if over["ledger"]:
        problems.append(f"the budget was passed by {format_size(over['ledger'])}")
    return Outcome(
        "ram",
        "Three processes and 128 MiB of this machine's real RAM",
        "Each takes blocks of 32 MiB and leaves all RAM beyond the budget alone. Look at the sum: "
        "without the ledger each keeps to the budget by itself. No oracle: other programs of this "
        "machine move the figures too.",
        [
            *(
                Row(name, [format_size(run.choices[name]) for run in runs.values()])
                for name in names
            ),
            Row("in all", [format_size(run.peak_bytes) for run in runs.values()]),
            Row(
                "over the budget",
                [format_size(nbytes) for nbytes in over.values()],
                [not nbytes for nbytes in over.values()],
            ),
        ],
        runs,
        columns=("without ledger", "with ledger"),
        fine="within the budget",
        problems=problems,
    )


SCENARIOS: dict[str, Callable[[Stage], Outcome]] = {
    "loaders": two_loaders,
    "samplers": two_samplers,
    "killed": killed_worker,
    "slow": slow_load,
    "ram": real_ram,
    "giveback": sibling_gives_back,
    "pins": one_pin_budget,
    "stop": stop_click,
}


def _chosen_gib(run: Run, gib: dict[str, str]) -> list[str]:
    return sorted((gib.get(dtype, "none") for dtype in run.choices.values()), reverse=True)


def _sampled(played: Played, names: tuple[str, ...]) -> dict[str, Any]:
    return {name: played.results[name]["batches"] for name in names} | {
        "sibling": played.results["sibling"]["dtypes"]
    }


def _loaded(played: Played) -> dict[str, str]:
    def fate(name: str) -> str:
        if name not in played.results:
            return "killed"
        return "loaded" if played.results[name]["loaded"] else "OOM"

    return {"victim": fate("victim"), "waiter": fate("waiter")}


def _glyph(batch: int | None) -> str:
    return "x" if batch is None else str(batch)


def _errors(runs: dict[str, Run], key: str) -> list[str]:
    return [
        f"{run.more[key] / GIB:.1f} GiB" if key in run.more else "0.0 GiB" for run in runs.values()
    ]


def _no_error(runs: dict[str, Run]) -> list[bool | None]:
    return [not run.more.get("too_high_bytes", 0) for run in runs.values()]


def _sparkline(values: list[int], most: int, width: int = 30) -> str:
    """Digits 0 to 9 where the terminal may know no blocks: the height in tenths of `most`."""
    picked = [values[index * len(values) // width] for index in range(width)] if values else []
    return "".join(str(min(9, value * 10 // most)) for value in picked)
