//! nginx with one worker and connections kept to the upstream, as its manual advises; `stub_status` is all that it
//! reports.

use super::start::{Launch, LaunchInputs};
use super::{OTHER_CONNECTIONS, TUNNEL_PATH};
use rustix::process::geteuid;

/// Connections, to clients and to the upstream together, for which nginx allocates memory at its start.
const CONNECTIONS: usize = 16_384;

/// Figures of `stub_status`; it has no series.
pub(super) const STUB_STATUS_FIGURES: u64 = 7;

pub(super) fn launch(place: &LaunchInputs<'_>) -> Launch {
    let metrics = format!("  server {{ listen {}; location = /metrics {{ stub_status; }} }}\n", place.metrics);
    from_configuration(place, configuration(place, "", &server(place, ""), &metrics))
}

/// nginx with this configuration.
pub(super) fn from_configuration(place: &LaunchInputs<'_>, configuration: String) -> Launch {
    let file = place.file("nginx.conf");
    let words = ["-e", "stderr", "-c", &file.to_string_lossy()].map(str::to_owned).to_vec();
    Launch { words, files: vec![(file, configuration)] }
}

/// A configuration: `modules` before all else, `server` for the traffic, `metrics` for the rest of `http`.
pub(super) fn configuration(place: &LaunchInputs<'_>, modules: &str, server: &str, metrics: &str) -> String {
    let dir = place.directory.display();
    // A worker of root would run as another user, which cannot read our folder.
    let user = if geteuid().is_root() { "user root root;\n" } else { "" };
    format!(
        "{modules}{user}worker_processes 1;
daemon off;
pid {dir}/nginx.pid;
error_log stderr warn;
events {{ worker_connections {connections}; }}
http {{
  access_log off;
  keepalive_timeout 3600s;
  keepalive_requests 1000000000;
  client_body_temp_path {dir}/client_body;
  proxy_temp_path {dir}/proxy;
  fastcgi_temp_path {dir}/fastcgi;
  uwsgi_temp_path {dir}/uwsgi;
  scgi_temp_path {dir}/scgi;
  upstream upstream {{ server {upstream}; keepalive 512; keepalive_requests 1000000000; }}
{server}{metrics}}}
",
        connections = CONNECTIONS.max(2 * place.tunnels.unwrap_or(0) + OTHER_CONNECTIONS),
        upstream = place.upstream
    )
}

/// The server of the traffic, with additional `lines`.
pub(super) fn server(place: &LaunchInputs<'_>, lines: &str) -> String {
    let location = |path: &str| {
        format!(
            "    location {path} {{
      proxy_pass http://upstream;
      proxy_http_version 1.1;
      proxy_set_header Connection \"\";
    }}
"
        )
    };
    let locations: String = match place.routes {
        None => location("/"),
        Some(routes) => routes.prefixes().map(|prefix| location(&format!("{prefix}/"))).collect(),
    };
    // As the manual of nginx advises for WebSocket.
    let tunnel = match place.tunnels {
        None => String::new(),
        Some(_) => format!(
            "    location = {TUNNEL_PATH} {{
      proxy_pass http://upstream;
      proxy_http_version 1.1;
      proxy_set_header Upgrade $http_upgrade;
      proxy_set_header Connection upgrade;
      proxy_read_timeout 24h;
      proxy_send_timeout 24h;
    }}
"
        ),
    };
    format!("  server {{\n    listen {} backlog=4096;\n{lines}{tunnel}{locations}  }}\n", place.address)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::target::RoutePlan;
    use expect_test::expect;

    #[test]
    fn proxies_and_shows_its_status() {
        let text = launch(&LaunchInputs::example(None)).files.remove(0).1;
        expect![[r#"
            worker_processes 1;
            daemon off;
            pid /dir/nginx.pid;
            error_log stderr warn;
            events { worker_connections 16384; }
            http {
              access_log off;
              keepalive_timeout 3600s;
              keepalive_requests 1000000000;
              client_body_temp_path /dir/client_body;
              proxy_temp_path /dir/proxy;
              fastcgi_temp_path /dir/fastcgi;
              uwsgi_temp_path /dir/uwsgi;
              scgi_temp_path /dir/scgi;
              upstream upstream { server 127.0.0.1:3000; keepalive 512; keepalive_requests 1000000000; }
              server {
                listen 127.0.0.1:8080 backlog=4096;
                location / {
                  proxy_pass http://upstream;
                  proxy_http_version 1.1;
                  proxy_set_header Connection "";
                }
              }
              server { listen 127.0.0.1:9090; location = /metrics { stub_status; } }
            }
        "#]]
        .assert_eq(&text.replace("user root root;\n", ""));
    }

    #[test]
    fn a_location_and_room_for_tunnels() {
        let text = launch(&LaunchInputs { tunnels: Some(20_000), ..LaunchInputs::example(None) }).files.remove(0).1;
        assert!(text.contains("worker_connections 41000;") && text.contains("    location = /tunnel {\n"));
    }

    #[test]
    fn a_location_for_each_route() {
        let routes = Some(RoutePlan { count: 10, expressions: false });
        let text = server(&LaunchInputs { routes, ..LaunchInputs::example(None) }, "");
        assert!(
            text.contains("    location /service-0/v1/ {\n")
                && text.contains("    location /changing-8/v00000000/ {\n")
        );
        assert!(!text.contains("location / {"));
    }
}
