// All routes with their figures of the last minute: search, filter and order; the server sorts and cuts the pages.

import { get, path_of } from "../api.js";
import { bar, icon, sparkline } from "../chart.js";
import { h, link, put, set } from "../dom.js";
import { count, percent, plural, seconds, short } from "../format.js";
import { slowest_of } from "../live.js";
import {
  chips,
  choice,
  empty,
  failure_view,
  loading,
  page_head,
  pager,
  read_only_notice,
  route_badge,
  search_field,
  table,
} from "../parts.js";

const PAGE_SIZE = 50;
const REFRESH_MS = 5000;
const STATES = [
  ["", "All states"],
  ["served", "Served"],
  ["rejected", "Rejected"],
  ["off", "Off"],
];
/** What routes can be sorted by, with the order of the first click and how a list on a phone calls it. */
const SORTS = {
  id: ["asc", "Id"],
  p99: ["desc", "p99"],
  time: ["desc", "Time share"],
  requests: ["desc", "Requests"],
  client_errors: ["desc", "4xx"],
  errors: ["desc", "5xx"],
};

export const title = () => "Routes";

export async function show({ root, query, app, signal }) {
  const asked = { search: query.get("search") ?? "", status: query.get("status") ?? "", sort: "", order: "" };
  if (!STATES.some(([state]) => state === asked.status)) asked.status = "";
  if (Object.hasOwn(SORTS, query.get("sort") ?? "")) {
    asked.sort = query.get("sort");
    asked.order = query.get("order") === "asc" ? "asc" : "desc";
  }
  let page = Math.max(1, Number(query.get("page")) || 1);
  let asking = null;
  let shown = { ids: [], figures: new Map() };
  const found = h("p", { class: "quiet", role: "status" });
  const list = h("div", { class: "card is-flush" });
  const note = h("div");
  setTimeout(() => list.childElementCount === 0 && put(list, loading("Searching")), 150);
  const actions = h("div", { class: "actions" });
  const field = search_field({
    label: "Search routes",
    placeholder: "Name, id, path, host, plugin, service, upstream …",
    value: asked.search,
    on_search(text) {
      // What is pasted here by mistake is a question for the page beside this one.
      if (/^curl\s/.test(text)) return app.go(["explain"], { curl: text });
      look({ search: text });
    },
  });
  const states = choice("State", STATES, asked.status, "is-small", (status) => look({ status }));
  // On a phone a table has no head to click.
  const sorts = choice(
    "Sort by",
    [["", "Order of the configuration"], ...Object.entries(SORTS).map(([sort, [, name]]) => [sort, `By ${name}`])],
    asked.sort,
    "is-small is-phone",
    (sort) => look({ sort, order: SORTS[sort]?.[0] ?? "" }),
  );
  put(root, page_head("Routes", { actions }), note, h("div", { class: "toolbar" }, field, states, sorts, found), list);
  const allowed = () => {
    put(note, read_only_notice(app));
    put(
      actions,
      h("a", { class: "button", href: "#/explain" }, "Explain a request"),
      app.can_write && h("a", { class: "button is-primary", href: "#/new/routes" }, icon("plus"), "New route"),
    );
  };
  if (app.status) allowed();
  else app.refresh().then(allowed, () => {});

  function look(change) {
    Object.assign(asked, change);
    page = 1;
    sorts.value = asked.sort;
    app.remember(["routes"], asked);
    app.replaced();
    load();
  }

  const ask = (until) => get(path_of("/v1/routes", [], { ...asked, page, page_size: PAGE_SIZE }), until);

  async function load() {
    asking?.abort();
    asking = new AbortController();
    const since = performance.now();
    list.setAttribute("aria-busy", "true");
    try {
      const answer = await ask(AbortSignal.any([asking.signal, signal]));
      draw(answer);
      sorts.hidden = !answer.has_traffic;
      found.textContent = [
        `${plural(answer.total, "route")}${asked.search ? ` for “${asked.search}”` : ""}`,
        !answer.has_traffic && "no figures: metrics are off",
      ]
        .filter(Boolean)
        .join(" · ");
      performance.measure("routes-search", { start: since });
    } catch (failure) {
      if (failure.name === "AbortError") return;
      put(list, failure_view(failure, "Searching routes", load));
    }
    list.removeAttribute("aria-busy");
  }

  // Rows change their places only while nobody points at them.
  async function refresh() {
    const { sort, order } = asked;
    const answer = await ask(signal).catch(() => null);
    if (!answer || sort !== asked.sort || order !== asked.order || list.hasAttribute("aria-busy")) return;
    const is_same = answer.list.length === shown.ids.length && answer.list.every(({ id }, i) => id === shown.ids[i]);
    if (!is_same && !list.matches(":hover, :focus-within")) return draw(answer);
    for (const { id, traffic } of answer.list) shown.figures.get(id)?.(traffic);
  }

  function draw(answer) {
    const { total, list: routes } = answer;
    shown = { ids: routes.map(({ id }) => id), figures: new Map() };
    if (!routes.length && total > 0) {
      // Beyond the last page, as after a search or from an old link.
      page = Math.ceil(total / PAGE_SIZE);
      return void load();
    }
    if (!routes.length) {
      put(list, nothing());
      return;
    }
    const focused = list.contains(document.activeElement) ? document.activeElement.dataset.sort : null;
    put(
      list,
      table("Routes", columns(answer.has_traffic), routes),
      pager({ page, page_size: PAGE_SIZE, total, segments: ["routes"], parameters: asked }),
    );
    for (const { id, traffic } of routes) shown.figures.get(id)?.(traffic);
    if (focused) list.querySelector(`[data-sort="${focused}"]`)?.focus();
  }

  const nothing = () =>
    asked.search || asked.status
      ? empty(
          "No route matches",
          "The search covers names, ids, paths, hosts, methods, plugins, services and upstreams.",
          h(
            "button",
            {
              type: "button",
              onclick: () => {
                const input = root.querySelector("[data-search]");
                input.value = "";
                states.value = "";
                look({ search: "", status: "" });
                input.focus();
              },
            },
            "Show all routes",
          ),
        )
      : empty(
          "There are no routes yet",
          "Every request is answered 404 until there is one.",
          app.can_write && h("a", { class: "button is-primary", href: "#/new/routes" }, "Create the first route"),
        );

  /** A column that can be sorted by; the third click leads back to the order of the configuration. */
  function sorted(sort, column) {
    const [first] = SORTS[sort];
    const is_sorted = asked.sort === sort;
    const next = !is_sorted ? first : asked.order === first ? (first === "asc" ? "desc" : "asc") : null;
    return {
      ...column,
      sorted: is_sorted ? `${asked.order}ending` : "none",
      head: h(
        "button",
        {
          type: "button",
          class: "sort",
          "data-sort": sort,
          onclick: () => look(next ? { sort, order: next } : { sort: "", order: "" }),
        },
        column.title,
      ),
    };
  }

  function columns(has_traffic) {
    const figures = [
      sorted("p99", { title: "p99", class: "is-number c-p99", show: (route) => figure(route, slowest_cell) }),
      sorted("time", { title: "Time share", class: "c-time", show: (route) => figure(route, time_cell) }),
      sorted("client_errors", {
        title: "4xx/s",
        class: "is-number c-rate",
        show: (route) => figure(route, (traffic, cell) => rate_cell(traffic, cell, "client_errors")),
      }),
      sorted("errors", {
        title: "5xx/s",
        class: "is-number c-rate",
        show: (route) => figure(route, (traffic, cell) => rate_cell(traffic, cell, "errors")),
      }),
      sorted("requests", {
        title: "Requests/s",
        class: "is-number c-requests",
        show: (route) => figure(route, (traffic, cell) => rate_cell(traffic, cell, "requests")),
      }),
      { title: "15 min", class: "c-spark", show: (route) => figure(route, spark_cell()) },
    ];
    return [
      sorted("id", {
        title: "Route",
        class: "c-route",
        show: (route) => [
          link(["routes", route.id], route.name || route.id, {
            class: "row-title clamped",
            title: route.name || route.id,
          }),
          route.name && route.name !== route.id && h("span", { class: "quiet" }, route.id),
          route.status !== "served" && h("div", {}, route_badge(route.status)),
        ],
      }),
      { title: "Matches", class: "c-takes", show: (route) => match_of(route) },
      {
        title: "Goes to",
        class: "c-to",
        show: (route) => [
          h(
            "div",
            {},
            route.upstream ??
              (route.service ? `service ${route.service}` : h("span", { class: "quiet" }, "own nodes")),
          ),
          chips(route.plugins, { most: 3 }),
        ],
      },
      ...(has_traffic ? figures : []),
    ];
  }

  /** A cell that `draw(traffic, cell)` fills, now and at each refresh. */
  function figure({ id }, draw_cell) {
    const cell = h("span", { class: "figure" });
    const others = shown.figures.get(id);
    shown.figures.set(id, (traffic) => {
      others?.(traffic);
      if (traffic) draw_cell(traffic, cell);
      else put(cell);
    });
    return cell;
  }

  const timer = setInterval(() => !document.hidden && shown.figures.size && refresh(), REFRESH_MS);
  signal.addEventListener("abort", () => clearInterval(timer));
  await load();
}

