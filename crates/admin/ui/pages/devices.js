// Devices: how many are connected and where, who comes and goes, and a search by the start of their ids.
//
// Connects and disconnects are counted in this page from the stream of events, which is open while the page is; hostile ids
// are treated as plain text.

import { get, path_of } from "../api.js";
import { badge, time_chart } from "../chart.js";
import { h, link, put, set } from "../dom.js";
import { ago, clock, count, plural, short } from "../format.js";
import { card, chips, empty, failure_view, loading, page_head, search_field, table } from "../parts.js";

const REFRESH_MS = 5000;
const EVENTS_SHOWN = 30;
const SECONDS_KEPT = 900;
const PAGE_SIZE = 50;

export const title = () => "Devices";

export async function show({ root, query, app, signal }) {
  let prefix = query.get("prefix") ?? "";
  let online = query.get("online") !== "false";
  let page = query.get("page") ?? "";
  const summary = h("p", { class: "quiet", role: "status" });
  const list = h("div", { class: "device-list" }, loading("Loading devices"));
  const feed = h("ol", { class: "device-events", "aria-label": "Connects and disconnects" });
  const chart = time_chart({
    title: "Connects and disconnects per second",
    note: "since this page was opened",
    format: short,
    height: 150,
    series: [
      { key: "connects", name: "connects", tone: "traffic", area: true },
      { key: "disconnects", name: "disconnects", tone: "bad" },
    ],
  });
  const toggle = h("button", { type: "button", onclick: () => look({ online: !online }) }, "Offline only");
  const search = search_field({
    label: "Search devices by the start of their id",
    placeholder: "Start of an id …",
    value: prefix,
    wait_ms: 300,
    on_search: (text) => look({ prefix: text }),
  });
  put(root, page_head("Devices", { lead: "Devices that are connected to this gateway." }));
  const status = await app.known().catch(() => null);
  if (signal.aborted) return;
  if (status && !status.devices) {
    put(root, page_head("Devices"), empty("Devices are not enabled", "Add gateway.devices to the configuration."));
    return;
  }
  root.append(
    h(
      "div",
      { class: "grid" },
      h("section", { class: "card" }, chart.element),
      card("Live events", feed, { note: "latest first" }),
    ),
    h("div", { class: "toolbar" }, search, toggle, summary),
    list,
  );

  function look(change) {
    prefix = change.prefix ?? prefix;
    online = change.online ?? online;
    page = change.page ?? "";
    app.remember(["devices"], { prefix, online: online ? "" : "false", page });
    app.replaced();
    if (change.prefix !== undefined) follow();
    load();
  }

  async function load() {
    set(toggle, "aria-pressed", String(!online));
    toggle.classList.toggle("is-primary", !online);
    const asked = { prefix, online: String(online), page, page_size: PAGE_SIZE };
    try {
      const found = await get(path_of("/v1/devices", [], asked), signal);
      // Do not redraw the list while it has keyboard focus.
      if (!list.contains(document.activeElement)) put(list, view(found));
      put(summary, `${plural(found.connected, "device")} connected`);
    } catch (failure) {
      if (failure.name === "AbortError") return;
      put(list, failure_view(failure, "Loading devices", load));
    }
  }

  function view({ devices, next_page }) {
    if (!devices.length) {
      return empty(
        online ? "No device is connected" : "No disconnected device is known",
        prefix ? `Only ids that start with ${prefix} are searched.` : null,
      );
    }
    return [
      by_node(devices),
      table("Devices", online ? CONNECTED : AWAY, devices),
      h(
        "nav",
        { class: "pager", "aria-label": "Pages" },
        page && h("button", { type: "button", onclick: () => (leave_list(), look({ page: "" })) }, "First"),
        next_page && h("button", { type: "button", onclick: () => (leave_list(), look({ page: next_page })) }, "Next"),
      ),
    ];
  }
  const leave_list = () => document.activeElement.blur();

  const second_of = () => Math.floor(Date.now() / 1000);
  let seconds = [{ t: second_of(), connects: 0, disconnects: 0 }];
  let events = [];
  let stream = null;
  function follow() {
    stream?.close();
    stream = new EventSource(path_of("/v1/device-events", [], { prefix }));
    stream.addEventListener("connect", ({ data }) => happened("connects", data));
    stream.addEventListener("disconnect", ({ data }) => happened("disconnects", data));
  }
  function happened(kind, data) {
    let event;
    try {
      event = JSON.parse(data);
    } catch {
      return;
    }
    now()[kind] += 1;
    events = [{ ...event, kind }, ...events].slice(0, EVENTS_SHOWN);
  }
  function now() {
    const t = second_of();
    while (seconds.at(-1).t < t) {
      const last = Math.max(seconds.at(-1).t, t - SECONDS_KEPT);
      seconds.push({ t: last + 1, connects: 0, disconnects: 0 });
    }
    seconds = seconds.slice(-SECONDS_KEPT);
    return seconds.at(-1);
  }
  // The current second is not drawn: its count is not complete yet.
  const draw = () => {
    now();
    chart.update(seconds.slice(0, -1));
    put(feed, events.length ? events.map(event_view) : h("li", { class: "quiet" }, "Nothing yet"));
  };
  draw();
  const tick = setInterval(draw, 1000);
  const timer = setInterval(() => !document.hidden && load(), REFRESH_MS);
  // A browser allows six connections to one address: a closed page must not keep one.
  const leave = () => stream?.close();
  addEventListener("pagehide", leave);
  signal.addEventListener("abort", () => {
    clearInterval(tick);
    clearInterval(timer);
    removeEventListener("pagehide", leave);
    leave();
  });
  follow();
  await load();
}

const CONNECTED = [
  { title: "Id", show: ({ id }) => link(["devices", id], id) },
  { title: "Node", show: ({ node }) => node },
  { title: "Since", show: ({ since }) => ago(since) },
  { title: "Address", show: ({ address }) => address },
  { title: "Route", show: ({ route }) => route },
  { title: "Protocol", show: ({ protocol }) => protocol },
  { title: "Labels", show: ({ labels }) => chips(label_words(labels)) },
];

const AWAY = [
  { title: "Id", show: ({ id }) => link(["devices", id], id) },
  { title: "Last seen", show: ({ last_seen }) => ago(last_seen) },
];

const label_words = (labels) => Object.entries(labels ?? {}).map(([name, value]) => `${name}=${value}`);

/** How many of the listed devices are on each node. */
function by_node(devices) {
  const sums = new Map();
  for (const { node } of devices) if (node !== undefined) sums.set(node, (sums.get(node) ?? 0) + 1);
  const words = [...sums].map(([node, number]) => `${node}: ${count(number)}`);
  return words.length > 0 && h("p", { class: "quiet" }, "On this page, by node: ", chips(words, { most: 20 }));
}

const event_view = ({ id, kind, at, reason }) =>
  h(
    "li",
    {},
    h("time", { class: "quiet" }, clock(Date.parse(at) / 1000)),
    kind === "connects" ? badge("good", "connect") : badge("away", reason ?? "disconnect"),
    link(["devices", String(id)], String(id)),
  );
