"""The panel in a real Chromium: what people see, hear and can do with a keyboard.

Time is Playwright's: the page's clock stands still until a test runs it, so nothing here waits to
be right.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

import memledger
from helpers import web_page

routes = web_page.adapter("routes")
GIB = 1 << 30
HOSTILE = '<img src=x onerror="window.hit=1"><script>window.hit=1</script>'
THEMES = {"dark": web_page.DARK, "light": web_page.LIGHT, "none": None}
APP_DOUBLE = """
window.tabs = []; window.menu = document.createElement("div");
const app = {
  api: { fetchApi: (route, options) => fetch("/api" + route, options) },
  ui: { menuContainer: window.menu },
  registerExtension(extension) {
    if (window.extension) throw new Error("registered twice");
    window.extension = extension;
  },
};
if (!location.pathname.endsWith("old")) {
  app.extensionManager = { registerSidebarTab: (tab) => window.tabs.push(tab) };
}
export { app };
"""
UI_PAGE = """<!doctype html><html lang="en"><meta charset="utf-8"><title>ui</title>
<link rel="icon" href="data:,"><div id="side"></div>
<script type="module">
  await import("/extensions/a-pack/memledger.js");
  await import("/extensions/another-name/memledger.js");
  await window.extension.setup();
  window.ready = true;
</script></html>"""


def member(slot: int, label: str = "a worker", relation: str = "other", **more: Any) -> Any:
    fields = {
        "slot": slot, "pid": 4000 + slot, "label": label, "role": "worker", "state": "live",
        "relation": relation, "held": 2 * GIB, "releasable": GIB // 2, "claimed": 0, "pinned": 0,
    }  # fmt: skip
    return {**fields, **more}


def device(name: str = "cuda:0", members: list[Any] | None = None, **more: Any) -> Any:
    rows = [member(0, "comfyui-host", "own", role="host"), member(1, "a worker", "group"),
            member(2, "another host")] if members is None else members  # fmt: skip
    fields = {
        "key": f"GPU-{name}", "name": name, "kind": "device", "opened": True, "total": 24 * GIB,
        "free": 15 * GIB, "available": 16 * GIB, "held": 2 * GIB * len(rows), "pinned": 0,
        "releasable": GIB // 2 * len(rows), "claimed": GIB, "unaccounted": 2 * GIB,
        "overcommitted": 0, "reserved": 0, "headroom": 0, "coherent": True, "complete": True,
        "reading": {"source": "nvml", "scope": "device", "age_s": 0.2, "reason": None},
        "members": rows,
    }  # fmt: skip
    return {**fields, **more}


def answer(*devices: Any, **more: Any) -> Any:
    everybody = {row["slot"]: row for each in devices for row in each["members"]}
    return {
        "schema": 1, "status": "ok", "scope": "user", "degraded_reason": None, "complete": True,
        "devices": list(devices), "members": list(everybody.values()), "counters": {}, **more,
    }  # fmt: skip


UNKNOWN: Any = {
    "total": None, "free": None, "available": None, "unaccounted": None, "overcommitted": None,
    "reading": {"source": None, "scope": "none", "age_s": None, "reason": "no_permission"},
}  # fmt: skip


OUTSIDE = """() => {
  const host = document.querySelector("#place > div");
  const edge = host.getBoundingClientRect().right + 0.5;
  return [...host.shadowRoot.querySelectorAll("*")]
    .filter((n) => n.checkVisibility() && n.clientWidth && !n.closest("caption"))
    .filter((n) => n.getBoundingClientRect().right > edge || n.scrollWidth > n.clientWidth + 1)
    .filter((n) => getComputedStyle(n).display !== "inline")
    .map((n) => n.outerHTML.slice(0, 80));
}"""
"""What sticks out to the right, of the panel or of its own box."""


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    with web_page.browser() as started:
        yield started


def application() -> Any:
    def html(text: str) -> Any:
        async def handler(request: Any) -> Any:
            theme = THEMES[request.query.get("theme", "dark")]
            width = request.query.get("width", "360px")
            shown = text or web_page.page(theme, width)
            return web.Response(text=shown, content_type="text/html")

        return handler

    async def app_js(request: Any) -> Any:
        return web.Response(text=APP_DOUBLE, content_type="text/javascript")

    app = web.Application()
    app.router.add_get("/", html(""))
    app.router.add_get("/ui", html(UI_PAGE))
    app.router.add_get("/ui-old", html(UI_PAGE))
    app.router.add_get("/scripts/app.js", app_js)
    app.router.add_static("/extensions/a-pack", web_page.WEB)
    app.router.add_static("/extensions/another-name", web_page.WEB)
    return app


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with web_page.serve(application()) as url:
        yield url


Open = Callable[..., Any]


@pytest.fixture
def open_page(chromium: Any, address: str) -> Iterator[Open]:
    """open_page(answer, theme=, width=) -> the page with the panel mounted. Whatever the page
    reports on its console as an error fails the test."""
    errors: list[str] = []
    contexts = []

    def start(
        shown: Any = None, *, mount: bool = True, path: str = f"{address}/", theme: str = "dark",
        width: str = "360px", **options: Any,
    ) -> Any:  # fmt: skip
        context = chromium.new_context(viewport={"width": 800, "height": 900}, **options)
        context.set_default_timeout(30_000)
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda m: m.type in ("error", "warning") and errors.append(m.text))
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.clock.install(time=0)
        page.goto(f"{path}?theme={theme}&width={width}")
        page.wait_for_function("window.ready")
        page.clock.pause_at(3_600_000)
        if mount:
            page.evaluate("shown => mount(shown)", shown)
            if shown is not None:
                page.wait_for_function("window.fetches > 0")
                page.locator(".notice", has_text="Loading").wait_for(state="hidden")
        return page

    yield start
    for context in contexts:
        context.close()
    assert errors == []


def give(page: Any, shown: Any, seconds: int = 3) -> None:
    """The next poll's answer, and the poll."""
    page.evaluate("shown => { window.answer = shown; window.before = window.fetches; }", shown)
    page.clock.run_for(seconds * 1000)
    page.wait_for_function("window.fetches > window.before")


