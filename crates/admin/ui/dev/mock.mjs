// A stand-in for a gateway's admin address, to work on the dashboard without one.
//
//   node mock.mjs [--port 9280] [--source store|file|etcd] [--routes 100000] [--fail /v1/upstreams] [--slow 300]
//                 [--uptime 900] [--metrics off]
//
// It serves /ui/ with the Content-Security-Policy that the gateway sends, and invents everything else: names that try to
// break out of the page, traffic that has bad minutes, nodes that are out. The key is "admin" or "viewer"; the token is
// "token". It checks what the gateway checks of a client: session, X-CSRF-Token, If-Match. It is not part of the gateway.

import { createServer } from "node:http";
import { readFileSync, realpathSync } from "node:fs";
import { dirname, extname, join, normalize } from "node:path";
import { fileURLToPath } from "node:url";
import { describe_kind, describe_plugin, PLUGINS } from "./mock_schema.mjs";

const option = (name, fallback) => {
  const at = process.argv.indexOf(`--${name}`);
  return at < 0 ? fallback : process.argv[at + 1];
};
const PORT = Number(option("port", 9280));
const SOURCE = option("source", "store");
const ROUTES = Number(option("routes", 100_000));
const FAIL = option("fail", "none");
const SLOW_MS = Number(option("slow", 0));
const UPTIME_S = Number(option("uptime", 900));
const HAS_METRICS = option("metrics", "on") !== "off";
const ROOT = join(dirname(realpathSync(fileURLToPath(import.meta.url))), "..");
const CSP =
  "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";
const TYPES = {
  ".html": "text/html; charset=utf-8",
  ".js": "text/javascript; charset=utf-8",
  ".css": "text/css; charset=utf-8",
  ".svg": "image/svg+xml",
};
const HOSTILE = [
  "<img src=x onerror=alert(1)>",
  '"><script>alert(1)</script>',
  "javascript:alert(1)",
  "a/b%2Fc?d#e",
  "__proto__",
  "\u202Egnp.exe",
  "' onmouseover='alert(1)",
  "{{7*7}}",
  "x".repeat(180),
  "..hidden",
  "ünïcode 漢字 🦀",
];

// A generator of its own: the same numbers at every start.
let seed = 42;
const random = () => (seed = (seed * 1664525 + 1013904223) >>> 0) / 2 ** 32;
const pick = (list) => list[Math.floor(random() * list.length)];

const now_s = () => Math.floor(Date.now() / 1000);
const AREAS = [
  "orders",
  "users",
  "search",
  "cart",
  "payments",
  "catalog",
  "reviews",
  "media",
  "login",
  "stock",
  "prices",
  "mail",
];
const documents = new Map();
const history = [];
let revision = 0;
let generation = 41;
// While the store is filled, two days ago.
let writing_at = Date.now() - 2 * 86400e3;

/** A profile of CPU time, a little different each time. */
const PROFILE = () => ({
  title: "cpu: 4.20 s in 5.0 s",
  unit: "nanoseconds",
  notes: ["made up"],
  threads: ["worker-0", "worker-1"],
  phases: ["routing", "plugins", "other"],
  functions: ["main", "exchange::run", "route::find", "plugins::run", "memcpy", ...HOSTILE].map((name) => [name, "a.rs"]),
  stacks: [
    [0, 0, 5e8 + random() * 1e9, [0, 1, 2], "orders", null],
    [0, 1, 5e8 + random() * 1e9, [0, 1, 3, 4], "orders", "cors"],
    [1, 1, 5e8 + random() * 1e9, [0, 1, 3], "slow", "key-auth"],
    ...HOSTILE.map((name, i) => [1, 2, 1e7, [0, 5 + i], name, null]),
  ],
});

function write(
  key,
  value,
  author = { name: "ci", address: "10.1.0.7", action: `PUT /apisix/admin/${key}` },
  time = writing_at ?? Date.now(),
) {
  const before = documents.get(key);
  revision++;
  if (value === null) documents.delete(key);
  else documents.set(key, { value, created: before?.created ?? revision, modified: revision });
  history.push({
    revision,
    unix_ms: time,
    author,
    edits: [{ key, before: before?.value ?? null, after: value }],
  });
}

