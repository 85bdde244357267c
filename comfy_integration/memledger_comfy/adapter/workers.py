"""The host's side of its workers: each one that starts is handed the ledger, the group and our
folders, by whichever launcher."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from memledger_comfy import handover, library, log
from memledger_comfy.adapter import row06_free
from memledger_comfy.context import import_or_none

if TYPE_CHECKING:
    from memledger_comfy.context import Context

NAME = "workers"
ROWS = ()
ROLES = ("host",)
REQUIRES = ()
COMFY_ENV = "comfy_env.isolation.workers.subprocess"
POOL = "comfy_env.isolation.pool"
PYISOLATE = "pyisolate._internal.host"
AFTER = (COMFY_ENV, POOL, PYISOLATE)


def install(context: Context) -> str | None:
    if context.link.ledger is None:
        return context.link.why
    if NAME not in context.kept:
        context.kept[NAME] = True
        context.on_undo(handover.hand_over(context.link, os.environ))
    _comfy_env(context)
    _comfy_env_reserve(context)
    _pyisolate(context)
    return None


def _comfy_env(context: Context) -> None:
    """A pack with serializers of its own replaces the variable in its worker's environment."""

    def with_entry(env: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        for name, value in handover.variables(context.link, os.environ).items():
            env.setdefault(name, value)  # what a pack says of itself stays
        env[handover.SERIALIZERS] = handover.with_entry(env.get(handover.SERIALIZERS))
        return env

    launcher = context.module(COMFY_ENV)
    if launcher is not None and not context.wraps.result(
        launcher, "build_isolation_env", NAME, with_entry
    ):
        log.once(
            "build_isolation_env",
            "this comfy-env has no build_isolation_env: workers of packs with serializers of their"
            " own do not join",
        )


def _comfy_env_reserve(context: Context) -> None:
    """comfy-env corrects ComfyUI's free figure by what it does not see. What row 6 has corrected
    already must not be taken off twice."""
    pool = context.module(POOL)

    def sees_itself_alone(value: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return value and context.status.get(row06_free.NAME) != "on"

    def budgeted(reply: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        key = args[1] if len(args) > 1 else kwargs.get("worker_key")
        promised = _promised(context, pool, key) if "device_free_bytes" in reply else 0
        if promised:
            reply["device_free_bytes"] += promised
        return reply

    if pool is None:
        return
    # Where it is so (Windows), row 6 subtracts what siblings hold; comfy-env would reserve it.
    context.wraps.result(pool, "_blind_free_is_process_local", NAME, sees_itself_alone)
    # The worker reserves what the host sees less of than itself: but not its own promises.
    context.wraps.result(pool, "_handle_vram_budget", NAME, budgeted)


def _promised(context: Context, pool: Any, key: Any) -> int:
    """Bytes that the worker of comfy-env's `key` has claimed and not taken yet: the host's free
    figure lacks them, the worker's own does not."""
    entry = getattr(pool, "_WORKER_POOL", {}).get(key)
    process = getattr(getattr(entry, "worker", None), "_process", None)
    device = context.link.device(context.mm.get_torch_device())
    if process is None or device is None or context.link.ledger is None:
        return 0
    # Under pixi the process is a launcher, and the worker its child.
    slots = {
        (member.slot, member.generation)
        for member in context.link.ledger.members()
        if process.pid in (member.pid, member.parent_pid) and member.role == "worker"
    }
    rows = device.snapshot().rows if slots else ()
    return sum(row.claimed for row in rows if (row.slot, row.generation) in slots)


def _pyisolate(context: Context) -> None:
    """A sandboxed child gets the environment that its extension's config lists, the folders that it
    lists, and imports the services that it lists: one of them is ours."""
    launcher = context.module(PYISOLATE)
    if launcher is None:
        return

    def configured(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        def leave(value: Any, error: BaseException | None) -> None:
            if error is None:
                _extend(context, args[0])

        return leave

    extension = getattr(launcher, "Extension", None)
    if not context.wraps.around(extension, "__init__", NAME, configured):
        log.once("pyisolate", "this pyisolate has no Extension: its children do not join")


def _extend(context: Context, extension: Any) -> None:
    if extension._is_sealed_worker():
        return  # it sees neither /dev/shm nor our folders, by design: it has no ledger
    config = extension.config
    handed = handover.variables(context.link, os.environ)
    entry = import_or_none("memledger_comfy.pyisolate_entry")
    if not handed or entry is None:
        return
    config["env"] = {**handed, **(config.get("env") or {})}
    sandbox = config.get("sandbox")
    sandbox = dict(sandbox) if isinstance(sandbox, dict) else {}
    folders = [handed[library.FOLDER], os.path.dirname(handed["MEMLEDGER_COMFY_ADAPTERS"])]
    listed = sandbox.get("readonly_paths") or []
    if isinstance(listed, dict):
        sandbox["readonly_paths"] = {**listed, **{folder: folder for folder in folders}}
    else:
        sandbox["readonly_paths"] = [*listed, *folders]
    config["sandbox"] = sandbox
    config["apis"] = [*config.get("apis", ()), entry.MemledgerWorker]