def figures(page: Any, index: int = 0) -> dict[str, str]:
    """The legend of a device: name to figure."""
    entries = page.locator("article").nth(index).locator(".entry")
    return dict(
        zip(entries.locator("dt").all_inner_texts(), entries.locator("dd").all_inner_texts(),
            strict=True)
    )  # fmt: skip


# ---- what is shown


def test_device_and_processes_are_shown_in_words(open_page: Open) -> None:
    page = open_page(answer(device()))
    assert page.locator("h3").inner_text() == "cuda:0"
    assert page.locator(".free").first.inner_text() == (
        "15.0 GiB free of 24.0 GiB, 16.0 GiB if all give back what they can"
    )
    assert figures(page) == {
        "This server": "2.0 GiB", "Its workers": "2.0 GiB", "Others": "2.0 GiB",
        "Releasable": "1.5 GiB", "Pinned": "0", "Claimed": "1.0 GiB",
        "Unaccounted": "2.0 GiB", "Free": "15.0 GiB",
    }  # fmt: skip
    rows = page.locator("tbody tr")
    assert rows.locator(".name").all_inner_texts() == ["comfyui-host", "a worker", "another host"]
    assert "pid 4000 · host · this server" in rows.first.inner_text()
    assert rows.first.locator("td").all_inner_texts() == ["2.00", "0.50", "0", "0"]
    assert page.locator(".summary").first.inner_text() == "3 processes · 1 device"


def test_bar_is_drawn_to_scale(open_page: Open) -> None:
    """Failure: a bar that shows other shares than its text says."""
    page = open_page(answer(device()))
    widths = page.evaluate(
        """() => {
          const bar = document.querySelector("#place > div").shadowRoot.querySelector(".bar");
          const parts = [...bar.children].map((s) =>
            [s.className.trim(), Math.round(parseFloat(s.style.width) / 100 * 48)]);
          return parts;
        }"""
    )
    assert widths == [
        ["segment own", 3], ["segment own releasable", 1],
        ["segment group", 3], ["segment group releasable", 1],
        ["segment other", 3], ["segment other releasable", 1],
        ["segment claimed", 2], ["segment unaccounted", 4], ["segment free", 30],
    ]  # fmt: skip


def test_unknown_is_shown_as_unknown_never_as_nothing(open_page: Open) -> None:
    page = open_page(answer(device(**UNKNOWN)))
    shown = figures(page)
    assert (shown["Free"], shown["Unaccounted"]) == ("unknown", "unknown")
    assert page.locator(".free").first.inner_text() == "Free and total are unknown"
    assert page.locator(".source").inner_text() == "No reading: this process may not read it."
    label = page.locator(".bar").get_attribute("aria-label")
    assert "total unknown" in label
    assert "Free unknown" in label
    assert page.locator(".segment.free, .segment.unaccounted").count() == 0


