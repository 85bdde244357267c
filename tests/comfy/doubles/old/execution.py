"""execution of this generation."""

from generations import run_shared

run_shared("execution", globals())
