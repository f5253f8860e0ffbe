//! nginx with one worker and connections kept to the upstream, as its manual advises; `stub_status` is all that it
//! reports.

use super::start::{Launch, LaunchInputs};
use rustix::process::geteuid;

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
events {{ worker_connections 16384; }}
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
        upstream = place.upstream
    )
}

/// The server that proxies everything, with additional `lines`.
pub(super) fn server(place: &LaunchInputs<'_>, lines: &str) -> String {
    format!(
        "  server {{
    listen {address} backlog=4096;
{lines}    location / {{
      proxy_pass http://upstream;
      proxy_http_version 1.1;
      proxy_set_header Connection \"\";
    }}
  }}
",
        address = place.address
    )
}

#[cfg(test)]
mod tests {
    use super::*;
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
}