function fill() {
  for (let i = 0; i < ROUTES; i++) {
    const area = AREAS[i % AREAS.length];
    const id = i < HOSTILE.length ? HOSTILE[i] : String(1000 + i);
    const value = {
      id,
      name: i < HOSTILE.length ? HOSTILE[i] : `${area}-${i}`,
      uri: `/${area}/v${1 + (i % 3)}/${i}/*`,
      hosts: [i % 5 ? `${area}.example.com` : "*.example.com"],
      upstream_id: `${area}-nodes`,
      status: i % 997 === 5 ? 0 : 1,
    };
    if (i % 3 === 0) value.methods = ["GET", "POST"].slice(0, 1 + (i % 2));
    if (i % 4 === 0) value.plugins = { "key-auth": {}, "limit-count": { count: 100, time_window: 60 } };
    if (i < HOSTILE.length) ((value.labels = { [HOSTILE[i]]: HOSTILE[i] }), (value.uri = `/hostile/${HOSTILE[i]}`));
    documents.set(`routes/${id}`, { value, created: ++revision, modified: revision });
  }
  for (const area of AREAS)
    documents.set(`upstreams/${area}-nodes`, {
      value: {
        id: `${area}-nodes`,
        type: "roundrobin",
        nodes: { "10.0.0.1:8080": 2, "10.0.0.2:8080": 1 },
        checks: { active: { http_path: "/health" } },
      },
      created: ++revision,
      modified: revision,
    });
  for (const name of ["alice", "batch", "mobile-app", HOSTILE[0], "partner-7"])
    write(
      `consumers/${name}`,
      {
        username: name,
        desc: name === "batch" ? "Nightly imports" : undefined,
        labels: { team: "core" },
        plugins: name === "alice" ? { "limit-count": { count: 10, time_window: 1 } } : {},
        update_time: now_s() - 86400 * 3,
      },
      undefined,
      Date.now() - 86400e3 * 3,
    );
  write("consumers/alice/credentials/laptop", {
    id: "laptop",
    name: "laptop",
    plugins: { "key-auth": { key: "a-secret" } },
    update_time: now_s() - 4000,
  });
  write(`consumers/alice/credentials/old`, {
    id: "old",
    plugins: { "basic-auth": { username: "alice", password: "x" } },
    desc: "until the old client is gone",
  });
  write("services/shop", {
    id: "shop",
    name: "shop",
    hosts: ["shop.example.com"],
    upstream_id: "cart-nodes",
    plugins: { cors: {} },
  });
  write("global_rules/everywhere", { id: "everywhere", plugins: { "request-id": {} } });
  for (const [id, snis] of [
    ["shop", ["shop.example.com", "www.shop.example.com"]],
    ["api", ["*.api.example.com"]],
    ["old", ["legacy.example.com"]],
    ["new", ["beta.example.com"]],
  ])
    documents.set(`ssls/${id}`, {
      value: { id, snis, cert: "-----BEGIN CERTIFICATE-----\n…", type: "server" },
      created: ++revision,
      modified: revision,
    });
  const minutes = [240, 95, 11, 6, 2];
  minutes.forEach((minute, i) => {
    const value = {
      ...documents.get("routes/1012").value,
      priority: i * 10,
      plugins:
        i > 1
          ? { "key-auth": {}, "limit-count": { count: 100 * i, time_window: 60, key: "remote_addr" }, cors: {} }
          : undefined,
    };
    write(
      "routes/1012",
      value,
      { name: pick(["ci", "anna", "admin"]), address: "127.0.0.1", action: "PUT /apisix/admin/routes/1012" },
      Date.now() - minute * 60e3,
    );
  });
}

// Traffic: a slow wave, noise, and a minute in which a release goes wrong.
const live = [];
function second_at(t) {
  const wave = 1 + 0.25 * Math.sin(t / 140) + 0.1 * Math.sin(t / 17);
  const is_bad = t % 700 > 600 && t % 700 < 660;
  const requests = Math.max(0, 4200 * wave + (random() - 0.5) * 500);
  const errors = requests * (is_bad ? 0.06 : 0.002) * (0.6 + random());
  const p50 = 0.0018 * (0.9 + 0.2 * random()) * (is_bad ? 1.6 : 1);
  const routes = AREAS.slice(0, 10).map((area, i) => {
    const share = 0.3 / (i + 1);
    const wrong = i === 2 ? errors * 0.7 : i === 5 ? errors * 0.2 : i === 0 ? errors * 0.05 : 0;
    return {
      id: i === 3 ? HOSTILE[0] : String(1011 + i),
      requests: requests * share * (0.9 + 0.2 * random()),
      client_errors: i === 4 ? requests * 0.01 : 0,
      errors: wrong,
      timed: Math.round(requests * share),
      p50: p50 * (1 + i / 4),
      p99: p50 * (8 + 3 * i) * (0.8 + 0.4 * random()),
      max: p50 * (20 + 3 * i) * (0.8 + 0.4 * random()),
    };
  });
  return {
    t,
    requests: Math.round(requests),
    client_errors: Math.round(requests * 0.012 * (0.8 + 0.4 * random())),
    errors: Math.round(errors),
    timed: Math.round(requests),
    p50,
    p99: p50 * (14 + 4 * random()) * (is_bad ? 3 : 1),
    p999: p50 * (50 + 30 * random()) * (is_bad ? 4 : 1),
    max: p50 * (100 + 30 * random()) * (is_bad ? 4 : 1),
    connections: Math.round(880 * wave + random() * 8),
    tunnels: Math.round(140 + 30 * Math.sin(t / 300)),
    generation,
    routes,
  };
}
function tick() {
  live.push(second_at(now_s()));
  if (live.length > 900) live.shift();
  for (const { answer, route } of listeners)
    answer.write(`data: ${JSON.stringify(with_route(live.at(-1), route))}\n\n`);
}
const with_route = (second, route) =>
  route === null
    ? second
    : {
        ...second,
        route: {
          id: route,
          requests: 30 + 8 * Math.sin(second.t / 60) + 6 * Math.random(),
          client_errors: Math.random() < 0.2 ? 1 : 0,
          errors: Math.random() < 0.05 ? 1 : 0,
          timed: 30,
          p50: 0.002 * (1 + 0.2 * Math.random()),
          p99: 0.03 * (1 + 0.5 * Math.random()),
          max: 0.03 * (1 + 0.5 * Math.random()),
        },
      };
