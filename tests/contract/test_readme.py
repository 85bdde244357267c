"""What the README shows runs as it is written."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def example() -> str:
    block = re.search(r"<!-- example:.*?-->\n```python\n(.*?)```", README, flags=re.S)
    assert block, "the README has no example"
    return block.group(1)


def test_readme_example_runs_as_written(tmp_path: Path) -> None:
    env = {**os.environ, "MEMLEDGER_PATH": str(tmp_path / "segment")}
    shown = subprocess.run(
        [sys.executable, "-W", "error", "-c", example()],
        env=env,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert shown.returncode == 0, shown.stderr
    assert shown.stderr == ""
    first, figures, *_ = shown.stdout.splitlines()
    assert int(first) == 24 << 30
    available, budget = (int(word) for word in figures.split())
    assert (available, budget) == (18 << 30, 24 << 30)


def test_readme_example_is_short() -> None:
    assert len([line for line in example().splitlines() if line.strip()]) <= 12


def test_readme_names_each_make_target_that_exists() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in re.findall(r"make (\w[\w-]*)", README):
        if target in ("demo", "test", "bench", "lint", "help"):
            assert re.search(rf"^{target}:", makefile, flags=re.M), target
