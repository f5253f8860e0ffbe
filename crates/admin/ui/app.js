// Starts the dashboard: session, navigation, and which page is shown.
//
// A page is a module of `pages/` with `title` and `show({root, params, query, app, signal})`; what it starts it ends when
// `signal` aborts. The address is the hash, so every page can be kept and sent. A hash without a slash is a one-use token.

import { ask, get, rejected_of, session, sign_in, sign_out, source_of, when_signed_out } from "./api.js";
import { icon } from "./chart.js";
import { address, append, h, put, set } from "./dom.js";
import { live, stop, watch, when_refused } from "./live.js";
import { confirm, failure_view, loading, notice, page_head } from "./parts.js";

const NAVIGATION = [
  [
    null,
    [
      ["overview", "Overview"],
      ["routes", "Routes"],
      ["slow", "Slow requests"],
      ["explain", "Explain"],
      ["upstreams", "Upstreams"],
      ["devices", "Devices"],
    ],
  ],
  [
    "Access",
    [
      ["consumers", "Consumers"],
      ["certificates", "Certificates"],
    ],
  ],
  [
    "Operation",
    [
      ["fleet", "Fleet"],
      ["cardinality", "Cardinality"],
      ["profiles", "Profiles"],
      ["lua", "Lua"],
      ["status", "Status"],
      ["resources", "All resources"],
    ],
  ],
];

/** Page by the first segment and the number of segments: its module. */
const PAGES = [
  [/^overview$/, "overview"],
  [/^routes$/, "routes"],
  [/^routes\/[^/]+$/, "route"],
  [/^slow$/, "slow"],
  [/^explain$/, "explain"],
  [/^upstreams$/, "upstreams"],
  [/^devices$/, "devices"],
  [/^devices\/[^/]+$/, "device"],
  [/^consumers$/, "consumers"],
  [/^consumers\/[^/]+$/, "consumer"],
  [/^certificates$/, "certificates"],
  [/^fleet$/, "fleet"],
  // Its former address is in links that people keep.
  [/^(cardinality|metrics)$/, "cardinality"],
  [/^profiles$/, "profiles"],
  [/^lua$/, "lua"],
  [/^status$/, "status"],
  [/^history\/[^/]+$/, "revision"],
  [/^resources(\/[^/]+)?$/, "resources"],
  [/^(edit|new)\/.+$/, "edit"],
];

const OVER = "Your session has ended. Sign in again to continue.";

const main = document.getElementById("main");
const side = document.getElementById("side");
const top_bar = document.getElementById("top");
const toasts = document.getElementById("toasts");

const app = {
  session: null,
  status: null,
  source: { kind: "file", path: null, revision: null, writable: false, trouble: null },
  /** Whether this session may change resources here. */
  get can_write() {
    return this.session?.role === "admin" && this.source.writable;
  },
  go(segments, parameters) {
    location.hash = address(segments, parameters);
  },
  /** Changes parameters of the address without leaving the page. */
  remember(segments, parameters) {
    history.replaceState(null, "", address(segments, parameters));
  },
  /** Says something that has happened. */
  tell(text) {
    const toast = h("p", { class: "toast" }, icon("good"), text);
    toasts.append(toast);
    setTimeout(() => toast.remove(), 6000);
  },
  /** The status, asked for if it is not known yet. */
  async known() {
    return this.status ?? this.refresh();
  },
  /** Asks for the status anew. */
  async refresh() {
    this.status = await get("/v1/status");
    this.source = source_of(this.status);
    show_source();
    return this.status;
  },
  /** A page that holds changes not saved asks before it is left. */
  guard: null,
};

let ending = null;
let shown_hash = null;

async function start() {
  const hash = location.hash.slice(1);
  if (hash && !hash.startsWith("/") && hash !== "main") {
    // The token goes out of the address first: it must not stay in the browser's history.
    history.replaceState(null, "", "#/overview");
    try {
      app.session = await sign_in({ token: hash });
    } catch (failure) {
      if (await try_session()) return enter();
      return sign_in_page(
        failure.status === 401 || failure.status === 403
          ? "This link has been used or has expired. Sign in with a key, or run stillgate demo again for a new link."
          : failure.message,
      );
    }
    return enter();
  }
  if (await try_session()) return enter();
  if (!main.querySelector(".notice.is-bad")) sign_in_page();
}