def test_a_figure_that_is_none_is_unknown(open_page: Open) -> None:
    bad = (-1, "7", True, {}, [])
    shown = [device(f"cuda:{i}", free=b, total=b, unaccounted=b) for i, b in enumerate(bad)]
    page = open_page(answer(*shown))
    for index in range(len(bad)):
        assert figures(page, index)["Free"] == "unknown"
        assert figures(page, index)["Unaccounted"] == "unknown"
    assert page.get_by_text("Free and total are unknown").count() == len(bad)


def test_overcommitted_is_marked(open_page: Open) -> None:
    page = open_page(answer(device(held=26 * GIB, free=0, overcommitted=5 * GIB)))
    assert "Overcommitted by 5.0 GiB" in page.locator(".alarm").inner_text()
    assert page.locator("article.overcommitted .bar.over").count() == 1
    give(page, answer(device()))
    page.locator(".alarm", has_text="Overcommitted").wait_for(state="detached")
    assert page.locator(".overcommitted, .over").count() == 0


def test_degraded_says_why(open_page: Open) -> None:
    page = open_page(answer(device(), status="degraded", degraded_reason="the disk is full"))
    notice = page.get_by_role("status").first
    assert notice.inner_text() == "Degraded: the disk is full"
    give(page, answer(device()))
    notice.wait_for(state="hidden")


def test_loading_then_figures(open_page: Open) -> None:
    page = open_page(None)
    assert page.locator(".notice").inner_text() == "Loading…"
    assert not page.get_by_role("button", name="Ask all").is_visible()
    page.evaluate("shown => { window.answer = shown; }", answer(device()))
    page.clock.run_for(10_000)  # the first fetch never answers: its time-out ends it
    page.evaluate("mounted.destroy()")
    page.evaluate("shown => mount(shown)", answer(device()))
    page.get_by_role("heading", name="cuda:0").wait_for()


def test_off_and_unreachable_say_so_and_can_be_tried_again(open_page: Open) -> None:
    page = open_page({"schema": 1, "status": "off", "degraded_reason": "MEMLEDGER_COMFY=off"})
    assert page.locator(".notice").inner_text() == "memledger is off. MEMLEDGER_COMFY=off"
    assert page.locator("article").count() == 0
    give(page, answer(device()))
    page.get_by_role("heading", name="cuda:0").wait_for()
    give(page, "HTTP 500 and so on")
    page.get_by_text("No figures: HTTP 500 and so on").wait_for()
    assert page.locator(".stale article").count() == 1, "the last figures stay, marked"
    page.evaluate("shown => { window.answer = shown; }", answer(device("cuda:7")))
    page.get_by_role("button", name="Try again").click()
    page.get_by_role("heading", name="cuda:7").wait_for()
    assert page.locator(".stale").count() == 0


def test_figures_of_another_schema_are_not_guessed_at(open_page: Open) -> None:
    page = open_page(answer(device(), schema=2))
    assert "another version" in page.locator(".notice").inner_text()
    assert page.locator("article").count() == 0


def test_labels_of_other_processes_are_text(open_page: Open) -> None:
    """Failure: any process of the user runs scripts in ComfyUI's page."""
    hostile = device(
        HOSTILE, [member(0, HOSTILE, role=HOSTILE, state=HOSTILE, relation=HOSTILE)],
        key=HOSTILE, kind=HOSTILE,
        reading={"source": HOSTILE, "scope": HOSTILE, "age_s": HOSTILE, "reason": HOSTILE},
    )  # fmt: skip
    page = open_page(answer(hostile, status="degraded", degraded_reason=HOSTILE))
    assert page.locator("h3").inner_text() == HOSTILE
    assert page.locator(".name").inner_text() == HOSTILE
    give(page, HOSTILE)
    page.get_by_text("No figures:").wait_for()
    page.evaluate("() => { window.answer = null; }")
    assert page.evaluate("window.hit") is None
    assert page.locator("img, script").count() == 1, "the page's own script alone"


# ---- looks


