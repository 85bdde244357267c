// The memory panel: who holds what on every device, drawn from GET /memledger/stats.
//
//   const { fetchStats, askFree } = connect((route, options) => fetch(route, options));
//   const panel = mountPanel(element, { fetchStats, askFree });
//   panel.destroy();
//
// Knows nothing of ComfyUI but its CSS variables. Everything that comes from the server is written
// by textContent: labels are chosen by other processes. An unknown figure is null and is shown as
// "unknown", never as 0. It polls while it is looked at, and not otherwise.

const SCHEMA = 1;
const POLL_MS = 2000;
const BACK_OFF_MAX_MS = 30000;
const FETCH_TIMEOUT_MS = 10000;
const HISTORY_MS = 5 * 60 * 1000;
const GAP_MS = 15000; // longer without a sample: the chart shows a gap
const OPEN_ROWS_MAX = 24; // with more processes in all, the tables start closed

const KINDS = {
  device: "GPU",
  sim: "simulated card",
  ram: "RAM",
  cgroup: "control group",
  pin: "budget for page-locked RAM",
};

const REASONS = {
  no_probe: "nothing here can read this device",
  probe_failed: "the driver did not answer",
  not_supported: "the driver has no such figure",
  no_permission: "this process may not read it",
  gpu_lost: "the GPU is gone",
  implausible: "the driver's answer cannot be true",
  suspended: "the GPU sleeps",
  stale: "the last reading is too old",
  idle: "nobody has asked lately",
  frozen: "the driver's figure does not move",
  private: "this process is not in the shared ledger",
};

const COLUMNS = [
  ["label", "Process"],
  ["held", "Held"],
  ["releasable", "Releas\u00adable"],
  ["claimed", "Claimed"],
  ["pinned", "Pinned"],
];

// ---- figures

const known = (n) => typeof n === "number" && Number.isFinite(n) && n >= 0;

/** Bytes for people: "12.3 GiB", "512 MiB", "0", "unknown". */
export function formatBytes(n) {
  if (!known(n)) return "unknown";
  if (n === 0) return "0";
  if (n >= 2 ** 30) return `${(n / 2 ** 30).toFixed(1)} GiB`;
  if (n >= 2 ** 20) return `${Math.round(n / 2 ** 20)} MiB`;
  return "< 1 MiB";
}

/** Bytes as GiB for a column: "12.3", "0.04", "0". */
function gib(n) {
  if (!known(n)) return "?";
  if (n === 0) return "0";
  const value = n / 2 ** 30;
  if (value < 0.005) return "<0.01";
  return value.toFixed(value < 9.995 ? 2 : 1);
}

function ago(seconds) {
  if (!known(seconds)) return "";
  if (seconds < 1) return "under a second ago";
  if (seconds < 90) return `${Math.round(seconds)} s ago`;
  return `${Math.round(seconds / 60)} min ago`;
}

const count = (n, one, many = `${one}s`) => `${n} ${n === 1 ? one : many}`;
const sum = (rows, field) => rows.reduce((all, row) => all + (known(row[field]) ? row[field] : 0), 0);

/** What a bar is made of, left to right: [part, bytes, look]. Parts of one holder: what is pinned,
 * what is neither, what is releasable. */
function segments(device) {
  const rows = list(device.members);
  const parts = [];
  let seen = 0;
  for (const who of ["own", "group", "other"]) {
    const of = rows.filter((row) => relation(row) === who);
    const held = sum(of, "held");
    const pinned = Math.min(held, sum(of, "pinned"));
    const releasable = Math.min(held - pinned, sum(of, "releasable"));
    parts.push([who, pinned, "pinned"], [who, held - pinned - releasable, ""], [who, releasable, "releasable"]);
    seen += held;
  }
  // Of members that are not in the list: they came or went between two looks.
  if (known(device.held) && device.held > seen) parts.push(["other", device.held - seen, ""]);
  parts.push(["claimed", device.claimed, ""], ["unaccounted", device.unaccounted, ""]);
  if (known(device.free) && known(device.unaccounted)) parts.push(["free", device.free, ""]);
  return parts.filter(([, bytes]) => known(bytes) && bytes > 0);
}

