//! Access decisions: rows of plugins that refuse, limit, and query another server.

use super::super::super::peers::NGINX_PASS;
use super::{ENVOY, Envoy, Feature, LIMIT, NONE, Nginx, allowing, file, location};
use serde_json::{Value, json};

/// Number of rules in the long list.
const RULES: usize = 1000;
/// The limit of connections and requests in flight, never reached.
const CONNECTIONS: u32 = 60_000;
const FEW_NETWORKS: [&str; 4] = ["10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "2001:db8::/32"];
const AGENTS: &str = "(BadBot|Scraper)/[0-9]+";
const BLOCKED: [&str; 2] = ["root\\.exe", "^/internal/.*\\.php$"];

pub(super) static ROWS: &[Feature] = &[
    Feature {
        name: "ip-restriction, 4 networks",
        stillgate: |_| ("ip-restriction", json!({ "blacklist": FEW_NETWORKS })),
        nginx: Some(|_| location(FEW_NETWORKS.map(|network| format!("deny {network}; ")).concat())),
        haproxy: Some(|_| Ok(format!("  http-request deny deny_status 403 if {{ src {} }}\n", FEW_NETWORKS.join(" ")))),
        envoy: Some(|| {
            let network = |text: &str| {
                let (address, bits) = text.split_once('/').unwrap_or((text, "32"));
                json!({ "remote_ip": { "address_prefix": address, "prefix_len": bits.parse::<u8>().unwrap_or(32) } })
            };
            allowing(&none_of(FEW_NETWORKS.map(network).to_vec()))
        }),
        ..NONE
    },
    Feature {
        name: "ua-restriction",
        stillgate: |_| ("ua-restriction", json!({ "denylist": [AGENTS] })),
        nginx: Some(|_| location(format!("if ($http_user_agent ~ \"{AGENTS}\") {{ return 403; }} "))),
        haproxy: Some(|_| {
            Ok(format!("  http-request deny deny_status 403 if {{ req.hdr(user-agent) -m reg {AGENTS} }}\n"))
        }),
        envoy: Some(|| {
            let agent = json!({ "safe_regex": { "regex": format!(".*{AGENTS}.*") } });
            allowing(&none_of(vec![json!({ "header": { "name": "user-agent", "string_match": agent } })]))
        }),
        ..NONE
    },
    Feature {
        name: "uri-blocker, 2 rules",
        stillgate: |_| ("uri-blocker", json!({ "block_rules": BLOCKED })),
        nginx: Some(|_| {
            location(BLOCKED.map(|rule| format!("if ($request_uri ~ \"{rule}\") {{ return 403; }} ")).concat())
        }),
        haproxy: Some(|_| {
            Ok(format!(
                "  http-request deny deny_status 403 if {{ path_reg {} }}\n",
                BLOCKED.join(" ").replace('\\', "\\\\")
            ))
        }),
        envoy: Some(|| {
            allowing(&none_of(
                BLOCKED.iter().map(|rule| path(&format!(".*{}.*", rule.trim_matches(['^', '$'])))).collect(),
            ))
        }),
        ..NONE
    },
    Feature {
        name: "uri-blocker, 1,000 rules",
        stillgate: |_| ("uri-blocker", json!({ "block_rules": rules().collect::<Vec<_>>() })),
        nginx: Some(|dir| {
            let list: String = rules().map(|rule| format!("\"~{rule}\" 1;\n")).collect();
            let list = file(dir, "nginx.rules", &list)?;
            let http = format!("map $request_uri $is_blocked {{ default 0; include {}; }}\n ", list.display());
            let location = "if ($is_blocked) { return 403; } ".to_owned();
            Ok(Nginx { http, location, ..Nginx::default() })
        }),
        haproxy: Some(|dir| {
            let list: String = rules().map(|rule| format!("{rule}\n")).collect();
            let list = file(dir, "haproxy.rules", &list)?;
            Ok(format!("  http-request deny deny_status 403 if {{ path_reg -f {} }}\n", list.display()))
        }),
        envoy: Some(|| allowing(&none_of(rules().map(|rule| path(&rule)).collect()))),
        ..NONE
    },
    Feature {
        name: "csrf",
        stillgate: |_| ("csrf", json!({ "key": "a-long-random-text" })),
        // It compares origins of unsafe methods only: these requests just pass it.
        envoy: Some(|| {
            let typed = json!({ "filter_enabled": { "default_value": { "numerator": 100 } } });
            Envoy { filter: Some(("csrf.v3.CsrfPolicy", typed)), ..ENVOY }
        }),
        ..NONE
    },
    Feature {
        name: "client-control",
        stillgate: |_| ("client-control", json!({ "max_body_size": 1_048_576 })),
        nginx: Some(|_| location("client_max_body_size 1m; ".to_owned())),
        ..NONE
    },
    Feature {
        name: "limit-req",
        stillgate: |_| {
            let keys = json!({ "rate": 1_000_000, "burst": 1_000_000, "key": "remote_addr", "nodelay": true });
            ("limit-req", keys)
        },
        nginx: Some(|_| {
            Ok(Nginx {
                http: "limit_req_zone $binary_remote_addr zone=bucket:1m rate=1000000r/s;\n ".to_owned(),
                location: format!("limit_req zone=bucket burst={} nodelay; ", LIMIT / 1000),
                ..Nginx::default()
            })
        }),
        haproxy: Some(|_| {
            Ok(format!(
                "  stick-table type ip size 100k expire 1m store http_req_rate(1s)
  http-request track-sc0 src
  http-request deny deny_status 503 if {{ sc_http_req_rate(0) gt {LIMIT} }}\n"
            ))
        }),
        ..NONE
    },
    Feature {
        name: "limit-conn",
        stillgate: |_| {
            let keys = json!({ "conn": CONNECTIONS, "burst": 0, "default_conn_delay": 0.1, "key": "remote_addr" });
            ("limit-conn", keys)
        },
        nginx: Some(|_| {
            Ok(Nginx {
                http: "limit_conn_zone $binary_remote_addr zone=conns:1m;\n ".to_owned(),
                location: format!("limit_conn conns {CONNECTIONS}; "),
                ..Nginx::default()
            })
        }),
        haproxy: Some(|_| {
            Ok(format!(
                "  stick-table type ip size 100k expire 1m store conn_cur
  http-request track-sc0 src
  http-request deny deny_status 503 if {{ sc_conn_cur(0) gt {CONNECTIONS} }}\n"
            ))
        }),
        ..NONE
    },
    Feature {
        name: "api-breaker",
        stillgate: |_| {
            let unhealthy = json!({ "http_statuses": [500, 502, 503], "failures": 3 });
            ("api-breaker", json!({ "break_response_code": 503, "unhealthy": unhealthy }))
        },
        ..NONE
    },
    Feature {
        name: "workflow",
        stillgate: |_| {
            let rule = json!({ "case": [["http_user_agent", "~~", AGENTS]], "actions": [["return", { "code": 403 }]] });
            ("workflow", json!({ "rules": [rule] }))
        },
        // The effective form of the rule.
        nginx: Some(|_| location(format!("if ($http_user_agent ~ \"{AGENTS}\") {{ return 403; }} "))),
        haproxy: Some(|_| {
            Ok(format!("  http-request deny deny_status 403 if {{ req.hdr(user-agent) -m reg {AGENTS} }}\n"))
        }),
        ..NONE
    },
    Feature {
        name: "forward-auth",
        stillgate: |node| ("forward-auth", json!({ "uri": format!("http://{node}/auth"), "keepalive_pool": 64 })),
        nginx: Some(|_| {
            location(format!(
                "auth_request /auth; location = /auth {{ internal; proxy_pass_request_body off; {NGINX_PASS} }} "
            ))
        }),
        envoy: Some(|| {
            let server = json!({ "uri": "http://u", "cluster": "u", "timeout": "3s" });
            let typed = json!({ "http_service": { "server_uri": server } });
            Envoy { filter: Some(("ext_authz.v3.ExtAuthz", typed)), ..ENVOY }
        }),
        ..NONE
    },
    Feature {
        name: "opa",
        stillgate: |node| ("opa", json!({ "host": format!("http://{node}"), "policy": "bench", "keepalive_pool": 64 })),
        ..NONE
    },
];

/// Rules that match no path of a case.
fn rules() -> impl Iterator<Item = String> {
    (0..RULES).map(|number| format!("^/blocked-{number}/.*[.]php$"))
}

fn path(regex: &str) -> Value {
    json!({ "url_path": { "path": { "safe_regex": { "regex": regex } } } })
}

/// A filter that rejects requests with any of these properties.
fn none_of(principals: Vec<Value>) -> Value {
    json!({ "not_id": { "or_ids": { "ids": principals } } })
}
