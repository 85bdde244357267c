"""Simulated cards, with real processes: capacity holds for all of them together, the dead give back
what they had, and a kill at any point leaves a state that the next process can use."""

from __future__ import annotations

import os
import pickle
import random
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest

from memledger import sim
from memledger.errors import InvalidFigure, UnknownDevice

pytestmark = [
    pytest.mark.skipif(sys.platform == "win32", reason="no file locks of this kind"),
    # Forking with threads about is what the fork tests are for.
    pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning"),
]

MIB = 1 << 20
GIB = 1 << 30
WATCHDOG_S = 30.0

CHILD = """
import os, sys
from memledger import sim
card = sim.Card(sys.argv[1])
blocks = []

def churn(card):
    "Takes 400 to 700 bytes and gives them back, 500 times; the most that was ever taken by all."
    most = 0
    for turn in range(500):
        try:
            with card.alloc(400 + turn % 7 * 50):
                most = max(most, card.used())
        except sim.OutOfMemory:
            pass
    return most

class KilledAtStore:
    "The table's words; the process is killed right after its n-th store from now."
    def __init__(self, words, n):
        self.words, self.n = words, n
    def __getitem__(self, index):
        return self.words[index]
    def __setitem__(self, index, value):
        self.words[index] = value
        self.n -= 1
        if self.n == 0:
            os.kill(os.getpid(), 9)

def use(card, n):
    "Everything that stores: an entry, a landing, its settling, a free."
    card._table._words = KilledAtStore(card._table._words, n)
    block = card.alloc(5000)
    block.wait()
    block.free()
    card.close()

for line in sys.stdin:
    try:
        answer = repr(eval(line))
    except sim.OutOfMemory:
        answer = "out of memory"
    print(answer, flush=True)
"""