function relation(row) {
  return row.relation === "own" || row.relation === "group" ? row.relation : "other";
}

function list(value) {
  return Array.isArray(value) ? value : [];
}

function apart(device) {
  return sum([device], "reserved") + sum([device], "headroom");
}

// ---- the server

/** fetchStats and askFree over a fetch-like function of (route, options). */
export function connect(fetchRoute) {
  async function answer(response) {
    const body = await response.json().catch(() => null);
    if (response.ok && body) return body;
    if (response.status === 404) {
      throw new Error("This server has no memledger figures. It is off here, or did not start: see the log.");
    }
    const why = body && (body.degraded_reason || body.error);
    throw new Error(why ? String(why) : `The server answered with HTTP ${response.status}.`);
  }
  return {
    fetchStats: async ({ signal } = {}) => answer(await fetchRoute("/memledger/stats", { cache: "no-store", signal })),
    askFree: async () =>
      answer(
        await fetchRoute("/memledger/free", {
          method: "POST",
          headers: { "Content-Type": "application/json" },
          body: JSON.stringify({ unload: true, cache: true, scope: "all" }),
        }),
      ),
  };
}

/** Samples of the last minutes per device; outlives a panel that is closed and opened again. */
export function createHistory(spanMs = HISTORY_MS) {
  const series = new Map();
  return {
    spanMs,
    of: (key) => series.get(key) || [],
    add(now, devices) {
      for (const device of devices) {
        const held = known(device.held) ? device.held : null;
        const whole = known(device.unaccounted) && held !== null;
        const used = whole ? held + sum([device], "claimed") + device.unaccounted : null;
        if (!series.has(device.key)) series.set(device.key, []);
        series.get(device.key).push({ at: now, held, used });
      }
      for (const [key, samples] of series) {
        while (samples.length && samples[0].at < now - spanMs) samples.shift();
        if (!samples.length) series.delete(key);
      }
    },
  };
}

// ---- small DOM helpers

function el(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children);
  return node;
}

function svg(tag, attributes = {}) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  return node;
}