const listeners = new Set();

const sessions = new Map();
let token = "token";

const REJECTED = [
  {
    kind: "routes",
    id: "1017",
    reason: 'plugins.limit-count.time_window: expected a whole number from 1, found "often"; write seconds, such as 60',
    origin: "/apisix/routes/1017 @ 38",
    serving: "previous",
  },
  {
    kind: "routes",
    id: HOSTILE[1],
    reason: 'upstream_id: there is no upstream "gone"',
    origin: "/apisix/routes/x @ 12",
    serving: "503",
  },
];

const STATUS = () => ({
  version: "0.9.0-mock",
  source: SOURCE,
  source_path: {
    file: "/etc/stillgate/stillgate.yaml",
    store: "/var/lib/stillgate/config.redb",
    etcd: "http://10.0.0.9:2379",
  }[SOURCE],
  revision: SOURCE === "file" ? null : revision,
  rejected: REJECTED,
  config: {
    generation,
    digest: "5f2a9c11d0e7b6",
    loaded_at: new Date(Date.now() - 120e3).toISOString(),
    last_error: null,
  },
  pending_restart: ["gateway.workers"],
  workers: 4,
  uptime_seconds: 93_784,
  draining: false,
  connections: {
    open: 902,
    total: 48_211_031,
    refused: 0,
    streams_refused: 0,
    accept_errors: 0,
    proxy_protocol_errors: 0,
    tls_handshakes: 3_100_000,
    tls_handshake_errors: 212,
  },
  requests: { total: 391_004_211, in_flight: 61, http2_refused: 0 },
  tunnels: { open: 141, total: 9120 },
  streams: { open: 12, total: 400, udp_open: 3, datagrams_dropped: 0 },
  access_log: { dropped_lines: 0 },
  certificates: [
    ["shop", 61],
    ["api", 33],
    ["old", 5.4],
    ["new", null],
  ].map(([id, days]) => ({
    id,
    not_after: days && new Date(Date.now() + days * 864e5).toISOString(),
    ...(id === "new"
      ? {
          acme: {
            failures: 2,
            last_error: "the CA could not connect to beta.example.com:80",
            next_try: new Date(Date.now() + 900e3).toISOString(),
          },
        }
      : {}),
  })),
});

