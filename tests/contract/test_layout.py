"""docs/layout.md says what the compiler says, and both Python tables say what the header says."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
Rows = set[tuple[str, str, int, int]]


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Rows:
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    assert compiler, "a C compiler is needed to build memledger at all"
    program = tmp_path_factory.mktemp("layout") / "print_layout"
    source = ROOT / "tests" / "c" / "print_layout.c"
    subprocess.run([compiler, "-std=c11", f"-I{ROOT / 'csrc'}", source, "-o", program], check=True)
    shown = subprocess.run([program], check=True, capture_output=True, text=True).stdout
    rows = (line.split() for line in shown.splitlines())
    return {(struct, field, int(offset), int(size)) for struct, field, offset, size in rows}


def documented() -> Rows:
    rows: Rows = set()
    struct = ""
    for line in (ROOT / "docs" / "layout.md").read_text(encoding="utf-8").splitlines():
        if line.startswith("## "):
            struct = line[3:].strip()
        size = re.search(r" (\d+) bytes\.$", line)
        if struct and size:
            rows.add((struct, "-", 0, int(size.group(1))))
        row = re.match(r"\| `(\w+)` \| (\d+) \| (\d+) \|", line)
        if row:
            rows.add((struct, row.group(1), int(row.group(2)), int(row.group(3))))
    return rows


def test_layout_page_is_what_the_compiler_says(compiled: Rows) -> None:
    assert documented() == compiled


def test_layout_print_program_names_every_field(compiled: Rows) -> None:
    header = (ROOT / "csrc" / "core" / "layout.h").read_text(encoding="utf-8")
    header = re.sub(r"/\*.*?\*/", "", header, flags=re.S)
    for struct, body in re.findall(r"typedef struct (ml_\w+) \{(.*?)\} \1;", header, flags=re.S):
        for group in re.findall(r"(?:ml_u64|ml_copy)\s+([^;]+);", body):
            for name in re.findall(r"(\w+)(?:\[[^\]]*\])*\s*(?:,|$)", group):
                assert any(row[:2] == (struct, name) for row in compiled), f"{struct}.{name}"


def test_layout_offsets_in_the_overview_follow_from_the_sizes(compiled: Rows) -> None:
    size = {struct: bytes_ for struct, field, _, bytes_ in compiled if field == "-"}
    pools = 4096 + 256 * size["ml_slot"]
    records = pools + 32 * size["ml_pool"]
    readings = records + 32 * 256 * size["ml_record"]
    page = (ROOT / "docs" / "layout.md").read_text(encoding="utf-8")
    for offset, struct in (
        (4096, "ml_slot"),
        (pools, "ml_pool"),
        (records, "ml_record"),
        (readings, "ml_reading_cell"),
    ):
        assert re.search(rf"^\| {offset} \|.*`{struct}`", page, flags=re.M), (offset, struct)
    assert readings + 32 * 256 * 2 * size["ml_reading_cell"] <= 8 << 20
