// The kinds of resources there are, and how their keys are made of segments.

/** Collection, its name for people, one of them, and what it is for. */
export const KINDS = [
  ["routes", "Routes", "route", "Which requests are taken, and where they go."],
  ["services", "Services", "service", "What several routes share."],
  ["upstreams", "Upstreams", "upstream", "Nodes, and how one is chosen."],
  ["consumers", "Consumers", "consumer", "Who sends requests."],
  ["consumer_groups", "Consumer groups", "consumer group", "Plugins that several consumers share."],
  ["plugin_configs", "Plugin configs", "plugin config", "Plugins that several routes share."],
  ["global_rules", "Global rules", "global rule", "Plugins that run for every request."],
  ["plugin_metadata", "Plugin metadata", "metadata object", "Settings that all uses of a plugin share."],
  ["ssls", "Certificates", "certificate", "Certificates and keys for server names."],
  ["stream_routes", "Stream routes", "stream route", "Where TCP and UDP connections go."],
  ["secrets", "Secrets", "secret manager", "Where secrets are kept."],
  ["protos", "Protos", "proto", "Protocol Buffers definitions. No plugin uses them yet."],
];

/** What a key of segments names: `{kind, collection, id, noun}`; without an id it is to be made. */
export function about(segments) {
  const [first, second, third, fourth] = segments;
  if (first === "consumers" && third === "credentials")
    return { kind: "credentials", collection: segments.slice(0, 3), id: fourth, noun: "credential", parent: second };
  if (first === "secrets")
    return {
      kind: "secrets",
      collection: ["secrets"],
      id: segments.length > 2 ? `${second}/${third}` : undefined,
      noun: "secret manager",
      is_split: true,
    };
  return { kind: first, collection: [first], id: second, noun: KINDS.find(([kind]) => kind === first)?.[2] ?? first };
}

/** The key of a resource: a secret manager's id has two segments. */
export const key_of = ({ collection, is_split }, id) =>
  is_split ? [...collection, ...String(id).split("/")] : [...collection, id];

/** What the text of a new resource begins with. */
export function beginning(kind, schema) {
  const has = (key) => !schema?.properties || key in schema.properties;
  switch (kind) {
    case "routes":
      return { name: "", uri: "/", upstream: { type: "roundrobin", nodes: { "127.0.0.1:8080": 1 } } };
    case "upstreams":
      return { type: "roundrobin", nodes: { "127.0.0.1:8080": 1 } };
    case "services":
      return { name: "", upstream: { type: "roundrobin", nodes: { "127.0.0.1:8080": 1 } } };
    case "consumers":
      return { username: "" };
    case "credentials":
      return { plugins: { "key-auth": { key: "" } } };
    case "ssls":
      return { snis: ["example.com"], cert: "", key: "" };
    case "stream_routes":
      return { server_port: 9100, upstream: { type: "roundrobin", nodes: { "127.0.0.1:8080": 1 } } };
    case "secrets":
      return { uri: "https://127.0.0.1:8200", prefix: "", token: "" };
    case "protos":
      return { content: "" };
    case "plugin_metadata":
      return {};
    default:
      return has("plugins") ? { plugins: {} } : {};
  }
}