const since_ms = Date.now() - 9e6;
/** Counters of a node that grow by so much a second. */
const counted = (requests, errors, mean_s) => {
  const passed = (Date.now() - since_ms) / 1000;
  return {
    requests_total: Math.round(requests * passed),
    errors_total: Math.round(errors * passed),
    response_seconds_total: requests * mean_s * passed,
  };
};
const UPSTREAMS = () => ({
  upstreams: AREAS.map((area, u) => ({
    id: u === 11 ? `routes/${HOSTILE[0]}` : `${area}-nodes`,
    name: u === 3 ? HOSTILE[1] : u % 2 ? null : `Nodes for ${area}`,
    type: "roundrobin",
    requests_waiting: u === 2 ? 7 : 0,
    unresolved:
      u === 7 || u === 9
        ? [{ name: `${area}.internal`, reason: "no record found for Query { name: Name(\"internal.\"), query_type: AAAA }" }]
        : [],
    endpoints: Array.from({ length: u === 7 ? 0 : 2 + (u % 4) }, (_, n) => {
      const state = u === 2 && n === 1 ? "unhealthy" : u === 5 && n === 0 ? "set_aside" : "healthy";
      return {
        address: `10.0.${u}.${n + 1}:8080`,
        host: n % 2 ? `10.0.${u}.${n + 1}:8080` : `${area}-${n}.internal`,
        weight: n + 1,
        priority: 0,
        state,
        ...counted(state === "healthy" ? 30 * (n + 1) : 0, u === 4 && n === 0 ? 4 : 0.05, 0.004 * (n + 1)),
        out_reason: {
          unhealthy: "active check: timed out after 1 s",
          set_aside: "3 failed attempts in a row; last: connection refused",
          healthy: null,
        }[state],
        active_checks:
          u % 3 === 2
            ? {
                healthy: state !== "unhealthy",
                since: new Date(Date.now() - 340e3).toISOString(),
                reason: state === "unhealthy" ? "3 timeouts: timed out after 1 s" : null,
                checks: 1412,
                failures: state === "unhealthy" ? 34 : 2,
                last: {
                  at: new Date().toISOString(),
                  latency_ms: 2 + 9 * Math.random() * (n + 1),
                  status: state === "unhealthy" ? null : 200,
                  error: state === "unhealthy" ? "timed out" : null,
                },
              }
            : null,
        set_aside:
          state === "set_aside"
            ? [
                { worker: 0, circuit: "open", for_ms: 6200, periods: 3, requests_in_flight: 0 },
                { worker: 2, circuit: "half_open", for_ms: 0, periods: 2, requests_in_flight: 0 },
              ]
            : [],
        requests_in_flight: Math.floor(Math.random() * 20),
        idle_connections: 8,
      };
    }),
  })),
  silent_workers: [],
});

const CARDINALITY = {
  families: [
    [
      "stillgate_http_requests_total",
      48_310,
      [
        ["route", 9800],
        ["uri", 310_412, true],
        ["method", 7],
        ["status", 24],
      ],
    ],
    [
      "stillgate_http_request_seconds",
      21_004,
      [
        ["route", 9800],
        ["upstream", 61],
      ],
    ],
    ["stillgate_http_response_bytes", 9_912, [["route", 9800]]],
    [
      "stillgate_upstream_seconds",
      1_412,
      [
        ["upstream", 61],
        ["node", 244],
      ],
    ],
    [
      "stillgate_consumer_requests_total",
      911,
      [
        ["consumer", 870],
        ["status", 9],
      ],
    ],
    [
      "stillgate_connections",
      12,
      [
        ["listener", 3],
        ["state", 4],
      ],
    ],
    [
      "stillgate_tls_handshakes_total",
      9,
      [
        ["version", 2],
        ["sni", 6],
      ],
    ],
    ["stillgate_process_start_time_seconds", 1, []],
  ].map(([name, series, labels], f) => ({
    name,
    series,
    bytes: series * (f === 1 ? 410 : 96),
    examples: [0, 1, 2].map((at) =>
      Object.fromEntries(labels.map(([label], i) => [label, i === 1 ? [`/a/${8231 + at}`, HOSTILE[0]][at % 2] : "1011"])),
    ),
    labels: labels.map(([label, distinct, collapsed = false]) => ({
      name: label,
      distinct,
      collapsed,
      exploding: collapsed,
      key: collapsed ? "gateway.metrics.labels.http_requests_total: leave out `uri`" : null,
      samples:
        label === "uri"
          ? ["/a/8231", "/a/8232", HOSTILE[0], "__other__", ""]
          : label === "route"
            ? [HOSTILE[1], "1011", "1012"]
            : ["200", "GET", "x"].slice(0, Math.min(3, distinct)),
    })),
  })),
};

/** Every second consumer has sent requests. */
function consumers_page(query) {
  const names = [...documents.values()].map(({ value }) => value.username).filter(Boolean);
  const seen = names.filter((name, i) => i % 2 === 0 && [null, name].includes(query.get("name")));
  const routes = [HOSTILE[0], "1011", "1012", "1013", "1014"].map((id, i) => ({ id, requests_total: 40_000 >> i }));
  const figures = (name, i) => ({
    name,
    last_seen_unix_s: now_s() - i * 700,
    requests: 40 / (i + 1),
    errors: i === 1 ? 4 : 0,
    requests_total: 90_000 >> i,
    routes_total: 7,
    routes,
  });
  return { known: HAS_METRICS, since_unix_s: now_s() - 93_784, ...page_of(seen.map(figures), query, (one) => one) };
}

