"""Rules that the C source keeps, read from the source, and the guarantee that rests on each."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CSRC = ROOT / "csrc"
SOURCES = sorted([*CSRC.rglob("*.c"), *CSRC.rglob("*.h")])
LAYERS = {"base": 0, "include": 0, "os": 1, "core": 2, "py": 3}
HOT_CORE = ("record.c", "figures.c", "publish.c", "claim.c", "claim_object.c")


def code_of(path: Path) -> str:
    """The file without comments and string literals, lines kept."""
    text = path.read_text(encoding="utf-8")

    def blank(match: re.Match[str]) -> str:
        return "\n" * match.group().count("\n")

    text = re.sub(r"/\*.*?\*/", blank, text, flags=re.S)
    return re.sub(r'"(?:[^"\\\n]|\\.)*"', '""', text)


def functions(path: Path) -> dict[str, str]:
    """Name to body of each function defined at file scope."""
    found: dict[str, str] = {}
    code = code_of(path)
    pattern = re.compile(r"^(?:[\w*]+[ *]+)+(\w+)\([^;{}]*\)\s*\{", re.M)
    for match in pattern.finditer(code):
        depth, at = 1, match.end()
        while depth and at < len(code):
            depth += {"{": 1, "}": -1}.get(code[at], 0)
            at += 1
        found[match.group(1)] = code[match.end() : at - 1]
    return found


def ids(path: Path) -> str:
    return path.relative_to(CSRC).as_posix()


@pytest.mark.parametrize("path", SOURCES, ids=ids)
def test_includes_never_reach_upwards(path: Path) -> None:
    own = LAYERS[path.relative_to(CSRC).parts[0]]
    for include in re.findall(r'#include "([^"]+)"', path.read_text(encoding="utf-8")):
        layer = include.split("/")[0]
        assert layer in LAYERS, f"{include}: include paths start at csrc/"
        assert LAYERS[layer] <= own, f"{ids(path)} is below {include}"


@pytest.mark.parametrize("path", SOURCES, ids=ids)
def test_c11_atomics_are_named_in_one_file_only(path: Path) -> None:
    if ids(path) != "base/atomic.h":
        words = re.findall(
            r"\b(_Atomic|atomic_\w+|memory_order_\w+|__sync_\w+|__atomic_\w+)", code_of(path)
        )
        assert not words, "G2: every order is part of a name in base/atomic.h"


@pytest.mark.parametrize("path", SOURCES, ids=ids)
def test_operating_systems_are_told_apart_in_os_only(path: Path) -> None:
    conditions = re.findall(
        r"^\s*#\s*(?:if|ifdef|elif).*\b(_WIN32|__linux__|__APPLE__|__unix__|_MSC_VER)\b",
        path.read_text(encoding="utf-8"),
        flags=re.M,
    )
    assert ids(path).startswith("os/") or not conditions


@pytest.mark.parametrize(
    "path", [p for p in SOURCES if ids(p).startswith(("core/", "base/"))], ids=ids
)
def test_core_includes_no_system_header(path: Path) -> None:
    allowed = {
        "stdatomic.h",
        "stdbool.h",
        "stddef.h",
        "stdint.h",
        "stdio.h",
        "stdlib.h",
        "string.h",
    }
    named = set(re.findall(r"#include <([^>]+)>", path.read_text(encoding="utf-8")))
    assert named <= allowed


@pytest.mark.parametrize("path", [p for p in SOURCES if p.suffix == ".c"], ids=ids)
def test_no_mutable_file_scope_data_but_the_fork_registry(path: Path) -> None:
    if ids(path) in ("os/os_fork.c", "os/os_test.c"):
        return
    code = re.sub(r"\{[^{}]*\}", "{}", code_of(path))
    for _ in range(12):  # innermost blocks first, until only file scope is left
        code = re.sub(r"\{[^{}]*\}", "", code)
    # Python's type and method tables are data that the interpreter's API takes without const.
    tables = r"PyMethodDef|PyType_Slot|PyGetSetDef|PyStructSequence_(?:Field|Desc)|PyModuleDef"
    for line in re.findall(
        r"^(?:static )?[\w ]+[ *]\w+(?:\[[^\]]*\])*\s*(?:=[^;]*)?;", code, flags=re.M
    ):
        words = line.split()
        if words[0] in ("typedef", "extern", "struct", "return") or "const" in words or "(" in line:
            continue
        assert re.search(tables, line) or "_Static_assert" in line, (
            f"mutable data at file scope: {line}"
        )


def test_hot_methods_keep_the_gil_and_run_no_python() -> None:
    code = code_of(CSRC / "py" / "native_hot.c")
    banned = (
        r"Py_BEGIN_ALLOW_THREADS|PyEval_|PyGILState|PyImport_|PyObject_Call|PyRun_|PyList_New|"
        r"PyDict_New|"
        r"PyTuple_New|Py_BuildValue|malloc|calloc|realloc|\bos_\w+\("
    )
    assert not re.findall(banned, code), (
        "B60: a hot method allocates only its result and never blocks"
    )


@pytest.mark.parametrize("name", HOT_CORE)
def test_hot_core_neither_allocates_nor_prints_nor_waits(name: str) -> None:
    code = code_of(CSRC / "core" / name)
    banned = (
        r"\b(?:malloc|calloc|realloc|free|printf|fprintf|ml_cold_lock|ml_lock_wait|os_sleep_ns|"
        r"os_wait)\("
    )
    # ml_account_get and the claim object's cold calls may wait for the handle's own lock.
    cold = {"ml_account_get", "ml_claim_forget"}
    for function, body in functions(CSRC / "core" / name).items():
        if function not in cold:
            assert not re.findall(banned, body), f"{name}: {function}"
    assert code


@pytest.mark.parametrize("path", sorted((CSRC / "core").glob("*.c")), ids=ids)
def test_no_system_call_between_taking_and_releasing_the_handles_lock(path: Path) -> None:
    """The lock of a handle is held for nanoseconds: a system call under it would let the scheduler
    keep every other thread of the process out (G3)."""
    for function, body in functions(path).items():
        for held in re.findall(
            r"ml_lock_(?:wait|try)\(&(?:\w+->)*lock\)(.*?)ml_lock_release\(&(?:\w+->)*lock\)",
            body,
            flags=re.S,
        ):
            calls = [
                c
                for c in re.findall(r"\b(os_\w+)\(", held)
                if c not in ("os_token_drop", "os_boottime_ns")
            ]
            assert not calls, f"{ids(path)}: {function} calls {calls} under the lock"


@pytest.mark.parametrize(
    "path", [p for p in SOURCES if ids(p).startswith(("core/", "py/"))], ids=ids
)
def test_loops_have_a_bound(path: Path) -> None:
    """`for (;;)` and `while (1)` only where a deadline or a count inside ends them."""
    for function, body in functions(path).items():
        if re.search(r"for\s*\(\s*;\s*;\s*\)|while\s*\(\s*(?:1|true)\s*\)", body):
            assert re.search(r"deadline|now_ns|busy|return|break", body), f"{ids(path)}: {function}"


@pytest.mark.parametrize("path", SOURCES, ids=ids)
def test_nothing_touches_the_hosts_process(path: Path) -> None:
    """G8: no exit, no signal, no umask, no output, no chdir, no environment change."""
    banned = (
        r"\b(?:exit|_exit|abort|signal|sigaction|umask|printf|fprintf|puts|perror|chdir|setenv|"
        r"putenv|atexit|raise)\("
    )
    assert not re.findall(banned, code_of(path))


def test_claim_words_are_stored_with_the_right_orders_only() -> None:
    """The pending store is a seq_cst exchange and the scan's loads are seq_cst [O7]; weaker ones
    grant twice."""
    bodies = functions(CSRC / "core" / "claim.c")
    assert "ml_exchange_seq_cst(own_word(a, i), a->mine[i])" in bodies["set_pending"]
    assert "ml_load_seq_cst(&record->word)" in bodies["scan"]
    assert "ml_cas_acq_rel(own_word(a, l), a->mine[l]" in bodies["commit"]
    assert "ml_cas_acq_rel((ml_u64 *)word_of(a, level, i), seen[i]" in bodies["push_through"]


def test_each_ordering_tag_stands_at_both_ends_and_in_the_docs() -> None:
    docs = (ROOT / "docs" / "design.md").read_text(encoding="utf-8")
    count: dict[str, int] = {}
    for path in SOURCES:
        for tag in re.findall(r"\[(O\d+)\]", path.read_text(encoding="utf-8")):
            count[tag] = count.get(tag, 0) + 1
    assert count, "no ordering tags found"
    for tag, times in count.items():
        assert times >= 2, f"[{tag}] stands at one end only"
        assert f"[{tag}]" in docs, f"[{tag}] is not in docs/design.md"


def test_functions_are_short() -> None:
    for path in SOURCES:
        limit = 75 if ids(path).startswith("py/") else 62
        for function, body in functions(path).items():
            lines = body.count("\n")
            assert lines <= limit, f"{ids(path)}: {function} has {lines} lines"
