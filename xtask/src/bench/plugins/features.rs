//! The table of features in the plugin bench: one row per feature, with its plugin in Stillgate and the equivalent in each peer.
//!
//! To add a plugin, add a row here. If a peer's feature does less (such as a rate limit without remaining counts in headers), it is
//! compared nonetheless; if it has no equivalent, the peer is left out of the row.

use super::cases::{consumers, used_key};
use crate::Result;
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

pub(super) mod credentials;
mod elsewhere;
mod guards;
mod shaping;
mod telling;

/// All rows that are separate cases besides the five.
pub(super) fn others() -> impl Iterator<Item = &'static Feature> {
    [OTHERS, credentials::ROWS, guards::ROWS, shaping::ROWS, elsewhere::ROWS, telling::ROWS].into_iter().flatten()
}

/// The limit of requests in a window: never reached by the load.
const LIMIT: u32 = 1_000_000_000;
/// Networks of `ip-restriction`, none of which contains the load.
const NETWORKS: u32 = 100_000;
/// The request header of keys. Field names are spelled as each gateway prefers.
pub(super) const KEY_HEADER: &str = "apikey";
/// The origin of all requests, the only one that is allowed.
pub(super) const ORIGIN: &str = "https://bench.example";
/// The page that refers all requests.
pub(super) const REFERER: &str = "https://bench.example/page";
/// Response headers of `cors` besides the origin.
const CORS: [(&str, &str); 3] = [
    ("Access-Control-Allow-Methods", "GET,POST"),
    ("Access-Control-Allow-Headers", "apikey,content-type"),
    ("Access-Control-Max-Age", "600"),
];
/// A request header that is set for the node.
pub(super) const REQUEST_FIELD: (&str, &str) = ("X-Bench", "1");
/// A response header that is set.
const RESPONSE_FIELD: (&str, &str) = ("X-Answer", "bench");
/// A rewritten path is that of any case with the number replaced.
const PATH_PATTERN: &str = "^/[0-9]+/(.*)$";
const PATH_PREFIX: &str = "/rewritten/";
pub(super) const PATH_REWRITTEN: &str = "/rewritten/item";

