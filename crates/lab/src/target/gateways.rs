//! Stillgate, HAProxy and Envoy with one worker, and how each comes by its series: from a label with the value of a query
//! argument, made by requests; from idle servers, shown by its own exporter; from idle clusters, shown by the admin
//! interface. HAProxy shares and keeps its connections.

use super::start::{Launch, LaunchInputs};
use super::{OTHER_CONNECTIONS, TUNNEL_PATH};
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::net::SocketAddr;

/// Enough for a million series.
const STILLGATE_MEMORY: &str = "1GiB";

pub(super) fn launch_stillgate(place: &LaunchInputs<'_>) -> Launch {
    let file = place.file("stillgate.yaml");
    let words = ["run", "--config", &file.to_string_lossy()].map(str::to_owned).to_vec();
    Launch { words, files: vec![(file, stillgate_configuration(place))] }
}

fn stillgate_configuration(place: &LaunchInputs<'_>) -> String {
    let LaunchInputs { address, metrics, upstream, .. } = place;
    let mut text = format!(
        "gateway:\n  workers: 1\n  listeners:\n    - address: \"{address}\"\n  metrics:\n    address: \"{metrics}\"\n"
    );
    if let Some(series) = place.series {
        // Twice the room: a family near its budget collapses, which is not the subject here.
        let room = series.saturating_mul(2);
        // Writing to a `String` cannot fail.
        let _ = write!(
            text,
            "    memory: {STILLGATE_MEMORY}\n    series_per_family: {room}\n    labels:\n      http_requests_total: {{id: $arg_id}}\n"
        );
    }
    if let Some(tunnels) = place.tunnels {
        let connections = tunnels + OTHER_CONNECTIONS;
        // Writing to a `String` cannot fail.
        let _ = write!(text, "  limits: {{connections_per_worker: {connections}}}\n  timeouts: {{tunnel_idle: 24h}}\n");
    }
    // Writing to a `String` cannot fail.
    let _ = write!(
        text,
        "upstreams:\n  - id: upstream\n    type: roundrobin\n    nodes: {{\"{upstream}\": 1}}\n\
         routes:\n"
    );
    let mut route = |id: &str, condition: &str| {
        let _ = write!(text, "  - id: {id}\n    {condition}\n    upstream_id: upstream\n");
    };
    if place.tunnels.is_some() {
        route("tunnel", &format!("uri: {TUNNEL_PATH}\n    enable_websocket: true"));
    }
    match place.routes {
        None => route("all", "uri: /*"),
        Some(routes) => {
            for (number, prefix) in routes.prefixes().enumerate() {
                let condition = match routes.expressions && number % 2 == 1 {
                    true => format!(r#"expression: 'http.path ^= "{prefix}/" && http.method == "GET"'"#),
                    false => format!("uri: {prefix}/*"),
                };
                route(&format!("r{number}"), &condition);
            }
        }
    }
    text
}

/// Servers per idle backend. There are several backends, because reading the configuration takes the square of a
/// backend's servers.
pub(super) const HAPROXY_BACKEND_SERVERS: u64 = 100;

pub(super) fn launch_haproxy(place: &LaunchInputs<'_>) -> Launch {
    let file = place.file("haproxy.cfg");
    // In the foreground, without a master.
    let words = ["-db", "-f", &file.to_string_lossy()].map(str::to_owned).to_vec();
    Launch { words, files: vec![(file, haproxy_configuration(place))] }
}

fn haproxy_configuration(place: &LaunchInputs<'_>) -> String {
    let LaunchInputs { address, metrics, upstream, .. } = place;
    let traffic: String = match place.routes {
        None => "  default_backend upstream\n".to_owned(),
        Some(routes) => {
            let tunnel = place.tunnels.map(|_| format!("  use_backend upstream if {{ path {TUNNEL_PATH} }}\n"));
            let route = |prefix| format!("  use_backend upstream if {{ path_beg {prefix}/ }}\n");
            let refused = "  http-request deny deny_status 404 if TRUE\n";
            tunnel
                .into_iter()
                .chain(routes.prefixes().map(route))
                .chain([format!("  default_backend refused\nbackend refused\n{refused}")])
                .collect()
        }
    };
    let (limit, timeout) = match place.tunnels {
        None => (String::new(), ""),
        Some(tunnels) => (format!("  maxconn {}\n", tunnels + OTHER_CONNECTIONS), "  timeout tunnel 24h\n"),
    };
    let mut text = format!(
        "global
  nbthread 1
{limit}defaults
  mode http
  timeout client 1h
  timeout server 1h
  timeout connect 5s
{timeout}  http-reuse always
frontend traffic
  bind {address} backlog 4096
{traffic}frontend metrics
  bind {metrics}
  http-request use-service prometheus-exporter if {{ path /metrics }}
backend upstream
  server upstream {upstream}
"
    );
    for server in 0..place.idle {
        if server % HAPROXY_BACKEND_SERVERS == 0 {
            // Writing to a `String` cannot fail.
            let _ = writeln!(text, "backend idle{}", server / HAPROXY_BACKEND_SERVERS);
        }
        // Writing to a `String` cannot fail.
        let _ = writeln!(text, "  server idle{} {upstream}", server % HAPROXY_BACKEND_SERVERS);
    }
    text
}

/// Envoy's own default is 1024, which its manual says to raise if no limit is wanted.
const CIRCUIT_BREAKER_MAX: u32 = 1_000_000;

/// Path of the exposition on the admin interface.
pub(super) const ENVOY_METRICS_PATH: &str = "/stats/prometheus";

pub(super) fn launch_envoy(place: &LaunchInputs<'_>) -> Launch {
    // JSON is YAML, and a configuration of the user's may be either.
    let file = place.file("envoy.yaml");
    let path = file.to_string_lossy();
    // Without hot restart two of them need no separate base ids.
    let words = ["-c", &path, "--concurrency", "1", "-l", "error", "--disable-hot-restart"].map(str::to_owned).to_vec();
    let text = format!("{:#}\n", envoy_configuration(place));
    Launch { words, files: vec![(file, text)] }
}

fn envoy_configuration(place: &LaunchInputs<'_>) -> Value {
    let router = "type.googleapis.com/envoy.extensions.filters.http.router.v3.Router";
    let idle = (0..place.idle).map(|number| envoy_cluster(&format!("idle{number}"), place.upstream));
    let clusters: Vec<Value> = [envoy_cluster("upstream", place.upstream)].into_iter().chain(idle).collect();
    json!({
        "admin": { "address": envoy_address_json(place.metrics) },
        "static_resources": {
            "listeners": [{
                "address": envoy_address_json(place.address),
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

fn envoy_cluster(name: &str, node: SocketAddr) -> Value {
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
            "endpoints": [{ "lb_endpoints": [{ "endpoint": { "address": envoy_address_json(node) } }] }],
        },
    })
}

fn envoy_address_json(address: SocketAddr) -> Value {
    json!({ "socket_address": { "address": address.ip().to_string(), "port_value": address.port() } })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::target::RoutePlan;
    use expect_test::{expect, expect_file};

    #[test]
    fn a_label_for_the_series() {
        expect![[r#"
            gateway:
              workers: 1
              listeners:
                - address: "127.0.0.1:8080"
              metrics:
                address: "127.0.0.1:9090"
                memory: 1GiB
                series_per_family: 2000
                labels:
                  http_requests_total: {id: $arg_id}
            upstreams:
              - id: upstream
                type: roundrobin
                nodes: {"127.0.0.1:3000": 1}
            routes:
              - id: all
                uri: /*
                upstream_id: upstream
        "#]]
        .assert_eq(&stillgate_configuration(&LaunchInputs::example(Some(1000))));
    }

    #[test]
    fn a_route_and_room_for_tunnels() {
        let text = stillgate_configuration(&LaunchInputs { tunnels: Some(50), ..LaunchInputs::example(None) });
        assert!(text.contains("limits: {connections_per_worker: 1050}\n"));
        assert!(text.contains("    uri: /tunnel\n    enable_websocket: true\n") && text.contains("uri: /*"));
    }

    #[test]
    fn routes_of_both_kinds() {
        let routes = Some(RoutePlan { count: 10, expressions: true });
        let text = stillgate_configuration(&LaunchInputs { routes, ..LaunchInputs::example(None) });
        let line = |number: usize| text.lines().filter(|line| line.contains(": /") || line.contains("^=")).nth(number);
        assert_eq!(line(0).unwrap().trim(), "uri: /service-0/v1/*");
        assert_eq!(
            line(9).unwrap().trim(),
            r#"expression: 'http.path ^= "/changing-9/v00000000/" && http.method == "GET"'"#
        );
        assert!(!text.contains("uri: /*"));
    }

    #[test]
    fn as_it_comes_without_series() {
        expect![[r#"
            gateway:
              workers: 1
              listeners:
                - address: "127.0.0.1:8080"
              metrics:
                address: "127.0.0.1:9090"
            upstreams:
              - id: upstream
                type: roundrobin
                nodes: {"127.0.0.1:3000": 1}
            routes:
              - id: all
                uri: /*
                upstream_id: upstream
        "#]]
        .assert_eq(&stillgate_configuration(&LaunchInputs::example(None)));
    }

    #[test]
    fn idle_servers_beside_the_one_that_serves() {
        expect![[r#"
            global
              nbthread 1
            defaults
              mode http
              timeout client 1h
              timeout server 1h
              timeout connect 5s
              http-reuse always
            frontend traffic
              bind 127.0.0.1:8080 backlog 4096
              default_backend upstream
            frontend metrics
              bind 127.0.0.1:9090
              http-request use-service prometheus-exporter if { path /metrics }
            backend upstream
              server upstream 127.0.0.1:3000
            backend idle0
              server idle0 127.0.0.1:3000
              server idle1 127.0.0.1:3000
        "#]]
        .assert_eq(&haproxy_configuration(&LaunchInputs { idle: 2, ..LaunchInputs::example(Some(1000)) }));
    }

    #[test]
    fn idle_servers_are_spread_over_backends() {
        let text = haproxy_configuration(&LaunchInputs { idle: 250, ..LaunchInputs::example(Some(10_000)) });
        let count = |beginning: &str| text.lines().filter(|line| line.starts_with(beginning)).count();
        assert_eq!((count("backend idle"), count("  server idle")), (3, 250));
    }

    #[test]
    fn a_rule_for_each_route_and_404_for_the_rest() {
        let routes = Some(RoutePlan { count: 9, expressions: false });
        let text = haproxy_configuration(&LaunchInputs { routes, ..LaunchInputs::example(None) });
        assert!(
            text.contains("  use_backend upstream if { path_beg /changing-8/v00000000/ }\n  default_backend refused\n")
        );
        assert!(!text.contains("default_backend upstream"));
    }

    #[test]
    fn idle_clusters_beside_the_one_that_serves() {
        let place = LaunchInputs { idle: 1, ..LaunchInputs::example(Some(1000)) };
        let made = envoy_configuration(&place);
        // The order of keys depends on serde_json, and another crate of a build may change it.
        if serde_json::from_str::<Value>(include_str!("../../tests/data/envoy.json")).ok().as_ref() != Some(&made) {
            expect_file!["../../tests/data/envoy.json"].assert_eq(&format!("{made:#}\n"));
        }
    }
}
