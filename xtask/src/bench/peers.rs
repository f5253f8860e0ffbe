//! The compared gateways, and the upstream behind them, each with its configuration.
//!
//! Peers are set up as their manuals advise for proxying with kept connections, one worker, logs off: a badly configured peer makes
//! a ratio worthless.

use super::{GATEWAY_CPU, OTHER_CPU, free_port, start};
use crate::Result;
use std::fmt::Write as _;
use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use stillgate_rig::Running;

pub(super) mod envoy;

/// Bytes of the small response.
pub(super) const SMALL_BYTES: usize = 100;
/// Bytes of the large response and of the posted body.
pub(super) const LARGE_BYTES: usize = 16 * 1024;

/// The protocol towards the gateways.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Protocol {
    Http1,
    /// HTTP/1.1 over TLS.
    Tls,
    /// HTTP/2 over TLS.
    Http2,
    /// gRPC over TLS; the node uses HTTP/2 without TLS.
    Grpc,
}

impl Protocol {
    pub(super) fn parse(word: &str) -> Result<Protocol> {
        Ok(match word {
            "http1" => Protocol::Http1,
            "tls" => Protocol::Tls,
            "http2" => Protocol::Http2,
            "grpc" => Protocol::Grpc,
            _ => return Err(format!("--protocol {word}: write http1, tls, http2 or grpc").into()),
        })
    }
}

/// A measured gateway.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Gateway<'a> {
    Nginx,
    Haproxy,
    /// The binary.
    Envoy(&'a Path),
    /// Stillgate: the binary.
    Stillgate(&'a Path),
}

impl Gateway<'_> {
    pub(super) fn name(self) -> &'static str {
        match self {
            Gateway::Nginx => "nginx",
            Gateway::Haproxy => "haproxy",
            Gateway::Envoy(_) => "envoy",
            Gateway::Stillgate(_) => "stillgate",
        }
    }

    /// Whether it is the one that is judged.
    pub(super) fn is_ours(self) -> bool {
        matches!(self, Gateway::Stillgate(_))
    }

    /// Starts it on its CPU with one worker, proxying everything to `upstream`. For TLS the
    /// [certificate](super::tls::certificate) is in `dir`.
    pub(super) fn start(
        self,
        dir: &Path,
        upstream: SocketAddr,
        routes: usize,
        protocol: Protocol,
    ) -> Result<(Running, SocketAddr)> {
        let address = free_port()?;
        let path = |extension: &str| dir.join(format!("{}.{extension}", self.name()));
        let words = match self {
            Gateway::Nginx => {
                let listen = nginx_listen(dir, protocol);
                let server = format!("server {{ listen {address}{listen} {} }}", nginx_location(protocol));
                nginx(dir, "nginx", NGINX_CONNECTIONS, &(nginx_upstream(upstream) + &server))?
            }
            Gateway::Haproxy => {
                let frontend = haproxy_frontend(0, address, &haproxy_bind(dir, protocol));
                fs::write(path("cfg"), haproxy_config(&frontend, upstream, protocol))?;
                haproxy_command(&path("cfg"))
            }
            Gateway::Envoy(binary) => {
                let listener = envoy::plain_listener(dir, address, protocol);
                fs::write(path("json"), envoy::config(&[listener], upstream, protocol).to_string())?;
                envoy::command(binary, &path("json"))
            }
            Gateway::Stillgate(binary) => {
                let (listener, ssls) = stillgate_tls(dir, protocol);
                let scheme = if protocol == Protocol::Grpc { "grpc" } else { "http" };
                let head = stillgate_head(address, None, (upstream, scheme), listener);
                fs::write(path("yaml"), head + &stillgate_routes(routes) + &ssls)?;
                stillgate_command(binary, &path("yaml"))
            }
        };
        let mut running = start(&words, &[GATEWAY_CPU], &path("log"))?;
        running.wait_for(address, Running::START_TIMEOUT)?;
        Ok((running, address))
    }
}

