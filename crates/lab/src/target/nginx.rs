//! nginx with one worker and connections kept to the upstream, as its manual advises; `stub_status` is all that it
//! reports. Another kind counts requests in Lua in its worker and shows its series itself: sorted, matched and
//! formatted while requests wait.
//!
//! This is the problem that moved exporters out of workers, measured for comparison with gateways that do not have it.
//! The Lua is our own, in `exposition.lua`; nginx needs its Lua module.

use super::program::build_arguments;
use super::start::{Launch, LaunchInputs};
use super::{OTHER_CONNECTIONS, TUNNEL_PATH};
use crate::error::Result;
use rustix::process::geteuid;
use std::path::{Path, PathBuf};

/// Connections, to clients and to the upstream together, for which nginx allocates memory at its start.
const CONNECTIONS: usize = 16_384;

/// Figures of `stub_status`; it has no series.
pub(super) const STUB_STATUS_FIGURES: u64 = 7;

pub(super) fn launch(place: &LaunchInputs<'_>) -> Launch {
    let metrics = format!("  server {{ listen {}; location = /metrics {{ stub_status; }} }}\n", place.metrics);
    from_configuration(place, configuration(place, "", &server(place, ""), &metrics))
}

/// nginx with this configuration.
fn from_configuration(place: &LaunchInputs<'_>, configuration: String) -> Launch {
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

const EXPOSITION: &str = include_str!("../../assets/exposition.lua");

/// Memory of the dictionary: per series with room to spare, and the fixed part.
const SERIES_BYTES: u64 = 256;
const DICTIONARY_BYTES_MIN: u64 = 16 * 1024 * 1024;

/// Debian's folder of modules.
const MODULES: &str = "/usr/lib/nginx/modules";
/// The second needs the first.
const MODULE_FILES: [&str; 2] = ["ndk_http_module.so", "ngx_http_lua_module.so"];

pub(super) fn launch_lua(place: &LaunchInputs<'_>, program: &Path) -> Result<Launch> {
    let modules = load_modules(&build_arguments(program)?, Path::is_file)?;
    let mut launch = from_configuration(place, lua_configuration(place, &modules));
    launch.files.push((place.file("exposition.lua"), EXPOSITION.to_owned()));
    Ok(launch)
}

fn lua_configuration(place: &LaunchInputs<'_>, modules: &str) -> String {
    let mib = (DICTIONARY_BYTES_MIN + place.series.unwrap_or(0).saturating_mul(SERIES_BYTES)) >> 20;
    let http = format!(
        "  lua_package_path \"{dir}/?.lua;;\";
  lua_shared_dict series {mib}m;
  init_by_lua_block {{ exposition = require \"exposition\" }}
  server {{ listen {metrics}; location = /metrics {{ content_by_lua_block {{ exposition.show() }} }} }}
",
        dir = place.directory.display(),
        metrics = place.metrics
    );
    let server = server(place, "    log_by_lua_block { exposition.count() }\n");
    configuration(place, modules, &server, &http)
}

/// The lines that load the Lua module, unless it is built in; `is_there` checks for a file.
fn load_modules(build: &str, is_there: impl Fn(&Path) -> bool) -> Result<String> {
    let arguments = || build.split_whitespace();
    if arguments().any(|argument| argument.starts_with("--add-module=") && argument.contains("ngx_lua")) {
        return Ok(String::new());
    }
    let folder = arguments().find_map(|argument| argument.strip_prefix("--modules-path=")).unwrap_or(MODULES);
    let files: Vec<PathBuf> = MODULE_FILES.iter().map(|file| Path::new(folder).join(file)).collect();
    match files.iter().find(|file| !is_there(file)) {
        None => Ok(files.iter().map(|file| format!("load_module {};\n", file.display())).collect()),
        Some(lacking) => Err(format!(
            "nginx-lua: this nginx has no Lua, and {} does not exist; install the package libnginx-mod-http-lua, or give the \
             nginx of an OpenResty: nginx-lua=PATH",
            lacking.display()
        )
        .into()),
    }
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

    #[test]
    fn counts_and_shows_in_the_worker() {
        let place = LaunchInputs::example(Some(1_000_000));
        let (ours, plain) = (lua_configuration(&place, ""), launch(&place).files.remove(0).1);
        let added: Vec<&str> = ours.lines().filter(|line| !plain.contains(line)).map(str::trim).collect();
        assert_eq!(
            added,
            [
                "log_by_lua_block { exposition.count() }",
                "lua_package_path \"/dir/?.lua;;\";",
                "lua_shared_dict series 260m;",
                "init_by_lua_block { exposition = require \"exposition\" }",
                "server { listen 127.0.0.1:9090; location = /metrics { content_by_lua_block { exposition.show() } } }",
            ]
        );
        let lacking: Vec<&str> = plain.lines().filter(|line| !ours.contains(line)).map(str::trim).collect();
        assert_eq!(lacking, ["server { listen 127.0.0.1:9090; location = /metrics { stub_status; } }"]);
    }

    #[test]
    fn the_module_is_found_or_asked_for() {
        #[track_caller]
        fn check(build: &str, is_there: bool, expected: Result<&str, &str>) {
            let lines = load_modules(build, |_| is_there).map_err(|error| error.to_string());
            assert_eq!(lines.as_deref().map_err(String::as_str), expected);
        }
        let lines = "load_module /m/ndk_http_module.so;\nload_module /m/ngx_http_lua_module.so;\n";
        check("configure arguments: --with-x --modules-path=/m --with-y", true, Ok(lines));
        check("configure arguments: --add-module=../ngx_lua-0.10.26 --with-y", false, Ok(""));
        check(
            "configure arguments:",
            false,
            Err(
                "nginx-lua: this nginx has no Lua, and /usr/lib/nginx/modules/ndk_http_module.so does not exist; install the \
                 package libnginx-mod-http-lua, or give the nginx of an OpenResty: nginx-lua=PATH",
            ),
        );
    }
}
