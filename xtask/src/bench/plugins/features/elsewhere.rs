//! Data sent to other servers: rows of plugins that mirror and log.

use super::super::super::peers::NGINX_PASS;
use super::super::envoy::EXTENSIONS;
use super::{ENVOY, Envoy, Feature, NONE, location};
use serde_json::json;

/// A log that uses no disk.
const NOWHERE: &str = "/dev/null";

pub(super) static ROWS: &[Feature] = &[
    Feature {
        name: "proxy-mirror",
        stillgate: |node| ("proxy-mirror", json!({ "host": format!("http://{node}") })),
        nginx: Some(|_| location(format!("mirror /m; location = /m {{ internal; mirror off; {NGINX_PASS} }} "))),
        envoy: Some(|| Envoy {
            route: |route| route["route"]["request_mirror_policies"] = json!([{ "cluster": "u" }]),
            ..ENVOY
        }),
        ..NONE
    },
    Feature {
        name: "file-logger",
        stillgate: |_| {
            let format = json!({ "ip": "$remote_addr", "at": "$time_iso8601", "line": "$request", "code": "$status" });
            ("file-logger", json!({ "path": NOWHERE, "log_format": format }))
        },
        nginx: Some(|_| location(format!("access_log {NOWHERE}; "))),
        envoy: Some(|| Envoy {
            manager: |manager| {
                let typed = json!({
                    "@type": format!("{EXTENSIONS}.access_loggers.file.v3.FileAccessLog"), "path": NOWHERE,
                });
                manager["access_log"] = json!([{ "name": "envoy.access_loggers.file", "typed_config": typed }]);
            },
            ..ENVOY
        }),
        ..NONE
    },
];