@pytest.mark.parametrize("theme", ["dark", "light", "none"])
def test_text_can_be_read_in_every_theme(open_page: Open, theme: str) -> None:
    """Every text against what is behind it: 4.5 to 1, as WCAG asks (AA)."""
    page = open_page(answer(device(), device("cuda:1", **UNKNOWN)), theme=theme)
    poor = page.evaluate(
        """() => {
          const canvas = new OffscreenCanvas(1, 1);
          const context = canvas.getContext("2d", { willReadFrequently: true });
          const paint = (colours) => {
            context.fillStyle = "#fff"; context.fillRect(0, 0, 1, 1);
            for (const c of colours) { context.fillStyle = c; context.fillRect(0, 0, 1, 1); }
            return [...context.getImageData(0, 0, 1, 1).data].slice(0, 3);
          };
          const light = (rgb) => rgb.map((v) => v / 255)
            .map((v) => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
            .reduce((all, v, i) => all + v * [0.2126, 0.7152, 0.0722][i], 0);
          const behind = (node) => {
            const found = [];
            for (let n = node; n; n = n.parentElement || n.getRootNode().host || null)
              found.unshift(getComputedStyle(n).backgroundColor);
            return found;
          };
          const poor = [];
          const root = document.querySelector("#place > div").shadowRoot;
          for (const node of root.querySelectorAll("*")) {
            const own = [...node.childNodes].some((n) => n.nodeType === 3 && n.data.trim());
            if (!own || node.localName === "style" || !node.checkVisibility()) continue;
            const back = behind(node);
            const a = light(paint(back));
            const b = light(paint([...back, getComputedStyle(node).color]));
            const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
            if (ratio < 4.5) poor.push([node.className || node.localName, ratio]);
          }
          return poor;
        }"""
    )
    assert poor == []


@pytest.mark.parametrize(("devices", "members"), [(1, 60), (8, 4), (32, 60)])
def test_many_devices_and_processes_fit(open_page: Open, devices: int, members: int) -> None:
    """Failure: something sticks out to the right of a narrow side bar."""
    rows = [member(slot, f"worker-{slot}-" + "x" * 50) for slot in range(members)]
    shown = answer(*(device(f"cuda:{index}", rows) for index in range(devices)))
    page = open_page(shown, width="280px")
    assert page.locator("article").count() == devices
    if devices * members > 24:
        assert page.locator("details[open]").count() == 0
        page.locator("summary").first.click()
    assert page.locator("article").first.locator("tbody tr").count() == members
    for width in ("200px", "280px", "460px", "1200px"):
        page.evaluate("width => { document.querySelector('#place').style.width = width; }", width)
        assert page.evaluate(OUTSIDE) == []


def test_reduced_motion_is_honoured(open_page: Open) -> None:
    def duration(motion: str) -> str:
        page = open_page(answer(device()), reduced_motion=motion)
        found: str = page.locator(".segment").first.evaluate(
            "node => getComputedStyle(node).transitionDuration"
        )
        return found

    assert duration("no-preference") == "0.3s"
    assert duration("reduce") == "0s"


# ---- keyboard and screen reader


def focused(page: Any) -> str:
    text: str = page.evaluate(
        """() => {
          let node = document.activeElement;
          while (node && node.shadowRoot) node = node.shadowRoot.activeElement;
          const visible = node && node.matches(":focus-visible");
          const seen = visible && getComputedStyle(node).outlineWidth;
          return node && node !== document.body
            ? `${node.textContent.replace("\\u00ad", "")}${seen === "2px" ? "" : " (unseen)"}` : "";
        }"""
    )
    return text


def test_keyboard_reaches_everything_in_order(open_page: Open) -> None:
    """Failure: a control that only a mouse reaches, or a focus that cannot be seen."""
    page = open_page(answer(device()))
    walked = []
    for _ in range(7):
        page.keyboard.press("Tab")
        walked.append(focused(page))
    assert walked == [
        "Ask all to free memory…", "3 processes", "Process", "Held", "Releasable", "Claimed",
        "Pinned",
    ]  # fmt: skip


