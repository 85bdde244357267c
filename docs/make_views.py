"""Makes the pictures and the output that docs/views.md and the README show, from a real run.

Three processes share a simulated 24 GiB card: they load models through claims, ask each other, drop
models, and one is killed on the way; 1.4 GiB belong to a program outside. One sometimes loads
without a claim, which then brings an OOM to somebody. `python docs/make_views.py` writes
docs/top.svg, docs/top.txt and docs/report.png; under a minute.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

GIB = 1 << 30
HERE = Path(__file__).resolve().parent
CARD = "rtx4090?total=24GiB&land=4GiB/s&death_delay=0.3"
CAST = (("comfyui-host", "host"), ("video-worker", "worker"), ("upscaler", "worker"))
RECORDED_S, KILLED_AFTER_S, WATCHED_S = 30, 20, 12


def act(label: str, role: str, seed: int) -> None:
    """One process: loads models of 1 to 5 GiB, keeps some, gives back what it is asked for."""
    import memledger
    from memledger import sim

    rng = random.Random(seed)
    ledger = memledger.join(label, role)
    gpu, ram = ledger.device(f"sim:{CARD}"), ledger.device("ram")
    card = sim.open_url(CARD)
    ram.publish(held=rng.randrange(GIB, 3 * GIB), pinned=GIB // 2)
    models: list[sim.Block] = []

    def held() -> int:
        return sum(model.landed for model in models)

    def publish() -> None:
        # All but the newest model could go.
        gpu.publish(held(), releasable=sum(model.landed for model in models[:-1]))

    class Models:
        def release_memory(self, device: object, size: int) -> int:
            before = held()
            while len(models) > 1 and before - held() < size:
                models.pop(0).free()
            publish()
            return before - held()

    ledger.holders.register(Models())
    print("up", flush=True)
    while True:
        wanted = rng.choice([1, 2, 2, 3, 5]) * GIB
        if (gpu.free() or 0) < wanted:
            gpu.ask(wanted, timeout=0.3)
        try:
            with gpu.claim(wanted, timeout=0.2) as claim:
                model = card.alloc(wanted)
                models.append(model)
                while not model.poll():
                    claim.publish(held=held())
                    time.sleep(0.05)
                claim.settle(held=held())
        except memledger.ClaimRefused:
            if label == "upscaler":
                with contextlib.suppress(sim.OutOfMemory):
                    models.append(card.alloc(wanted))
        except sim.OutOfMemory:
            models.remove(model)
            gpu.note_oom(wanted)
        publish()
        for _ in range(rng.randrange(1, 12)):
            ledger.serve(timeout=0.1)
        if models and (rng.random() < 0.35 or held() > 8 * GIB):
            models.pop(rng.randrange(len(models))).free()
            publish()


async def screenshot(path: Path) -> str:
    from memledger.cli.top_app import Top

    app = Top(str(path), "path", interval_s=0.5)
    async with app.run_test(size=(96, 17)) as pilot:
        await asyncio.sleep(WATCHED_S)
        await pilot.pause()
        drawn = app.export_screenshot(title="memledger top")
    # The page that shows it must fetch nothing; where the font is not there, another will do.
    return re.sub(r"src: local\(([^)]*)\),\s*url\([^)]*\) format\([^)]*\)(?:,\s*url\([^)]*\) "
                  r"format\([^)]*\))?", r"src: local(\1)", drawn)  # fmt: skip


def main() -> None:
    base = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="memledger-views-", dir=base) as folder:
        path = Path(folder) / "segment"
        os.environ["MEMLEDGER_PATH"] = str(path)
        from memledger import sim

        sim.open_url(CARD).foreign(int(1.4 * GIB))
        cast = [
            subprocess.Popen([sys.executable, __file__, label, role, str(seed)],
                             stdout=subprocess.PIPE)
            for seed, (label, role) in enumerate(CAST)
        ]  # fmt: skip
        try:
            for actor in cast:
                assert actor.stdout is not None
                actor.stdout.readline()
            memledger = [sys.executable, "-m", "memledger"]
            recorded = Path(folder) / "evening.csv"
            record = subprocess.Popen(
                [*memledger, "record", str(recorded), "--for", f"{RECORDED_S}s"]
            )
            begun = time.monotonic()
            (HERE / "top.svg").write_text(asyncio.run(screenshot(path)), encoding="utf-8")
            shown = subprocess.run(
                [*memledger, "top", "--once"], env={**os.environ, "COLUMNS": "96"},
                capture_output=True, text=True, check=True,
            ).stdout  # fmt: skip
            shown = shown.replace(str(path), "/dev/shm/memledger-v1-0")
            (HERE / "top.txt").write_text(shown, encoding="utf-8")
            time.sleep(max(0.0, begun + KILLED_AFTER_S - time.monotonic()))
            cast[-1].kill()
            record.wait()
            subprocess.run([*memledger, "report", str(recorded), "-o", str(HERE / "report.png"),
                            "--title", "Three processes on one card"], check=True)  # fmt: skip
        finally:
            for actor in cast:
                actor.kill()
                actor.communicate()


if __name__ == "__main__":
    if len(sys.argv) > 1:
        act(sys.argv[1], sys.argv[2], int(sys.argv[3]))
    else:
        main()