const FLEET = () => {
  const node = (id, hostname, state, behind) => ({
    id,
    hostname,
    version: "0.9.0-mock",
    is_self: id === "one",
    product: "stillgate",
    revision: SOURCE === "file" ? null : revision - behind,
    generation,
    rejected: id === "one" ? REJECTED.map(({ kind, id: of, reason }) => ({ kind, id: of, reason })) : [],
    rejected_total: id === "one" ? REJECTED.length : 0,
    started_unix_s: now_s() - 93_784,
    reported_unix_s: now_s() - (state === "silent" ? 400 : 3),
    state,
  });
  const apisix = { ...node("9f3c", "apisix-0", "unknown", 0), product: "apisix", revision: null, generation: null };
  const others = [node("two", HOSTILE[0], "behind", 2), node("three", HOSTILE[8], "silent", 5), apisix];
  const nodes = [node("one", "gateway-0", "ok", 0), ...(SOURCE === "etcd" ? others : [])];
  return { source: SOURCE, revision: SOURCE === "file" ? null : revision, nodes };
};

function explain(query) {
  const url = new URL(query.get("url") ?? "/", "http://none");
  const area = url.pathname.split("/")[1];
  const found = [...documents.values()].find(({ value }) => value.uri?.startsWith(`/${area}/`) && value.upstream_id);
  const route = found && { id: found.value.id, line: 12, host: found.value.hosts?.[0], path: found.value.uri };
  return {
    status: route ? null : 404,
    generation,
    route: route ?? null,
    params: route ? { id: "7" } : {},
    upstream: route ? { id: found.value.upstream_id, nodes: ["10.0.0.1:8080", "10.0.0.2:8080"] } : null,
    plugins: chain_of(found?.value ?? {}).map(({ plugin, ...rest }) => ({
      name: plugin,
      chain: rest.origin.kind === "global_rule" ? "global" : "route",
      ...rest,
      runs: plugin === "cors" ? null : true,
      filter: [],
    })),
    plugins_left_out: [],
    ruled_out: [
      {
        route: { id: HOSTILE[0], line: 4, host: "*", path: "/orders/*" },
        reason: "x",
        predicates: [
          {
            line: 1,
            column: 3,
            predicate: 'http.headers.x_beta == "1"',
            field: "http.headers.x_beta",
            values: query.getAll("header").slice(0, 1),
            known: true,
            holds: false,
          },
          {
            line: 1,
            column: 30,
            predicate: "net.src.port > 1024",
            field: "net.src.port",
            values: [],
            known: false,
            holds: false,
          },
        ],
      },
    ],
    omitted: 41,
    missed: route
      ? []
      : [
          {
            route: { id: "1011", host: "orders.example.com", path: "/orders/*" },
            reason: "host: none.example is not orders.example.com",
            predicates: [],
          },
        ],
    missed_omitted: 0,
    notes: ["1 route reads net.src.port, which is not given, so the answer may be wrong; give the client as IP:PORT"],
    asked: query.get("route")
      ? { id: query.get("route"), verdict: "could take it, but comes later: its path is shorter", predicates: [] }
      : null,
  };
}

function chain_of(route) {
  const origin = (kind, id) => ({ kind, id, line: null });
  const own = Object.keys(route.plugins ?? {}).map((plugin, i) => ({
    plugin,
    priority: 2500 - i * 700,
    origin: origin(i === 1 ? "plugin_config" : "route", i === 1 ? "limits" : route.id),
    phases: plugin === "cors" ? ["rewrite", "header_filter"] : ["rewrite", "access"],
  }));
  return [
    {
      plugin: "request-id",
      priority: 12015,
      origin: origin("global_rule", "everywhere"),
      phases: ["rewrite", "header_filter"],
    },
    ...own,
    { plugin: "prometheus", priority: 500, origin: origin("service", "shop"), phases: ["log"] },
  ];
}

