// JSON Schemas of the shapes that the gateway's have: references, texts with environment variables, durations.

const ENVIRONMENT = { $ref: "#/$defs/Environment" };
const or_environment = (schema) => ({ anyOf: [schema, ENVIRONMENT] });
const text = (description, more = {}) => ({ type: "string", description, ...more });
const duration = (from, to, description, fallback) => ({
  title: `duration from ${from} to ${to}`,
  anyOf: [
    {
      title: `duration from ${from} to ${to}`,
      anyOf: [
        { type: "number", minimum: 0 },
        { type: "string", pattern: "^[0-9]+(\\.[0-9]+)?(ms|s|m|h)$" },
      ],
    },
    ENVIRONMENT,
  ],
  description,
  default: fallback,
});
const whole = (minimum, maximum, description, more = {}) => ({
  ...or_environment({ type: "integer", minimum, maximum }),
  description,
  ...more,
});
const flag = (description, fallback) => ({ ...or_environment({ type: "boolean" }), description, default: fallback });
const words = (list, description, fallback) => ({ ...or_environment({ enum: list }), description, default: fallback });
const list = (items, description, more = {}) => ({ type: "array", items, description, ...more });
const object = (description, properties, more = {}) => ({
  type: ["object", "null"],
  description,
  properties,
  additionalProperties: false,
  ...more,
});
const unbuilt = { enum: [null, false, "", [], {}] };

const described = {
  name: text("A name to recognise it by."),
  desc: text("A description."),
  labels: { type: "object", additionalProperties: { type: "string" }, description: "Names and texts of your choice." },
};
const plugins = { $ref: "#/$defs/Plugins", description: "Its plugins, by name." };

const DEFS = {
  Environment: {
    type: "string",
    pattern: "\\$\\{[A-Za-z_][A-Za-z0-9_]*(:-[^}]*)?\\}",
    description: "A text with an environment variable.",
  },
  Plugins: { type: "object", description: "Plugins by name.", additionalProperties: { type: "object" } },
  Timeout: object("Bounds on one try.", {
    connect: duration("1ms", "1h", "To connect.", "6s"),
    send: duration("1ms", "1h", "Between two writes.", "6s"),
    read: duration("1ms", "1h", "Between two reads.", "6s"),
  }),
  Node: object(
    "A node.",
    {
      host: text("Name or address."),
      port: whole(1, 65535, "Port."),
      weight: whole(0, 10000, "Share of requests.", { default: 1 }),
      priority: whole(-100, 100, "Higher first.", { default: 0 }),
    },
    { required: ["host", "weight"] },
  ),
  Checks: object("Health checks.", {
    active: { $ref: "#/$defs/ActiveChecks", description: "Requests of the gateway's own." },
  }),
  ActiveChecks: object("Active checks.", {
    type: words(["http", "https", "tcp"], "What is asked.", "http"),
    http_path: text("The path asked for.", { default: "/" }),
    timeout: duration("1ms", "1h", "For an answer.", "1s"),
  }),
  Upstream: object(
    "Nodes, and how one is chosen and talked to.",
    {
      id: text("Unique among upstreams."),
      ...described,
      type: words(
        ["roundrobin", "least_conn", "chash", "ewma"],
        "How a node is chosen: smooth weighted round robin, fewest requests in flight, consistent hash, or least latency of two random choices.",
        "roundrobin",
      ),
      nodes: {
        anyOf: [
          { type: "object", additionalProperties: { type: "integer", minimum: 0, maximum: 10000 } },
          { type: "array", items: { $ref: "#/$defs/Node" } },
        ],
        description: "A map of host:port to weight, or a list of {host, port, weight, priority}.",
      },
      scheme: words(["http", "https", "grpc", "grpcs"], "The protocol towards the nodes.", "http"),
      retries: whole(0, 100, "Further nodes tried after the first failed."),
      timeout: { $ref: "#/$defs/Timeout", description: "Bounds on each try." },
      checks: { $ref: "#/$defs/Checks", description: "How the health of the nodes is found out." },
      pass_host: words(["pass", "node", "rewrite"], "What Host the node sees.", "pass"),
      upstream_host: text("The Host that the node sees with pass_host: rewrite."),
      discovery_type: unbuilt,
    },
    { required: ["nodes"] },
  ),
};