function write(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

function set(node, name, value) {
  if (node.getAttribute(name) !== value) node.setAttribute(name, value);
}

/** `parent`'s children become `nodes`, in that order, moving only what has to move: focus stays. */
function arrange(parent, nodes) {
  const wanted = new Set(nodes);
  for (const child of [...parent.children]) if (!wanted.has(child)) child.remove();
  nodes.forEach((node, index) => {
    if (parent.children[index] !== node) parent.insertBefore(node, parent.children[index] || null);
  });
}

let serial = 0;
const uid = (name) => `memledger-${name}-${(serial += 1)}`;

// ---- one device

function createChart(history, key) {
  const used = svg("path", { class: "used" });
  const held = svg("path", { class: "held" });
  const box = svg("svg", { class: "chart", viewBox: "0 0 100 100", preserveAspectRatio: "none", role: "img" });
  box.append(used, held);

  function outline(samples, field, now, top) {
    let path = "";
    let run = [];
    const close = () => {
      if (run.length) path += `M${run[0][0]} 100L${run.map((p) => p.join(" ")).join("L")}L${run[run.length - 1][0]} 100Z`;
      run = [];
    };
    let previous = null;
    for (const sample of samples) {
      const value = sample[field];
      if (value === null || (previous !== null && sample.at - previous > GAP_MS)) close();
      previous = sample.at;
      if (value === null) continue;
      const x = 100 - ((now - sample.at) / history.spanMs) * 100;
      run.push([x.toFixed(2), (100 - Math.min(1, value / top) * 100).toFixed(2)]);
    }
    close();
    return path;
  }

  function update(device, now) {
    const samples = history.of(key);
    const heights = samples.flatMap((s) => [s.held || 0, s.used || 0]);
    const top = Math.max(known(device.total) ? device.total : 0, ...heights, 1);
    set(held, "d", outline(samples, "held", now, top));
    set(used, "d", outline(samples, "used", now, top));
    const values = samples.map((s) => s.held).filter((n) => n !== null);
    const minutes = Math.round(history.spanMs / 60000);
    const range = values.length
      ? `held between ${formatBytes(Math.min(...values))} and ${formatBytes(Math.max(...values))}`
      : "nothing known";
    set(box, "aria-label", `Last ${minutes} minutes: ${range}`);
  }
  return { box, update };
}

function createTable(sorting) {
  const caption = el("caption", { class: "hidden" });
  const head = el("tr", { role: "row" });
  const body = el("tbody", { role: "rowgroup" });
  const rows = new Map();
  const cells = COLUMNS.map(([field, title]) => {
    const button = el("button", { type: "button", class: "sort" }, title);
    button.addEventListener("click", () => sorting.by(field));
    const cell = el("th", { scope: "col", role: "columnheader" }, button);
    head.append(cell);
    return [field, cell];
  });
  // The roles are those that the elements have by themselves, until CSS lays a narrow one out anew.
  const table = el("table", { role: "table" }, caption, el("thead", { role: "rowgroup" }, head), body);

  function createRow() {
    const name = el("span", { class: "name" });
    const about = el("span", { class: "about" });
    const figures = COLUMNS.slice(1).map(() => el("td", { role: "cell" }));
    const node = el("tr", { role: "row" }, el("th", { scope: "row", role: "rowheader" }, name, about), ...figures);
    return { node, name, about, figures };
  }

  function update(device) {
    const members = sorting.apply(list(device.members));
    write(caption, `Processes on ${device.name}, in GiB`);
    for (const [field, cell] of cells) {
      set(cell, "aria-sort", field !== sorting.field ? "none" : sorting.up ? "ascending" : "descending");
    }
    const shown = members.map((member) => {
      const key = `${member.slot} ${member.pid}`;
      if (!rows.has(key)) rows.set(key, createRow());
      const row = rows.get(key);
      write(row.name, String(member.label || "unnamed"));
      write(row.about, aboutMember(member));
      set(row.node, "class", `${relation(member)}${member.state === "dead" ? " dead" : ""}`);
      row.figures.forEach((cell, index) => write(cell, gib(member[COLUMNS[index + 1][0]])));
      return [key, row.node];
    });
    const current = new Set(shown.map(([key]) => key));
    for (const key of [...rows.keys()]) if (!current.has(key)) rows.delete(key);
    arrange(body, shown.map(([, node]) => node));
  }
  return { table, update };
}

function aboutMember(member) {
  const words = [`pid ${member.pid}`];
  if (member.role === "host" || member.role === "worker") words.push(String(member.role));
  if (relation(member) === "own") words.push("this server");
  if (relation(member) === "group") words.push("of this server");
  if (member.state === "dead") words.push("dead: goes with the next sweep");
  else if (member.state !== "live") words.push(String(member.state));
  return words.join(" · ");
}

function createSorting(changed) {
  const sorting = {
    field: "held",
    up: false,
    by(field) {
      sorting.up = sorting.field === field ? !sorting.up : field === "label";
      sorting.field = field;
      changed();
    },
    apply(members) {
      const { field, up } = sorting;
      const order = (a, b) =>
        field === "label" ? String(a.label).localeCompare(String(b.label)) : (a[field] || 0) - (b[field] || 0);
      return [...members].sort((a, b) => (up ? 1 : -1) * order(a, b) || a.slot - b.slot);
    },
  };
  return sorting;
}

function createCard(key, history, sorting, open) {
  const title = el("h3", { id: uid("device") });
  const kind = el("span", { class: "kind" });
  const free = el("p", { class: "free" });
  const alarm = el("p", { class: "alarm" });
  const bar = el("div", { class: "bar", role: "img" });
  const chart = createChart(history, key);
  const minutes = Math.round(history.spanMs / 60000);
  const axis = el("div", { class: "axis", "aria-hidden": "true" }, el("span", {}, `${minutes} min ago`), el("span", {}, el("i", { class: "held" }), "held", el("i", { class: "used" }), "all used"), el("span", {}, "now"));
  const legend = el("dl", { class: "legend" });
  const source = el("p", { class: "source" });
  const { table, update: updateTable } = createTable(sorting);
  const summary = el("summary");
  const details = el("details", open ? { open: "" } : {}, summary, table);
  let newest = null;
  details.addEventListener("toggle", () => newest && details.open && updateTable(newest));
  const node = el(
    "article", { "aria-labelledby": title.id },
    el("header", {}, title, kind), free, alarm, bar, legend, chart.box, axis, source, details,
  );
  const entries = new Map();

  function legendEntry(part, name) {
    if (!entries.has(part)) {
      const figure = el("dd");
      const swatch = el("span", { class: `swatch ${part}`, "aria-hidden": "true" });
      entries.set(part, [el("div", { class: `entry ${part}` }, el("dt", {}, swatch, name), figure), figure]);
    }
    return entries.get(part);
  }

  function updateLegend(device) {
    const rows = list(device.members);
    const pins = device.kind === "pin"; // all of it is pinned, and nothing of it unaccounted
    const held = (who) => sum(rows.filter((row) => relation(row) === who), "held");
    const others = known(device.held) ? Math.max(0, device.held - held("own") - held("group")) : held("other");
    const figures = [
      ["own", "This server", held("own"), true],
      ["group", "Its workers", held("group"), held("group") > 0],
      ["other", "Others", others, true],
      ["releasable", "Releasable", device.releasable, !pins],
      ["pinned", "Pinned", device.pinned, !pins],
      ["claimed", "Claimed", device.claimed, true],
      ["unaccounted", "Unaccounted", device.unaccounted, !pins],
      ["free", "Free", device.free, true],
      ["apart", "Set apart", apart(device), apart(device) > 0],
    ].filter(([, , , shown]) => shown);
    const nodes = figures.map(([part, name, bytes]) => {
      const [entry, figure] = legendEntry(part, name);
      write(figure, formatBytes(bytes));
      figure.classList.toggle("unknown", !known(bytes));
      return entry;
    });
    arrange(legend, nodes);
    return figures.map(([, name, bytes]) => `${name} ${formatBytes(bytes)}`).join(", ");
  }

  function updateBar(device, words) {
    const parts = segments(device);
    const used = parts.reduce((all, [, bytes]) => all + bytes, 0);
    // Where the whole is unknown, what is known takes some of the bar, and the rest says so.
    const measured = known(device.total);
    const whole = measured ? Math.max(device.total, used) : Math.max(used * 1.6, 1);
    if (!measured) parts.push(["unknown", whole - used, ""]);
    bar.classList.toggle("unmeasured", !measured);
    while (bar.children.length < parts.length) bar.append(el("span"));
    while (bar.children.length > parts.length) bar.lastChild.remove();
    parts.forEach(([part, bytes, look], index) => {
      set(bar.children[index], "class", `segment ${part} ${look}`);
      bar.children[index].style.width = `${(bytes / whole) * 100}%`;
      write(bar.children[index], part === "unknown" ? "unknown" : "");
    });
    const over = measured && used > device.total && device.overcommitted > 0;
    bar.classList.toggle("over", over);
    bar.style.setProperty("--limit", over ? `${(device.total / whole) * 100}%` : "100%");
    set(bar, "aria-label", `${device.name}, total ${formatBytes(device.total)}: ${words}`);
  }

  function update(device, now) {
    newest = device;
    write(title, String(device.name));
    set(title, "title", String(device.key));
    write(kind, KINDS[device.kind] || String(device.kind));
    const all = known(device.available) && device.available !== device.free ? `, ${formatBytes(device.available)} if all give back what they can` : "";
    write(
      free,
      known(device.free) || known(device.total)
        ? `${formatBytes(device.free)} free of ${formatBytes(device.total)}${all}`
        : "Free and total are unknown",
    );
    const over = known(device.overcommitted) && device.overcommitted > 0;
    write(alarm, over ? `Overcommitted by ${formatBytes(device.overcommitted)}: more is held and claimed than there is` : "");
    node.classList.toggle("overcommitted", over);
    updateBar(device, updateLegend(device));
    chart.update(device, now);
    write(source, aboutReading(device));
    write(summary, count(list(device.members).length, "process", "processes"));
    if (details.open) updateTable(device);
  }
  return { node, update };
}

function aboutReading(device) {
  const { source, scope, age_s: age, reason } = device.reading || {};
  const words = [];
  if (source) words.push(source === "ledger" ? "From a configured total" : `Read by ${source}`);
  else words.push(device.kind === "pin" ? "From the ceilings that members set" : "No reading");
  if (scope === "process") words.push("as this process sees it");
  if (source && ago(age)) words.push(ago(age));
  let text = words.join(", ");
  if (reason && device.kind !== "pin") text += `: ${REASONS[reason] || reason}`;
  if (device.complete === false && scope !== "process" && !reason) text += "; not everybody is in these figures";
  return `${text}.`;
}

// ---- the button

function createFreeButton(askFree, announce, refresh) {
  const button = el("button", { type: "button", class: "main" }, "Ask all to free memory…");
  const yes = el("button", { type: "button", class: "main danger" }, "Unload everywhere");
  const no = el("button", { type: "button" }, "Cancel");
  const text = el("p", { id: uid("question") });
  const question = el("div", { class: "question", role: "group", "aria-labelledby": text.id }, text, el("div", { class: "buttons" }, no, yes));
  question.hidden = true;
  const node = el("div", { class: "ask" }, button, question);
  let others = 0;

  function show(open, focus) {
    question.hidden = !open;
    button.hidden = open;
    if (open) {
      write(
        text,
        `This server and ${count(others, "other process", "other processes")} will drop their models and caches ` +
          "as soon as each can, those of other ComfyUI servers too. Models are loaded again when they are needed.",
      );
    }
    if (focus) (open ? no : button).focus();
  }
  button.addEventListener("click", () => show(true, true));
  no.addEventListener("click", () => show(false, true));
  question.addEventListener("keydown", (event) => {
    if (event.key !== "Escape") return;
    event.stopPropagation();
    show(false, true);
  });
  yes.addEventListener("click", async () => {
    show(false, true);
    button.setAttribute("aria-disabled", "true");
    announce("Asking…", "");
    try {
      announce(...answerText(await askFree()));
      refresh();
    } catch (error) {
      announce(`Nobody was asked: ${error.message}`, "bad");
    }
    button.removeAttribute("aria-disabled");
  });
  button.addEventListener("click", (event) => {
    if (button.getAttribute("aria-disabled")) event.stopImmediatePropagation();
  }, { capture: true });
  return { node, update: (n) => (others = n) };
}

function answerText(answer) {
  const errors = list(answer.errors).map(String);
  const asked = [];
  if (answer.own) asked.push("this server");
  if (answer.asked) asked.push(count(answer.siblings, "other process", "other processes"));
  const done = asked.length ? `Asked ${asked.join(" and ")}. Each frees as soon as it can.` : "Nobody was asked.";
  return [[done, ...errors].join(" "), errors.length ? "bad" : ""];
}

// ---- the panel

/**
 * Draw the panel into `element` and keep it fresh while somebody looks.
 *
 * fetchStats({signal}): a promise of what GET /memledger/stats serves. askFree(): one of the answer
 * of POST /memledger/free. history: from createHistory(), to keep it over several panels.
 * Returns {destroy()}.
 */
export function mountPanel(element, { fetchStats, askFree, history = createHistory(), pollMs = POLL_MS }) {
  const host = el("div");
  const root = host.attachShadow({ mode: "open" });
  const summary = el("p", { class: "summary" });
  const notice = el("p", { class: "notice", role: "status" });
  const retry = el("button", { type: "button" }, "Try again");
  const answer = el("p", { class: "answer", role: "status" });
  const devices = el("div", { class: "devices" });
  const sorting = createSorting(() => draw());
  const ask = createFreeButton(askFree, (text, look) => {
    write(answer, text);
    set(answer, "class", `answer ${look}`);
  }, () => poll());
  const panel = el(
    "section", { class: "panel", "aria-label": "Memory of all processes" },
    el("h2", {}, "Memory"), summary, notice, retry, ask.node, answer, devices,
  );
  root.append(el("style", {}, STYLE), panel);
  element.append(host);

  const cards = new Map();
  let data = null;
  let dataAt = 0;
  let problem = null;
  let failures = 0;
  let timer = 0;
  let fetching = null;
  let visible = true;
  let destroyed = false;

  const looking = () => !destroyed && visible && !document.hidden && host.isConnected;

  function draw() {
    const off = data && data.status === "off";
    const figures = data && !off ? data : null;
    panel.classList.toggle("stale", Boolean(problem && figures));
    write(notice, noticeText());
    set(notice, "class", `notice ${problem ? "bad" : figures && figures.status === "degraded" ? "warn" : ""}`);
    notice.hidden = !notice.textContent;
    retry.hidden = !problem && !off;
    ask.node.hidden = !figures;
    summary.hidden = !figures;
    if (figures) drawFigures(figures);
    else arrange(devices, []);
  }

  function drawFigures(figures) {
    const members = list(figures.members).filter((member) => member.state !== "dead");
    ask.update(Math.max(0, members.length - 1));
    const counters = figures.counters || {};
    const words = [count(members.length, "process", "processes"), count(list(figures.devices).length, "device")];
    if (counters.ooms > 0) words.push(count(counters.ooms, "out-of-memory event"));
    if (counters.claims_refused > 0) words.push(count(counters.claims_refused, "claim refused", "claims refused"));
    write(summary, words.join(" · "));
    const rows = list(figures.devices).reduce((all, device) => all + list(device.members).length, 0);
    const nodes = list(figures.devices).map((device) => {
      const key = String(device.key);
      if (!cards.has(key)) cards.set(key, createCard(key, history, sorting, rows <= OPEN_ROWS_MAX));
      cards.get(key).update(device, dataAt);
      return [key, cards.get(key).node];
    });
    const current = new Set(nodes.map(([key]) => key));
    for (const key of [...cards.keys()]) if (!current.has(key)) cards.delete(key);
    arrange(devices, nodes.map(([, node]) => node));
  }

  function noticeText() {
    if (problem) {
      const when = data && data.status !== "off" ? ` These figures are of ${new Date(dataAt).toLocaleTimeString()}.` : "";
      return `No figures: ${problem}${when}`;
    }
    if (!data) return "Loading…";
    if (data.status === "off") return `memledger is off. ${data.degraded_reason || ""}`;
    if (data.status === "degraded") return `Degraded: ${data.degraded_reason || "no reason given"}`;
    if (data.complete === false) return "Processes of another memledger version are not in these figures.";
    if (!list(data.devices).length) return "No process has opened a device yet.";
    return "";
  }

  function rest() {
    clearTimeout(timer);
    timer = 0;
  }

  async function poll() {
    rest();
    if (fetching || !looking()) return;
    const controller = (fetching = new AbortController());
    const watchdog = setTimeout(() => controller.abort(), FETCH_TIMEOUT_MS);
    try {
      const fresh = await fetchStats({ signal: controller.signal });
      if (!fresh || fresh.schema !== SCHEMA) throw new Error("The server is of another version: reload the page.");
      [data, dataAt, problem, failures] = [fresh, Date.now(), null, 0];
      history.add(dataAt, list(fresh.devices));
    } catch (error) {
      failures += 1;
      problem = error.name === "AbortError" ? "The server did not answer in time." : error.message;
    }
    clearTimeout(watchdog);
    fetching = null;
    if (destroyed) return;
    draw();
    if (looking()) timer = setTimeout(poll, Math.min(pollMs * 2 ** failures, Math.max(pollMs, BACK_OFF_MAX_MS)));
  }

  function attend() {
    if (!looking()) rest();
    else if (!timer) poll();
  }

  retry.addEventListener("click", poll);
  document.addEventListener("visibilitychange", attend);
  // Tells of a panel that is closed, hidden or taken out of the page, and of one that comes back.
  const observer = new IntersectionObserver((entries) => {
    visible = entries[entries.length - 1].isIntersecting;
    attend();
  });
  observer.observe(host);
  draw();
  poll();

  return {
    destroy() {
      destroyed = true;
      rest();
      if (fetching) fetching.abort();
      observer.disconnect();
      document.removeEventListener("visibilitychange", attend);
      host.remove();
    },
  };
}

const STYLE = `
:host {
  display: block; container-type: inline-size;
  --fg: var(--fg-color, CanvasText); --bg: var(--comfy-menu-bg, Canvas);
  --muted: color-mix(in srgb, var(--fg) 72%, var(--bg)); --line: var(--border-color, GrayText);
  --own: #2f7fd6; --group: #12907f; --other: #9a6dd7; --claimed: #c27c0e; --unaccounted: #8a8a8a;
  --bad: var(--error-text, #e5484d);
  --hatch: repeating-linear-gradient(135deg, rgb(255 255 255 / 55%) 0 2px, transparent 2px 6px);
}
* { box-sizing: border-box; }
[hidden], .hidden { display: none !important; }
caption.hidden {
  display: block !important; position: absolute; width: 1px; height: 1px; overflow: hidden; clip-path: inset(50%);
}
.panel { padding: 12px; color: var(--fg); background: var(--bg); min-height: 100%;
  font-size: 13px; line-height: 1.45; overflow-wrap: anywhere; }
h2, h3, p, dl, dd { margin: 0; }
h2 { font-size: 16px; font-weight: 600; }
h3 { font-size: 14px; font-weight: 600; }
p.summary, p.free, .source, .kind, .axis { color: var(--muted); font-size: 12px; }
.notice, .answer { font-size: 12px; }
.notice:not(:empty), .answer:not(:empty) { margin-top: 8px; padding: 6px 8px;
  border-left: 3px solid var(--own); background: color-mix(in srgb, var(--fg) 7%, transparent); }
.notice.warn { border-left-color: var(--claimed); }
.notice.bad, .answer.bad { border-left-color: var(--bad); }
.alarm:empty { display: none; }
.alarm { margin-top: 4px; padding: 2px 8px; font-size: 12px; font-weight: 600;
  border-left: 3px solid var(--bad); background: color-mix(in srgb, var(--bad) 18%, transparent); }

button { font: inherit; color: var(--input-text, ButtonText); background: var(--comfy-input-bg, ButtonFace);
  border: 1px solid var(--line); border-radius: 6px; padding: 5px 10px; cursor: pointer; min-height: 28px; }
button:hover { border-color: var(--fg); }
button[aria-disabled] { opacity: .6; cursor: default; }
.danger { border-color: var(--bad); }
:focus-visible { outline: 2px solid var(--own); outline-offset: 2px; border-radius: 4px; }
.panel > button, .ask { margin-top: 10px; }
.ask > .main { width: 100%; }
.question { border: 1px solid var(--line); border-radius: 8px; padding: 10px; font-size: 12px; }
.buttons { display: flex; flex-wrap: wrap; gap: 8px; margin-top: 8px; }

.devices { display: grid; gap: 12px; margin-top: 12px; }
.stale .devices { opacity: .55; }
article { border: 1px solid var(--line); border-radius: 8px; padding: 10px; min-width: 0;
  background: color-mix(in srgb, var(--fg) 3%, transparent); }
article.overcommitted { border-color: var(--bad); }
article header { display: flex; flex-wrap: wrap; gap: 0 8px; align-items: baseline; justify-content: space-between; }

.bar { position: relative; display: flex; height: 22px; margin-top: 8px; overflow: hidden; border-radius: 5px;
  border: 1px solid var(--line); background: color-mix(in srgb, var(--fg) 6%, transparent); forced-color-adjust: none; }
.bar.unmeasured { border-style: dashed; }
.bar.over::after { content: ""; position: absolute; inset-block: 0; left: var(--limit); width: 2px; margin-left: -1px;
  background: var(--bad); box-shadow: 0 0 0 1px var(--bg); }
.segment { flex: none; height: 100%; }
.swatch { display: inline-block; flex: none; width: 11px; height: 11px; border-radius: 3px; forced-color-adjust: none; }
.own { --colour: var(--own); } .group { --colour: var(--group); } .other { --colour: var(--other); }
.segment.own, .segment.group, .segment.other, .swatch.own, .swatch.group, .swatch.other { background-color: var(--colour); }
.segment.releasable { background-image: var(--hatch); }
.segment.pinned { box-shadow: inset 0 -6px 0 0 rgb(0 0 0 / 55%); }
.segment.claimed, .swatch.claimed { background:
  radial-gradient(circle, rgb(0 0 0 / 45%) 1px, transparent 1.5px) 0 0 / 5px 5px, var(--claimed); }
.segment.unknown { flex: 1; min-width: 0; overflow: hidden; text-align: center; font-size: 11px; font-style: italic; line-height: 20px;
  color: var(--muted); white-space: nowrap; }
.segment.unaccounted, .swatch.unaccounted { background: var(--unaccounted); }
.swatch.free { border: 1px solid var(--muted); }
.swatch.apart { border: 1px dotted var(--muted); }
.swatch.releasable { background: var(--hatch), var(--unaccounted); }
.swatch.pinned { background: linear-gradient(to top, rgb(0 0 0 / 65%) 40%, transparent 40%), var(--unaccounted); }

.legend { display: grid; grid-template-columns: repeat(auto-fill, minmax(150px, 1fr)); gap: 2px 16px; margin-top: 8px; font-size: 12px; }
.entry { display: flex; justify-content: space-between; gap: 8px; }
.entry dt { display: flex; align-items: center; gap: 6px; color: var(--muted); }
.entry dd { font-variant-numeric: tabular-nums; white-space: nowrap; }
dd.unknown { font-style: italic; }

.chart { display: block; width: 100%; height: 36px; margin-top: 8px; border-bottom: 1px solid var(--line);
  background: color-mix(in srgb, var(--fg) 4%, transparent); forced-color-adjust: none; }
.chart .used { fill: color-mix(in srgb, var(--fg) 30%, var(--bg)); }
.chart .held { fill: color-mix(in srgb, var(--fg) 62%, var(--bg)); }
.axis i { display: inline-block; width: 9px; height: 9px; margin: 0 4px 0 0; border-radius: 2px; forced-color-adjust: none; }
.axis .held ~ .used { margin-left: 10px; }
.axis .used { background: color-mix(in srgb, var(--fg) 30%, var(--bg)); }
.axis .held { background: color-mix(in srgb, var(--fg) 62%, var(--bg)); }
.axis { display: flex; flex-wrap: wrap; justify-content: space-between; gap: 0 8px; font-size: 11px; white-space: nowrap; }
.source { margin-top: 4px; }

details { margin-top: 6px; }
summary { cursor: pointer; padding: 3px 0; font-size: 12px; font-weight: 600; }
table { width: 100%; border-collapse: collapse; font-size: 12px; margin-top: 2px; }
tr { border-top: 1px solid color-mix(in srgb, var(--line) 60%, transparent); }
thead tr { border-top: 0; }
th, td { padding: 3px 4px; text-align: right; vertical-align: top; font-variant-numeric: tabular-nums; }
td { white-space: nowrap; }
td, th[scope=col] { overflow-wrap: normal; }
th:first-child { text-align: left; font-weight: inherit; padding-left: 0; }
th[scope=row] { border-left: 3px solid var(--colour); padding-left: 6px; }
.name { display: block; unicode-bidi: isolate; max-height: 4.4em; overflow: hidden; }
.about { display: block; color: var(--muted); font-size: 11px; }
tr.dead .name { text-decoration: line-through; }
.sort { border: 0; background: none; color: var(--muted); padding: 2px 0; min-height: 24px; font-size: 11px; border-radius: 3px; }
.sort:hover { color: var(--fg); text-decoration: underline; }
[aria-sort=ascending] .sort, [aria-sort=descending] .sort { color: var(--fg); font-weight: 600; }
[aria-sort=ascending] .sort::after { content: "\\a0↑"; }
[aria-sort=descending] .sort::after { content: "\\a0↓"; }

@container (max-width: 440px) {
  table, thead, tbody { display: block; }
  tr { display: grid; grid-template-columns: repeat(4, minmax(0, 1fr)); padding: 3px 0; }
  th:first-child { grid-column: 1 / -1; }
  th, td { padding-block: 1px; }
  thead th { padding-block: 0; }
}
@container (max-width: 260px) {
  .panel { padding: 8px; }
  article { padding: 8px; }
  .axis :nth-child(2) { order: 3; flex: 1 0 100%; }
  tr { grid-template-columns: repeat(2, minmax(0, 1fr)); }
}
@media (prefers-reduced-motion: no-preference) {
  .segment { transition: width .3s ease-out; }
}
`;
