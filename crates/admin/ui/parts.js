// Parts that several pages are made of: heads, lists, dialogs, and the states a page can be in.

import { badge, icon } from "./chart.js";
import { address, fresh_id, h, link, put } from "./dom.js";
import { count } from "./format.js";
import { recent_requests_view } from "./recent_requests.js";

/** The head of a page; its heading takes the focus after a change of page. */
export const page_head = (title, { lead, actions, crumbs } = {}) =>
  h(
    "header",
    { class: "page-head" },
    h(
      "div",
      {},
      crumbs &&
        h(
          "nav",
          { class: "crumbs", "aria-label": "Breadcrumb" },
          crumbs.map(([text, segments], i) => [i > 0 && " / ", link(segments, text)]),
        ),
      h("h1", { tabindex: "-1" }, title),
      lead && h("p", { class: "lead" }, lead),
    ),
    actions && h("div", { class: "actions" }, actions),
  );

/** A surface with a heading. */
export const card = (title, body, { aside, wide, id, note } = {}) =>
  h(
    "section",
    { class: ["card", wide && "is-wide"], "aria-labelledby": title ? (id ??= fresh_id()) : null },
    title &&
      h("div", { class: "card-head" }, h("h2", { id }, title), note && h("span", { class: "quiet" }, note), aside),
    body,
  );

/** Nothing is here, and what to do about it. */
export const empty = (title, text, action) =>
  h("div", { class: "empty" }, h("p", { class: "empty-title" }, title), text && h("p", {}, text), action);

/** What a page says in place of figures where nothing is measured. */
export const metrics_off = (unknown) =>
  empty(
    "Metrics are off",
    [unknown, " Set ", h("code", {}, "gateway.metrics.enabled"), " to true, and start the gateway again."],
  );

/** Something is being asked for. Shown late, so that fast answers do not flicker. */
export const loading = (what = "Loading") =>
  h(
    "div",
    { class: "loading", role: "status" },
    h("span", { class: "visually-hidden" }, `${what}…`),
    h("i"),
    h("i"),
    h("i"),
  );

/** What went wrong, where, and what to do. */
export function failure_view(failure, where, retry) {
  if (failure.name === "AbortError") return null;
  const status = failure.status ? ` (${failure.status})` : "";
  return h(
    "div",
    { class: "notice is-bad", role: "alert" },
    icon("bad"),
    h(
      "div",
      {},
      h("p", { class: "notice-title" }, `${where} failed${status}`),
      h("p", {}, failure.message),
      failure.advice && h("p", { class: "quiet" }, failure.advice),
      retry && h("button", { type: "button", onclick: retry }, "Try again"),
    ),
  );
}

/** A notice: `good`, `warn`, `bad` or `note`. */
export const notice = (tone, title, ...body) =>
  h(
    "div",
    { class: ["notice", `is-${tone}`], role: tone === "bad" ? "alert" : null },
    icon(tone === "note" ? "info" : tone),
    h(
      "div",
      {},
      h("p", { class: "notice-title" }, title),
      body.map((part) => (part instanceof Node || !part ? part : h("p", {}, part))),
    ),
  );

/** Shows what a promise comes to in an element. */
export async function fill(element, where, load, show) {
  const attempt = async () => {
    const timer = setTimeout(() => put(element, loading(where)), 150);
    element.setAttribute("aria-busy", "true");
    try {
      const found = await load();
      clearTimeout(timer);
      put(element, show(found));
    } catch (failure) {
      clearTimeout(timer);
      if (failure.name !== "AbortError")
        put(
          element,
          element.classList.contains("page") && page_head(document.title.replace(/ – Stillgate$/, "")),
          failure_view(failure, where, failure.status === undefined ? null : attempt),
        );
      if (failure.status === undefined && failure.name !== "AbortError") console.error(failure);
    } finally {
      element.removeAttribute("aria-busy");
    }
  };
  await attempt();
}

/**
 * A table: `columns` are `{title, show(row), class}`, and for one that can be sorted `head`, a button, and `sorted`, a value of
 * aria-sort; on a phone each row becomes a card with its column titles.
 */
export const table = (label, columns, rows, { row_class } = {}) =>
  h(
    "div",
    { class: "table-wrap" },
    h(
      "table",
      { "aria-label": label },
      h(
        "thead",
        {},
        h(
          "tr",
          {},
          columns.map(({ title, class: given, head, sorted }) =>
            h("th", { scope: "col", class: given, "aria-sort": sorted }, head ?? title),
          ),
        ),
      ),
      h(
        "tbody",
        {},
        rows.map((row) =>
          h(
            "tr",
            { class: row_class?.(row) },
            columns.map((column) => h("td", { class: column.class, "data-title": column.title }, column.show(row))),
          ),
        ),
      ),
    ),
  );

/** First, previous, next, last; links, so that a page can be kept and sent. */
export function pager({ page, page_size, total, segments, parameters }) {
  const pages = Math.max(1, Math.ceil(total / page_size));
  if (total <= page_size) return h("p", { class: "pager quiet" }, total ? `${count(total)} in total` : "");
  const to = (target, text) =>
    target < 1 || target > pages || target === page
      ? h("span", { class: "button is-off", "aria-disabled": "true" }, text)
      : h("a", { class: "button", href: address(segments, { ...parameters, page: target }) }, text);
  const first = (page - 1) * page_size + 1;
  return h(
    "nav",
    { class: "pager", "aria-label": "Pages of the list" },
    to(1, "First"),
    to(page - 1, "Previous"),
    h("span", {}, `${count(first)}–${count(Math.min(total, first + page_size - 1))} of ${count(total)}`),
    to(page + 1, "Next"),
    to(pages, "Last"),
  );
}

