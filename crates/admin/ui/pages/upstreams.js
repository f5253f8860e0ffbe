// Nodes of every upstream: which take requests, which are out and why, how many requests fail, and how fast they answer.

import { get } from "../api.js";
import { badge, bar } from "../chart.js";
import { address, h, put } from "../dom.js";
import { count, instant, percent, plural, seconds, short, span } from "../format.js";
import { empty, failure_view, loading, notice, page_head, search_field } from "../parts.js";

const FIRST_MS = 1000;
const REFRESH_MS = 5000;
const SAMPLES = 7;
const SHOWN = 40;
const NODES_SHOWN = 30;
const SHARES_SHOWN = 40;
const UNRESOLVED_SHOWN = 5;
const PROBLEMS_SHOWN = 3;
/** A node fails from this share of errors on. */
const FAILING = 0.05;
const RANK = { unhealthy: 0, set_aside: 1, failing: 2, healthy: 3 };
const NO_NODES_RANK = -1;
const TONES = { healthy: "good", failing: "warn", set_aside: "warn", unhealthy: "bad" };
const WORDS = { healthy: "healthy", failing: "fails", set_aside: "set aside", unhealthy: "unhealthy" };

export const title = () => "Upstreams";

export async function show({ root, query, app, signal }) {
  let search = query.get("search") ?? "";
  let only_out = query.get("out") === "1";
  let shown = SHOWN;
  let answer = null;
  const measure = meter();
  const cards = new Map();
  const summary = h("p", { class: "quiet", role: "status" });
  const verdict = h("div", { class: "verdict" });
  const list = h("div", { class: "upstreams" });
  const others = h("div", {}, loading("Loading the health of nodes"));
  const actions = h("div", { class: "actions" });
  const toggle = h(
    "button",
    {
      type: "button",
      "aria-pressed": String(only_out),
      class: only_out && "is-primary",
      onclick: () => {
        only_out = !only_out;
        toggle.setAttribute("aria-pressed", String(only_out));
        toggle.classList.toggle("is-primary", only_out);
        draw();
      },
    },
    "Only with failing nodes",
  );
  const more = h("button", { type: "button", hidden: true, onclick: () => ((shown += SHOWN), draw()) });
  put(
    root,
    page_head("Upstreams", { actions }),
    verdict,
    h(
      "div",
      { class: "toolbar" },
      search_field({
        label: "Search upstreams and nodes",
        placeholder: "Upstream, node address …",
        value: search,
        on_search(text) {
          search = text;
          shown = SHOWN;
          app.remember(["upstreams"], { search });
          app.replaced();
          draw();
        },
      }),
      toggle,
      summary,
    ),
    list,
    others,
    more,
  );
  const allowed = () =>
    put(actions, app.can_write && h("a", { class: "button is-primary", href: "#/new/upstreams" }, "New upstream"));
  app.status ? allowed() : app.refresh().then(allowed, () => {});

  function draw() {
    if (!answer) return;
    const all = answer.upstreams;
    const fitting = all
      .filter((upstream) => does_match(upstream, search.toLowerCase()) && (!only_out || is_failing(upstream)))
      .sort((a, b) => worst_of(a) - worst_of(b));
    const words = summary_words(all);
    if (summary.textContent !== words) put(summary, words);
    const sentences = h("div", {}, verdict_of(all));
    if (sentences.textContent !== verdict.textContent) verdict.replaceChildren(...sentences.childNodes);
    put(
      others,
      answer.silent_workers?.length > 0 &&
        notice(
          "warn",
          `${plural(answer.silent_workers.length, "worker")} did not answer in time`,
          "Their figures are missing. They are asked again in 5 seconds.",
        ),
      !fitting.length &&
        (all.length
          ? empty("No upstream matches", "The search covers names, ids, addresses and host names.")
          : empty("There are no upstreams", "A route with its own nodes is listed here, too, as routes/ID.")),
    );
    const wanted = fitting.slice(0, shown).map((upstream) => {
      if (!cards.has(upstream.id)) cards.set(upstream.id, upstream_card(upstream.id, app));
      const card = cards.get(upstream.id);
      card.show(upstream);
      return card.element;
    });
    // A card that moves loses the focus, so the order waits for it.
    const is_same = wanted.length === list.childElementCount && wanted.every((one, i) => list.children[i] === one);
    const is_set = wanted.length === list.childElementCount && wanted.every((one) => list.contains(one));
    if (!is_same && !(is_set && list.contains(document.activeElement))) list.replaceChildren(...wanted);
    more.hidden = fitting.length <= shown;
    more.textContent = `Show ${count(Math.min(SHOWN, fitting.length - shown))} more of ${count(fitting.length - shown)}`;
  }
  const load = async () => {
    try {
      const found = await get("/v1/upstreams", signal);
      measure(found.upstreams);
      answer = found;
      draw();
    } catch (failure) {
      if (failure.name === "AbortError") return;
      // Figures that are a little old are better than none.
      if (answer) put(summary, badge("warn", `Not up to date: ${failure.message}`));
      else if (!others.querySelector(".notice"))
        put(others, failure_view(failure, "Loading the health of nodes", load));
    }
  };
  let timer = 0;
  const again = (wait_ms) =>
    (timer = setTimeout(async () => {
      if (!document.hidden) await load();
      if (!signal.aborted) again(REFRESH_MS);
    }, wait_ms));
  signal.addEventListener("abort", () => clearTimeout(timer));
  await load();
  if (!signal.aborted) again(FIRST_MS);
}

