"""A web server in a thread and a headless Chromium, for what runs in a browser."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import shutil
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from helpers.system import missing

FOLDER = Path(__file__).resolve().parents[2] / "comfy_integration"
WEB = FOLDER / "web"

DARK = {
    "--fg-color": "#fff", "--bg-color": "#202020", "--comfy-menu-bg": "#353535",
    "--comfy-input-bg": "#222", "--input-text": "#ddd", "--border-color": "#4e4e4e",
    "--error-text": "#f44",
}  # fmt: skip
LIGHT = {
    "--fg-color": "#222", "--bg-color": "#fff", "--comfy-menu-bg": "#f5f5f5",
    "--comfy-input-bg": "#ddd", "--input-text": "#222", "--border-color": "#ccc",
    "--error-text": "#d33",
}  # fmt: skip

_PAGE = """<!doctype html><html lang="en"><meta charset="utf-8"><title>panel</title>
<link rel="icon" href="data:,">
<style>:root {{ {variables} }} #place {{ width: {width} }}
body {{ margin: 0; background: var(--bg-color); font-family: sans-serif }}</style>
<div id="place"></div>
<script type="module">
  import * as panel from "/extensions/a-pack/panel.js";
  window.panel = panel;
  window.fetches = 0;
  window.mount = (answer) => {{
    // A string: the error that the server answers with. null: no answer yet.
    window.answer = answer;
    window.asked = [];
    const fetchStats = async () => {{
      window.fetches += 1;
      if (window.answer === null) return new Promise(() => {{}});
      if (typeof window.answer === "string") throw new Error(window.answer);
      return structuredClone(window.answer);
    }};
    const askFree = async () => {{
      window.asked.push(1);
      return {{ schema: 1, asked: true, siblings: 2, own: true, errors: [] }};
    }};
    window.mounted = panel.mountPanel(document.querySelector("#place"), {{ fetchStats, askFree }});
  }};
  window.mountReal = () => {{
    const server = panel.connect((route, options) => fetch(route, options));
    window.mounted = panel.mountPanel(document.querySelector("#place"), server);
  }};
  window.ready = true;
</script></html>"""


def adapter(name: str) -> Any:
    """A module of the custom-node folder, found as its entry files find it."""
    if str(FOLDER) not in sys.path:
        sys.path.append(str(FOLDER))
    return importlib.import_module(f"memledger_comfy.{name}")


def page(theme: dict[str, str] | None = None, width: str = "360px") -> str:
    """HTML that offers mount(answer) and mountReal(). theme: CSS variables; None: none at all."""
    variables = ";".join(f"{name}: {value}" for name, value in (theme or {}).items())
    return _PAGE.format(variables=variables, width=width)


def chromium_path() -> str:
    for name in ("chromium", "chromium-browser", "google-chrome"):
        path = shutil.which(name)
        if path:
            return path
    missing("chromium")
    raise AssertionError("unreachable")


@contextlib.contextmanager
def browser() -> Iterator[Any]:
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        missing("the package playwright")
    path = chromium_path()
    with sync_playwright() as driver:
        # Root cannot use Chromium's sandbox; the pages are our own.
        started = driver.chromium.launch(executable_path=path, args=["--no-sandbox"])
        try:
            yield started
        finally:
            started.close()


@contextlib.contextmanager
def serve(app: Any) -> Iterator[str]:
    """Serve an aiohttp application on a port of its own, from a thread; yields its address."""
    from aiohttp import web

    loop = asyncio.new_event_loop()
    runner = web.AppRunner(app, shutdown_timeout=1.0)
    started = threading.Event()
    address: list[str] = []

    async def start() -> None:
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        host, port = runner.addresses[0][:2]
        address.append(f"http://{host}:{port}")

    def run() -> None:
        asyncio.set_event_loop(loop)
        try:
            loop.run_until_complete(start())
        finally:
            started.set()
        loop.run_forever()
        loop.run_until_complete(runner.cleanup())
        loop.run_until_complete(loop.shutdown_default_executor())
        loop.close()

    thread = threading.Thread(target=run, name="web-page", daemon=True)
    thread.start()
    assert started.wait(30), "the web server did not start"
    try:
        yield address[0]
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(30)
