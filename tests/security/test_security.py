"""What SECURITY.md says and no other test looks at."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import memledger
from helpers.members import Member
from helpers.raw import POOL_OFFSET, RECORD_OFFSET, Raw
from helpers.system import compiler, linux_only, need_program, need_root
from helpers.units import GiB
from helpers.waiting import wait_until
from memledger import _native

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = Path(memledger.__file__).parent
TOTAL = 24 * GiB
FORMATS = "%s%s%n%x {0} {label!r} %(x)s"
ESCAPES = "\x1b[2J\x1b]0;t\x07\x9b1m\r\b"


# ---- the binaries


def binaries() -> list[Path]:
    return sorted(PACKAGE.glob("_*.so"))


def readelf(*arguments: str) -> str:
    done = subprocess.run(
        [need_program("readelf"), "--wide", *arguments], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@linux_only
@pytest.mark.parametrize("path", binaries(), ids=lambda path: path.name.split(".")[0])
def test_security_binaries_are_hardened(path: Path) -> None:
    """Full RELRO, no executable stack, no segment both writable and executable, no relocations in
    code, stack protector and fortified calls in use."""
    segments = readelf("--program-headers", str(path))
    flags = re.findall(r"^\s+(\w+)\s+0x.*?\s([R ][W ][E ])\s+0x\w+$", segments, flags=re.M)
    kinds = [kind for kind, _ in flags]
    assert "LOAD" in kinds
    assert "GNU_RELRO" in kinds
    assert dict(flags)["GNU_STACK"] == "RW "
    assert not [entry for entry in flags if "W" in entry[1] and "E" in entry[1]]
    dynamic = readelf("--dynamic", str(path))
    assert "BIND_NOW" in dynamic
    assert "TEXTREL" not in dynamic
    symbols = readelf("--dyn-syms", str(path))
    assert "__stack_chk_fail" in symbols
    assert re.search(r"__\w+_chk@", symbols), "built without _FORTIFY_SOURCE or optimisation"


@linux_only
def test_security_no_memory_is_writable_and_executable(spawn: Any, segment: Path) -> None:
    member: Member = spawn("m", total=TOTAL)
    member.publish(GiB)
    maps = member.run("open('/proc/self/maps').read()").splitlines()
    assert not [line for line in maps if re.match(r"\S+ .wx", line)]
    # The data, and the page of the slot's lock, which nobody reads or writes. Who made the file
    # mapped it before it had a name.
    shared = {line.split()[1] for line in maps if str(segment.parent) in line}
    assert sorted(shared) == ["---s", "rw-s"]
    assert sorted({line.split()[1] for line in maps if "_native" in line}) == [
        "r--p", "r-xp", "rw-p",
    ]  # fmt: skip


@linux_only
def test_security_no_descriptor_stays_open_or_reaches_a_child(spawn: Any) -> None:
    member: Member = spawn(join=False)
    member.run("import memledger.ledger, memledger.device, memledger.model")
    before = member.run("sorted(os.listdir('/proc/self/fd'))")
    member.join("m")
    member.open_plain("test:card", TOTAL)
    member.publish(GiB)
    assert member.run("sorted(os.listdir('/proc/self/fd'))") == before


# ---- formats and escapes


@linux_only
def test_security_formats_in_c_are_literals() -> None:
    """The compiler looks at printf's family in everything but the Python glue."""
    sources = [*ROOT.glob("csrc/core/*.c"), *ROOT.glob("csrc/os/os_posix*.c")]
    sources += [ROOT / "csrc/os/os_linux.c", ROOT / "csrc/os/os_fork.c"]
    done = subprocess.run(
        [compiler(), "-std=c11", "-fsyntax-only", f"-I{ROOT / 'csrc'}", "-Wformat=2",
         "-Werror=format-nonliteral", "-Werror=format-security", *map(str, sources)],
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


# Which argument of each is the format.
_FORMAT_AT = {
    "PyErr_Format": 1, "PyUnicode_FromFormat": 0, "Py_BuildValue": 0, "PyArg_ParseTuple": 1,
    "PyArg_ParseTupleAndKeywords": 2, "PyObject_CallMethod": 2, "PyObject_CallFunction": 1,
    "snprintf": 2, "swprintf": 2,
}  # fmt: skip


def arguments_of(text: str, at: int) -> list[str]:
    """Of the call whose opening bracket is at `at`."""
    found, depth, quoted, start = [], 0, False, at + 1
    i = at
    while i < len(text):
        c = text[i]
        if quoted:
            i += c == "\\"
            quoted = c != '"'
        elif c == '"':
            quoted = True
        elif c in "([{":
            depth += 1
        elif c in ")]}":
            depth -= 1
            if depth == 0:
                return [*found, text[start:i].strip()]
        elif c == "," and depth == 1:
            found.append(text[start:i].strip())
            start = i + 1
        i += 1
    raise AssertionError("a call without an end")


def test_security_formats_of_the_python_glue_are_literals() -> None:
    looked = 0
    for path in ROOT.glob("csrc/**/*.c"):
        text = path.read_text(encoding="utf-8")
        for match in re.finditer(rf"\b({'|'.join(_FORMAT_AT)})(\()", text):
            given = arguments_of(text, match.start(2))[_FORMAT_AT[match.group(1)]]
            assert re.match(r'(?:L?"|NULL$)', given), f"{path.name}: {match.group(1)}: {given}"
            looked += 1
    assert looked > 40


def shown(*arguments: str, path: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "memledger", *arguments],
        env={**os.environ, "MEMLEDGER_PATH": str(path), "COLUMNS": "160", "PYTHONUTF8": "1"},
        capture_output=True, timeout=60,
    )  # fmt: skip
    assert done.returncode in (0, 1), done.stderr
    return (done.stdout + done.stderr).decode()