// Figures are those of the last half a minute: what the counters have gained since the oldest of the last samples.
function meter() {
  let known = new Map();
  return (upstreams) => {
    const at = performance.now() / 1000;
    const seen = new Map();
    for (const { id, endpoints } of upstreams) {
      for (const node of endpoints) {
        const key = [id, node.address, node.host, node.priority].join("\n");
        const now = {
          at,
          requests: node.requests_total ?? NaN,
          errors: node.errors_total ?? NaN,
          time: node.response_seconds_total ?? NaN,
        };
        const samples = known.get(key) ?? [];
        const last = samples.at(-1);
        // A counter that fell began anew: the workers were replaced.
        if (last && !(now.requests >= last.requests && now.errors >= last.errors)) samples.length = 0;
        samples.push(now);
        if (samples.length > SAMPLES) samples.shift();
        seen.set(key, samples);
        node.now = samples.length > 1 ? gained(samples[0], now) : null;
        node.status = is_erring(node) ? "failing" : node.state;
      }
    }
    known = seen;
  };
}

function gained(from, to) {
  const passed = to.at - from.at;
  const requests = to.requests - from.requests;
  return {
    requests: requests / passed,
    errors: (to.errors - from.errors) / passed,
    mean: requests > 0 && to.time >= from.time ? (to.time - from.time) / requests : null,
  };
}

const error_share = ({ now }) => (now?.errors > 0 ? Math.min(1, now.errors / Math.max(now.requests, now.errors)) : 0);
const is_erring = (node) => node.state === "healthy" && error_share(node) >= FAILING;

const is_failing = ({ endpoints, unresolved = [] }) =>
  !endpoints.length || unresolved.length > 0 || endpoints.some(({ status }) => status !== "healthy");

const worst_of = ({ endpoints, unresolved = [] }) =>
  endpoints.length
    ? Math.min(unresolved.length ? RANK.set_aside : RANK.healthy, ...endpoints.map(({ status }) => RANK[status] ?? 2))
    : NO_NODES_RANK;

const does_match = ({ id, name, endpoints, unresolved = [] }, text) =>
  !text ||
  [
    id,
    name ?? "",
    ...endpoints.flatMap((node) => [node.address, node.host]),
    ...unresolved.map((one) => one.name),
  ].some((word) => word.toLowerCase().includes(text));

const is_out = ({ state }) => state !== "healthy";

function summary_words(all) {
  const nodes = all.flatMap(({ endpoints }) => endpoints);
  const out = nodes.filter(is_out).length;
  const erring = nodes.filter(is_erring).length;
  const without = all.filter(({ endpoints }) => !endpoints.length).length;
  const unresolved = all.reduce((sum, upstream) => sum + (upstream.unresolved ?? []).length, 0);
  const problems = [
    out && `${count(out)} out`,
    erring && `${count(erring)} with errors`,
    without && `${plural(without, "upstream")} without nodes`,
    unresolved && `${plural(unresolved, "name")} not resolved`,
  ].filter(Boolean);
  return `${plural(all.length, "upstream")}, ${plural(nodes.length, "node")}, ${problems.join(", ") || "all healthy"}`;
}