const ROUTE = object(
  "Which requests a route takes, and where they go.",
  {
    id: text("Unique among routes."),
    ...described,
    uri: text(
      "The path: /a for that path, /a/* for all below, /a/:name/b for any one segment. This, uris or expression.",
    ),
    uris: list({ type: "string" }, "Several paths, any of which may match."),
    host: text("example.com or *.example.com; any host where neither this nor hosts is there."),
    hosts: list({ type: "string" }, "Several hosts, any of which may match.", { minItems: 1 }),
    methods: list({ type: "string", pattern: "^[A-Z]+$" }, "HTTP methods in upper case; any where it is absent."),
    remote_addrs: list({ type: "string" }, "Addresses or networks, any of which the client may have."),
    expression: text(
      "A condition in Kong's expression language, in place of paths, hosts, methods, addresses and vars.",
    ),
    priority: whole(-70368744177663, 70368744177663, "Higher first, among routes of the same host and path.", {
      default: 0,
    }),
    vars: { type: "array", description: "Conditions on variables of the request, in the language of lua-resty-expr." },
    status: words([1, 0], "1: enabled; 0: the route does not exist.", 1),
    upstream: {
      $ref: "#/$defs/Upstream",
      description: "Where requests go, written here. This, upstream_id or service_id.",
    },
    upstream_id: { type: ["string", "integer"], description: "Where requests go, by the id of one of upstreams." },
    service_id: {
      type: ["string", "integer"],
      description: "The service whose upstream and hosts hold where the route has none.",
    },
    timeout: { $ref: "#/$defs/Timeout", description: "Overrides the upstream's." },
    enable_websocket: flag("Whether a client may ask for another protocol."),
    on_change: words(
      ["keep", "drain", "close"],
      "What becomes of the route's open tunnels when it is changed or removed.",
      "keep",
    ),
    plugins,
    plugin_config_id: {
      type: ["string", "integer"],
      description: "The plugin config whose plugins hold where the route has none of that name.",
    },
    script: unbuilt,
  },
  { allOf: [{ anyOf: [{ required: ["uri"] }, { required: ["uris"] }, { required: ["expression"] }] }] },
);

const KINDS = {
  routes: ROUTE,
  upstreams: DEFS.Upstream,
  services: object("What several routes share.", {
    id: text("Unique."),
    ...described,
    hosts: list({ type: "string" }, "Hosts."),
    upstream: { $ref: "#/$defs/Upstream" },
    upstream_id: text("By id."),
    plugins,
  }),
  consumers: object(
    "Who sends requests.",
    {
      username: text("Letters, digits, _ and -.", { minLength: 1 }),
      ...described,
      group_id: text("Its group."),
      plugins,
    },
    { required: ["username"] },
  ),
  credentials: object(
    "A proof of one consumer.",
    { id: text("Unique."), ...described, plugins },
    { required: ["plugins"] },
  ),
  ssls: object(
    "Certificates and keys.",
    {
      id: text("Unique."),
      snis: list({ type: "string" }, "Names."),
      cert: text("PEM."),
      key: text("PEM."),
      type: words(["server", "client"], "Use.", "server"),
    },
    { required: ["cert", "key"] },
  ),
  global_rules: object("Plugins for every request.", { id: text("Unique."), plugins }, { required: ["plugins"] }),
  plugin_configs: object(
    "Plugins that routes share.",
    { id: text("Unique."), ...described, plugins },
    { required: ["plugins"] },
  ),
};

const PLUGIN = {
  "key-auth": object("The request's consumer by a key.", {
    header: text("Where the key is looked for.", { default: "apikey" }),
    query: text("And in the query.", { default: "apikey" }),
    hide_credentials: flag("Whether the node does not see the key.", false),
    key: text("The consumer's key."),
  }),
  "limit-count": object(
    "At most so many requests in a time.",
    {
      count: whole(1, 1e9, "Requests."),
      time_window: whole(1, 1e6, "Seconds."),
      key: text("What is counted apart.", { default: "remote_addr" }),
      rejected_code: whole(200, 599, "The status of what is refused.", { default: 503 }),
      policy: words(["local", "redis"], "Where it is counted.", "local"),
    },
    { required: ["count", "time_window"] },
  ),
  cors: object("Headers for requests of other sites.", {
    allow_origins: text("Origins, comma-separated.", { default: "*" }),
    allow_methods: text("Methods.", { default: "*" }),
    max_age: whole(-1, 86400, "Seconds.", { default: 5 }),
  }),
};

export const PLUGINS = [
  "request-id",
  "cors",
  "ip-restriction",
  "key-auth",
  "basic-auth",
  "jwt-auth",
  "hmac-auth",
  "limit-req",
  "limit-count",
  "limit-conn",
  "proxy-rewrite",
  "response-rewrite",
  "redirect",
  "prometheus",
  "traffic-split",
  "fault-injection",
  "body-transformer",
  "csrf",
  "echo",
  "ua-restriction",
];

export const describe_kind = (kind) =>
  KINDS[kind] && { $schema: "https://json-schema.org/draft/2020-12/schema", ...KINDS[kind], $defs: DEFS };
export const describe_plugin = (name) =>
  PLUGINS.includes(name) ? { ...(PLUGIN[name] ?? { type: "object" }), $defs: DEFS } : undefined;