let index = null;
const summary = ({ value }) => ({
  id: value.id,
  name: value.name ?? "",
  uris: value.uris ?? [value.uri ?? "/"],
  hosts: value.hosts ?? [],
  methods: value.methods ?? [],
  priority: value.priority ?? 0,
  service: value.service_id ?? null,
  upstream: value.upstream_id ?? null,
  plugins: Object.keys(value.plugins ?? {}),
  status: value.id === "1017" ? "rejected" : value.status === 0 ? "off" : "served",
});
function routes_page(query) {
  index ??= [...documents]
    .filter(([key]) => key.startsWith("routes/"))
    .map(
      ([, document]) =>
        (document.indexed ??= { shown: summary(document), text: JSON.stringify(summary(document)).toLowerCase() }),
    );
  const search = (query.get("search") ?? "").toLowerCase();
  const [status, sort] = [query.get("status"), query.get("sort")];
  let list = search ? index.filter(({ text }) => text.includes(search)) : [...index];
  if (status) list = list.filter(({ shown }) => shown.status === status);
  for (const { shown } of list) shown.traffic = HAS_METRICS ? traffic_of(shown.id) : null;
  if (sort) {
    const key = sort === "time" ? "time_share" : sort;
    const figure = ({ shown }) => (sort === "id" ? shown.id : (shown.traffic?.[key] ?? -1));
    list.sort((a, b) => (figure(a) < figure(b) ? -1 : 1) * (query.get("order") === "desc" ? -1 : 1));
  }
  return { ...page_of(list, query, ({ shown }) => shown), has_traffic: HAS_METRICS, generation };
}
/** The route with the id 1042 is the slow one, with few requests. */
function traffic_of(id) {
  const number = [...id].reduce((sum, c) => (sum * 31 + c.charCodeAt(0)) % 997, 7);
  if (number % 11 === 3) return null;
  const requests = id === SLOW_ROUTE ? 0.02 * 4200 : 30 * (number / 997) ** 4 + 0.02;
  const p99 = id === SLOW_ROUTE ? 2.4 : 0.004 + (number % 90) / 1000;
  const wave = Array.from({ length: 30 }, (_, i) => requests * (1 + 0.3 * Math.sin(i / 3 + number)));
  return {
    requests,
    client_errors: number % 7 === 2 ? requests * 0.04 : 0,
    errors: number % 31 === 4 ? requests * 0.02 : 0,
    timed: Math.round(requests * 45),
    p50: p99 / 8,
    p99,
    max: p99 * 1.8,
    time_share: id === SLOW_ROUTE ? 0.46 : (0.5 * requests) / 4200,
    spark: wave.map((value, i) => ((29 - i) * 30 >= UPTIME_S ? null : value)),
  };
}
const SLOW_ROUTE = "1042";
const SLOW_KINDS = [
  ["node", SLOW_ROUTE, 2400],
  ["node", SLOW_ROUTE, 1700],
  ["turn", "1011", 90],
  ["queue", "1013", 420],
  ["client", "1014", 260],
  ["before_node", HOSTILE[0], 310],
  ["cpu", "1015", 45],
  ["several", null, 30],
];
function slow_page() {
  const minute_now = Math.floor(now_s() / 60) * 60;
  const minutes = Array.from({ length: Math.min(15, Math.ceil(UPTIME_S / 60)) }, (_, m) => ({
    minute_unix_s: minute_now - 60 * m,
    requests: Array.from({ length: 20 }, (_, i) => slow_request(...SLOW_KINDS[i % SLOW_KINDS.length], minute_now - 60 * m, m, i)),
  }));
  return { minutes, lost: 3 };
}
function slow_request(cause, route, took, minute, m, i) {
  const took_ms = took * (1 + ((m * 7 + i * 3) % 10) / 10);
  const main = { node: "node_ms", queue: "queued_ms", client: "after_ms", before_node: "before_ms", turn: "before_ms" }[cause];
  const times = { before_ms: took_ms * 0.05, queued_ms: 0, node_ms: took_ms * 0.1, after_ms: took_ms * 0.05 };
  if (main) times[main] = took_ms * 0.8;
  else times.node_ms = took_ms * 0.9;
  if (cause === "queue") times.before_ms += times.queued_ms;
  return {
    ended_unix_ms: (minute + ((i * 7) % 60)) * 1000 + 204,
    worker: i % 4,
    route,
    method: i % 3 ? "GET" : "POST",
    path: i % 5 === 4 ? `/${HOSTILE[i % HOSTILE.length]}` : `/reports/v1/${m}/${i}`,
    status: i % 9 === 8 ? 502 : 200,
    node: route === null ? null : `10.0.0.${1 + ((m + i) % 3)}:8080`,
    cause,
    took_ms,
    ...times,
    longest_turn_ms: cause === "turn" ? took_ms * 0.7 : 0.4,
    cpu_wait_ms: cause === "cpu" ? took_ms * 0.8 : 0.3,
    turns: cause === "turn" ? [{ ended_unix_ms: minute * 1000, took_ms: took_ms * 0.7, stacks: SLOW_STACKS }] : [],
  };
}
const SLOW_STACKS = [
  { seen: 3, frames: ["lj_str_new /build/luajit/src/lj_str.c:31", ...HOSTILE, ...Array(40).fill("core::iter::Map<I, F>::next /rustc/library/core/src/iter/map.rs:107")] },
  { seen: 1, frames: ["memcpy"] },
];
function page_of(list, query, show) {
  const [page, size] = [Number(query.get("page") ?? 1), Number(query.get("page_size") ?? 50)];
  return { total: list.length, list: list.slice((page - 1) * size, page * size).map(show) };
}

class Refused extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