/** What fails, in sentences; the first answers "which node?". */
function verdict_of(all) {
  const sentences = all.flatMap((upstream) => sentences_of(upstream)).sort((a, b) => a.rank - b.rank);
  const nodes = all.reduce((sum, { endpoints }) => sum + endpoints.length, 0);
  if (!sentences.length)
    return (
      nodes > 0 &&
      badge("good", nodes === 1 ? "The only node takes requests." : `All ${count(nodes)} nodes take requests.`)
    );
  return [
    sentences.slice(0, PROBLEMS_SHOWN).map(({ tone, words }) => badge(tone, h("span", {}, words))),
    sentences.length > PROBLEMS_SHOWN &&
      h("p", { class: "quiet" }, `and ${plural(sentences.length - PROBLEMS_SHOWN, "more upstream")}, listed below`),
  ];
}

function sentences_of({ id, name, endpoints, unresolved = [] }) {
  const of = cut(name || id);
  if (!endpoints.length)
    return [
      {
        rank: -1,
        tone: "bad",
        words: [`Upstream ${of}: ${no_nodes_words({ unresolved })}. Its requests are answered 503.`],
      },
    ];
  const out = endpoints.filter(is_out).sort((a, b) => RANK[a.state] - RANK[b.state]);
  if (out.length) {
    const why = out[0].out_reason ?? out[0].active_checks?.reason;
    const words = [
      nodes_words(out),
      ` of ${of} ${out.length > 1 ? "get" : "gets"} no requests${why ? `: ${why}` : ""}.`,
    ];
    return [{ rank: RANK[out[0].state] ?? 1, tone: TONES[out[0].state] ?? "warn", words }];
  }
  const erring = endpoints.filter(is_erring).sort((a, b) => error_share(b) - error_share(a));
  if (!erring.length) return [];
  const share = percent(error_share(erring[0]), 1);
  return [
    { rank: 2, tone: "warn", words: [nodes_words(erring), ` of ${of}: ${share} of the requests end in errors.`] },
  ];
}

const nodes_words = ([first, ...more]) => [
  first.address,
  more.length > 0 && ` and ${plural(more.length, "more node")}`,
];

const cut = (text, most = 80) => (text.length > most ? `${text.slice(0, most)}…` : text);

/** Why an upstream has no nodes, in a few words. */
export const no_nodes_words = ({ unresolved = [] }) =>
  unresolved.length
    ? `no nodes: ${unresolved.length === 1 ? `${unresolved[0].name} does` : "the names of its nodes do"} not resolve`
    : "no nodes are configured";

function upstream_badge({ endpoints, unresolved = [] }) {
  const all = endpoints.length;
  const out = endpoints.filter(is_out).length;
  const erring = endpoints.filter(is_erring).length;
  if (!all) return badge("bad", no_nodes_words({ unresolved }));
  if (out) return badge(out === all ? "bad" : "warn", `${count(out)} of ${count(all)} out`);
  if (erring) return badge("warn", `${count(erring)} of ${count(all)} ${erring === 1 ? "fails" : "fail"}`);
  if (unresolved.length) return badge("warn", `${plural(unresolved.length, "name")} not resolved`);
  return badge("good", `${plural(all, "node")} healthy`);
}

// What the reader opened and closed stays so while the figures change, and after a visit to another page.
const opened = new Set();
const closed = new Set();

