//! HAProxy's part of the plugin bench: a frontend for each case.

use super::super::peers::{self, Protocol};
use super::cases::{
    CORS, Endpoint, Feature, KEY_HEADER, LIMIT, ORIGIN, PATH_PATTERN, PATH_PREFIX, PATH_REWRITTEN, REQUEST_FIELD,
    RESPONSE_FIELD, consumers,
};
use crate::Result;
use std::fmt::Write as _;
use std::fs;
use std::net::SocketAddr;
use std::path::Path;

/// Writes the configuration; the command that runs it.
pub(super) fn configure(dir: &Path, endpoints: &[Endpoint], upstream: SocketAddr) -> Result<Vec<String>> {
    let keys = dir.join("haproxy.keys");
    let lines: String = consumers().map(|(key, name)| format!("{key} {name}\n")).collect();
    fs::write(&keys, lines)?;
    let mut frontends = String::new();
    for (number, Endpoint { case, address }) in endpoints.iter().enumerate() {
        frontends.push_str(&peers::haproxy_frontend(number, *address, ""));
        for &feature in case.features {
            frontends.push_str(&rules(feature, &keys));
        }
    }
    let config = dir.join("haproxy.cfg");
    fs::write(&config, peers::haproxy_config(&frontends, upstream, Protocol::Http1))?;
    Ok(peers::haproxy_command(&config))
}

fn rules(feature: Feature, keys: &Path) -> String {
    let (name, value) = REQUEST_FIELD;
    let set = format!("  http-request set-header {name} {value}\n");
    match feature {
        Feature::KeyAuth => format!(
            "  http-request set-var(txn.consumer) req.hdr({KEY_HEADER}),map_str({})
  http-request deny deny_status 401 unless {{ var(txn.consumer) -m found }}
  http-request set-header X-Consumer-Username %[var(txn.consumer)]\n",
            keys.display()
        ),
        Feature::LimitCount => format!(
            "  stick-table type ip size 100k expire 1h store http_req_rate(1h)
  http-request track-sc0 src
  http-request deny deny_status 429 if {{ sc_http_req_rate(0) gt {LIMIT} }}\n"
        ),
        Feature::Cors => {
            let allowed = format!("if {{ var(txn.origin) -m str {ORIGIN} }}");
            let mut text = "  http-request set-var(txn.origin) req.hdr(origin)\n".to_owned();
            for (name, value) in
                [("Access-Control-Allow-Origin", "%[var(txn.origin)]"), ("Vary", "Origin")].into_iter().chain(CORS)
            {
                // A `String` takes every write.
                let _ = writeln!(text, "  http-response set-header {name} {value} {allowed}");
            }
            text
        }
        Feature::FixedPath => format!("{set}  http-request set-path {PATH_REWRITTEN}\n"),
        Feature::RegexPath => format!("{set}  http-request replace-path {PATH_PATTERN} {PATH_PREFIX}\\1\n"),
        Feature::ResponseRewrite => {
            format!("  http-response set-header {} {}\n", RESPONSE_FIELD.0, RESPONSE_FIELD.1)
        }
    }
}
