//! Reporting: rows of plugins that log and trace, and of those that answer with the gateway's own data.
//!
//! The receivers are the node, which accepts everything, and a UDP socket that nobody reads. Sending costs CPU time of the
//! gateway's own threads, which the figures include.

use super::{ENVOY, Envoy, Feature, NONE, Nginx, location};
use serde_json::{Value, json};
use std::net::{SocketAddr, UdpSocket};
use std::sync::OnceLock;

static NODE_STATUS: Feature = Feature {
    name: "node-status",
    stillgate: |_| ("node-status", json!({})),
    nginx: Some(|_| Ok(Nginx::default())),
    ..NONE
};

pub(super) static ROWS: &[Feature] = &[
    Feature {
        name: "http-logger",
        stillgate: |node| {
            ("http-logger", logging(json!({ "uri": format!("http://{node}/logs"), "concat_method": "new_line" })))
        },
        collects: true,
        ..NONE
    },
    Feature {
        name: "udp-logger",
        stillgate: |_| ("udp-logger", logging(json!({ "host": "127.0.0.1", "port": sink_port() }))),
        // Its form of syslog, one datagram per request.
        nginx: Some(|_| location(format!("access_log syslog:server=127.0.0.1:{}; ", sink_port()))),
        haproxy: Some(|_| Ok(format!("  log 127.0.0.1:{} local0\n  option httplog\n", sink_port()))),
        collects: true,
        ..NONE
    },
    Feature {
        name: "syslog, UDP",
        stillgate: |_| {
            let keys = json!({ "host": "127.0.0.1", "port": sink_port(), "sock_type": "udp" });
            ("syslog", logging(keys))
        },
        nginx: Some(|_| location(format!("access_log syslog:server=127.0.0.1:{}; ", sink_port()))),
        haproxy: Some(|_| Ok(format!("  log 127.0.0.1:{} local0\n  option httplog\n", sink_port()))),
        collects: true,
        ..NONE
    },
    Feature {
        name: "loki-logger",
        stillgate: |node| ("loki-logger", logging(json!({ "endpoint_addrs": [format!("http://{node}")] }))),
        collects: true,
        ..NONE
    },
    Feature {
        name: "elasticsearch-logger",
        stillgate: |node| {
            let keys = json!({ "endpoint_addrs": [format!("http://{node}")], "field": { "index": "bench" } });
            ("elasticsearch-logger", logging(keys))
        },
        collects: true,
        ..NONE
    },
    Feature {
        name: "opentelemetry, 1%",
        stillgate: |_| {
            let sampler = json!({ "name": "trace_id_ratio", "options": { "fraction": 0.01 } });
            ("opentelemetry", json!({ "sampler": sampler }))
        },
        envoy: Some(|| Envoy { manager: |manager| manager["tracing"] = otlp(1), ..ENVOY }),
        metadata: Some(collector),
        collects: true,
        ..NONE
    },
    Feature {
        name: "opentelemetry, 100%",
        stillgate: |_| ("opentelemetry", json!({ "sampler": { "name": "always_on" } })),
        envoy: Some(|| Envoy { manager: |manager| manager["tracing"] = otlp(100), ..ENVOY }),
        metadata: Some(collector),
        collects: true,
        ..NONE
    },
    Feature {
        name: "zipkin, 100%",
        stillgate: |node| {
            let endpoint = format!("http://{node}/api/v2/spans");
            ("zipkin", json!({ "endpoint": endpoint, "sample_ratio": 1 }))
        },
        envoy: Some(|| Envoy {
            manager: |manager| {
                let typed = json!({
                    "@type": "type.googleapis.com/envoy.config.trace.v3.ZipkinConfig", "collector_cluster": "u",
                    "collector_endpoint": "/api/v2/spans", "collector_endpoint_version": "HTTP_JSON",
                });
                manager["tracing"] = tracing("zipkin", &typed, 100);
            },
            ..ENVOY
        }),
        collects: true,
        ..NONE
    },
    Feature {
        name: "public-api, node-status",
        stillgate: |_| ("public-api", json!({ "uri": "/apisix/status" })),
        nginx: Some(|_| Ok(Nginx { pass: "stub_status;".to_owned(), ..Nginx::default() })),
        beside: Some(&NODE_STATUS),
        ..NONE
    },
    Feature {
        name: "request-validation, headers",
        stillgate: |_| {
            let host = json!({ "type": "string", "pattern": "^[a-z.:0-9]+$" });
            let schema = json!({ "type": "object", "required": ["host"], "properties": { "host": host } });
            ("request-validation", json!({ "header_schema": schema }))
        },
        ..NONE
    },
];

/// The keys of a logger, with the fields of its entries.
fn logging(mut keys: Value) -> Value {
    keys["log_format"] = json!({ "ip": "$remote_addr", "at": "$time_iso8601", "line": "$request", "code": "$status" });
    keys
}

/// The port of a UDP socket that stays open to the end of the process, and that nobody reads.
fn sink_port() -> u16 {
    static SINK: OnceLock<Option<UdpSocket>> = OnceLock::new();
    let sink = SINK.get_or_init(|| UdpSocket::bind("127.0.0.1:0").ok());
    sink.as_ref().and_then(|socket| socket.local_addr().ok()).map_or(9, |address| address.port())
}

fn collector(node: SocketAddr) -> Value {
    json!({ "id": "opentelemetry", "collector": { "address": node.to_string() } })
}

fn otlp(percent: u32) -> Value {
    let server = json!({ "uri": "http://u/v1/traces", "cluster": "u", "timeout": "3s" });
    let typed = json!({
        "@type": "type.googleapis.com/envoy.config.trace.v3.OpenTelemetryConfig",
        "http_service": { "http_uri": server }, "service_name": "bench",
    });
    tracing("opentelemetry", &typed, percent)
}

fn tracing(name: &str, typed: &Value, percent: u32) -> Value {
    let share = json!({ "value": percent });
    json!({
        "provider": { "name": format!("envoy.tracers.{name}"), "typed_config": typed },
        "random_sampling": share, "overall_sampling": share,
    })
}