class Process:
    """Another process with the card open, that evaluates expressions: `card`, `blocks`, `sim`,
    `os`."""

    def __init__(self, name: str = "card") -> None:
        source = str(Path(sim.__file__).parents[1])
        self.popen = subprocess.Popen(
            [sys.executable, "-c", CHILD, name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": source},
        )

    def __call__(self, expression: str) -> str:
        assert self.popen.stdin is not None
        assert self.popen.stdout is not None
        self.popen.stdin.write(expression + "\n")
        self.popen.stdin.flush()
        return self.popen.stdout.readline().strip()

    def alloc(self, nbytes: int) -> str:
        return self(f"blocks.append(card.alloc({nbytes}))")

    def kill(self) -> None:
        self.popen.kill()
        self.popen.communicate()

    def end(self) -> None:
        if self.popen.poll() is None:
            self.popen.send_signal(signal.SIGCONT)
        self.kill()


def eventually(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WATCHDOG_S
    while not condition():
        assert time.monotonic() < deadline, "watchdog"
        time.sleep(0.002)


class Clock:
    """The machine's monotonic clock as this process reads it, moved by hand."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._now = time.monotonic_ns()
        monkeypatch.setattr(time, "monotonic_ns", lambda: self._now)

    def advance(self, seconds: float) -> None:
        self._now += round(seconds * 1e9)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MEMLEDGER_PATH", str(tmp_path / "ledger"))
    return tmp_path


@pytest.fixture
def spawn() -> Iterator[Callable[[], Process]]:
    started: list[Process] = []

    def start() -> Process:
        started.append(Process())
        return started[-1]

    yield start
    for process in started:
        process.end()


Spawn = Callable[[], Process]


# -- one process


def test_card_alloc_and_free_change_the_figures() -> None:
    card = sim.Card("card", total=24 * GIB, reserved=GIB)
    block = card.alloc(10 * GIB)
    assert (card.used(), card.free(), card.held_by_me()) == (10 * GIB, 13 * GIB, 10 * GIB)
    assert (block.landed, block.poll(), block.wait()) == (10 * GIB, True, True)
    block.free()
    block.free()
    assert (card.used(), card.free(), card.held_by_me()) == (0, 23 * GIB, 0)
    assert block.landed == 0
    assert card.read() == (0, GIB, 24 * GIB)


def test_card_over_allocation_raises_and_changes_nothing() -> None:
    card = sim.Card("card", total=4 * GIB, reserved=GIB)
    with card.alloc(2 * GIB):
        with pytest.raises(sim.OutOfMemory) as caught:
            card.alloc(GIB + 1)
        assert (caught.value.wanted, caught.value.free) == (GIB + 1, GIB)
        assert "out of memory" in str(caught.value)
        assert card.used() == 2 * GIB
        card.alloc(GIB).free()
    assert card.used() == 0


def test_card_foreign_bytes_count_against_capacity() -> None:
    card = sim.Card("card", total=4 * GIB)
    card.foreign(3 * GIB)
    assert (card.used(), card.free(), card.held_by_me()) == (3 * GIB, GIB, 0)
    with pytest.raises(sim.OutOfMemory):
        card.alloc(2 * GIB)
    with card.alloc(GIB), pytest.raises(sim.OutOfMemory):
        card.foreign(3 * GIB + 1)
    card.foreign(0)
    assert (card.free(), card.foreign_bytes()) == (4 * GIB, 0)


def test_card_fragmentation_limits_a_single_allocation() -> None:
    card = sim.Card("card", total=10 * GIB, fragmentation=0.5)
    with pytest.raises(sim.OutOfMemory):
        card.alloc(6 * GIB)
    assert card.alloc(5 * GIB).landed == 5 * GIB
    assert card.free() == 5 * GIB


def test_card_free_delay_keeps_bytes_taken_for_a_while(clock: Clock) -> None:
    card = sim.Card("card", total=4 * GIB, free_delay_s=0.2)
    card.alloc(3 * GIB).free()
    clock.advance(0.19)
    assert (card.held_by_me(), card.used()) == (0, 3 * GIB)
    clock.advance(0.02)
    assert card.used() == 0


def test_card_free_delay_with_more_frees_than_tickets_forgets_none(clock: Clock) -> None:
    card = sim.Card("card", total=4 * GIB, free_delay_s=0.2)
    for count in range(1, 41):
        card.alloc(64 * MIB).free()
        assert card.used() == count * 64 * MIB
    clock.advance(0.21)
    assert card.used() == 0


def test_card_two_of_one_name_in_a_process_are_one_user() -> None:
    first, second = sim.Card("card", total=4 * GIB), sim.Card("card")
    first.alloc(GIB)
    assert second.held_by_me() == GIB
    assert len(first.holders()) == 1
    second.close()
    assert first.used() == 0


def test_card_close_voids_blocks() -> None:
    card = sim.Card("card", total=4 * GIB)
    old = card.alloc(GIB)
    card.close()
    new = card.alloc(GIB)
    old.free()
    assert old.landed == 0
    assert card.held_by_me() == GIB
    new.free()
    assert card.used() == 0


def test_card_reopened_with_another_value_says_both() -> None:
    sim.Card("card", total=24 * GIB, death_delay_s=1)
    sim.Card("card", total=24 * GIB)
    with pytest.raises(InvalidFigure, match=r"24\.0 GiB.*12\.0 GiB"):
        sim.Card("card", total=12 * GIB)
    with pytest.raises(InvalidFigure, match="death_delay_ns"):
        sim.Card("card", death_delay_s=2)


def test_card_absent_without_a_total_is_unknown() -> None:
    with pytest.raises(UnknownDevice, match="total="):
        sim.Card("card")


@pytest.mark.parametrize("nbytes", [-1, 1 << 63])
def test_card_impossible_size_is_refused(nbytes: int) -> None:
    card = sim.Card("card", total=GIB)
    for call in (card.alloc, card.foreign, sim.Allocator(card).alloc):
        with pytest.raises(InvalidFigure):
            call(nbytes)
    with pytest.raises(TypeError):
        card.alloc(1.0)  # type: ignore[arg-type]
    assert card.used() == 0


def test_card_file_is_private_and_complete(folder: Path) -> None:
    card = sim.Card("card", total=GIB)
    status = os.stat(card.path)
    assert stat.S_IMODE(status.st_mode) == 0o600
    assert Path(card.path) == folder / f"memledger-sim-{os.geteuid()}-card"
    assert [path.name for path in folder.iterdir()] == [Path(card.path).name]
    assert sim.existing() == ("card",)


def test_card_that_cannot_be_made_names_its_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MEMLEDGER_PATH", "/nowhere/segment")
    with pytest.raises(sim.SimError, match=r"create /nowhere/memledger-sim-\d+-card: .*beside"):
        sim.Card("card", total=GIB)


@pytest.mark.parametrize("kind", ["link", "short", "open", "fifo", "noise", "folder"])
def test_card_file_that_is_not_ours_is_refused(folder: Path, kind: str) -> None:
    real = Path(sim.Card("real", total=GIB).path)
    path = real.with_name(f"memledger-sim-{os.geteuid()}-card")
    if kind == "link":
        path.symlink_to(real)
    elif kind == "fifo":
        os.mkfifo(path, 0o600)
    elif kind == "folder":
        path.mkdir(0o700)
    else:
        content = real.read_bytes()
        path.write_bytes(
            content[:-8] if kind == "short" else b"x" * len(content) if kind == "noise" else content
        )
        path.chmod(0o644 if kind == "open" else 0o600)
    with pytest.raises(sim.SimError, match="card"):
        sim.Card("card", total=GIB)


def test_card_threads_of_one_process_never_pass_capacity() -> None:
    card = sim.Card("card", total=8 * MIB)
    worst: list[int] = []

    def work(seed: int) -> None:
        chance = random.Random(seed)
        for _ in range(60):
            try:
                with card.alloc(chance.randrange(4 * MIB)):
                    worst.append(card.used())
            except sim.OutOfMemory:
                pass

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WATCHDOG_S)
    assert max(worst) <= 8 * MIB
    assert card.used() == 0


# -- the exception


def test_out_of_memory_without_torch_is_a_runtime_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    error = sim.out_of_memory("card", 5, 3, 10)
    assert type(error) is sim.OutOfMemory
    assert isinstance(error, RuntimeError)


def test_out_of_memory_with_torch_is_caught_by_both_names(monkeypatch: pytest.MonkeyPatch) -> None:
    class TorchError(RuntimeError):
        pass

    torch = ModuleType("torch")
    torch.cuda = ModuleType("torch.cuda")  # type: ignore[attr-defined]
    torch.cuda.OutOfMemoryError = TorchError
    monkeypatch.setitem(sys.modules, "torch", torch)
    card = sim.Card("card", total=GIB)
    with pytest.raises(TorchError):
        card.alloc(2 * GIB)
    with pytest.raises(sim.OutOfMemory) as caught:
        card.alloc(2 * GIB)
    copy: object = pickle.loads(pickle.dumps(caught.value))
    assert isinstance(copy, TorchError)
    assert isinstance(copy, sim.OutOfMemory)
    assert (copy.wanted, copy.free, copy.total) == (2 * GIB, GIB, GIB)


def test_out_of_memory_with_half_imported_torch_is_still_raised(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "torch", ModuleType("torch"))
    with pytest.raises(sim.OutOfMemory):
        sim.Card("card", total=1).alloc(2)


# -- landing over time


def test_block_landing_follows_the_clock(clock: Clock) -> None:
    card = sim.Card("card", total=4 * GIB, land_bytes_per_s=GIB)
    block = card.alloc(GIB)
    assert (block.landed, block.poll(), card.used()) == (0, False, 0)
    clock.advance(0.25)
    assert (block.landed, block.poll(), card.held_by_me()) == (GIB // 4, False, GIB // 4)
    assert block.wait(0) is False
    clock.advance(-1)  # another process may read a hair earlier
    assert block.landed == GIB // 4
    clock.advance(2)
    assert (block.landed, block.poll(), card.used()) == (GIB, True, GIB)
    block.free()
    assert card.used() == 0


def test_block_landing_passes_on_while_its_owner_does_not_look(spawn: Spawn) -> None:
    card = sim.Card("card", total=4 * GIB, land_bytes_per_s=8 * GIB)
    other = spawn()
    other.alloc(GIB)
    eventually(lambda: card.used() == GIB)


def test_block_landing_that_meets_the_end_raises_and_gives_back() -> None:
    card = sim.Card("card", total=GIB, land_bytes_per_s=8 * GIB)
    card.foreign(GIB // 2)
    block = card.alloc(GIB)
    eventually(lambda: card.used() == GIB)
    card.foreign(0)  # room again: the failed landing stays failed
    with pytest.raises(sim.OutOfMemory) as caught:
        block.wait(WATCHDOG_S)
    assert caught.value.wanted == GIB
    assert card.used() == 0
    assert block.landed == 0
    with pytest.raises(sim.SimError):
        block.poll()


def test_block_older_of_two_landings_goes_first(clock: Clock) -> None:
    card = sim.Card("card", total=GIB, land_bytes_per_s=GIB)
    older, younger = card.alloc(700 * MIB), card.alloc(700 * MIB)
    clock.advance(0.25)
    assert (older.landed, younger.landed) == (GIB // 4, GIB // 4)
    clock.advance(0.75)
    assert (older.landed, younger.landed, card.used()) == (700 * MIB, 324 * MIB, GIB)
    with pytest.raises(sim.OutOfMemory):
        younger.poll()
    assert older.poll()
    assert card.used() == 700 * MIB


def test_block_stopped_landing_keeps_its_bytes_until_its_owner_looks(clock: Clock) -> None:
    """As on a card: whoever meets the end while the other has not yet reacted fails as well."""
    card = sim.Card("card", total=GIB, land_bytes_per_s=GIB)
    older, younger = card.alloc(700 * MIB), card.alloc(700 * MIB)
    clock.advance(0.6)
    assert card.used() == GIB
    clock.advance(0.01)
    for block in (younger, older):
        with pytest.raises(sim.OutOfMemory):
            block.poll()
    assert card.used() == 0


def test_block_landings_of_two_processes_never_pass_capacity(spawn: Spawn) -> None:
    card = sim.Card("card", total=GIB, land_bytes_per_s=2 * GIB)
    other = spawn()
    assert other.alloc(700 * MIB) == "None"
    block = card.alloc(700 * MIB)
    used: list[int] = []

    def over() -> bool:
        used.append(card.used())
        try:
            return block.poll()
        except sim.OutOfMemory:
            return True

    eventually(over)
    assert max(used) <= GIB
    rest = other(f"blocks[0].wait({WATCHDOG_S})")
    assert card.used() - block.landed == (700 * MIB if rest == "True" else 0)
    assert "out of memory" in (rest, "" if block.landed else "out of memory")


def test_block_freed_while_landing_leaves_nothing() -> None:
    card = sim.Card("card", total=GIB, land_bytes_per_s=MIB)
    for _ in range(40):
        card.alloc(GIB).free()
    assert card.used() == 0


def test_block_more_landings_than_a_process_may_have_is_an_error() -> None:
    card = sim.Card("card", total=GIB, land_bytes_per_s=1)
    blocks = [card.alloc(MIB) for _ in range(16)]
    with pytest.raises(sim.SimError, match="16 blocks"):
        card.alloc(MIB)
    blocks[0].free()
    card.alloc(MIB)


# -- several processes


def test_card_two_processes_share_one_capacity(spawn: Spawn) -> None:
    card = sim.Card("card", total=24 * GIB)
    first, second = spawn(), spawn()
    assert first.alloc(14 * GIB) == "None"
    assert second.alloc(14 * GIB) == "out of memory"
    assert second.alloc(10 * GIB) == "None"
    assert card.free() == 0
    first("blocks[0].free()")
    assert card.free() == 14 * GIB
    assert second("card.held_by_me()") == str(10 * GIB)


def test_card_processes_allocating_at_once_never_pass_capacity(spawn: Spawn) -> None:
    """Check and take must be one step: two that both look first and then both take go past the
    end."""
    sim.Card("card", total=1000)
    others = [spawn() for _ in range(3)]
    for other in others:
        assert other.popen.stdin is not None
        other.popen.stdin.write("churn(card)\n")
        other.popen.stdin.flush()
    for other in others:
        assert other.popen.stdout is not None
        assert int(other.popen.stdout.readline()) <= 1000


def test_card_killed_process_gives_back_after_the_delay(spawn: Spawn, clock: Clock) -> None:
    card = sim.Card("card", total=4 * GIB, death_delay_s=0.3)
    other = spawn()
    other.alloc(3 * GIB)
    other.kill()
    assert [(holder.bytes, holder.alive) for holder in card.holders()] == [(3 * GIB, False)]
    clock.advance(0.29)
    assert card.used() == 3 * GIB
    clock.advance(0.02)
    assert (card.used(), card.holders()) == (0, ())


def test_card_killed_process_without_delay_gives_back_at_the_next_look(spawn: Spawn) -> None:
    card = sim.Card("card", total=4 * GIB)
    other = spawn()
    other.alloc(4 * GIB)
    other.kill()
    assert card.alloc(4 * GIB).landed == 4 * GIB


def test_card_killed_while_landing_stops_landing(spawn: Spawn, clock: Clock) -> None:
    card = sim.Card("card", total=4 * GIB, land_bytes_per_s=GIB, death_delay_s=3600)
    other = spawn()
    other.alloc(4 * GIB)
    other.kill()
    landed = card.used()
    clock.advance(100)
    assert card.used() == landed < 4 * GIB


def test_card_stopped_process_keeps_its_bytes(spawn: Spawn) -> None:
    card = sim.Card("card", total=4 * GIB)
    other = spawn()
    other.alloc(3 * GIB)
    other.popen.send_signal(signal.SIGSTOP)
    assert card.used() == 3 * GIB
    with pytest.raises(sim.OutOfMemory):
        card.alloc(2 * GIB)


def test_card_process_killed_at_random_points_leaves_a_usable_card(spawn: Spawn) -> None:
    """Kills in the middle of alloc and free, with the table's lock held or not."""
    seed = random.randrange(1 << 32)
    chance = random.Random(seed)
    card = sim.Card("card", total=64 * MIB)
    mine = card.alloc(MIB)
    busy = "[card.alloc(3000000).free() for _ in range(10**9)]"
    for _ in range(12):
        other = spawn()
        assert other.alloc(10 * MIB) == "None", f"seed {seed}"
        assert other.popen.stdin is not None
        other.popen.stdin.write(busy + "\n")
        other.popen.stdin.flush()
        time.sleep(chance.random() * 0.02)  # not to be right: it only moves the point of the kill
        assert MIB <= card.used() <= 64 * MIB, f"seed {seed}"
        other.kill()
        assert card.used() == MIB, f"seed {seed}"
        assert card.held_by_me() == MIB
    mine.free()
    assert card.used() == 0


def test_card_process_killed_after_any_store_leaves_a_usable_card(
    spawn: Spawn, clock: Clock
) -> None:
    """One kill per store. The 72 words of a new entry are cleared by one loop: of those, every
    16th. Until the delay is over the dead one may count for twice what it had, never for what
    another had before it in that entry."""
    card = sim.Card(
        "card", total=GIB, land_bytes_per_s=1 << 50, free_delay_s=0.001, death_delay_s=1
    )
    mine = card.alloc(MIB)
    clock.advance(1)
    assert mine.poll()
    before = spawn()
    before.alloc(512 * MIB)
    assert before(f"blocks[0].wait({WATCHDOG_S})") == "True"
    before.kill()
    assert card.used() == 513 * MIB
    clock.advance(2)
    kills = 0
    for store in (*range(1, 71, 16), *range(71, 200)):
        assert card.used() == MIB
        other = spawn()
        if other(f"use(card, {store})") == "None":
            break
        kills += 1
        other.popen.wait(WATCHDOG_S)
        assert MIB <= card.used() <= MIB + 2 * 5000
        clock.advance(2)
        assert card.used() == card.held_by_me() == MIB
        assert [holder.alive for holder in card.holders()] == [True]
    else:
        pytest.fail("watchdog: the child never came through")
    assert kills > 15


def test_card_killed_while_burying_another_leaves_the_burial_to_the_next(
    spawn: Spawn, clock: Clock
) -> None:
    card = sim.Card("card", total=4 * GIB, death_delay_s=1)
    dead, burier = spawn(), spawn()
    dead.alloc(3 * GIB)
    dead.kill()
    assert burier("use(card, 1)") == ""
    burier.popen.wait(WATCHDOG_S)
    clock.advance(100)  # the burier read the real clock, a little ahead of this one
    assert card.used() == 3 * GIB
    clock.advance(1)
    assert card.used() == 0


def test_card_processes_racing_to_make_it_meet_on_one(folder: Path) -> None:
    """Each of them makes the card if it is absent; all must count on the same one."""
    code = (
        "import sys; from memledger import sim; card = sim.Card('card', total=1 << 30); "
        "b = card.alloc(1 << 20); print('ready', flush=True); sys.stdin.read()"
    )
    source = str(Path(sim.__file__).parents[1])
    env = {**os.environ, "PYTHONPATH": source}
    command = [sys.executable, "-c", code]
    racers = [
        subprocess.Popen(command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        for _ in range(8)
    ]
    try:
        for racer in racers:
            assert racer.stdout is not None
            assert racer.stdout.readline() == b"ready\n"
        assert sim.Card("card").used() == 8 * MIB
        assert len(list(folder.iterdir())) == 1
    finally:
        for racer in racers:
            racer.kill()
            racer.communicate()


def test_card_more_processes_over_time_than_entries_is_no_trouble() -> None:
    card = sim.Card("card", total=GIB)
    for _ in range(300):
        card.alloc(MIB)
        card.close()
    assert card.holders() == ()


# -- fork


def in_child(work: Callable[[], bool]) -> bool:
    """Runs `work` in a forked child; whether it returned True there."""
    pid = os.fork()
    if pid == 0:
        os._exit(0 if work() else 1)
    return os.waitpid(pid, 0)[1] == 0


def test_fork_child_has_an_entry_of_its_own() -> None:
    card = sim.Card("card", total=4 * GIB)
    block = card.alloc(GIB)
    allocator = sim.Allocator(card)
    allocation = allocator.alloc(512 * MIB)
    allocator.alloc(512 * MIB).free()  # idle in the parent's cache

    def work() -> bool:
        empty = (card.held_by_me(), block.landed, allocator.reserved, allocation.landed)
        block.free()
        allocation.free()
        card.alloc(512 * MIB)
        return empty == (0, 0, 0, 0) and (card.held_by_me(), card.used()) == (
            512 * MIB,
            2 * GIB + 512 * MIB,
        )

    assert in_child(work)
    eventually(lambda: card.used() == 2 * GIB)
    assert card.held_by_me() == 2 * GIB


def test_fork_child_that_outlives_its_parent_keeps_only_its_own(spawn: Spawn) -> None:
    """An inherited lock would keep the dead parent's bytes for as long as the child lives."""
    card = sim.Card("card", total=4 * GIB)
    parent = spawn()
    parent.alloc(3 * GIB)
    # The child closes the pipe ends that it inherited, since the test waits for them to end, and
    # then sleeps.
    child = int(
        parent(
            "(lambda pid: pid if pid else [os.close(0), os.close(1), os.close(2), "
            "card.alloc(1 << 20), __import__('time').sleep(600)])(os.fork())"
        )
    )
    try:
        eventually(lambda: card.used() == 3 * GIB + MIB)
        parent.kill()
        eventually(lambda: card.used() == MIB)
    finally:
        os.kill(child, signal.SIGKILL)
    eventually(lambda: card.used() == 0)


def test_fork_from_another_thread_in_the_middle_of_calls_hands_no_lock_on() -> None:
    card = sim.Card("card", total=GIB)
    stop = threading.Event()

    def churn() -> None:
        while not stop.is_set():
            card.alloc(MIB).free()

    thread = threading.Thread(target=churn)
    thread.start()
    try:
        for _ in range(30):
            assert in_child(lambda: card.held_by_me() == 0 and card.alloc(MIB).landed == MIB)
    finally:
        stop.set()
        thread.join(WATCHDOG_S)
    eventually(lambda: card.used() == 0)


@pytest.mark.skipif(sys.platform != "linux", reason="counts descriptors in /proc/self/fd")
def test_fork_while_another_thread_opens_the_card_waits_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A child made in that moment would inherit a descriptor that nobody closes in it, and its lock
    with that."""
    sim.Card("card", total=GIB)
    sim._tables.clear()
    opened = threading.Event()
    opens: list[int] = []
    plain_open = sim._open_valid

    def slow_open(path: str) -> int:
        fd = plain_open(path)
        opens.append(fd)
        if len(opens) == 2:  # the first is for the mapping, and carries no lock
            opened.set()
            threading.Event().wait(0.1)  # the moment in which a fork must not happen
        return fd

    monkeypatch.setattr(sim, "_open_valid", slow_open)
    thread = threading.Thread(target=lambda: sim.Card("card"))
    thread.start()
    assert opened.wait(WATCHDOG_S)
    path = sim._path("card", None)

    def descriptors() -> list[str]:
        here = [os.path.join("/proc/self/fd", name) for name in os.listdir("/proc/self/fd")]
        return [fd for fd in here if os.path.islink(fd) and os.readlink(fd) == path]

    # Only those that belong to mappings: of the table that was forgotten above and of the new one.
    assert in_child(lambda: len(descriptors()) <= 2)
    thread.join(WATCHDOG_S)


# -- where there are no file locks


def test_card_told_by_pid_gives_back_a_killed_ones_bytes(
    spawn: Spawn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sim, "_ofd_locks", lambda fd: False)
    card = sim.Card("card", total=4 * GIB)
    mine = card.alloc(GIB)
    other = spawn()  # has the locks, and does as the card's header says
    other.alloc(2 * GIB)
    assert card.used() == 3 * GIB
    other.popen.kill()
    eventually(lambda: card.used() == GIB)  # a zombie is dead, though its pid still answers
    mine.free()


# -- the caching allocator


def test_allocator_freed_blocks_stay_reserved_until_emptied() -> None:
    card = sim.Card("card", total=4 * GIB)
    allocator = sim.Allocator(card)
    first, second = allocator.alloc(GIB), allocator.alloc(GIB)
    first.free()
    first.free()
    assert (allocator.reserved, allocator.allocated, card.used()) == (2 * GIB, GIB, 2 * GIB)
    third = allocator.alloc(GIB + 512 * MIB)  # a GiB of it is there already
    assert (allocator.reserved, card.used()) == (2 * GIB + 512 * MIB,) * 2
    second.free()
    third.free()
    assert allocator.allocated == 0
    assert allocator.empty_cache() == 2 * GIB + 512 * MIB
    assert (allocator.reserved, card.used()) == (0, 0)
    assert allocator.empty_cache() == 0


def test_allocator_out_of_memory_keeps_its_cache() -> None:
    card = sim.Card("card", total=4 * GIB)
    allocator = sim.Allocator(card)
    allocator.alloc(GIB).free()
    with pytest.raises(sim.OutOfMemory):
        allocator.alloc(5 * GIB)
    assert (allocator.reserved, allocator.allocated) == (GIB, 0)


def test_allocator_idle_bytes_are_taken_for_others(spawn: Spawn) -> None:
    card = sim.Card("card", total=4 * GIB)
    other = spawn()
    other("blocks.append(sim.Allocator(card))")
    other(f"blocks[0].alloc({3 * GIB}).free()")
    with pytest.raises(sim.OutOfMemory):
        card.alloc(2 * GIB)
    assert other("blocks[0].empty_cache()") == str(3 * GIB)
    assert card.alloc(2 * GIB).landed == 2 * GIB


def test_allocator_landing_that_fails_gives_back_the_landed_and_keeps_the_reused() -> None:
    card = sim.Card("card", total=GIB, land_bytes_per_s=16 * GIB)
    allocator = sim.Allocator(card)
    with allocator.alloc(256 * MIB) as allocation:
        assert allocation.wait(WATCHDOG_S)
    with pytest.raises(sim.OutOfMemory):
        allocator.alloc(2 * GIB).wait(WATCHDOG_S)
    assert (allocator.reserved, allocator.allocated) == (256 * MIB, 0)
    assert card.used() == 256 * MIB
    growing = allocator.alloc(512 * MIB)
    assert growing.wait(WATCHDOG_S)
    assert (allocator.reserved, allocator.allocated) == (512 * MIB, 512 * MIB)
    growing.free()
    assert allocator.empty_cache() == 512 * MIB
    assert card.used() == 0


def test_card_give_back_more_than_landed_is_refused() -> None:
    card = sim.Card("card", total=GIB)
    card.alloc(MIB)
    with pytest.raises(InvalidFigure):
        card.give_back(2 * MIB)
    assert card.held_by_me() == MIB
