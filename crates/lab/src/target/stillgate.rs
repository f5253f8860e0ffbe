//! stillgate with one worker. Its series come from a label with the value of a query argument, made by requests.

use super::start::{Launch, LaunchInputs};
use super::{OTHER_CONNECTIONS, TUNNEL_PATH};
use std::fmt::Write as _;

/// Enough for a million series.
const MEMORY: &str = "1GiB";

pub(super) fn launch(place: &LaunchInputs<'_>) -> Launch {
    let file = place.file("stillgate.yaml");
    let words = ["run", "--config", &file.to_string_lossy()].map(str::to_owned).to_vec();
    Launch { words, files: vec![(file, configuration(place))] }
}

fn configuration(place: &LaunchInputs<'_>) -> String {
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
            "    memory: {MEMORY}\n    series_per_family: {room}\n    labels:\n      http_requests_total: {{id: $arg_id}}\n"
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::target::RoutePlan;
    use expect_test::expect;

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
        .assert_eq(&configuration(&LaunchInputs::example(Some(1000))));
    }

    #[test]
    fn a_route_and_room_for_tunnels() {
        let text = configuration(&LaunchInputs { tunnels: Some(50), ..LaunchInputs::example(None) });
        assert!(text.contains("limits: {connections_per_worker: 1050}\n"));
        assert!(text.contains("    uri: /tunnel\n    enable_websocket: true\n") && text.contains("uri: /*"));
    }

    #[test]
    fn routes_of_both_kinds() {
        let routes = Some(RoutePlan { count: 10, expressions: true });
        let text = configuration(&LaunchInputs { routes, ..LaunchInputs::example(None) });
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
        .assert_eq(&configuration(&LaunchInputs::example(None)));
    }
}