/// A row.
pub(super) struct Feature {
    pub(super) name: &'static str,
    /// The plugin's name and its keys. Servers that it queries are the node.
    pub(super) stillgate: fn(SocketAddr) -> (&'static str, Value),
    pub(super) nginx: Option<fn(&Path) -> Result<Nginx>>,
    /// Lines of a frontend.
    pub(super) haproxy: Option<fn(&Path) -> Result<String>>,
    pub(super) envoy: Option<fn() -> Envoy>,
    /// The effect that a client can see.
    pub(super) seen: Seen,
    /// Whether the node receives a different path than the client requested.
    pub(super) rewrites: bool,
    /// Features that it requires.
    pub(super) beside: Option<&'static Feature>,
    /// Whether the response is a text of 16 KiB, like that of its baseline.
    pub(super) is_large: bool,
    /// `plugin_metadata` of Stillgate's plugin.
    pub(super) metadata: Option<fn(SocketAddr) -> Value>,
    /// `Authorization` of its requests, if it cannot be that of all others.
    pub(super) authorization: Option<&'static str>,
    /// Whether its requests have the method POST, without a body.
    pub(super) is_post: bool,
    /// Whether Stillgate's plugin batches the data that it sends, for some seconds at most.
    pub(super) collects: bool,
}

/// nginx's part.
#[derive(Default)]
pub(super) struct Nginx {
    /// Directives of `http`, which are written once however many cases need them.
    pub(super) http: String,
    /// Directives of a location.
    pub(super) location: String,
    /// Replaces the directives that proxy.
    pub(super) pass: String,
}

/// Envoy's part: an HTTP filter, and changes of the route.
pub(super) struct Envoy {
    /// The filter's type, and its configuration.
    pub(super) filter: Option<(&'static str, Value)>,
    pub(super) route: fn(&mut Value),
    /// Changes of the connection manager.
    pub(super) manager: fn(&mut Value),
}

/// An Envoy without additional features.
const ENVOY: Envoy = Envoy { filter: None, route: |_| {}, manager: |_| {} };

/// The effect of a feature on a response. Effects that only the node sees are checked by the node.
#[derive(Clone, Copy)]
pub(super) enum Seen {
    Nothing,
    /// A header with this value.
    Header(&'static str, &'static str),
    /// A header with some value.
    Present(&'static str),
    /// Without the headers that all requests have, the request is refused.
    Refused,
    /// A status other than 200.
    Status(u16),
}

/// The defaults of most rows.
const NONE: Feature = Feature {
    name: "",
    stillgate: |_| ("", Value::Null),
    nginx: None,
    haproxy: None,
    envoy: None,
    seen: Seen::Nothing,
    rewrites: false,
    beside: None,
    is_large: false,
    metadata: None,
    authorization: None,
    is_post: false,
    collects: false,
};

/// The rows in the chain of five.
pub(super) static KEY_AUTH: Feature = Feature {
    name: "key-auth",
    stillgate: |_| ("key-auth", json!({})),
    nginx: Some(|dir| {
        let keys: String = consumers().map(|(key, name)| format!("{key} {name};\n")).collect();
        let file = file(dir, "nginx.keys", &keys)?;
        Ok(Nginx {
            http: format!(
                "map_hash_max_size 8192; map_hash_bucket_size 128;
 map $http_apikey $consumer {{ default \"\"; include {}; }}\n ",
                file.display()
            ),
            location: "if ($consumer = \"\") { return 401; } proxy_set_header X-Consumer-Username $consumer; "
                .to_owned(),
            ..Nginx::default()
        })
    }),
    haproxy: Some(|dir| {
        let keys: String = consumers().map(|(key, name)| format!("{key} {name}\n")).collect();
        Ok(format!(
            "  http-request set-var(txn.consumer) req.hdr({KEY_HEADER}),map_str({})
  http-request deny deny_status 401 unless {{ var(txn.consumer) -m found }}
  http-request set-header X-Consumer-Username %[var(txn.consumer)]\n",
            file(dir, "haproxy.keys", &keys)?.display()
        ))
    }),
    // One exact match, which names no consumer: the cheapest form.
    envoy: Some(|| {
        let exact = json!({ "name": KEY_HEADER, "string_match": { "exact": used_key() } });
        allowing(&json!({ "header": exact }))
    }),
    seen: Seen::Refused,
    ..NONE
};

pub(super) static LIMIT_COUNT: Feature = Feature {
    name: "limit-count",
    stillgate: |_| ("limit-count", json!({ "count": LIMIT, "time_window": 3600, "rejected_code": 429 })),
    nginx: Some(|_| {
        Ok(Nginx {
            http: "limit_req_zone $binary_remote_addr zone=limit:1m rate=1000000r/s;\n ".to_owned(),
            location: format!("limit_req zone=limit burst={} nodelay; ", LIMIT / 1000),
            ..Nginx::default()
        })
    }),
    haproxy: Some(|_| {
        Ok(format!(
            "  stick-table type ip size 100k expire 1h store http_req_rate(1h)
  http-request track-sc0 src
  http-request deny deny_status 429 if {{ sc_http_req_rate(0) gt {LIMIT} }}\n"
        ))
    }),
    envoy: Some(|| {
        let always = |key: &str| json!({ "runtime_key": key, "default_value": { "numerator": 100 } });
        let bucket = json!({ "max_tokens": LIMIT, "tokens_per_fill": LIMIT, "fill_interval": "1s" });
        let typed = json!({
            "stat_prefix": "limit", "token_bucket": bucket,
            "filter_enabled": always("limit_enabled"), "filter_enforced": always("limit_enforced"),
        });
        Envoy { filter: Some(("local_ratelimit.v3.LocalRateLimit", typed)), ..ENVOY }
    }),
    seen: Seen::Nothing,
    ..NONE
};

pub(super) static CORS_FEATURE: Feature = Feature {
    name: "cors",
    stillgate: |_| {
        let [(_, methods), (_, headers), (_, age)] = CORS;
        let age: u32 = age.parse().unwrap_or_default();
        let keys = json!({
            "allow_origins": ORIGIN, "allow_methods": methods, "allow_headers": headers, "max_age": age,
        });
        ("cors", keys)
    },
    nginx: Some(|_| {
        let mut location =
            "add_header Access-Control-Allow-Origin $allowed_origin; add_header Vary Origin; ".to_owned();
        for (name, value) in CORS {
            // Writing to a `String` cannot fail.
            let _ = write!(location, "add_header {name} \"{value}\"; ");
        }
        let http = format!("map $http_origin $allowed_origin {{ default \"\"; {ORIGIN} $http_origin; }}\n ");
        Ok(Nginx { http, location, ..Nginx::default() })
    }),
    haproxy: Some(|_| {
        let allowed = format!("if {{ var(txn.origin) -m str {ORIGIN} }}");
        let mut text = "  http-request set-var(txn.origin) req.hdr(origin)\n".to_owned();
        let fields = [("Access-Control-Allow-Origin", "%[var(txn.origin)]"), ("Vary", "Origin")];
        for (name, value) in fields.into_iter().chain(CORS) {
            // Writing to a `String` cannot fail.
            let _ = writeln!(text, "  http-response set-header {name} {value} {allowed}");
        }
        Ok(text)
    }),
    envoy: Some(|| Envoy {
        filter: Some(("cors.v3.Cors", json!({}))),
        route: |route| {
            let [(_, methods), (_, headers), (_, age)] = CORS;
            let policy = json!({
                "@type": format!("{}.filters.http.cors.v3.CorsPolicy", super::envoy::EXTENSIONS),
                "allow_origin_string_match": [{ "exact": ORIGIN }],
                "allow_methods": methods, "allow_headers": headers, "max_age": age,
            });
            route["typed_per_filter_config"] = json!({ "envoy.filters.http.cors": policy });
        },
        ..ENVOY
    }),
    seen: Seen::Header("access-control-allow-origin", ORIGIN),
    ..NONE
};

pub(super) static REGEX_PATH: Feature = Feature {
    name: "proxy-rewrite, regex_uri",
    stillgate: |_| {
        let rule = json!([PATH_PATTERN, format!("{PATH_PREFIX}$1")]);
        ("proxy-rewrite", json!({ "regex_uri": rule, "headers": set(REQUEST_FIELD) }))
    },
    nginx: Some(|_| location(format!("rewrite {PATH_PATTERN} {PATH_PREFIX}$1 break; {}", nginx_set()))),
    haproxy: Some(|_| Ok(format!("{}  http-request replace-path {PATH_PATTERN} {PATH_PREFIX}\\1\n", haproxy_set()))),
    envoy: Some(|| Envoy {
        route: |route| {
            let substitution = format!("{PATH_PREFIX}\\1");
            route["route"]["regex_rewrite"] =
                json!({ "pattern": { "regex": PATH_PATTERN }, "substitution": substitution });
            route["request_headers_to_add"] = json!([envoy_set(REQUEST_FIELD)]);
        },
        ..ENVOY
    }),
    rewrites: true,
    ..NONE
};

pub(super) static RESPONSE_REWRITE: Feature = Feature {
    name: "response-rewrite",
    stillgate: |_| ("response-rewrite", json!({ "headers": set(RESPONSE_FIELD) })),
    nginx: Some(|_| location(format!("add_header {} {}; ", RESPONSE_FIELD.0, RESPONSE_FIELD.1))),
    haproxy: Some(|_| Ok(format!("  http-response set-header {} {}\n", RESPONSE_FIELD.0, RESPONSE_FIELD.1))),
    envoy: Some(|| Envoy {
        route: |route| route["response_headers_to_add"] = json!([envoy_set(RESPONSE_FIELD)]),
        ..ENVOY
    }),
    seen: Seen::Header("x-answer", RESPONSE_FIELD.1),
    ..NONE
};

/// Further rows, each a separate case.
static OTHERS: &[Feature] = &[
    Feature {
        name: "proxy-rewrite, uri",
        stillgate: |_| ("proxy-rewrite", json!({ "uri": PATH_REWRITTEN, "headers": set(REQUEST_FIELD) })),
        nginx: Some(|_| location(format!("rewrite ^ {PATH_REWRITTEN} break; {}", nginx_set()))),
        haproxy: Some(|_| Ok(format!("{}  http-request set-path {PATH_REWRITTEN}\n", haproxy_set()))),
        envoy: Some(|| Envoy {
            route: |route| {
                // A path is a prefix of itself.
                route["route"]["prefix_rewrite"] = json!(PATH_REWRITTEN);
                route["request_headers_to_add"] = json!([envoy_set(REQUEST_FIELD)]);
            },
            ..ENVOY
        }),
        rewrites: true,
        ..NONE
    },
    Feature {
        name: "ip-restriction, 100,000 networks",
        stillgate: |_| ("ip-restriction", json!({ "blacklist": networks().collect::<Vec<_>>() })),
        nginx: Some(|dir| {
            let list: String = networks().map(|network| format!("{network} 1;\n")).collect();
            let http = format!(
                "geo $is_refused {{ default 0; include {}; }}\n ",
                file(dir, "nginx.networks", &list)?.display()
            );
            let location = "if ($is_refused) { return 403; } ".to_owned();
            Ok(Nginx { http, location, ..Nginx::default() })
        }),
        haproxy: Some(|dir| {
            let list: String = networks().map(|network| format!("{network}\n")).collect();
            let list = file(dir, "haproxy.networks", &list)?;
            Ok(format!("  http-request deny deny_status 403 if {{ src -f {} }}\n", list.display()))
        }),
        ..NONE
    },
    Feature {
        name: "referer-restriction",
        stillgate: |_| ("referer-restriction", json!({ "whitelist": ["bench.example", "*.other.example"] })),
        nginx: Some(|_| {
            location("valid_referers bench.example *.other.example; if ($invalid_referer) { return 403; } ".to_owned())
        }),
        haproxy: Some(|_| {
            Ok("  http-request deny deny_status 403 unless { req.hdr(referer),field(3,/) -m str bench.example }\n"
                .to_owned())
        }),
        envoy: Some(|| {
            let host = json!({ "name": "referer", "string_match": { "prefix": "https://bench.example/" } });
            allowing(&json!({ "header": host }))
        }),
        seen: Seen::Refused,
        ..NONE
    },
    Feature {
        name: "request-id",
        stillgate: |_| ("request-id", json!({})),
        nginx: Some(|_| {
            location("proxy_set_header X-Request-Id $request_id; add_header X-Request-Id $request_id; ".to_owned())
        }),
        haproxy: Some(|_| {
            Ok("  http-request set-var(txn.id) uuid\n  http-request set-header X-Request-Id %[var(txn.id)]
  http-response set-header X-Request-Id %[var(txn.id)]\n"
                .to_owned())
        }),
        envoy: Some(|| Envoy {
            manager: |manager| {
                manager["generate_request_id"] = json!(true);
                manager["always_set_request_id_in_response"] = json!(true);
            },
            ..ENVOY
        }),
        seen: Seen::Present("x-request-id"),
        ..NONE
    },
    Feature {
        name: "redirect",
        stillgate: |_| ("redirect", json!({ "uri": "/elsewhere", "ret_code": 301 })),
        nginx: Some(|_| location("return 301 /elsewhere; ".to_owned())),
        haproxy: Some(|_| Ok("  http-request redirect location /elsewhere code 301\n".to_owned())),
        envoy: Some(|| Envoy {
            route: |route| {
                if let Some(route) = route.as_object_mut() {
                    route.remove("route");
                }
                route["redirect"] = json!({ "path_redirect": "/elsewhere" });
            },
            ..ENVOY
        }),
        seen: Seen::Status(301),
        ..NONE
    },
    Feature {
        name: "mocking",
        stillgate: |_| ("mocking", json!({ "response_example": "hello", "content_type": "text/plain" })),
        nginx: Some(|_| location("default_type text/plain; return 200 hello; ".to_owned())),
        haproxy: Some(|_| Ok("  http-request return status 200 content-type text/plain string hello\n".to_owned())),
        envoy: Some(|| Envoy {
            route: |route| {
                if let Some(route) = route.as_object_mut() {
                    route.remove("route");
                }
                route["direct_response"] = json!({ "status": 200, "body": { "inline_string": "hello" } });
            },
            ..ENVOY
        }),
        ..NONE
    },
    Feature {
        name: "echo, headers",
        stillgate: |_| ("echo", json!({ "before_body": "", "headers": { RESPONSE_FIELD.0: RESPONSE_FIELD.1 } })),
        nginx: Some(|_| location(format!("add_header {} {}; ", RESPONSE_FIELD.0, RESPONSE_FIELD.1))),
        haproxy: Some(|_| Ok(format!("  http-response set-header {} {}\n", RESPONSE_FIELD.0, RESPONSE_FIELD.1))),
        envoy: Some(|| Envoy {
            route: |route| route["response_headers_to_add"] = json!([envoy_set(RESPONSE_FIELD)]),
            ..ENVOY
        }),
        seen: Seen::Header("x-answer", RESPONSE_FIELD.1),
        ..NONE
    },
];

/// Networks without requests.
fn networks() -> impl Iterator<Item = String> {
    (0..NETWORKS).map(|number| format!("11.{}.{}.{}/31", number >> 15, (number >> 7) & 255, (number & 127) * 2))
}

fn file(dir: &Path, name: &str, text: &str) -> Result<PathBuf> {
    let path = dir.join(name);
    fs::write(&path, text)?;
    Ok(path)
}

fn set((name, value): (&str, &str)) -> Value {
    json!({ "set": { name: value } })
}

fn location(location: String) -> Result<Nginx> {
    Ok(Nginx { location, ..Nginx::default() })
}

fn nginx_set() -> String {
    format!("proxy_set_header {} {}; ", REQUEST_FIELD.0, REQUEST_FIELD.1)
}

fn haproxy_set() -> String {
    format!("  http-request set-header {} {}\n", REQUEST_FIELD.0, REQUEST_FIELD.1)
}

fn envoy_set((name, value): (&str, &str)) -> Value {
    json!({ "header": { "key": name, "value": value }, "append_action": "OVERWRITE_IF_EXISTS_OR_ADD" })
}

/// A filter that admits requests with this property.
fn allowing(principal: &Value) -> Envoy {
    let policy = json!({ "permissions": [{ "any": true }], "principals": [principal] });
    let typed = json!({ "rules": { "action": "ALLOW", "policies": { "those": policy } } });
    Envoy { filter: Some(("rbac.v3.RBAC", typed)), ..ENVOY }
}