function slowest_cell(traffic, cell) {
  const [name, value] = slowest_of(traffic);
  if (!Number.isFinite(value)) return void put(cell);
  put(cell, name === "max" && h("span", { class: "quiet" }, "max "), seconds(value));
  set(cell, "title", `of ${plural(traffic.timed, "request")} in the last minute`);
}

function time_cell({ time_share: share }, cell) {
  if (!Number.isFinite(share)) return void put(cell);
  put(cell, bar([{ value: share, tone: "p99" }], 1), h("span", { class: "quiet" }, percent(share, 1)));
}

function rate_cell(traffic, cell, key) {
  const value = traffic[key];
  cell.textContent = Number.isFinite(value) ? short(value) : "";
  const is_bad = key === "errors" && value / traffic.requests > 0.01;
  set(cell, "class", ["figure", value === 0 && "quiet", is_bad && "is-bad"]);
}

function spark_cell() {
  const spark = sparkline({});
  return ({ spark: values }, cell) => {
    if (!cell.firstChild) put(cell, spark.element);
    spark.update(values);
  };
}

/** Methods, hosts and paths of a route. */
export function match_of({ methods, hosts, uris, expression, priority }) {
  const paths = uris ?? [];
  return h(
    "div",
    { class: "match" },
    expression && h("span", {}, expression.slice(0, 200)),
    paths
      .slice(0, 2)
      .map((uri) =>
        h(
          "span",
          { class: "clamped", title: uri },
          methods?.length
            ? h("span", { class: "method" }, `${methods.slice(0, 3).join(" ")}${methods.length > 3 ? " …" : ""} `)
            : null,
          uri,
        ),
      ),
    paths.length > 2 && h("span", { class: "quiet" }, `and ${count(paths.length - 2)} more paths`),
    h(
      "span",
      { class: "host" },
      hosts?.length
        ? `${hosts.slice(0, 2).join(", ")}${hosts.length > 2 ? ` +${count(hosts.length - 2)}` : ""}`
        : "any host",
      priority ? ` · priority ${priority}` : "",
    ),
  );
}
