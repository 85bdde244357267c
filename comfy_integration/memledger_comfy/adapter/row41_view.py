"""Row 41: what people see: /memledger/stats, a block in /system_stats, the panel's button.

The server is made after its module is imported, and uses its list of routes up in `add_routes`,
when all packs are loaded. So ours are added when that is called.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from memledger_comfy.context import Context

NAME = "view"
ROWS = (41,)
ROLES = ("host",)
REQUIRES = ("server",)


def install(context: Context) -> str | None:
    try:
        import aiohttp  # noqa: F401  ComfyUI's own; in a double it may be missing
    except ImportError:
        return "no aiohttp"
    prompt_server = getattr(context.module("server"), "PromptServer", None)
    if prompt_server is None:
        return "this ComfyUI has no PromptServer"

    def adding_routes(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        _add(context, args[0])

    if context.wraps.around(prompt_server, "add_routes", NAME, adding_routes):
        return None
    return "this ComfyUI has no PromptServer.add_routes"


def _add(context: Context, server: Any) -> None:
    from memledger_comfy import free_words, routes

    def request_free(*, unload: bool, cache: bool) -> None:
        # As ComfyUI's own /free does: the prompt's thread acts on it after what runs now.
        if unload:
            server.prompt_queue.set_flag("unload_models", True)
        if cache:
            server.prompt_queue.set_flag("free_memory", True)

    link = context.link
    routes.install(
        server,
        lambda: link.ledger,
        request_free,
        own_devices=link.devices,
        words=free_words.of(context),
    )
