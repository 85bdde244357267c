"""The old generation's patcher."""

from generations import run_shared

run_shared("model_patcher", globals())
