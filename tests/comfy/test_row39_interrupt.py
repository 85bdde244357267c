"""Row 39: the user's interrupt, seen by every worker of the group at its next step."""

from __future__ import annotations

from typing import Any

import pytest

CHECK = "mm.throw_exception_if_processing_interrupted()"
TRY = f"""
caught = None
try:
    {CHECK}
except BaseException as error:
    caught = error
"""


@pytest.fixture
def executor(comfy: Any) -> Any:
    comfy.start_host()
    return comfy.module("execution").PromptExecutor(None)


def click(comfy: Any) -> None:
    comfy.module("nodes").interrupt_processing()


def test_a_click_in_the_middle_reaches_the_worker(comfy: Any, executor: Any, worker: Any) -> None:
    inside = worker()
    steps: list[Any] = []

    def node() -> None:
        steps.append(inside.run(TRY + "caught is None"))
        click(comfy)
        assert comfy.mm.processing_interrupted()  # the host's own flag is as it was
        steps.append(inside.run("mm.processing_interrupted()"))
        steps.append(inside.run(TRY + "isinstance(caught, mm.InterruptProcessingException)"))
        # Not consumed: a node that swallows it meets the next.
        steps.append(inside.run(TRY + "caught is not None"))

    executor.execute([node, lambda: steps.append("not reached")], "a")
    assert steps == [True, True, True, True]
    assert not executor.success
    # The prompt is over, and with it the interrupt.
    assert inside.run("mm.processing_interrupted()") is False
    during: list[Any] = []
    executor.execute([lambda: during.append(inside.run(TRY + "caught is None"))], "b")
    assert during == [True]
    assert executor.success


def test_it_never_gets_past_a_workers_handlers(comfy: Any, executor: Any, worker: Any) -> None:
    """A worker's loop guards its nodes with `except Exception`; the new generation's interrupt is a
    BaseException, and would end the process, or leave the host waiting for an answer."""
    inside = worker()
    kinds: list[Any] = []

    def node() -> None:
        click(comfy)
        kinds.append(inside.run(TRY + "isinstance(caught, Exception), type(caught).__name__"))

    executor.execute([node], "a")
    assert kinds == [[True, "InterruptProcessingException"]]
    assert inside.run("1 + 1") == 2


def test_a_worker_that_only_reports_progress_sees_it(
    comfy: Any, executor: Any, worker: Any
) -> None:
    inside = worker()
    inside.run("bar = comfy.utils.ProgressBar(10)")
    update = TRY.replace(CHECK, "bar.update(1)") + "caught is not None, bar.current"
    seen: list[Any] = []

    def node() -> None:
        seen.append(inside.run(update))
        click(comfy)
        seen.append(inside.run(update))

    executor.execute([node], "a")
    assert seen == [[False, 1], [True, 1]]


def test_a_click_while_nothing_runs_is_nobodys(comfy: Any, executor: Any, worker: Any) -> None:
    inside = worker()
    click(comfy)
    assert inside.run("mm.processing_interrupted()") is False
    during: list[Any] = []
    executor.execute([lambda: during.append(inside.run("mm.processing_interrupted()"))], "a")
    assert during == [False]


def test_a_click_that_is_taken_back_is_gone(comfy: Any, executor: Any, worker: Any) -> None:
    inside = worker()
    seen: list[Any] = []

    def node() -> None:
        click(comfy)
        comfy.module("nodes").interrupt_processing(False)
        seen.append(inside.run("mm.processing_interrupted()"))
        seen.append(inside.run("context.link.ledger.prompt()[1:]"))

    executor.execute([node], "a")
    assert seen == [False, ["a", True]]
    assert executor.success


def test_the_host_itself_checks_upstreams_flag_alone(comfy: Any, executor: Any) -> None:
    """Else one click would interrupt twice: ComfyUI's own flag is consumed, the word is not."""

    def node() -> None:
        click(comfy)
        with pytest.raises(comfy.mm.InterruptProcessingException):
            comfy.mm.throw_exception_if_processing_interrupted()
        comfy.mm.throw_exception_if_processing_interrupted()

    executor.execute([node], "a")
    assert executor.success


def test_a_worker_whose_ledger_is_gone_goes_on(comfy: Any, executor: Any, worker: Any) -> None:
    inside = worker()
    inside.run("context.link.ledger.leave()")
    seen: list[Any] = []

    def node() -> None:
        click(comfy)
        seen.append(inside.run(TRY + "caught is None"))

    executor.execute([node], "a")
    assert seen == [True]


def test_switched_off_nothing_is_said(
    comfy: Any, worker: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MEMLEDGER_COMFY_INTERRUPT", "off")
    comfy.start_host()
    inside = worker()
    seen: list[Any] = []

    def node() -> None:
        click(comfy)
        seen.append(inside.run(TRY + "caught is None"))

    comfy.module("execution").PromptExecutor(None).execute([node], "a")
    assert seen == [True]