COMMANDS = (
    ["dump"], ["dump", "--json"], ["doctor"], ["sweep"], ["reset"], ["top", "--once"], ["export"],
    ["record", "--for", "0.3s", "-"],
)  # fmt: skip


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
@pytest.mark.parametrize("text", [FORMATS, ESCAPES], ids=["formats", "escapes"])
def test_security_text_of_other_members_is_shown_as_text(
    spawn: Any, segment: Path, command: list[str], text: str
) -> None:
    """A label and an account's name, as a member gives them, and a device's key as somebody wrote
    it straight into the bytes."""
    member: Member = spawn(text, total=TOTAL, key="test:aaa")
    member.publish(4 * GiB)
    member.run(f"device.account({text[:16]!r}).publish(1)")
    with Raw(segment) as raw:
        pools = range(raw[POOL_OFFSET] // 8, raw[RECORD_OFFSET] // 8)
        at = next(i for i in pools if raw[i] == int.from_bytes(b"test:aaa", "little"))
        raw[at] = int.from_bytes(text.encode()[:8], "little")
    said = shown(*command, path=segment)
    assert not {"\x1b", "\x07", "\x08", "\x9b", "\r"} & set(said)
    if text == FORMATS and "--json" in command:
        found = json.loads(said)
        assert FORMATS in [m["label"] for m in found["members"]]
        assert FORMATS[:8] in [d["key"][:8] for d in found["devices"]]


@pytest.mark.parametrize("key", ["test:\n", "test:\x1b[2J", "test:\x7f", "test:\x9b1m"])
def test_security_a_key_with_a_control_character_is_refused(
    ledger: memledger.Ledger, key: str
) -> None:
    """It would read back as another one, so that each look for it would fill the table further."""
    from helpers.member import plain_device

    with pytest.raises(ValueError, match="control characters"):
        plain_device(ledger, key, TOTAL)
    assert len(_native.read_image(ledger.path)[1]["pools"]) == 0


def test_security_a_refusal_names_its_holders_as_text(spawn: Any, ledger: memledger.Ledger) -> None:
    from helpers.member import plain_device

    member: Member = spawn(FORMATS + ESCAPES, total=TOTAL)
    member.publish(20 * GiB)
    device = plain_device(ledger, "test:card", TOTAL)
    with pytest.raises(memledger.ClaimRefused) as refused:
        device.claim(8 * GiB)
    assert "%s%s%n%x" in str(refused.value)
    assert str(refused.value).isprintable()


# ---- what is told to others, and what is reached out for


@linux_only
def test_security_the_segment_has_no_command_line_environment_or_path(
    spawn: Any, segment: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "very-secret-folder"
    folder.mkdir()
    script = folder / "program.py"
    script.write_text(
        "import os, memledger\n"
        "ledger = memledger.join(label='shown', role='host', group='secret-group')\n"
        "ledger.device('ram').publish(1)\n"
        "ledger.job('secret-job').interrupt()\n"
        "print(open(os.environ['MEMLEDGER_PATH'], 'rb').read().hex())\n"
    )
    done = subprocess.run(
        [sys.executable, str(script), "--password=secret-argument"],
        env={**os.environ, "API_KEY": "secret-environment"},
        cwd=folder, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    image = bytes.fromhex(done.stdout.strip())
    assert b"shown" in image
    assert b"program.py" in image
    assert b"secret" not in image


MEMBER_PATH = [
    path for path in sorted(PACKAGE.rglob("*.py")) if not {"cli", "demo"} & set(path.parts)
]
FORBIDDEN = {"socket", "subprocess", "pickle", "marshal", "shelve", "multiprocessing", "urllib",
             "http", "asyncio"}  # fmt: skip


@pytest.mark.parametrize("path", MEMBER_PATH, ids=lambda p: p.relative_to(PACKAGE).as_posix())
def test_security_a_member_opens_no_connection_and_runs_no_program_or_data(path: Path) -> None:
    """Nothing that was read is ever code: no eval, no pickle; and nothing leaves the machine."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [node.module or ""]
        assert not FORBIDDEN & {name.split(".")[0] for name in names}, path
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            assert node.func.id not in ("eval", "exec", "compile"), path


# ---- who may join


@linux_only
def test_security_a_group_segment_is_for_its_group_alone(spawn: Any, segment: Path) -> None:
    """root:group 0660 is the one file of another owner that is taken."""
    need_root()
    maker: Member = spawn("maker", total=TOTAL)
    maker.publish(GiB)
    os.chown(segment, 0, 4242)
    segment.chmod(0o660)
    segment.parent.chmod(0o755)
    inside: Member = spawn(join=False)
    inside.run("os.environ['HOME'] = '/'")
    inside.run(
        "import memledger, memledger.ledger, memledger.device, memledger.model\n"
        "os.setgroups([4242]); os.setgid(12345); os.setuid(12345)"
    )
    assert inside.join("inside")["mode"] == 0
    inside.open_plain("test:card", TOTAL)
    assert inside.figures()["held"] == GiB
    outside: Member = spawn(join=False)
    outside.become(12346)
    assert outside.join("outside")["mode"] == 2
    reason = outside.run("ledger.degraded_reason")
    assert "owner" in reason or "Permission" in reason
    assert len(maker.call("members")) == 2


@linux_only
def test_security_a_member_that_holds_every_lock_delays_and_cannot_hang(
    spawn: Any, segment: Path
) -> None:
    """The same user may take the table's and the slots' locks. Members go on; who joins meanwhile
    is degraded with the reason, and joins once they are let go."""
    member: Member = spawn("m", total=TOTAL)
    member.publish(GiB)
    villain: Member = spawn(join=False)
    villain.run(
        "import fcntl, struct\n"
        f"fd = os.open({str(segment)!r}, os.O_RDWR)\n"
        "def take(start, length):\n"
        "    lock = struct.pack('hhqqi4x', fcntl.F_WRLCK, 0, (1 << 40) + start, length, 0)\n"
        "    fcntl.fcntl(fd, 37, lock)\n"
        "mine = [i for i in range(256) if i]\n"
        "for i in (*range(1, 256), 1000): take(i, 1)"
    )
    number = member.call("claim", GiB)
    member.call("settle", number, 2 * GiB)
    assert member.call("sweep") == 0
    assert member.figures()["held"] == 2 * GiB
    late: Member = spawn("late", total=TOTAL)
    assert late.call("info")["mode"] in (1, 2)
    assert late.run("ledger.degraded_reason")
    # A new device opens without the table's lock, in this process alone.
    member.open_plain("test:other", TOTAL)
    member.publish(GiB)
    assert member.free() == TOTAL - GiB
    assert not member.figures()["complete"]
    villain.kill()
    wait_until(lambda: not late.run("ledger.degraded"), 60, "it joins by itself")
    late.open_plain("test:other", TOTAL)
    wait_until(lambda: late.figures()["held"] == GiB, 60, "the table is free again")


def test_security_default_names_are_of_the_user_and_not_of_the_environment() -> None:
    if hasattr(os, "geteuid") and sys.platform.startswith("linux"):
        assert (_native.default_path() or "").endswith(f"-{os.geteuid()}")
