// One route: what it takes, the plugins it goes through with where each comes from, where it leads, and its traffic.

import { admin_path, get, path_of } from "../api.js";
import { time_chart } from "../chart.js";
import { chain_view, flow, origin_of } from "../chain_view.js";
import { address, h, link } from "../dom.js";
import { remove } from "../edit/saving.js";
import { json_view } from "../edit/editor.js";
import { plural, seconds, short } from "../format.js";
import { pretty } from "../edit/json.js";
import { LATENCY_BAND, LATENCY_NOTE, follow, live, of_route, watch } from "../live.js";
import { card, fill, metrics_off, notice, page_head, read_only_notice, route_badge } from "../parts.js";
import { match_of } from "./routes.js";

const FIGURES = ["requests", "client_errors", "errors", "p50", "p99", "max"];

export const title = ([, id]) => `Route ${id}`;

export async function show({ root, params: [, id], app, signal }) {
  follow(id);
  signal.addEventListener("abort", () => follow(null));
  await fill(
    root,
    `Loading route ${id}`,
    () =>
      Promise.all([
        get(path_of("/v1/routes", [id]), signal),
        document_of(),
      ]),
    ([route, stored]) => view(route, stored?.value),
  );

  // A file has no documents.
  async function document_of() {
    await app.known().catch(() => {});
    return app.source.kind === "file" ? null : get(admin_path(["routes", id]), signal).catch(() => null);
  }

  function view(route, document) {
    const { uris, hosts } = route;
    const requests = time_chart({
      title: "Requests per second",
      format: short,
      height: 160,
      series: [
        { key: "requests", name: "requests", tone: "traffic", area: true },
        { key: "client_errors", name: "4xx", tone: "warn" },
        { key: "errors", name: "5xx", tone: "bad", area: true },
      ],
    });
    const latency = time_chart({
      title: "Latency",
      note: LATENCY_NOTE,
      format: seconds,
      scale: "log",
      floor: 1e-5,
      height: 160,
      band: LATENCY_BAND,
      series: [
        { key: "p99", name: "p99", tone: "p99" },
        { key: "max", name: "max", tone: "p99", thin: true },
        { key: "p50", name: "p50", tone: "p50" },
      ],
    });
    const charts = h(
      "div",
      { class: "grid" },
      [requests, latency].map(({ element }) => h("section", { class: "card" }, element)),
    );
    const off = card(null, metrics_off("Figures of routes are not known."));
    off.hidden = true;
    const draw = () => {
      charts.hidden = !live.has_metrics;
      off.hidden = live.has_metrics;
      const columns = FIGURES.map((key) => [key, of_route(id, key)]);
      const known = live.seconds.map(({ t }, i) => ({ t, ...Object.fromEntries(columns.map(([key, of]) => [key, of[i]])) }));
      requests.update(known);
      latency.update(known);
    };
    signal.addEventListener("abort", watch(draw));
    const target = route.target ?? {};
    return [
      page_head(route.name || id, {
        crumbs: [["Routes", ["routes"]]],
        lead: [
          route_badge(route.status),
          route.name && ` id ${id}`,
          document?.desc && ` · ${document.desc}`,
          route.line && ` · line ${route.line} of the file`,
        ],
        actions: [
          h("a", { class: "button", href: address(["slow"], { route: id }) }, "Slow requests"),
          h(
            "a",
            { class: "button", href: address(["explain"], { curl: example(route, uris, hosts), route: id }) },
            "Explain",
          ),
          app.can_write &&
            h("button", { type: "button", class: "is-danger", onclick: () => remove_route(app, id) }, "Delete"),
          app.can_write && h("a", { class: "button is-primary", href: address(["edit", "routes", id]) }, "Edit"),
        ],
      }),
      read_only_notice(app),
      route.status === "rejected" &&
        notice(
          "bad",
          "This route is rejected",
          route.reason ?? "The reason is on the status page.",
          link(["status"], "Rejected resources"),
        ),
      h(
        "div",
        { class: "stack" },
        card(
          "How a request is handled",
          flow([
            { title: "matches", body: match_of({ ...route, uris, hosts, methods: route.methods }) },
            {
              title: "runs",
              body: [
                h("strong", {}, route.chain?.length ? plural(route.chain.length, "plugin") : "no plugins"),
                h(
                  "span",
                  { class: "quiet" },
                  [...new Set((route.chain ?? []).map(({ origin }) => origin_of(origin).text.split(",")[0]))]
                    .slice(0, 4)
                    .join(" · "),
                ),
              ],
            },
            {
              title: "goes to",
              body: [
                h(
                  "strong",
                  {},
                  route.upstream ?? (route.service ? `service ${route.service}` : "its own nodes"),
                ),
                target.unavailable
                  ? h("span", { class: "fault" }, `nowhere: ${target.unavailable}`)
                  : h("span", { class: "quiet" }, (target.nodes ?? []).slice(0, 4).join(", ")),
                link(["upstreams"], "Health", { class: "quiet" }),
              ],
            },
          ]),
        ),
        route.chain && card("Plugins", chain_view(route.chain, { lines: app.source.kind === "file" }), { note: "in the order they run" }),
        charts,
        off,
        document && card("Document", json_view(pretty(document), `Route ${id} as JSON`)),
      ),
    ];
  }
}

// A request that the route would take, to begin with.
function example(route, uris, hosts) {
  const path = (uris[0] ?? "/").replace(/\*+$/, "x").replace(/:[^/]+/g, "1");
  const host = (hosts[0] ?? "example.com").replace(/^\*/, "www");
  const method = route.methods?.[0] && route.methods[0] !== "GET" ? `-X ${route.methods[0]} ` : "";
  const url = `http://${host}${path}`.replace(/[\n\r]/g, "").replace(/'/g, "'\\''");
  return `curl ${method}'${url}'`;
}

async function remove_route(app, id) {
  const why = "Its requests go to the next route that matches, or are answered 404.";
  if (await remove(app, ["routes", id], `route ${id}`, { why })) app.go(["routes"]);
}