/** A card that is kept: `show(upstream)` draws the newest figures into it. */
function upstream_card(id, app) {
  const head = h("summary");
  const nodes = h("ul", { class: "nodes" });
  let is_long = false;
  let last = null;
  const more = h("button", { type: "button", onclick: () => ((is_long = !is_long), show(last)) });
  let is_open = false;
  const details = h(
    "details",
    {
      ontoggle: () => {
        if (details.open === is_open) return;
        (details.open ? opened : closed).add(id);
        (details.open ? closed : opened).delete(id);
        show(last);
      },
    },
    head,
    nodes,
    h("div", { class: "nodes-more" }, more),
  );
  const editing = id.includes("/") ? id.split("/").slice(0, 2) : ["upstreams", id];
  const edit = app.can_write && h("a", { href: address(["edit", ...editing]), "aria-label": `Edit ${id}` }, "Edit");
  const element = h("div", { class: "card upstream" }, edit, details);

  function show(upstream) {
    const { endpoints, unresolved = [] } = upstream;
    last = upstream;
    is_open = opened.has(id) || (is_failing(upstream) && !closed.has(id));
    details.open = is_open;
    put(head, head_of(upstream));
    // A text that is being copied stays.
    const selected = getSelection();
    if (!is_open || (!selected.isCollapsed && nodes.contains(selected.anchorNode))) return;
    const sorted = [...endpoints].sort((a, b) => (RANK[a.status] ?? 2) - (RANK[b.status] ?? 2));
    const most = {
      weights: endpoints.reduce((sum, { weight }) => sum + weight, 0),
      requests: Math.max(...endpoints.map(({ now }) => now?.requests || 0), 0),
      latency: Math.max(...endpoints.map((node) => latency_of(node).value ?? 0), 0),
    };
    put(
      nodes,
      unresolved
        .slice(0, UNRESOLVED_SHOWN)
        .map(({ name, reason }) =>
          h(
            "li",
            { class: "node" },
            badge("bad", "not resolved"),
            h("span", { class: "node-address" }, name),
            h("span", { class: "node-why" }, reason),
          ),
        ),
      unresolved.length > UNRESOLVED_SHOWN &&
        h(
          "li",
          { class: "quiet" },
          `and ${count(unresolved.length - UNRESOLVED_SHOWN)} more names that do not resolve`,
        ),
      !endpoints.length && h("li", { class: "quiet" }, "Requests that need this upstream are answered 503."),
      (is_long ? sorted : sorted.slice(0, NODES_SHOWN)).map((node) => node_row(node, most)),
    );
    more.hidden = sorted.length <= NODES_SHOWN;
    more.textContent = is_long ? `Show only ${count(NODES_SHOWN)} nodes` : `Show all ${count(sorted.length)} nodes`;
  }
  return { element, show };
}

function head_of(upstream) {
  const { id, name, type, requests_waiting: waiting, endpoints } = upstream;
  const in_flight = endpoints.reduce((sum, node) => sum + node.requests_in_flight, 0);
  const known = endpoints.map(({ now }) => now).filter((now) => Number.isFinite(now?.requests));
  const sum = (key) => known.reduce((all, now) => all + now[key], 0);
  const [requests, errors] = [sum("requests"), sum("errors")];
  const timed = known.filter(({ mean }) => mean !== null);
  const mean =
    timed.reduce((all, now) => all + now.mean * now.requests, 0) / timed.reduce((all, now) => all + now.requests, 0);
  return [
    h(
      "span",
      { class: "upstream-name" },
      h("h2", { class: "clamped", title: name || id }, name || id),
      h("span", { class: "quiet clamped", title: id }, [name && name !== id && id, type].filter(Boolean).join(" · ")),
    ),
    upstream_badge(upstream),
    h(
      "span",
      { class: "shares", "aria-hidden": "true" },
      endpoints.length <= SHARES_SHOWN
        ? endpoints.map(({ weight, status }) => share_of(status, weight || 0.2))
        : Object.keys(RANK)
            .map((status) => [status, endpoints.filter((node) => node.status === status).length])
            .filter(([, number]) => number)
            .map(([status, number]) => share_of(status, number)),
    ),
    h(
      "span",
      { class: "upstream-figure" },
      known.length > 0 && [h("span", { class: "figure" }, `${short(requests)}/s`), error_words(errors, requests)],
    ),
    h(
      "span",
      { class: "upstream-figure" },
      Number.isFinite(mean) && h("span", { class: "figure", title: "Mean response time" }, seconds(mean)),
      waiting
        ? h("strong", { class: "is-bad" }, `${count(waiting)} waiting`)
        : h("span", { class: "quiet" }, `${count(in_flight)} in flight`),
    ),
  ];
}

const share_of = (status, part) => h("i", { class: `tone-${TONES[status] ?? "away"}`, vars: { part } });

