"""Row 19: out of memory is heard at every kind of site, counted once, and siblings are asked."""

from __future__ import annotations

from typing import Any

import pytest

GIB = 1 << 30


@pytest.fixture
def asked(comfy: Any, host: Any, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """What siblings were asked for; they give it."""
    sizes: list[int] = []

    def ask(device: Any, nbytes: int) -> int:
        sizes.extend([nbytes] if nbytes else [])
        return nbytes

    monkeypatch.setattr(host.serving, "ask", ask)
    return sizes


def fail(comfy: Any, text: str = "CUDA out of memory. Tried to allocate 2.00 GiB.") -> None:
    raise comfy.module("torch").cuda.OutOfMemoryError(text)


def shrinks(comfy: Any, text: str = "CUDA out of memory. Tried to allocate 2.00 GiB.") -> bool:
    """As ComfyUI's own sites: Python looks the name up only when the error is there."""
    try:
        fail(comfy, text)
    except comfy.mm.OOM_EXCEPTION:
        return True
    return False


def counted(host: Any) -> int:
    own = [m for m in host.link.ledger.members() if m.label == "ComfyUI"]
    return int(own[0].counters.ooms)


def test_a_literal_except_is_heard(comfy: Any, host: Any, asked: list[int]) -> None:
    """`except model_management.OOM_EXCEPTION`: all sites of old, two of new."""
    assert shrinks(comfy)
    assert asked == [2 * GIB]
    assert counted(host) == 1


def test_other_exceptions_and_plain_reads_are_not(comfy: Any, host: Any, asked: list[int]) -> None:
    for error in (ValueError("Tried to allocate 2.00 GiB"), KeyboardInterrupt()):
        try:
            raise error
        except comfy.mm.OOM_EXCEPTION:
            pytest.fail("that is not it")
        except BaseException:
            pass
    assert comfy.mm.OOM_EXCEPTION is comfy.module("torch").cuda.OutOfMemoryError
    comfy.mm.soft_empty_cache()
    assert asked == []
    assert counted(host) == 0


def test_is_oom_is_heard(comfy: Any, host: Any, asked: list[int]) -> None:
    if comfy.generation == "old":
        pytest.skip("the old generation has no is_oom")
    try:
        fail(comfy)
    except Exception as error:
        comfy.mm.raise_non_oom(error)
    assert asked == [2 * GIB]
    with pytest.raises(ValueError, match="mine"):
        comfy.mm.raise_non_oom(ValueError("mine"))
    assert counted(host) == 1


def test_a_cache_emptied_inside_the_block_is_heard(comfy: Any, host: Any, asked: list[int]) -> None:
    try:
        fail(comfy)
    except Exception:
        comfy.mm.soft_empty_cache()
    assert asked == [2 * GIB]


def test_each_exception_counts_once(comfy: Any, host: Any, asked: list[int]) -> None:
    for _ in range(2):
        try:
            fail(comfy)
        except comfy.mm.OOM_EXCEPTION as error:
            comfy.mm.soft_empty_cache(True)
            getattr(comfy.mm, "is_oom", repr)(error)
            getattr(comfy.mm, "OOM_EXCEPTION")  # noqa: B009  looked up once more
    assert counted(host) == 2
    assert asked == [2 * GIB] * 2


def test_an_error_without_a_size_asks_for_something(
    comfy: Any, host: Any, asked: list[int]
) -> None:
    assert shrinks(comfy, "out of memory")
    assert asked == [256 << 20]


def test_a_loop_of_retries_waits_once(
    comfy: Any, host: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Attention halves its step again and again; siblings that have nothing are asked once."""
    sizes: list[int] = []
    monkeypatch.setattr(host.serving, "ask", lambda device, n: sizes.append(n) or 0)
    for _ in range(8):
        assert shrinks(comfy)
    assert len(sizes) == 1
    assert counted(host) == 8


def test_a_vae_that_runs_out_asks_and_goes_on_with_tiles(
    comfy: Any, host: Any, asked: list[int]
) -> None:
    torch, sd = comfy.module("torch"), comfy.module("comfy.sd")
    patcher = comfy.module("comfy.model_patcher").ModelPatcher
    vae = sd.VAE(patcher(GIB, torch.device("cuda:0"), torch.device("cpu")), 2 * GIB)
    vae.during = lambda: fail(comfy)
    vae.decode(sd.Samples(1, 4, 64, 64))
    assert vae.tiled
    assert asked == [2 * GIB]


def test_an_error_while_asking_changes_nothing(
    comfy: Any, host: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def ask(device: Any, nbytes: int) -> int:
        raise RuntimeError("ledger broken")

    monkeypatch.setattr(host.serving, "ask", ask)
    for _ in range(2):
        assert shrinks(comfy)
    lines = [record.getMessage() for record in caplog.records]
    assert len([line for line in lines if "ledger broken" in line]) == 1


def test_upstreams_name_can_be_set_and_is_put_back(comfy: Any, host: Any) -> None:
    mm, kind = comfy.mm, comfy.mm.OOM_EXCEPTION
    watched = type(mm)
    mm.OOM_EXCEPTION = MemoryError
    assert mm.OOM_EXCEPTION is vars(mm)["OOM_EXCEPTION"] is MemoryError
    mm.OOM_EXCEPTION = kind
    host.reinstall()
    assert type(mm) is watched, "watched once"
    host.undo()
    assert type(mm).__name__ == "module"
    assert mm.OOM_EXCEPTION is kind


def test_a_torch_without_such_a_class_says_nothing(comfy: Any, host: Any, asked: list[int]) -> None:
    """ComfyUI then puts plain Exception there."""
    comfy.mm.OOM_EXCEPTION = Exception
    try:
        raise ValueError("anything")
    except comfy.mm.OOM_EXCEPTION:
        pass
    assert asked == []
