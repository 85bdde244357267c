"""Hooks behind imports."""

from __future__ import annotations

from typing import Any


def test_a_module_that_still_runs_is_not_taken_for_loaded(comfy: Any) -> None:
    """The new model_management imports a module behind whose import rows are installed too; by then
    it has none of its functions itself. Each row is on, once everything is loaded."""
    context = comfy.start_host()
    assert context.status["free"] == "on"
    assert context.status["interrupt"] == "on"
