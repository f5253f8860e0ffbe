//! HAProxy with one thread, connections shared and kept, and its own exporter. Its series come from idle servers.

use super::start::{Launch, LaunchInputs};
use super::{OTHER_CONNECTIONS, TUNNEL_PATH};
use std::fmt::Write as _;

/// Servers per idle backend. There are several backends, because reading the configuration takes the square of a
/// backend's servers.
pub(super) const BACKEND_SERVERS: u64 = 100;

pub(super) fn launch(place: &LaunchInputs<'_>) -> Launch {
    let file = place.file("haproxy.cfg");
    // In the foreground, without a master.
    let words = ["-db", "-f", &file.to_string_lossy()].map(str::to_owned).to_vec();
    Launch { words, files: vec![(file, configuration(place))] }
}

fn configuration(place: &LaunchInputs<'_>) -> String {
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
        if server % BACKEND_SERVERS == 0 {
            // Writing to a `String` cannot fail.
            let _ = writeln!(text, "backend idle{}", server / BACKEND_SERVERS);
        }
        // Writing to a `String` cannot fail.
        let _ = writeln!(text, "  server idle{} {upstream}", server % BACKEND_SERVERS);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::target::RoutePlan;
    use expect_test::expect;

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
        .assert_eq(&configuration(&LaunchInputs { idle: 2, ..LaunchInputs::example(Some(1000)) }));
    }

    #[test]
    fn idle_servers_are_spread_over_backends() {
        let text = configuration(&LaunchInputs { idle: 250, ..LaunchInputs::example(Some(10_000)) });
        let count = |beginning: &str| text.lines().filter(|line| line.starts_with(beginning)).count();
        assert_eq!((count("backend idle"), count("  server idle")), (3, 250));
    }

    #[test]
    fn a_rule_for_each_route_and_404_for_the_rest() {
        let routes = Some(RoutePlan { count: 9, expressions: false });
        let text = configuration(&LaunchInputs { routes, ..LaunchInputs::example(None) });
        assert!(
            text.contains("  use_backend upstream if { path_beg /changing-8/v00000000/ }\n  default_backend refused\n")
        );
        assert!(!text.contains("default_backend upstream"));
    }
}
