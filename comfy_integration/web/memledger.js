// Puts the memory panel into ComfyUI: a tab of the side bar, or, where there is none, a button in
// the menu. ComfyUI loads every .js file of this folder; panel.js does nothing by itself.

import { connect, createHistory, mountPanel } from "./panel.js";

const TAB = { id: "memledger", icon: "pi pi-chart-bar", title: "Memory", tooltip: "Memory of all processes" };

/** ComfyUI's `app`; null outside of it. */
async function findApp() {
  if (globalThis.comfyAPI?.app?.app) return globalThis.comfyAPI.app.app;
  try {
    return (await import("../../scripts/app.js")).app; // user interfaces from before comfyAPI
  } catch {
    return null;
  }
}

/** Through ComfyUI's own fetch, which knows its base path, its user and its login. */
function routes(app) {
  const api = app.api ?? globalThis.comfyAPI?.api?.api;
  if (api?.fetchApi) return (route, options) => api.fetchApi(route, options);
  return (route, options) => fetch(new URL(`../..${route}`, import.meta.url), options);
}

/** Panels by element: the side bar renders the same one again whenever it is drawn anew. */
function createMounting(app) {
  const history = createHistory();
  const server = connect(routes(app));
  let shown = null;
  return {
    render(element) {
      if (shown?.element === element && element.firstChild) return;
      shown?.panel.destroy();
      shown = { element, panel: mountPanel(element, { ...server, history }) };
    },
    destroy() {
      shown?.panel.destroy();
      shown = null;
    },
  };
}

/** For menus of old: a button that opens and closes a window over the graph. */
function addMenuButton(app, mounting) {
  const menu = app.ui?.menuContainer;
  if (!menu) return;
  const button = document.createElement("button");
  button.textContent = "Memory";
  button.setAttribute("aria-expanded", "false");
  const place = document.createElement("div");
  const close = document.createElement("button");
  close.textContent = "Close";
  const frame = document.createElement("dialog");
  frame.setAttribute("aria-label", TAB.tooltip);
  frame.style.cssText =
    "position:fixed;inset:16px auto auto 16px;margin:0;width:360px;max-width:90vw;max-height:85vh;overflow:auto;" +
    "padding:0;z-index:1001;border:1px solid var(--border-color);background:var(--comfy-menu-bg);color:var(--fg-color)";
  frame.append(close, place);
  const toggle = (open) => {
    button.setAttribute("aria-expanded", String(open));
    if (open) {
      if (!frame.isConnected) document.body.append(frame);
      frame.show();
      mounting.render(place);
    } else {
      mounting.destroy();
      frame.close();
      button.focus();
    }
  };
  button.addEventListener("click", () => toggle(!frame.open));
  close.addEventListener("click", () => toggle(false));
  frame.addEventListener("keydown", (event) => event.key === "Escape" && toggle(false));
  menu.append(button);
}

function register(app) {
  app.registerExtension({
    name: "memledger.panel",
    async setup() {
      const mounting = createMounting(app);
      if (app.extensionManager?.registerSidebarTab) {
        app.extensionManager.registerSidebarTab({ ...TAB, type: "custom", ...mounting });
      } else {
        addMenuButton(app, mounting);
      }
    },
  });
}

// A pack can be listed under two addresses: its folder's name and its project's.
const ONCE = Symbol.for("memledger.panel");
if (!globalThis[ONCE]) {
  globalThis[ONCE] = true;
  const app = await findApp();
  if (app) register(app);
}
