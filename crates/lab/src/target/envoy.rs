//! Envoy with one worker thread; the admin interface shows its series, which come from idle clusters.

use super::start::{Launch, LaunchInputs};
use serde_json::{Value, json};
use std::net::SocketAddr;

/// Envoy's own default is 1024, which its manual says to raise if no limit is wanted.
const CIRCUIT_BREAKER_MAX: u32 = 1_000_000;

/// Path of the exposition on the admin interface.
pub(super) const METRICS_PATH: &str = "/stats/prometheus";

pub(super) fn launch(place: &LaunchInputs<'_>) -> Launch {
    // JSON is YAML, and a configuration of the user's may be either.
    let file = place.file("envoy.yaml");
    let path = file.to_string_lossy();
    // Without hot restart two of them need no separate base ids.
    let words = ["-c", &path, "--concurrency", "1", "-l", "error", "--disable-hot-restart"].map(str::to_owned).to_vec();
    let text = format!("{:#}\n", configuration(place));
    Launch { words, files: vec![(file, text)] }
}

fn configuration(place: &LaunchInputs<'_>) -> Value {
    let router = "type.googleapis.com/envoy.extensions.filters.http.router.v3.Router";
    let idle = (0..place.idle).map(|number| cluster(&format!("idle{number}"), place.upstream));
    let clusters: Vec<Value> = [cluster("upstream", place.upstream)].into_iter().chain(idle).collect();
    json!({
        "admin": { "address": socket_address(place.metrics) },
        "static_resources": {
            "listeners": [{
                "address": socket_address(place.address),
                "filter_chains": [{ "filters": [{
                    "name": "envoy.filters.network.http_connection_manager",
                    "typed_config": {
                        "@type": "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3\
                                  .HttpConnectionManager",
                        "stat_prefix": "traffic",
                        // The other gateways do not generate one either.
                        "generate_request_id": false,
                        "route_config": { "virtual_hosts": [{
                            "name": "all",
                            "domains": ["*"],
                            "routes": [{ "match": { "prefix": "/" }, "route": { "cluster": "upstream" } }],
                        }] },
                        "http_filters": [{ "name": "envoy.filters.http.router", "typed_config": { "@type": router } }],
                    },
                }] }],
            }],
            "clusters": clusters,
        },
    })
}

fn cluster(name: &str, node: SocketAddr) -> Value {
    json!({
        "name": name,
        "type": "STATIC",
        "circuit_breakers": { "thresholds": [{
            "max_connections": CIRCUIT_BREAKER_MAX,
            "max_pending_requests": CIRCUIT_BREAKER_MAX,
            "max_requests": CIRCUIT_BREAKER_MAX,
        }] },
        "load_assignment": {
            "cluster_name": name,
            "endpoints": [{ "lb_endpoints": [{ "endpoint": { "address": socket_address(node) } }] }],
        },
    })
}

fn socket_address(address: SocketAddr) -> Value {
    json!({ "socket_address": { "address": address.ip().to_string(), "port_value": address.port() } })
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::expect_file;

    #[test]
    fn idle_clusters_beside_the_one_that_serves() {
        let place = LaunchInputs { idle: 1, ..LaunchInputs::example(Some(1000)) };
        let made = configuration(&place);
        // The order of keys depends on serde_json, and another crate of a build may change it.
        if serde_json::from_str::<Value>(include_str!("../../tests/data/envoy.json")).ok().as_ref() != Some(&made) {
            expect_file!["../../tests/data/envoy.json"].assert_eq(&format!("{made:#}\n"));
        }
    }
}
