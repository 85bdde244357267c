"""torch as a source: only where this process has it running already; nothing is ever started."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from helpers.units import GiB
from memledger.model import Reading, absent
from memledger.readings.torch_backend import BACKENDS, TorchSource, cross_check, running


class Backend:
    def __init__(self, *, initialised: bool = True, reserved: int = 1) -> None:
        self.initialised = initialised
        self.reserved = reserved
        self.answer: Any = (6 * GiB, 24 * GiB)
        self.calls: list[str] = []

    def is_initialized(self) -> bool:
        return self.initialised

    def memory_reserved(self, index: int) -> int:
        return self.reserved

    def memory_allocated(self, index: int) -> int:
        return self.reserved // 2

    def mem_get_info(self, index: int) -> Any:
        self.calls.append(f"mem_get_info {index}")
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


def install(monkeypatch: pytest.MonkeyPatch, name: str, backend: Any, **more: Any) -> None:
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(**{name: backend}, **more))


@pytest.mark.parametrize("name", BACKENDS)
def test_torch_running_backend_is_read(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    install(monkeypatch, name, Backend())
    reading = TorchSource(name, lambda: 1, platform="linux").read()
    assert (reading.free, reading.total, reading.source) == (6 * GiB, 24 * GiB, "torch")
    assert (reading.scope, reading.reason) == ("device", None)


@pytest.mark.parametrize("name", BACKENDS)
def test_torch_backend_that_is_not_initialised_is_never_asked(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    backend = Backend(initialised=False)
    install(monkeypatch, name, backend)
    assert TorchSource(name, lambda: 0).read().reason == "no_probe"
    assert backend.calls == []


def test_torch_device_without_a_context_is_never_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """mem_get_info would make one, and a context costs hundreds of MB on that card."""
    backend = Backend(reserved=0)
    install(monkeypatch, "cuda", backend)
    assert TorchSource("cuda", lambda: 3).read().reason == "no_probe"
    private = SimpleNamespace(_cuda_hasPrimaryContext=lambda index: index == 1)
    install(monkeypatch, "cuda", backend, _C=private)
    assert TorchSource("cuda", lambda: 3).read().reason == "no_probe"
    assert backend.calls == []
    assert TorchSource("cuda", lambda: 1).read().known


@pytest.mark.parametrize("missing", ["torch", "backend", "ordinal"])
def test_torch_missing_piece_is_no_probe_with_a_reason(
    monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    if missing != "torch":
        install(monkeypatch, "other" if missing == "backend" else "xpu", Backend())
    reading = TorchSource("xpu", lambda: None if missing == "ordinal" else 0).read()
    assert (reading.free, reading.reason) == (None, "no_probe")
    assert reading.detail


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (RuntimeError("CUDA error"), "probe_failed"),
        (None, "probe_failed"),
        ((1, 0), "implausible"),
        ((-1, 5), "implausible"),
    ],
)
def test_torch_odd_answer_is_absent(
    monkeypatch: pytest.MonkeyPatch, answer: Any, reason: str
) -> None:
    backend = Backend()
    backend.answer = answer
    install(monkeypatch, "xpu", backend)
    assert TorchSource("xpu", lambda: 0, platform="linux").read().reason == reason


def test_torch_half_imported_module_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace())
    assert running("cuda", 0) is None
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=SimpleNamespace()))
    assert running("cuda", 0) is None


def test_torch_cross_check_says_by_how_much_they_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    reading = Reading("nvml", total=24 * GiB, free=7 * GiB)
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    assert cross_check(reading, "cuda", 0) is None
    backend = Backend(reserved=4 * GiB)
    install(monkeypatch, "cuda", backend)
    check = cross_check(reading, "cuda", 0)
    assert check is not None
    assert (check.total_difference, check.free_difference) == (0, -GiB)
    assert (check.reserved, check.allocated) == (4 * GiB, 2 * GiB)
    assert "but" not in check.text
    backend.answer = (6 * GiB, 12 * GiB)
    other = cross_check(reading, "cuda", 0)
    assert other is not None
    assert "but nvml has a total of 24.0 GiB" in other.text
    assert cross_check(absent("nvml", "no_probe"), "cuda", 0) is None


def test_sources_import_no_torch() -> None:
    code = (
        "import sys, memledger.readings as r\n"
        "for name in ('cuda:0', 'xpu:0', 'hip:0', 'npu:0', 'mps', 'ram'):\n"
        "    try: [s.read() for s in r.resolve(name).sources]\n"
        "    except Exception: pass\n"
        "print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "False", done.stderr
