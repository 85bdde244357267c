"""The scenarios in which processes move each other: memory given back, pins, a stop click.

As in scenarios.py, each is played without the ledger and with it, and its log is decided anew by
the oracle.
"""

from __future__ import annotations

from memledger.demo.cast import Cast
from memledger.demo.log import Log
from memledger.demo.oracle import Verdict, compare
from memledger.demo.policy import GIB
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


def sibling_gives_back(stage: Stage) -> Outcome:
    """an OOM avoided: a sibling is asked, and gives back what its allocator has idle"""
    total, model, earlier, wanted = 24 * GIB, 8 * GIB, 10 * GIB, 12 * GIB

    def play(mode: str) -> Played:
        def start(cast: Cast) -> None:
            cast.start("keeper", "keeper", mode=mode, model_bytes=model, earlier_bytes=earlier)
            cast.start("asker", "asker", mode=mode, fp8_bytes=wanted)
            cast.wait("ready")

        def direct(cast: Cast, card: Card, log: Log) -> None:
            cast.meet("ready")
            # The keeper is there at once, and answers whoever asks until the asker has loaded.
            cast.meet("loaded")

        return stage.run("giveback", mode, direct, start=start, total=total)

    without, ledger = play("without"), play(stage.mode_with("asks"))
    verdict, disagreements = compare(ledger.events, total)
    runs = {
        "without": without.run(_asked(without), **_given(without)),
        "ledger": ledger.run(_asked(ledger), **_given(ledger)),
        "oracle": oracle_run(
            verdict, {"asker": "loaded" if verdict.decisions.get("asker/model") else "waits"}
        ),
    }
    problems = problems_of(runs["ledger"], disagreements)
    more = runs["ledger"].more
    if runs["ledger"].choices["asker"] != "loaded":
        problems.append("the asker's load did not succeed")
    if more["given_bytes"] < more["credited_bytes"]:
        problems.append("the asker was credited with more than the keeper gave")
    seen = [format_size(runs[key].more["free_bytes"]) for key in ("without", "ledger")]
    back = [format_size(runs[key].more["given_bytes"]) for key in ("without", "ledger")]
    return Outcome(
        "giveback",
        "A sibling gives back its idle cache, 24 GiB card",
        "The keeper has a model of 8 GiB, and 10 GiB of an earlier one idle in its allocator's "
        "cache. The asker wants 12. Look at it: without the ledger the keeper never learns that "
        "somebody is short. To one process with one allocator the idle bytes would be no obstacle "
        "(the oracle).",
        [
            oom_row(runs),
            Row(
                "asker (12 GiB)",
                [run.choices["asker"] for run in runs.values()],
                [run.choices["asker"] != "OOM" for run in runs.values()],
            ),
            Row("free when it looks", [*seen, format_size(total - model)]),
            Row("answer to the ask", [*(runs[k].more["ask"] for k in ("without", "ledger")), "-"]),
            Row("keeper gave back", [*back, "-"]),
            *size_rows(runs, total),
        ],
        runs,
        rests_on="asks",
        disagreements=disagreements,
        problems=problems,
    )


def one_pin_budget(stage: Stage) -> Outcome:
    """page-locked RAM: one budget for all, or as many as there are processes"""
    names = ("pinner-a", "pinner-b", "pinner-c")
    budget, block, blocks, races = 8 * MIB, 1 * MIB, 8, 5

    def play(mode: str) -> Played:
        raced = races if mode == "ledger" else 0

        def start(cast: Cast) -> None:
            for name in names:
                cast.start(
                    name,
                    "pinner",
                    mode=mode,
                    budget_bytes=budget,
                    block_bytes=block,
                    blocks=blocks,
                    races=raced,
                )
            cast.wait("up")

        def direct(cast: Cast, card: Card, log: Log) -> None:
            cast.meet("up")
            for number in range(blocks):
                cast.meet(f"look {number}")
                cast.meet(f"pin {number}")
            cast.meet("end")
            for number in range(raced):
                cast.meet(f"race {number}")
                cast.meet(f"raced {number}")

        return stage.run("pins", mode, direct, start=start, total=GIB)

    without, ledger = play("without"), play(stage.mode_with("pins"))
    verdict, disagreements = compare(ledger.events, budget)
    runs = {}
    for key, one in (("without", without), ("ledger", ledger)):
        pinned = {name: one.results[name]["pinned_bytes"] for name in names}
        runs[key] = one.run(
            pinned, page_locked_bytes=sum(one.results[name]["page_locked_bytes"] for name in names)
        )
        runs[key].peak_bytes = sum(pinned.values())
    runs["oracle"] = oracle_run(verdict, {name: _pinned(verdict, name) for name in names})
    over = {key: max(0, run.peak_bytes - budget) for key, run in runs.items()}
    sums = [
        sum(of_all) for of_all in zip(*(ledger.results[n]["races"] for n in names), strict=True)
    ]
    runs["ledger"].more["race_bytes"] = sums
    problems = problems_of(runs["ledger"], disagreements)
    if over["ledger"]:
        problems.append(f"the budget was passed by {format_size(over['ledger'])}")
    wrong = [nbytes for nbytes in sums if nbytes != budget]
    if wrong:
        problems.append(
            f"of {len(sums)} races without the lock of the log, {len(wrong)} did not end with "
            f"exactly the budget, the first with {format_size(wrong[0])}"
        )
    raced = f" Raced {len(sums)} times more without any lock: {len(sums) - len(wrong)} times 8 MiB."
    locked = [format_size(runs[key].more["page_locked_bytes"]) for key in ("without", "ledger")]
    return Outcome(
        "pins",
        "Three processes that page-lock RAM, one budget of 8 MiB",
        "Each wants 8 blocks of 1 MiB, and locks them for real where the system allows it (mlock). "
        "Look at the sum: without the ledger each keeps to the budget by itself, and so they "
        f"lock three times as much.{raced if sums else ''}",
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
            Row("really page-locked", [*locked, "-"]),
        ],
        runs,
        rests_on="pins",
        fine="within the budget, every decision as the oracle's",
        disagreements=disagreements,
        problems=problems,
    )