const error_words = (errors, requests) =>
  errors > 0
    ? h(
        "span",
        { class: ["node-errors", errors / requests >= FAILING && "is-bad"] },
        `${percent(Math.min(errors, requests), requests)} errors`,
      )
    : h("span", { class: "quiet" }, requests > 0 ? "no errors" : "");

/** The mean response time of the last requests; of a node without any, the time of its last check. In seconds. */
function latency_of({ now, active_checks: checks }) {
  if (Number.isFinite(now?.mean)) return { value: now.mean };
  const found = checks?.last?.latency_ms;
  return Number.isFinite(found) ? { value: found / 1000, is_check: true } : { value: null };
}

function node_row(node, most) {
  const { now, status, host } = node;
  const latency = latency_of(node);
  const is_counted = Number.isFinite(now?.requests);
  return h(
    "li",
    { class: "node" },
    badge(TONES[status] ?? "away", WORDS[status] ?? status),
    h(
      "span",
      { class: "node-address" },
      node.address,
      host !== node.address && h("span", { class: "quiet" }, ` ${host}`),
    ),
    h("span", { class: "node-why" }, why(node, most.weights)),
    h(
      "span",
      { class: "node-figure", title: totals_words(node) },
      is_counted && [
        h(
          "span",
          {},
          h("span", { class: "figure" }, `${short(now.requests)}/s`),
          " ",
          error_words(now.errors, now.requests),
        ),
        bar(
          [
            { value: Math.min(now.errors, now.requests), tone: "bad" },
            { value: Math.max(0, now.requests - now.errors), tone: "traffic" },
          ],
          most.requests,
        ),
        h("span", { class: "visually-hidden" }, totals_words(node)),
      ],
    ),
    h(
      "span",
      { class: "node-figure" },
      latency.value !== null && [
        h(
          "span",
          { title: latency.is_check ? "At the last active check" : "Mean response time" },
          h("span", { class: "figure" }, seconds(latency.value)),
          latency.is_check && h("span", { class: "quiet" }, " (check)"),
        ),
        bar([{ value: latency.value, tone: "p99" }], most.latency),
      ],
    ),
    h("span", { class: "quiet" }, `${count(node.requests_in_flight)} in flight`),
  );
}

const totals_words = ({ requests_total: requests, errors_total: errors }) =>
  Number.isFinite(requests) ? `${plural(requests, "request")}, ${plural(errors ?? 0, "error")} since the start` : null;

function why({ state, out_reason: reason, active_checks: checks, set_aside = [], weight, priority }, weights) {
  const share = weights && weight ? `weight ${weight}, ${percent(weight, weights)}` : "weight 0: takes no requests";
  const about = [share, priority && `priority ${priority}`];
  if (state === "healthy") {
    about.push(checks ? `${plural(checks.checks, "check")}, ${count(checks.failures)} failed` : "no active checks");
    return h("span", { class: "quiet" }, about.filter(Boolean).join(", "));
  }
  const parts = [reason ?? checks?.reason ?? (checks && !checks.healthy ? "active checks fail" : null)];
  if (checks && !checks.healthy) {
    const error = checks.last?.error;
    if (error && !parts[0]?.includes(error)) parts.push(`last check: ${error}`);
    if (checks.since) parts.push(`for ${span((Date.now() - instant(checks.since)) / 1000)}`);
  }
  if (set_aside.length) parts.push(set_aside_words(set_aside));
  return [
    parts.filter(Boolean).join("; ") || "out",
    h("span", { class: "quiet" }, ` (${about.filter(Boolean).join(", ")})`),
  ];
}

function set_aside_words(set_aside) {
  const longest = Math.max(...set_aside.map(({ for_ms }) => for_ms));
  // Half open: the worker's next request tests the node, or does so now.
  const half_open = set_aside.filter(({ circuit }) => circuit === "half_open");
  const is_testing = half_open.some(({ requests_in_flight }) => requests_in_flight);
  const trying = is_testing
    ? ", one request is testing it"
    : half_open.length
      ? ", ready: the next request tests it"
      : "";
  const times = plural(Math.max(...set_aside.map(({ periods }) => periods)), "time");
  return `set aside by ${plural(set_aside.length, "worker")}${longest ? `, for ${seconds(longest / 1000)} more` : ""}${trying}, ${times} in a row`;
}