async function try_session() {
  try {
    app.session = await session();
  } catch (failure) {
    put(
      main,
      failure_view(failure, "Loading the session", () => location.reload()),
    );
    return false;
  }
  return Boolean(app.session);
}

async function enter() {
  document.body.classList.add("is-in");
  draw_shell();
  when_signed_out(() => app.session && signed_out(OVER));
  when_refused(async () => {
    const found = await session().catch(() => app.session);
    if (app.session && !found) signed_out(OVER);
  });
  app.refresh().catch(() => {});
  await navigate();
}

async function sign_in_page(message) {
  document.body.classList.remove("is-in");
  end_page();
  const { show } = await import("./pages/sign_in.js");
  put(main);
  show({
    root: main,
    message,
    done: (found) => {
      app.session = found;
      enter();
    },
  });
}

function signed_out(message) {
  app.session = null;
  stop();
  app.guard = null;
  shown_hash = null;
  put(side);
  [...top_bar.children].slice(1).forEach((one) => one.remove());
  sign_in_page(message);
}

function draw_shell() {
  const menu = h(
    "button",
    {
      type: "button",
      class: "icon-button menu-button",
      "aria-expanded": "false",
      "aria-controls": "side",
      onclick: () => open_menu(menu.getAttribute("aria-expanded") !== "true"),
    },
    icon("menu"),
    h("span", { class: "visually-hidden" }, "Pages"),
  );
  const open_menu = (is_open) => {
    set(menu, "aria-expanded", String(is_open));
    document.body.classList.toggle("is-menu-open", is_open);
    if (is_open) side.querySelector("a")?.focus();
  };
  app.close_menu = () => open_menu(false);
  [...top_bar.children].slice(1).forEach((one) => one.remove());
  append(top_bar, [
    h("div", { class: "top-source", id: "source" }),
    h("div", { class: "top-live", id: "live" }),
    h(
      "div",
      { class: "top-user" },
      h(
        "span",
        { class: "user-name" },
        app.session.name || "loopback",
        app.session.name !== app.session.role && h("span", { class: "quiet" }, ` ${app.session.role}`),
      ),
      // Without a key configured, loopback may read without a session; changing things needs one.
      app.session.csrf
        ? h(
            "button",
            { type: "button", class: "icon-button", title: "Sign out", onclick: leave },
            icon("out"),
            h("span", { class: "visually-hidden" }, "Sign out"),
          )
        : h("button", { type: "button", onclick: () => signed_out() }, "Sign in"),
    ),
    menu,
  ]);
  put(
    side,
    NAVIGATION.map(([title, pages]) =>
      h(
        "div",
        { class: "side-group" },
        title && h("p", { class: "side-title" }, title),
        h(
          "ul",
          {},
          pages.map(([page, name]) =>
            h(
              "li",
              {},
              h(
                "a",
                { href: address([page]), "data-page": page },
                icon(page),
                h("span", {}, name),
                h("span", { class: "side-count", "data-count": page }),
              ),
            ),
          ),
        ),
      ),
    ),
  );
  show_optional();
  watch(show_live);
}

async function leave() {
  if (app.guard && !(await app.guard())) return;
  app.guard = null;
  await sign_out().catch(() => {});
  signed_out();
}

/** Pages of what not every gateway has. */
function show_optional() {
  const devices = side.querySelector('[data-page="devices"]');
  if (devices) devices.closest("li").hidden = !app.status?.devices;
}

function show_source() {
  show_optional();
  const place = document.getElementById("source");
  if (!place) return;
  const { kind, revision, writable } = app.source;
  put(
    place,
    h(
      "a",
      { href: "#/status" },
      icon(writable ? "status" : "lock"),
      h("span", {}, kind),
      revision !== null && h("span", { class: "quiet" }, `revision ${revision}`),
      !writable && h("span", { class: "quiet" }, "read-only"),
    ),
  );
  const rejected = rejected_of(app.status).length;
  const badge = side.querySelector('[data-count="status"]');
  if (badge)
    put(badge, rejected ? h("span", { class: "count is-bad", title: `${rejected} rejected` }, rejected) : null);
}

