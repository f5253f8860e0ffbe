//! Envoy's configuration, after the advice of its FAQ for benchmarks: no request ids, no dynamic statistics, no circuit breaking, a
//! release build. Access log, admin address and sinks of statistics are off by default.

use super::Protocol;
use serde_json::{Value, json};
use std::net::SocketAddr;
use std::path::Path;

/// Practically unlimited.
const UNBOUNDED: u32 = 1_000_000_000;

pub(in crate::bench) const EXTENSIONS: &str = "type.googleapis.com/envoy.extensions";

/// The command that runs Envoy with one worker.
pub(in crate::bench) fn command(binary: &Path, config: &Path) -> Vec<String> {
    let (binary, config) = (binary.to_string_lossy(), config.to_string_lossy());
    let words =
        [&*binary, "--config-path", &config, "--concurrency", "1", "--disable-hot-restart", "--log-level", "error"];
    words.map(str::to_owned).to_vec()
}

/// The whole configuration: listeners whose routes lead to the cluster `u`.
pub(in crate::bench) fn config(listeners: &[Value], upstream: SocketAddr, protocol: Protocol) -> Value {
    json!({ "static_resources": { "listeners": listeners, "clusters": [cluster(upstream, protocol)] } })
}

/// A listener that proxies everything.
pub(super) fn plain_listener(dir: &Path, address: SocketAddr, protocol: Protocol) -> Value {
    let route = json!({ "match": { "prefix": "/" }, "route": { "cluster": "u" } });
    let mut listener = listener(address, &route, Vec::new());
    if let Some(alpn) = alpn(protocol) {
        let typed = tls(dir, alpn);
        listener["filter_chains"][0]["transport_socket"] =
            json!({ "name": "envoy.transport_sockets.tls", "typed_config": typed });
    }
    listener
}

/// A listener of one route, with these HTTP filters before the router.
pub(in crate::bench) fn listener(address: SocketAddr, route: &Value, filters: Vec<Value>) -> Value {
    let chain = json!({ "filters": [{
        "name": "envoy.filters.network.http_connection_manager", "typed_config": connections(route, filters),
    }]});
    json!({ "name": address.to_string(), "address": socket(address), "filter_chains": [chain] })
}

fn alpn(protocol: Protocol) -> Option<&'static str> {
    match protocol {
        Protocol::Http1 => None,
        Protocol::Tls => Some("http/1.1"),
        Protocol::Http2 | Protocol::Grpc => Some("h2"),
    }
}

fn socket(address: SocketAddr) -> Value {
    json!({ "socket_address": { "address": address.ip().to_string(), "port_value": address.port() } })
}

fn connections(route: &Value, mut filters: Vec<Value>) -> Value {
    let router = json!({
        "@type": format!("{EXTENSIONS}.filters.http.router.v3.Router"),
        "dynamic_stats": false, "suppress_envoy_headers": true,
    });
    filters.push(json!({ "name": "envoy.filters.http.router", "typed_config": router }));
    json!({
        "@type": format!("{EXTENSIONS}.filters.network.http_connection_manager.v3.HttpConnectionManager"),
        "stat_prefix": "l",
        "generate_request_id": false,
        "route_config": { "virtual_hosts": [{ "name": "all", "domains": ["*"], "routes": [route] }] },
        "http_filters": filters,
    })
}

fn tls(dir: &Path, alpn: &str) -> Value {
    let file = |name: &str| json!({ "filename": dir.join(name) });
    json!({
        "@type": format!("{EXTENSIONS}.transport_sockets.tls.v3.DownstreamTlsContext"),
        "common_tls_context": {
            "alpn_protocols": [alpn],
            // Without it, Envoy offers 1.2 at most.
            "tls_params": { "tls_maximum_protocol_version": "TLSv1_3" },
            "tls_certificates": [
                { "certificate_chain": file("certificate.pem"), "private_key": file("key.pem") },
            ],
        },
    })
}

fn cluster(upstream: SocketAddr, protocol: Protocol) -> Value {
    let mut cluster = json!({
        "name": "u",
        "connect_timeout": "5s",
        "circuit_breakers": { "thresholds": [{
            "max_connections": UNBOUNDED, "max_pending_requests": UNBOUNDED,
            "max_requests": UNBOUNDED, "max_retries": UNBOUNDED,
        }]},
        "load_assignment": { "cluster_name": "u", "endpoints": [
            { "lb_endpoints": [{ "endpoint": { "address": socket(upstream) } }] },
        ]},
    });
    if protocol == Protocol::Grpc {
        let options = json!({
            "@type": format!("{EXTENSIONS}.upstreams.http.v3.HttpProtocolOptions"),
            "explicit_http_config": { "http2_protocol_options": {} },
        });
        cluster["typed_extension_protocol_options"] =
            json!({ "envoy.extensions.upstreams.http.v3.HttpProtocolOptions": options });
    }
    cluster
}
