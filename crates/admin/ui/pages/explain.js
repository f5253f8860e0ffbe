// Which route takes a request, and why the others do not: from a curl command or a URL.

import { get } from "../api.js";
import { badge } from "../chart.js";
import { chain_view, flow } from "../chain_view.js";
import { explain_query, read_curl } from "../curl.js";
import { fresh_id, h, link, put } from "../dom.js";
import { count, plural } from "../format.js";
import { card, failure_view, loading, notice, page_head } from "../parts.js";

const RECENT_SHOWN = 20;

export const title = () => "Explain a request";

export async function show({ root, query, app, signal }) {
  const parsed = h("p", { class: "parsed quiet", "aria-live": "polite" });
  const result = h("div", { class: "stack", tabindex: "-1", "aria-label": "Explanation" });
  const box = h("textarea", {
    id: "curl",
    rows: 4,
    spellcheck: "false",
    autocapitalize: "off",
    value: query.get("curl") ?? "",
    placeholder: "curl -H 'X-Beta: 1' 'http://shop.example/orders/7'",
    "aria-describedby": "curl-help",
  });
  const given = (name, label, placeholder, value) => {
    const id = fresh_id();
    const input = h("input", { id, placeholder, value: value ?? "", spellcheck: "false", autocapitalize: "off" });
    return { name, input, element: h("label", { for: id }, label, input) };
  };
  const more = [
    given("client", "Client address", "127.0.0.1"),
    given("consumer", "Consumer", "its plugins run, too"),
    given("route", "Also explain this route", "id", query.get("route")),
    given("host", "Host, if the URL has none", "shop.example"),
  ];
  let asking = null;

  const run = async ({ takes_focus }) => {
    const request = read_curl(box.value);
    if (request.error) {
      put(result, notice("warn", request.error));
      return;
    }
    const extra = Object.fromEntries(more.map(({ name, input }) => [name, input.value.trim()]));
    app.remember(["explain"], { curl: box.value.trim(), route: extra.route });
    app.replaced();
    asking?.abort();
    asking = new AbortController();
    put(result, loading("Explaining"));
    try {
      const answer = await get(
        `/v1/explain?${explain_query({ ...request, ...extra })}`,
        AbortSignal.any([signal, asking.signal]),
      );
      put(result, view(answer, request, app.source.kind === "file"));
      if (takes_focus) result.focus({ preventScroll: true });
    } catch (failure) {
      if (failure.name !== "AbortError") put(result, failure_view(failure, "Explaining"));
    }
  };
  const read = () => {
    const request = box.value.trim() ? read_curl(box.value) : null;
    put(
      parsed,
      !request
        ? "Paste a curl command, for example one copied from a browser, or write a URL."
        : request.error
          ? request.error
          : [
              h("span", { class: "method" }, request.method),
              ` ${request.url}`,
              request.headers.length ? ` · ${plural(request.headers.length, "header")}` : "",
              request.notes.map((note) => ` · ${note}`),
            ],
    );
  };
  const submit = (event) => {
    event.preventDefault();
    run({ takes_focus: true });
  };
  const use = ({ method, path }) => {
    const word = /^[\w/.~%:@-]+$/.test(path) ? path : `'${path.replaceAll("'", "'\\''")}'`;
    box.value = method === "GET" ? word : `${method} ${word}`;
    read();
    run({ takes_focus: true });
  };
  box.addEventListener("input", read);
  box.addEventListener("keydown", (event) => event.key === "Enter" && (event.ctrlKey || event.metaKey) && submit(event));
  read();

  put(
    root,
    page_head("Explain a request", {
      lead: "Which route takes a request, which plugins run, where it goes, and why better-placed routes do not take it.",
    }),
    h(
      "form",
      { class: "card explain-form", onsubmit: submit },
      h("label", { for: "curl" }, "curl command or URL"),
      box,
      h("div", { id: "curl-help" }, parsed),
      recent_requests(use, signal),
      h(
        "details",
        { open: more.some(({ input }) => input.value) },
        h("summary", { class: "quiet" }, "More about the request"),
        h(
          "div",
          { class: "explain-more" },
          more.map(({ element }) => element),
        ),
      ),
      h(
        "div",
        { class: "actions" },
        h("button", { type: "submit", class: "is-primary" }, "Explain"),
        h("span", { class: "quiet" }, "Nothing is sent to the route or its nodes."),
      ),
    ),
    result,
  );
  if (box.value) await run({ takes_focus: false });
  else box.focus();
}

// The gateway keeps no other requests than the slowest of each minute.
function recent_requests(use, signal) {
  const list = h("div");
  const load = async () => {
    try {
      const { minutes } = await get("/v1/slow", signal);
      put(list, recent_view(minutes.flatMap(({ requests }) => requests), use));
    } catch (failure) {
      put(
        list,
        failure.status === 404
          ? h("p", { class: "quiet" }, "None are kept. Set ", h("code", {}, "gateway.debug.slow"), " to true.")
          : failure_view(failure, "Loading recent requests", load),
      );
    }
  };
  const details = h("details", {}, h("summary", { class: "quiet" }, "Use a recent request"), list);
  details.addEventListener("toggle", () => details.open && load());
  return details;
}