/** A search field that reports after a pause; `/` moves the focus into it. */
export function search_field({ label, placeholder, value = "", on_search, wait_ms = 120 }) {
  const id = fresh_id();
  let timer = 0;
  const input = h("input", {
    id,
    type: "search",
    value,
    placeholder,
    autocomplete: "off",
    spellcheck: "false",
    "data-search": true,
  });
  input.addEventListener("input", () => {
    clearTimeout(timer);
    timer = setTimeout(() => on_search(input.value.trim()), wait_ms);
  });
  return h(
    "div",
    { class: "search", role: "search" },
    h("label", { class: "visually-hidden", for: id }, label),
    icon("search"),
    input,
    h("kbd", { "aria-hidden": "true" }, "/"),
  );
}

/** A choice of one: `options` are `[value, name]`. */
export function choice(label, options, value, given, on_choice) {
  const select = h(
    "select",
    { class: given, "aria-label": label, onchange: () => on_choice(select.value) },
    options.map(([option, name]) => h("option", { value: option }, name)),
  );
  select.value = value;
  return select;
}

/** Chips of words, the first few, and how many more there are. */
export function chips(words, { most = 4, class: given, show = (word) => word, none = "" } = {}) {
  const list = words ?? [];
  if (!list.length) return none ? h("span", { class: "quiet" }, none) : null;
  return h(
    "span",
    { class: ["chips", given] },
    list.slice(0, most).map((word) => h("span", { class: "chip" }, show(word))),
    list.length > most &&
      h("span", { class: "quiet", title: list.slice(most, most + 50).join("\n") }, `+${count(list.length - most)}`),
  );
}

/** A list of names and values. */
export const facts = (pairs) =>
  h(
    "dl",
    { class: "facts" },
    pairs.filter(Boolean).map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value ?? "–"))),
  );

/** Asks before something that cannot be taken back easily; answers whether it was confirmed, once `ready` allows it. */
export function confirm({ title, body, action, tone = "primary", run, ready }) {
  return new Promise((done) => {
    const heading = fresh_id();
    const failed = h("div");
    const go = h("button", { type: "submit", class: `is-${tone}` }, action);
    const dialog = h(
      "dialog",
      { "aria-labelledby": heading },
      h(
        "form",
        { method: "dialog" },
        h("h2", { id: heading }, title),
        h("div", { class: "dialog-body" }, body),
        failed,
        h("div", { class: "actions" }, h("button", { type: "button", onclick: () => dialog.close("") }, "Cancel"), go),
      ),
    );
    dialog.querySelector("form").addEventListener("submit", async (event) => {
      event.preventDefault();
      if (go.disabled) return;
      go.disabled = true;
      try {
        await run?.();
        dialog.close("yes");
      } catch (failure) {
        put(failed, failure_view(failure, action));
        go.disabled = false;
      }
    });
    dialog.addEventListener("close", () => {
      dialog.remove();
      done(dialog.returnValue === "yes");
    });
    if (ready) {
      go.disabled = true;
      ready.then((is_ready) => (go.disabled = !is_ready));
    }
    document.body.append(dialog);
    dialog.showModal();
    if (tone === "danger") dialog.querySelector(".actions button").focus();
  });
}

/** The state of a route in a word. */
export function route_badge(status) {
  if (status === "rejected") return badge("bad", "rejected");
  if (status === "off") return badge("away", "off");
  return badge("good", "served");
}

/** What a dry run found. */
export const checked_view = ({ warnings = [], effects = [], recent_requests: recent }) =>
  h(
    "div",
    { class: "checked" },
    warnings.length > 0 &&
      notice(
        "warn",
        warnings.length === 1 ? "A warning" : `${warnings.length} warnings`,
        h(
          "ul",
          {},
          warnings.map((warning) =>
            h("li", {}, typeof warning === "string" ? warning : (warning.message ?? JSON.stringify(warning))),
          ),
        ),
      ),
    effects.length > 0
      ? h(
          "div",
          {},
          h("h3", {}, "Effects on other resources"),
          h(
            "ul",
            { class: "effects" },
            effects.map(({ key, effect }) => h("li", {}, h("code", {}, key), " ", effect)),
          ),
        )
      : h("p", { class: "quiet" }, "No other resource is affected."),
    recent_requests_view(recent),
  );

/** Says that nothing can be changed here, and where to do it. */
export function read_only_notice({ source, session }) {
  if (source.trouble)
    return notice("warn", `${source.kind === "etcd" ? "etcd" : "The store"} is not available`, source.trouble);
  if (source.kind === "file") {
    return notice(
      "note",
      "Read-only: the resources are in a file",
      h(
        "p",
        {},
        "To change them, edit ",
        source.path ? h("code", {}, source.path) : "the file given to ",
        source.path ? null : h("code", {}, "stillgate run"),
        " on the gateway's machine. A valid file takes effect as soon as it is saved. To edit here, set ",
        h("code", {}, "gateway.config.source: store"),
        ", restart the gateway and load the resources with ",
        h("code", {}, "stillgate apply"),
        ".",
      ),
    );
  }
  if (!session.csrf)
    return notice("note", "Read-only: you have not signed in", "Sign in with an admin key to make changes.");
  if (session.role !== "admin")
    return notice(
      "note",
      "Read-only: you are signed in as a viewer",
      "Sign in with an admin key to make changes and to see secrets.",
    );
  return null;
}