def test_free_asks_once_after_a_confirmation_by_keyboard(open_page: Open) -> None:
    page = open_page(answer(device()))
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    assert focused(page) == "Cancel"
    question = page.get_by_role("group", name="This server and 2 other processes will drop")
    question.wait_for()
    page.keyboard.press("Escape")
    assert focused(page) == "Ask all to free memory…"
    assert page.evaluate("asked.length") == 0
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    assert focused(page) == "Unload everywhere"
    page.keyboard.press("Enter")
    page.get_by_text("Asked this server and 2 other processes.").wait_for()
    assert page.locator(".answer").get_attribute("role") == "status"
    assert focused(page) == "Ask all to free memory…"
    assert page.evaluate("asked.length") == 1


def test_focus_and_order_survive_the_polls(open_page: Open) -> None:
    """Failure: every two seconds the table is made anew and the keyboard starts at the top."""
    rows = [member(0, "b", held=GIB), member(1, "c", held=3 * GIB), member(2, "a", held=2 * GIB)]
    page = open_page(answer(device("cuda:0", rows)))
    names = page.locator("tbody .name")
    assert names.all_inner_texts() == ["c", "a", "b"]
    page.get_by_role("button", name="Process").focus()
    page.keyboard.press("Enter")
    assert names.all_inner_texts() == ["a", "b", "c"]
    assert page.get_by_role("columnheader").first.get_attribute("aria-sort") == "ascending"
    fresh = [*rows[1:], member(7, "aa", held=GIB)]
    give(page, answer(device("cuda:0", fresh)))
    page.locator("tbody .name", has_text="aa").wait_for()
    assert names.all_inner_texts() == ["a", "aa", "c"]
    assert focused(page).startswith("Process")


def test_screen_reader_gets_names_and_roles(open_page: Open) -> None:
    page = open_page(answer(device()), width="300px")  # laid out anew: roles must stay
    article = page.get_by_role("article", name="cuda:0")
    assert article.get_by_role("img").count() == 2
    label = article.get_by_role("img").first.get_attribute("aria-label")
    assert label.startswith("cuda:0, total 24.0 GiB: This server 2.0 GiB, ")
    assert "Last 5 minutes" in article.get_by_role("img").nth(1).get_attribute("aria-label")
    table = page.get_by_role("table", name="Processes on cuda:0, in GiB")
    assert table.get_by_role("columnheader").count() == 5
    assert table.get_by_role("rowheader").count() == 3
    assert table.get_by_role("row").count() == 4
    assert table.get_by_role("cell").count() == 12


# ---- polling

UNSEEN = """() => {
  document.querySelector("#place").style.display = "none";
  const told = (entries, resolve) => !entries[entries.length - 1].isIntersecting && resolve();
  return new Promise((resolve) => {
    new IntersectionObserver((entries) => told(entries, resolve)).observe(host);
  });
}"""
"""Observers are told in the order in which they were made: the panel's knows it before ours."""


def test_polls_every_two_seconds_and_not_when_nobody_looks(open_page: Open) -> None:
    page = open_page(answer(device()))
    page.evaluate("window.fetches = 0")

    def after(seconds: int) -> int:
        page.evaluate("window.fetches = 0")
        for _ in range(seconds * 2):  # in steps: each answer comes before the next poll is due
            page.clock.run_for(500)
        found: int = page.evaluate("window.fetches")
        return found

    assert after(20) == 10
    hide = """hidden => {
      Object.defineProperty(document, "hidden", { configurable: true, get: () => hidden });
      document.dispatchEvent(new Event("visibilitychange"));
    }"""
    page.evaluate(hide, True)
    assert after(60) == 0
    page.evaluate("window.fetches = 0")
    page.evaluate(hide, False)
    page.wait_for_function("window.fetches === 1")
    page.evaluate("window.host = document.querySelector('#place > div'); host.remove()")
    assert after(60) == 0
    page.evaluate("window.fetches = 0")
    page.evaluate("document.querySelector('#place').append(host)")
    page.wait_for_function("window.fetches > 0")
    page.evaluate(UNSEEN)  # a side bar that keeps a closed tab, without showing it
    assert after(60) == 0
    page.evaluate("mounted.destroy()")
    page.evaluate("document.querySelector('#place').style.display = ''")
    assert after(60) == 0


def test_failing_server_is_asked_less_and_less(open_page: Open) -> None:
    page = open_page("it is down")
    page.evaluate("window.fetches = 0")
    for _ in range(60):
        page.clock.run_for(2000)
    # 4, 8, 16 and then every 30 s.
    assert page.evaluate("window.fetches") == 6


