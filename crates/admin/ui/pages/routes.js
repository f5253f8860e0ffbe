// All routes: search by anything, in pages that the server cuts.

import { get, path_of } from "../api.js";
import { icon } from "../chart.js";
import { h, link, put, set } from "../dom.js";
import { count, plural, short } from "../format.js";
import { recent_routes, watch } from "../live.js";
import {
  chips,
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

export const title = () => "Routes";

export async function show({ root, query, app, signal }) {
  let search = query.get("search") ?? "";
  let page = Math.max(1, Number(query.get("page")) || 1);
  let asking = null;
  const found = h("p", { class: "quiet", role: "status" });
  const list = h("div", { class: "card is-flush" });
  const note = h("div");
  setTimeout(() => list.childElementCount === 0 && put(list, loading("Searching")), 150);
  const actions = h("div", { class: "actions" });
  const field = search_field({
    label: "Search routes",
    placeholder: "Name, id, path, host, plugin, service, upstream …",
    value: search,
    on_search(text) {
      // What is pasted here by mistake is a question for the page beside this one.
      if (/^curl\s/.test(text)) return app.go(["explain"], { curl: text });
      search = text;
      page = 1;
      app.remember(["routes"], { search });
      app.replaced();
      load();
    },
  });
  put(root, page_head("Routes", { actions }), note, h("div", { class: "toolbar" }, field, found), list);
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

  let figures = [];
  const draw_traffic = () => {
    if (!figures.length) return;
    const recent = new Map(recent_routes().map((route) => [route.id, route]));
    for (const { id, cell } of figures) {
      const route = recent.get(id);
      cell.textContent = route ? `${short(route.requests)}/s` : "";
      set(cell, "class", ["figure", route?.errors / route?.requests > 0.01 && "is-bad"]);
    }
  };

  async function load() {
    asking?.abort();
    asking = new AbortController();
    const since = performance.now();
    list.setAttribute("aria-busy", "true");
    try {
      const answer = await get(
        path_of("/v1/routes", [], { search, page, page_size: PAGE_SIZE }),
        AbortSignal.any([asking.signal, signal]),
      );
      draw(answer);
      found.textContent = `${plural(answer.total, "route")}${search ? ` for “${search}”` : ""}`;
      performance.measure("routes-search", { start: since });
    } catch (failure) {
      if (failure.name === "AbortError") return;
      put(list, failure_view(failure, "Searching routes", load));
    }
    list.removeAttribute("aria-busy");
  }

  function draw({ total, list: routes }) {
    figures = [];
    if (!routes.length && total > 0) {
      // Beyond the last page, as after a search or from an old link.
      page = Math.ceil(total / PAGE_SIZE);
      return void load();
    }
    if (!routes.length) {
      put(
        list,
        search
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
                    input.dispatchEvent(new Event("input"));
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
            ),
      );
      return;
    }
    put(
      list,
      table(
        "Routes",
        [
          {
            title: "Route",
            class: "c-route",
            show: (route) => [
              h(
                "div",
                {},
                link(["routes", route.id], route.name || route.id, {
                  class: "row-title clamped",
                  title: route.name || route.id,
                }),
              ),
              route.name && route.name !== route.id && h("span", { class: "quiet" }, route.id),
            ],
          },
          { title: "Matches", class: "c-takes", show: (route) => match_of(route) },
          { title: "Plugins", show: (route) => chips(route.plugins, { none: "none" }) },
          {
            title: "Goes to",
            show: (route) =>
              route.upstream ??
              (route.service ? `service ${route.service}` : h("span", { class: "quiet" }, "own nodes")),
          },
          {
            title: "Now",
            class: "is-number c-now",
            show: (route) => {
              const cell = h("span", { class: "figure" });
              figures.push({ id: route.id, cell });
              return cell;
            },
          },
          { title: "State", class: "c-state", show: (route) => route_badge(route.status) },
        ],
        routes,
      ),
      pager({ page, page_size: PAGE_SIZE, total, segments: ["routes"], parameters: { search } }),
    );
    draw_traffic();
  }
  const end = watch(draw_traffic);
  signal.addEventListener("abort", end);
  await load();
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