async function api(request, path, query, body, session) {
  const { method } = request;
  const steps = path.slice(1).split("/").map(decodeURIComponent);
  if (path === "/v1/status") return STATUS();
  if (path === "/v1/upstreams") return UPSTREAMS();
  if (path === "/v1/metrics/cardinality") return CARDINALITY;
  if (path === "/v1/consumers") return consumers_page(query);
  if (path === "/v1/fleet") return FLEET();
  if (path === "/debug/pprof/") return { heap_mean_bytes: 524288 };
  if (path.startsWith("/debug/pprof/") || path === "/debug/profiles/cpu") return PROFILE();
  if (path === "/debug/profiles") {
    const to_unix_s = Math.floor(Date.now() / 60_000) * 60;
    const size = { bytes: 9_300_000, bytes_max: 64 << 20, samples_lost: 0 };
    return { enabled: true, hz: 19, keep_s: 86_400, step_s: 60, from_unix_s: to_unix_s - 4 * 3600, to_unix_s, ...size };
  }
  if (path === "/v1/explain") return explain(query);
  if (path === "/v1/routes") return routes_page(query);
  if (path === "/v1/slow") return slow_page();
  if (path.startsWith("/v1/routes/")) {
    const found = documents.get(`routes/${steps[2]}`) ?? refuse(404, `there is no route "${steps[2]}"`);
    const target = { id: found.value.upstream_id, nodes: ["10.0.0.1:8080", "10.0.0.2:8080"] };
    return { ...summary(found), chain: chain_of(found.value), left_out: [], target, generation };
  }
  if (path.startsWith("/v1/history")) {
    if (SOURCE !== "store")
      refuse(
        501,
        `The source of this gateway is ${SOURCE}, which keeps no history; gateway.config.source: store does.`,
      );
    if (steps[2])
      return (
        history.find((change) => String(change.revision) === steps[2]) ??
        refuse(404, `revision ${steps[2]} is not kept`)
      );
    const before = Number(query.get("before") ?? Infinity);
    return {
      changes: history
        .filter((change) => change.revision < before)
        .slice(-Number(query.get("count") ?? 50))
        .reverse()
        .map(({ edits, ...rest }) => ({ ...rest, keys: edits.map(({ key }) => key), keys_total: edits.length })),
    };
  }
  if (path === "/v1/rollback") {
    const to = JSON.parse(body).to;
    for (const change of history.filter(({ revision: r }) => r > to).reverse())
      for (const { key, before } of change.edits)
        write(key, before, { name: session.name, address: "127.0.0.1", action: "POST /v1/rollback" });
    generation++;
    return { revision, to };
  }
  if (path === "/apisix/admin/plugins/list") return PLUGINS;
  if (path.startsWith("/apisix/admin/schema/plugins/"))
    return describe_plugin(steps.at(-1)) ?? refuse(404, "no such plugin");
  if (path.startsWith("/apisix/admin/schema/")) return describe_kind(steps.at(-1)) ?? refuse(404, "no such kind");
  if (path.startsWith("/apisix/admin/")) return resource(request, steps.slice(2), query, body, session, method);
  return refuse(404, "404 Not Found");
}

function resource(request, steps, query, body, session, method) {
  const key = steps.join("/");
  const is_list = steps.length === 1 || (steps[0] === "consumers" && steps.length === 3);
  const shown = ([at, { value, created, modified }]) => ({
    key: `/apisix/${at}`,
    value,
    createdIndex: created,
    modifiedIndex: modified,
  });
  if (method === "GET" && is_list) {
    const depth = steps.length + 1;
    const search = (query.get("search") ?? "").toLowerCase();
    return page_of(
      [...documents].filter(
        ([at, { value }]) =>
          at.startsWith(`${key}/`) &&
          at.split("/").length === depth &&
          (!search || JSON.stringify(value).toLowerCase().includes(search)),
      ),
      query,
      shown,
    );
  }
  const found = documents.get(key);
  if (method === "GET")
    return found ? { ...shown([key, found]), etag: `"${found.modified}"` } : refuse(404, "Key not found");
  if (SOURCE === "file") refuse(501, "the configuration is the file /etc/stillgate/stillgate.yaml; edit it there");
  const expected = request.headers["if-match"];
  if (expected && (!found || expected !== `"${found.modified}"`))
    refuse(412, `routes was changed by revision ${found?.modified ?? "a deletion"}; you have ${expected}`);
  const value = method === "DELETE" ? null : JSON.parse(body);
  if (value?.uri === "/a/**") refuse(400, 'uri: "/a/**": only one \'*\', at the end; write "/a/*"');
  if (query.get("dry_run"))
    return {
      warnings:
        value?.plugins?.["limit-count"] && !value.plugins["key-auth"]
          ? ["limit-count depends on consumer_name, but no plugin authenticates"]
          : [],
      effects: [
        { key, effect: value === null ? "is removed" : found ? "is changed" : "is created" },
        { key: "routes/1013", effect: "comes later for 31 of the last 1000 requests" },
      ],
    };
  const made = method === "POST" ? `${key}/${++revision}` : key === "consumers" ? `consumers/${value.username}` : key;
  write(
    made,
    value && { ...value, ...(steps[0] === "routes" ? { id: made.split("/").at(-1) } : {}), update_time: now_s() },
    { name: session.name, address: "127.0.0.1", action: `${method} /apisix/admin/${made}` },
  );
  index = null;
  generation++;
  return value === null
    ? { deleted: "1", key: `/apisix/${made}` }
    : { ...shown([made, documents.get(made)]), etag: `"${revision}"` };
}