def stop_click(stage: Stage) -> Outcome:
    """an interrupt reaches the worker in its own group within a step, and no other"""
    groups = ("a", "b")
    steps, click_after = [12, 4], 5

    def play(mode: str) -> Played:
        def start(cast: Cast) -> None:
            for group in groups:
                cast.start(
                    f"server-{group}",
                    "server",
                    mode=mode,
                    joins={"role": "host", "group": _group_name(mode, group)},
                    server_group=group,
                    prompts=len(steps),
                    clicks_in=[0] if group == "a" else [],
                )
            cast.wait("begin 0")
            for group in groups:
                cast.start(
                    f"worker-{group}",
                    "stepper",
                    mode=mode,
                    joins={"role": "worker", "group": _group_name(mode, group)},
                    server_group=group,
                    steps=steps,
                )
            cast.wait("up", workers)

        def direct(cast: Cast, card: Card, log: Log) -> None:
            cast.meet("up", workers)
            for prompt, count in enumerate(steps):
                cast.meet(f"begin {prompt}", servers)
                cast.meet(f"begun {prompt}", servers)
                for step in range(count):
                    cast.wait(f"step {prompt}.{step}", workers)
                    if (prompt, step) == (0, click_after):
                        cast.meet(f"click {prompt}", ["server-a"])
                        cast.wait(f"end {prompt}", ["server-a"])
                    cast.meet(f"step {prompt}.{step}", workers)
                cast.meet(f"end {prompt}")

        return stage.run("stop", mode, direct, start=start, total=GIB)

    servers = [f"server-{group}" for group in groups]
    workers = [f"worker-{group}" for group in groups]
    without, ledger = play("without"), play(stage.mode_with("groups"))
    verdict, disagreements = compare(ledger.events, GIB)
    made = {
        "without": {name: without.results[name]["made"] for name in workers},
        "ledger": {name: ledger.results[name]["made"] for name in workers},
        "oracle": {name: _made(verdict, name, steps) for name in workers},
    }
    runs: dict[str, Run] = {
        "without": without.run(made["without"]),
        "ledger": ledger.run(made["ledger"]),
        "oracle": oracle_run(verdict, dict(made["oracle"])),
    }
    after = {
        key: {name: sum(one[name][0][click_after:]) for name in workers}
        for key, one in made.items()
    }
    for key, run in runs.items():
        run.more["steps_after_click"] = after[key]
    late = steps[0] - click_after
    problems = problems_of(runs["ledger"], disagreements)
    if after["ledger"]["worker-a"] > 1:
        problems.append(f"worker-a made {after['ledger']['worker-a']} steps after the click")
    if after["ledger"]["worker-b"] != late:
        problems.append("worker-b was stopped by a click on the other server")
    if not all(all(made["ledger"][name][1]) for name in workers):
        problems.append("the click on the first prompt stopped the second one too")
    return Outcome(
        "stop",
        "A stop click on one of two servers, each with a worker",
        f"Somebody clicks on stop at server-a after {click_after} of {steps[0]} steps, then both "
        f"servers begin another prompt of {steps[1]}. Look for dots, steps that were not made: "
        "worker-a stops before its next step, worker-b goes on, and the next prompt starts clear.",
        [
            Row(
                f"{name} after the click",
                [f"{after[key][name]} of {late} steps" for key in runs],
                [after[key][name] == after["oracle"][name] for key in runs],
            )
            for name in workers
        ],
        runs,
        strips=[
            (
                key,
                name,
                " | ".join("".join("=" if m else "." for m in one) for one in made[key][name]),
            )
            for key in runs
            for name in workers
        ],
        strips_title="both prompts of each worker (=: a step made, .: stopped)",
        rests_on="groups",
        fine="stopped within a step, and nobody else; every decision as the oracle's",
        disagreements=disagreements,
        problems=problems,
    )


def _group_name(mode: str, group: str) -> str:
    """--break-groups puts all into one."""
    return "demo" if mode == "groupless" else f"demo-{group}"


def _asked(played: Played) -> dict[str, str]:
    return {"asker": "loaded" if played.results["asker"]["loaded"] else "OOM"}


def _given(played: Played) -> dict[str, object]:
    asker, keeper = played.results["asker"], played.results["keeper"]
    return {
        "free_bytes": asker["free_bytes"],
        "ask": asker["ask"]["state"],
        "credited_bytes": asker["ask"]["credited"],
        "verified_bytes": asker["ask"]["verified"],
        "given_bytes": keeper["given_bytes"],
    }


def _pinned(verdict: Verdict, name: str) -> int:
    return sum(
        nbytes
        for subject, nbytes in verdict.decisions.items()
        if isinstance(nbytes, int) and subject.startswith(f"{name}/")
    )


def _made(verdict: Verdict, name: str, steps: list[int]) -> list[list[bool]]:
    return [
        [verdict.decisions.get(f"{name}/{number}.{step}") == "made" for step in range(count)]
        for number, count in enumerate(steps)
    ]