def test_history_shows_minutes_and_a_gap_where_nothing_was_seen(open_page: Open) -> None:
    page = open_page(answer(device()))
    for held in (4, 8, 12):
        page.evaluate("shown => { window.answer = shown; }", answer(device(held=held * GIB)))
        page.clock.run_for(2000)
    path = page.locator(".chart .held")
    page.wait_for_function(
        """() => document.querySelector("#place > div").shadowRoot
          .querySelector(".chart").getAttribute("aria-label")
          === "Last 5 minutes: held between 4.0 GiB and 12.0 GiB" """
    )
    assert path.get_attribute("d").count("M") == 1
    give(page, "down")
    page.clock.run_for(60_000)
    give(page, answer(device(held=2 * GIB)), seconds=40)
    page.get_by_text("No figures").wait_for(state="hidden")
    assert path.get_attribute("d").count("M") == 2


# ---- with the real routes


@pytest.fixture
def real(segment: Path) -> Iterator[tuple[str, memledger.Ledger, list[Any]]]:
    """Our routes on a real ledger, behind the page."""
    ledger = memledger.join(label=HOSTILE[:40], role="host")
    calls: list[Any] = []

    class Server:
        routes = web.RouteTableDef()
        app = application()

    server = Server()
    assert routes.install(server, lambda: ledger, lambda **wanted: calls.append(wanted), 0.0)
    server.app.add_routes(server.routes)
    for route in server.routes:
        server.app.router.add_route(route.method, f"/api{route.path}", route.handler)
    with web_page.serve(server.app) as url:
        yield url, ledger, calls


def test_real_figures_reach_the_page_and_the_button_the_siblings(
    open_page: Open, real: Any, spawn: Callable[..., Any]
) -> None:
    url, ledger, calls = real
    ledger.device("sim:card?total=24GiB").publish(held=10 * GIB, releasable=4 * GIB)
    sibling = spawn("a sibling")
    sibling.call("open", "sim:card?total=24GiB")
    sibling.publish(3 * GIB)
    page = open_page(mount=False, path=f"{url}/")
    page.evaluate("mountReal()")
    page.get_by_role("heading", name="sim:card").wait_for()
    shown = figures(page)
    assert (shown["This server"], shown["Its workers"], shown["Releasable"]) == (
        "10.0 GiB", "3.0 GiB", "4.0 GiB",
    )  # fmt: skip
    assert page.locator("tbody .name").all_inner_texts() == [HOSTILE[:40], "a sibling"]
    page.get_by_role("button", name="Ask all").click()
    page.get_by_role("button", name="Unload everywhere").click()
    page.get_by_text("Asked this server and 1 other process.").wait_for()
    assert calls == [{"unload": True, "cache": True}]
    assert sibling.run("ledger.free_epoch()")[1] == 3


def test_a_page_of_another_site_cannot_make_anybody_free(
    chromium: Any, address: str, real: Any
) -> None:
    """What a hostile page can do without a preflight: forms, and fetch without CORS."""
    url, _, calls = real
    context = chromium.new_context()
    try:
        page = context.new_page()
        page.goto(f"{address}/")
        statuses = page.evaluate(
            """async (target) => {
              const tried = [];
              const types = ["text/plain", "application/x-www-form-urlencoded", "application/json"];
              for (const type of types) for (const mode of ["no-cors", "cors"]) {
                tried.push(await fetch(target, {
                  method: "POST", mode, headers: { "Content-Type": type }, body: "{}",
                }).then((r) => r.type, () => "refused"));
              }
              navigator.sendBeacon(target, new Blob(["{}"], { type: "application/json" }));
              const form = document.createElement("form");
              form.method = "post"; form.action = target; form.enctype = "text/plain";
              form.innerHTML = '<input name="{" value="}">';
              document.body.append(form); form.submit();
              return tried;
            }""",
            f"{url}/memledger/free",
        )
        page.wait_for_url(f"{url}/memledger/free")
        assert "application/json" in page.content(), "the form was refused in words"
        assert "refused" in statuses
        assert calls == []
    finally:
        context.close()


# ---- in ComfyUI's user interface