fn nginx_listen(dir: &Path, protocol: Protocol) -> String {
    let dir = dir.display();
    let http2 = match protocol {
        Protocol::Http1 => return ";".to_owned(),
        Protocol::Tls => "",
        Protocol::Http2 | Protocol::Grpc => " http2",
    };
    // Versions before 1.23.4 do not enable 1.3 by default.
    let tls =
        format!("ssl_protocols TLSv1.3; ssl_certificate {dir}/certificate.pem; ssl_certificate_key {dir}/key.pem;");
    format!(" ssl{http2}; {tls}")
}

fn haproxy_bind(dir: &Path, protocol: Protocol) -> String {
    let alpn = match protocol {
        Protocol::Http1 => return String::new(),
        Protocol::Tls => "http/1.1",
        Protocol::Http2 | Protocol::Grpc => "h2",
    };
    format!(" ssl crt {}/both.pem alpn {alpn}", dir.display())
}

/// Further lines of a listener, and those of its certificate.
fn stillgate_tls(dir: &Path, protocol: Protocol) -> (&'static str, String) {
    if protocol == Protocol::Http1 {
        return ("", String::new());
    }
    let dir = dir.display();
    let entry = format!("{{id: c, cert: {dir}/certificate.pem, key: {dir}/key.pem, snis: [localhost], default: true}}");
    ("      tls: true\n", format!("ssls:\n  - {entry}\n"))
}

/// The upstream: nginx on the other CPU. `/` is small, `/large` has [`LARGE_BYTES`], `/upload` reads a whole body
/// first.
pub(super) fn start_upstream(dir: &Path) -> Result<(Running, SocketAddr)> {
    let address = free_port()?;
    let small = "x".repeat(SMALL_BYTES - 1);
    fs::write(dir.join("large"), "x".repeat(LARGE_BYTES))?;
    let server = format!(
        r#"server {{ listen {address} backlog=4096;
  location / {{ default_type text/plain; return 200 "{small}\n"; }}
  location = /large {{ default_type text/plain; root {dir}; open_file_cache max=10; }}
  location = /upload {{ client_body_buffer_size 64k; proxy_pass http://sink; proxy_http_version 1.1;
    proxy_set_header Connection ""; proxy_set_header Content-Length ""; proxy_pass_request_body off; }}
 }}
 upstream sink {{ server unix:{dir}/sink; keepalive 512; keepalive_requests 1000000000; }}
 server {{ listen unix:{dir}/sink; location / {{ return 200 "done\n"; }} }}"#,
        dir = dir.display()
    );
    let words = nginx(dir, "upstream", NGINX_CONNECTIONS, &server)?;
    let mut running = start(&words, &[OTHER_CPU], &dir.join("upstream.log"))?;
    running.wait_for(address, Running::START_TIMEOUT)?;
    Ok((running, address))
}

/// The command that runs stillgate with `config`.
pub(super) fn stillgate_command(binary: &Path, config: &Path) -> Vec<String> {
    let text = |path: &Path| path.to_string_lossy().into_owned();
    vec![text(binary), "run".to_owned(), "--config".to_owned(), text(config)]
}

/// Stillgate with one worker: `routes` routes, the last of which takes everything, and `extra` lines under `gateway:`.
pub(super) fn stillgate_config(
    address: SocketAddr,
    admin: Option<SocketAddr>,
    upstream: SocketAddr,
    routes: usize,
    extra: &str,
) -> String {
    stillgate_head(address, admin, (upstream, "http"), extra) + &stillgate_routes(routes)
}

fn stillgate_routes(routes: usize) -> String {
    let mut text = String::new();
    for route in 0..routes.saturating_sub(1) {
        // Writing to a `String` cannot fail.
        let _ = write!(text, "  - id: r{route}\n    uri: /service-{route}/v1/*\n    upstream_id: u\n");
    }
    text.push_str("  - id: all\n    uri: /*\n    upstream_id: u\n");
    text
}

/// The settings of gateways in benches that do not concern metrics.
const WITHOUT_METRICS: &str = "  metrics: {enabled: false}\n";