function refuse(status, message) {
  throw new Refused(status, message);
}

const cookie_of = (request) => /stillgate_session=([^;]+)/.exec(request.headers.cookie ?? "")?.[1];

async function handle(request, answer) {
  const { pathname: path, searchParams: query } = new URL(request.url, "http://mock");
  const json = (status, body, headers = {}) =>
    answer
      .writeHead(status, { "Content-Type": "application/json", "Cache-Control": "no-store", ...headers })
      .end(body === null ? "" : JSON.stringify(body));
  if (path === "/") return answer.writeHead(302, { Location: "/ui/" }).end();
  if (path.startsWith("/ui/")) {
    const name = normalize(path.slice(4) || "index.html");
    if (name.startsWith("..") || name.startsWith("dev")) return json(404, { error_msg: "404" });
    try {
      return answer
        .writeHead(200, {
          "Content-Type": TYPES[extname(name)],
          "Content-Security-Policy": CSP,
          "X-Content-Type-Options": "nosniff",
          "Cache-Control": "no-cache",
        })
        .end(readFileSync(join(ROOT, name)));
    } catch {
      return json(404, { error_msg: "404 Not Found" });
    }
  }
  let body = "";
  for await (const chunk of request) body += chunk;
  if (SLOW_MS) await new Promise((done) => setTimeout(done, SLOW_MS));
  const session = sessions.get(cookie_of(request));
  try {
    if (path === "/v1/session" && request.method === "POST") {
      const { key, token: given } = JSON.parse(body);
      const role =
        given && given === token ? "admin" : key === "admin" || key === "viewer" ? key : refuse(401, "wrong admin key");
      const id = `${Math.random()}`;
      const made = { csrf: `csrf-${id}`, role, name: given ? "demo" : key };
      sessions.set(id, made);
      return json(200, made, { "Set-Cookie": `stillgate_session=${id}; HttpOnly; SameSite=Strict; Path=/` });
    }
    if (!session) refuse(401, "sign in first");
    if (request.method !== "GET") {
      if (request.headers["x-csrf-token"] !== session.csrf) refuse(403, "X-CSRF-Token is missing or wrong");
      if (session.role !== "admin" && path !== "/v1/session") refuse(403, "the key is a viewer's");
    }
    if (path === "/v1/session") {
      if (request.method === "DELETE") sessions.delete(cookie_of(request));
      return json(200, session);
    }
    if (path.startsWith(FAIL)) refuse(503, "the workers are busy starting");
    if (path === "/v1/live") {
      const listener = { answer, route: query.get("route") };
      answer.writeHead(200, { "Content-Type": "text/event-stream", "Cache-Control": "no-store" });
      answer.write(
        `data: ${JSON.stringify({ metrics: HAS_METRICS, history: live.map((second) => with_route(second, listener.route)) })}\n\n`,
      );
      listeners.add(listener);
      return request.on("close", () => listeners.delete(listener));
    }
    const { etag, ...found } = await Promise.resolve(api(request, path, query, body, session)).then((result) =>
      Array.isArray(result) ? { list: result, is_array: true } : result,
    );
    json(request.method === "PUT" ? 200 : 200, found.is_array ? found.list : found, {
      ...(etag ? { ETag: etag } : {}),
      ...(request.method === "GET" ? {} : { "X-Stillgate-Generation": generation }),
    });
  } catch (error) {
    json(error.status ?? (error instanceof SyntaxError ? 400 : 500), { error_msg: error.message });
  }
}

fill();
writing_at = null;
routes_page(new URLSearchParams());
for (let t = now_s() - UPTIME_S + 1; t <= now_s(); t++) {
  if (now_s() - t === 660 || now_s() - t === 360 || now_s() - t === 120) generation++;
  live.push(second_at(t));
}
setInterval(tick, 1000);
createServer((request, answer) => handle(request, answer).catch((error) => answer.destroy(error))).listen(
  PORT,
  "127.0.0.1",
  () => console.log(`http://127.0.0.1:${PORT}/ui/#token`),
);