def test_side_bar_tab_mounts_once_and_goes(open_page: Open, real: Any) -> None:
    """ComfyUI calls render() again for the same element whenever it draws the side bar anew."""
    url, ledger, _ = real
    ledger.device("sim:card?total=24GiB")
    page = open_page(mount=False, path=f"{url}/ui")
    (tab,) = page.evaluate("tabs.map(({ id, type, icon, title }) => ({ id, type, icon, title }))")
    assert (tab["id"], tab["type"]) == ("memledger", "custom")
    page.evaluate("const side = document.querySelector('#side'); tabs[0].render(side)")
    page.get_by_role("heading", name="sim:card").wait_for()
    page.evaluate("window.first = document.querySelector('#side').firstChild")
    page.evaluate("tabs[0].render(document.querySelector('#side'))")
    assert page.get_by_role("heading", name="Memory").count() == 1
    assert page.evaluate("document.querySelector('#side').firstChild === first")
    page.evaluate("tabs[0].destroy()")
    assert page.get_by_role("heading", name="Memory").count() == 0
    page.evaluate("tabs[0].render(document.querySelector('#side'))")
    page.get_by_role("heading", name="sim:card").wait_for()


def test_menu_button_where_there_is_no_side_bar(open_page: Open, real: Any) -> None:
    url, ledger, _ = real
    ledger.device("sim:card?total=24GiB")
    page = open_page(mount=False, path=f"{url}/ui-old")
    page.evaluate("document.body.append(menu)")
    button = page.get_by_role("button", name="Memory", exact=True)
    button.focus()
    page.keyboard.press("Enter")
    page.get_by_role("heading", name="sim:card").wait_for()
    assert button.get_attribute("aria-expanded") == "true"
    page.get_by_role("button", name="Close").focus()
    page.keyboard.press("Escape")
    page.get_by_role("heading", name="sim:card").wait_for(state="hidden")
    assert button.get_attribute("aria-expanded") == "false"


# ---- a picture for the docs

BOTH_THEMES = """([themes, samples]) => {
  document.querySelector("#place").remove();
  document.body.style.cssText = "display: flex; margin: 0";
  for (const theme of themes) {
    const place = document.createElement("div");
    place.style.width = "330px";
    for (const [name, value] of Object.entries(theme)) place.style.setProperty(name, value);
    document.body.append(place);
    const history = panel.createHistory();
    for (const [ago, shown] of samples) history.add(Date.now() - ago * 1000, shown.devices);
    const fetchStats = async () => samples[samples.length - 1][1];
    panel.mountPanel(place, { fetchStats, history });
  }
}"""


def picture() -> list[tuple[int, Any]]:
    """A few minutes of a server, its worker and another server on one card: (seconds ago, stats)"""

    def at(seconds: int) -> Any:
        step = max(0, 280 - seconds)
        load = min(1.0, step / 40) * 9.5 if step < 170 else 6.0 + 3.5 * min(1.0, (step - 170) / 30)
        worker = 5.0 if step > 110 else 0.5
        held = [int(n * GIB) for n in (load, worker, 3.0)]
        rows = [
            member(0, "ComfyUI", "own", role="host", held=held[0], releasable=int(3.5 * GIB)),
            member(1, "video nodes", "group", held=held[1], releasable=2 * GIB,
                   claimed=int(1.5 * GIB)),
            member(2, "ComfyUI", role="host", held=held[2], pinned=GIB // 2, releasable=0),
        ]  # fmt: skip
        free = int(22.9 * GIB) - sum(held) - int(1.5 * GIB)
        card = device(
            "cuda:0", rows, held=sum(held), releasable=int(5.5 * GIB), claimed=int(1.5 * GIB),
            pinned=GIB // 2, unaccounted=int(1.1 * GIB), free=free, available=free + int(5.5 * GIB),
        )  # fmt: skip
        shown: Any = answer(card)
        return shown

    return [(seconds, at(seconds)) for seconds in range(280, -1, -2)]


def test_picture_for_the_docs(open_page: Open) -> None:
    """MEMLEDGER_PICTURES=<folder> keeps what this draws; docs/comfyui-panel.png is made so."""
    page = open_page(mount=False, device_scale_factor=1.5)
    page.set_viewport_size({"width": 660, "height": 735})
    page.evaluate(BOTH_THEMES, [[web_page.DARK, web_page.LIGHT], picture()])
    page.get_by_role("heading", name="cuda:0").nth(1).wait_for()
    drawn = page.screenshot()
    assert len(drawn) > 10_000
    folder = os.environ.get("MEMLEDGER_PICTURES")
    if folder:
        Path(folder, "comfyui-panel.png").write_bytes(drawn)