/// Like the above up to the list of routes, which uses `upstream_id: u`. The upstream has its `scheme` next to it. Without metrics,
/// unless `extra` has them.
pub(super) fn stillgate_head(
    address: SocketAddr,
    admin: Option<SocketAddr>,
    (upstream, scheme): (SocketAddr, &str),
    extra: &str,
) -> String {
    let mut text = format!("gateway:\n  workers: 1\n  listeners:\n    - address: \"{address}\"\n{extra}");
    if !extra.contains("metrics:") {
        text.push_str(WITHOUT_METRICS);
    }
    // Writing to a `String` cannot fail.
    if let Some(admin) = admin {
        let _ = writeln!(text, "  admin:\n    address: \"{admin}\"");
    }
    let _ = write!(text, "upstreams:\n  - id: u\n    type: roundrobin\n    scheme: {scheme}\n");
    let _ = write!(text, "    nodes: {{\"{upstream}\": 1}}\nroutes:\n");
    text
}

/// Connections, to clients and to upstreams together, for which nginx allocates memory at its start.
pub(super) const NGINX_CONNECTIONS: usize = 4096;

/// The command that runs nginx with these servers and room for this many connections.
pub(super) fn nginx(dir: &Path, name: &str, connections: usize, servers: &str) -> Result<Vec<String>> {
    let dir = dir.display();
    let path = format!("{dir}/{name}.conf");
    let log = format!("{dir}/{name}.error");
    // An unused module costs nothing.
    let mut modules = vec!["ngx_http_brotli_filter_module.so"];
    if servers.contains("nchan_") {
        modules.push("ngx_nchan_module.so");
    }
    if servers.contains("_by_lua_block") {
        // The second needs the first.
        modules.extend(["ndk_http_module.so", "ngx_http_lua_module.so"]);
    }
    let modules = modules.into_iter().map(|module| Path::new("/usr/lib/nginx/modules").join(module));
    let modules: String =
        modules.filter(|file| file.is_file()).map(|file| format!("load_module {}; ", file.display())).collect();
    let text = format!(
        "{modules}worker_processes 1; pid {dir}/{name}.pid; error_log {log}; daemon off; pcre_jit on;
events {{ worker_connections {connections}; }}
http {{ access_log off; keepalive_requests 1000000000; keepalive_timeout 3600s; client_body_temp_path {dir}/{name}.body;
 proxy_temp_path {dir}/{name}.proxy; fastcgi_temp_path {dir}/{name}.fcgi; uwsgi_temp_path {dir}/{name}.uwsgi;
 scgi_temp_path {dir}/{name}.scgi;
 {servers} }}\n"
    );
    fs::write(&path, text)?;
    Ok(["nginx", "-e", &log, "-c", &path].map(str::to_owned).to_vec())
}

/// The upstream that [`NGINX_PASS`] names.
pub(super) fn nginx_upstream(upstream: SocketAddr) -> String {
    format!("upstream u {{ server {upstream}; keepalive 512; keepalive_requests 1000000000; }}\n ")
}

/// A location that proxies everything.
fn nginx_location(protocol: Protocol) -> String {
    let pass = match protocol {
        Protocol::Grpc => "grpc_pass grpc://u;",
        _ => NGINX_PASS,
    };
    // Body buffers are large enough, here and for HAProxy, to handle the posted body in one piece.
    format!("client_body_buffer_size 64k; location / {{ {pass} }}")
}

/// The directives that proxy over kept connections.
pub(super) const NGINX_PASS: &str = "proxy_pass http://u; proxy_http_version 1.1; proxy_set_header Connection \"\";";

/// The command that runs HAProxy with `config`.
pub(super) fn haproxy_command(config: &Path) -> Vec<String> {
    vec!["haproxy".to_owned(), "-f".to_owned(), config.to_string_lossy().into_owned()]
}

/// A frontend up to its rules. `bind`: the part after the address.
pub(super) fn haproxy_frontend(number: usize, address: SocketAddr, bind: &str) -> String {
    format!("frontend f{number}\n  bind {address}{bind}\n  default_backend b\n")
}

pub(super) fn haproxy_config(frontends: &str, upstream: SocketAddr, protocol: Protocol) -> String {
    let node = if protocol == Protocol::Grpc { " proto h2" } else { "" };
    format!(
        "global
  nbthread 1
  maxconn 4000
  tune.bufsize 65536
defaults
  mode http
  timeout client 1h
  timeout server 1h
  timeout connect 5s
  http-reuse always
{frontends}backend b
  server s {upstream}{node} pool-max-conn -1
"
    )
}