function recent_view(requests, use) {
  const by_address = new Map(requests.map((request) => [`${request.method} ${request.path}`, request]));
  const latest = [...by_address.values()].sort((a, b) => b.ended_unix_ms - a.ended_unix_ms).slice(0, RECENT_SHOWN);
  if (!latest.length) return h("p", { class: "quiet" }, "There were none in the last 15 minutes.");
  return [
    h("p", { class: "quiet" }, "The slowest of each of the last 15 minutes. Their hosts, queries and headers are not kept."),
    h(
      "ul",
      { class: "recent-list" },
      latest.map((request) =>
        h(
          "li",
          {},
          h(
            "button",
            { type: "button", onclick: () => use(request) },
            h("span", { class: "method" }, request.method),
            h("span", { class: "mono" }, request.path),
          ),
          h("span", { class: "quiet" }, `${request.status} · ${request.route || "no route"}`),
        ),
      ),
    ),
  ];
}

function view(answer, request, lines) {
  if (answer.status === 400) return notice("bad", "The request is answered 400 before a route is looked up", answer.reason);
  const { route, upstream, params = {}, plugins = [], ruled_out = [], missed = [], notes = [], asked } = answer;
  const nodes = upstream?.nodes ?? [];
  const stand = (one) => one.expression ?? `${one.host ?? "any host"} ${one.path ?? ""}`;
  return [
    card(
      "How this request is handled",
      flow([
        {
          title: "request",
          body: [h("span", { class: "method" }, request.method), h("span", { class: "mono" }, request.url)],
        },
        (ruled_out.length > 0 || answer.omitted > 0) && {
          title: "ruled out first",
          body: [
            h("strong", {}, plural(ruled_out.length + (answer.omitted ?? 0), "route")),
            h("span", { class: "quiet" }, "better placed, see below"),
          ],
        },
        route
          ? {
              title: "taken by",
              tone: "chosen",
              body: [
                link(["routes", route.id], route.id, { class: "row-title" }),
                h("span", { class: "mono" }, stand(route)),
                Object.entries(params).map(([name, value]) => h("span", { class: "quiet" }, `:${name} = ${value}`)),
                route.line ? h("span", { class: "quiet" }, `line ${route.line}`) : null,
              ],
            }
          : {
              title: "taken by",
              tone: "none",
              body: [h("strong", {}, "no route"), h("span", {}, `answered ${answer.status ?? 404}`)],
            },
        route &&
          plugins.length > 0 && {
            title: "runs",
            body: [
              h("strong", {}, plural(plugins.filter(({ runs }) => runs !== false).length, "plugin")),
              h(
                "span",
                { class: "quiet" },
                plugins
                  .slice(0, 5)
                  .map(({ name }) => name)
                  .join(", "),
                plugins.length > 5 && " …",
              ),
            ],
          },
        route &&
          (upstream?.unavailable
            ? {
                title: "goes nowhere",
                tone: "none",
                body: [h("strong", {}, "answered 503"), h("span", {}, upstream.unavailable)],
              }
            : {
                title: "goes to",
                body: [
                  h("strong", {}, upstream?.id ?? "–"),
                  nodes.slice(0, 4).map((node) => h("span", { class: "mono" }, node)),
                  nodes.length > 4 && h("span", { class: "quiet" }, `and ${count(nodes.length - 4)} more nodes`),
                ],
              }),
      ]),
    ),
    notes.length > 0 &&
      notice(
        "note",
        notes.length === 1 ? "Note" : "Notes",
        h(
          "ul",
          {},
          notes.map((note) => h("li", {}, note)),
        ),
      ),
    asked && notice("note", `Route ${asked.id}`, asked.verdict, predicates(asked.predicates)),
    card(
      "Plugins",
      [
        chain_view(plugins, { lines }),
        answer.plugins_left_out?.length > 0 &&
          h("p", { class: "quiet" }, `Left out: ${answer.plugins_left_out.map(({ name }) => name).join(", ")}`),
      ],
      { note: "in this order in each phase" },
    ),
    ruled_out.length > 0 &&
      card("Better placed, but ruled out", reasons(ruled_out, stand, answer.omitted), {
        note: "the closest ones",
      }),
    missed.length > 0 && card("Same path, other hosts", reasons(missed, stand, answer.missed_omitted)),
  ];
}

const reasons = (list, stand, omitted) =>
  h(
    "ol",
    { class: "reasons" },
    list.map(({ route, reason, predicates: failed }) =>
      h(
        "li",
        {},
        h(
          "div",
          {},
          link(["routes", route.id], route.id, { class: "row-title" }),
          " ",
          h("span", { class: "quiet mono" }, stand(route).slice(0, 300)),
        ),
        predicates(failed) ?? h("span", {}, reason),
      ),
    ),
    omitted > 0 && h("li", { class: "quiet" }, `and ${count(omitted)} more`),
  );

function predicates(list) {
  if (!list?.length) return null;
  return h(
    "ul",
    { class: "predicates" },
    list.map(({ predicate, field, values, known, holds, line, column }) =>
      h(
        "li",
        {},
        holds === true ? badge("good", "holds") : known === false ? badge("warn", "not given") : badge("bad", "fails"),
        h("code", {}, predicate),
        h(
          "span",
          { class: "quiet" },
          field
            ? `${field} is ${values?.length ? values.map((value) => JSON.stringify(value)).join(", ") : "absent"}`
            : "",
          line ? ` · line ${line}:${column}` : "",
        ),
      ),
    ),
  );
}
