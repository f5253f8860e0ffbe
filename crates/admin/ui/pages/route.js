// One route: what it takes, the plugins it goes through with where each comes from, where it leads, and its traffic.

import { admin_path, get, path_of } from "../api.js";
import { time_chart } from "../chart.js";
import { chain_view, flow, origin_of } from "../chain_view.js";
import { address, h, link } from "../dom.js";
import { remove } from "../edit/saving.js";
import { json_view } from "../edit/editor.js";
import { plural, seconds, short } from "../format.js";
import { pretty } from "../edit/json.js";
import { LATENCY_NOTE, follow, live, of_route, watch } from "../live.js";
import { card, fill, metrics_off, notice, page_head, read_only_notice, route_badge } from "../parts.js";
import { match_of } from "./routes.js";

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
        { key: "errors", name: "errors (5xx)", tone: "bad", area: true },
      ],
    });
    const latency = time_chart({
      title: "Latency",
      note: LATENCY_NOTE,
      format: seconds,
      scale: "log",
      floor: 1e-5,
      height: 160,
      series: [
        { key: "p99", name: "p99", tone: "p99" },
        { key: "max", name: "max", tone: "p99" },
        { key: "p50", name: "p50", tone: "p50" },
      ],
    });
    const quiet = h(
      "p",
      { class: "quiet" },
      "Per-second figures are kept while the route is among those with the most requests or errors, and while this page is open.",
    );
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
      const columns = Object.fromEntries(["requests", "errors", "p50", "p99", "max"].map((key) => [key, of_route(id, key)]));
      const known = live.seconds.map(({ t }, i) => ({
        t,
        requests: columns.requests[i],
        errors: columns.errors[i],
        p50: columns.p50[i],
        p99: columns.p99[i],
        max: columns.max[i],
      }));
      requests.update(known);
      latency.update(known);
      quiet.hidden = !live.has_metrics || columns.requests.filter((value) => value !== null).length > 60;
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
        quiet,
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