const LIVE_WORDS = { waiting: "connecting", live: "live", lost: "reconnecting", paused: "paused" };
let live_shown = "";
let generation = null;

function show_live() {
  if (live.state !== live_shown) {
    live_shown = live.state;
    const place = document.getElementById("live");
    if (place)
      put(
        place,
        h(
          "span",
          { class: ["live-state", `is-${live.state}`] },
          h("i", { "aria-hidden": "true" }),
          LIVE_WORDS[live.state],
        ),
      );
  }
  // A new configuration is served: what is shown of it is asked for once, not once a second.
  const now = live.last?.generation ?? null;
  if (now !== null && generation !== null && now !== generation) app.refresh().catch(() => {});
  generation = now ?? generation;
}

function end_page() {
  ending?.abort();
  ending = new AbortController();
  return ending.signal;
}

async function navigate() {
  if (!app.session) return;
  const hash = location.hash || "#/overview";
  if (!hash.startsWith("#/")) return;
  if (hash === shown_hash) return;
  if (app.guard) {
    if (shown_hash) history.replaceState(null, "", shown_hash);
    if (!(await app.guard())) return;
    app.guard = null;
    history.replaceState(null, "", hash);
  }
  shown_hash = hash;
  const focused = document.activeElement;
  app.close_menu?.();
  const [path, query = ""] = hash.slice(2).split(/\?(.*)/s);
  const found = PAGES.find(([pattern]) => pattern.test(path));
  const signal = end_page();
  const query_given = new URLSearchParams(query);
  let params;
  try {
    params = path.split("/").map(decodeURIComponent);
  } catch {
    params = null;
  }
  mark_navigation(path.split("/"));
  if (!found || !params) {
    document.title = "Not found – Stillgate";
    put(
      main,
      h(
        "div",
        { class: "page" },
        page_head("Page not found"),
        notice("warn", "There is no page at this address", h("p", {}, "Choose a page from the navigation.")),
      ),
    );
    return;
  }
  const root = h("div", { class: ["page", `page-${found[1]}`] });
  // Not where another page has taken its place meanwhile.
  const late = setTimeout(() => signal.aborted || put(main, loading()), 150);
  try {
    const page = await import(`./pages/${found[1]}.js`);
    clearTimeout(late);
    if (signal.aborted) return;
    put(main, root);
    document.title = `${page.title(params)} – Stillgate`;
    const shown = page.show({ root, params, query: query_given, app, signal });
    scrollTo(0, 0);
    focus_heading(root, focused);
    await shown;
    focus_heading(root, focused);
  } catch (failure) {
    clearTimeout(late);
    if (failure.name === "AbortError" || signal.aborted) return;
    console.error(failure);
    append(
      root,
      failure_view(failure, "Loading this page", () => location.reload()),
    );
    put(main, root);
  }
}

// The heading takes the focus, unless the reader has moved it meanwhile.
function focus_heading(root, focused) {
  const heading = root.querySelector("h1");
  const is_free = [focused, document.body, main].includes(document.activeElement);
  if (heading && is_free) heading.focus({ preventScroll: true });
}

const PARENTS = { routes: "routes", upstreams: "upstreams", consumers: "consumers", ssls: "certificates" };
const SECTIONS = { history: "status", metrics: "cardinality" };

function mark_navigation([page, kind]) {
  const is_editor = page === "edit" || page === "new";
  const current = is_editor ? (PARENTS[kind] ?? "resources") : (SECTIONS[page] ?? page);
  for (const one of side.querySelectorAll("a")) set(one, "aria-current", one.dataset.page === current ? "page" : null);
}

app.replaced = () => (shown_hash = location.hash);
app.confirm = confirm;
app.ask = ask;

addEventListener("hashchange", navigate);
addEventListener("beforeunload", (event) => app.guard && event.preventDefault());
addEventListener("keydown", (event) => {
  if (event.key === "Escape" && document.body.classList.contains("is-menu-open")) {
    app.close_menu();
    document.querySelector(".menu-button").focus();
  }
  if (event.key === "/" && !event.ctrlKey && !event.metaKey && !event.target.closest("input, textarea, select")) {
    const field = document.querySelector("[data-search]");
    if (field) (event.preventDefault(), field.focus());
  }
});
document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault();
  main.focus();
});

start();
