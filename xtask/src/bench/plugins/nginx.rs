//! nginx's part of the plugin bench: a server for each case, and the node behind all gateways.

use super::super::OTHER_CPU;
use super::super::peers::{self, NGINX_CONNECTIONS, NGINX_PASS, SMALL_BYTES};
use super::super::process::{Running, free_port};
use super::cases::{
    CASES, CORS, Case, Endpoint, Feature, LIMIT, ORIGIN, PATH_PATTERN, PATH_PREFIX, PATH_REWRITTEN, REQUEST_FIELD,
    RESPONSE_FIELD, consumers,
};
use crate::Result;
use std::fmt::Write as _;
use std::fs;
use std::net::SocketAddr;
use std::path::Path;

/// Writes the configuration; the command that runs it.
pub(super) fn configure(dir: &Path, endpoints: &[Endpoint], upstream: SocketAddr) -> Result<Vec<String>> {
    let mut keys = String::new();
    for (key, name) in consumers() {
        // A `String` takes every write.
        let _ = writeln!(keys, "{key} {name};");
    }
    let keys_file = dir.join("nginx.keys");
    fs::write(&keys_file, keys)?;
    let mut text = format!(
        "map_hash_max_size 8192; map_hash_bucket_size 128;
 map $http_apikey $consumer {{ default \"\"; include {}; }}
 map $http_origin $allowed_origin {{ default \"\"; {ORIGIN} $http_origin; }}
 limit_req_zone $binary_remote_addr zone=limit:1m rate=1000000r/s;\n ",
        keys_file.display()
    );
    text.push_str(&peers::nginx_upstream(upstream));
    for Endpoint { case, address } in endpoints {
        let directives: String = case.features.iter().map(|&feature| directives(feature)).collect();
        // A `String` takes every write.
        let _ = write!(text, "server {{ listen {address}; location / {{ {directives}{NGINX_PASS} }} }}\n ");
    }
    peers::nginx(dir, "nginx", NGINX_CONNECTIONS, &text)
}

fn directives(feature: Feature) -> String {
    let (name, value) = REQUEST_FIELD;
    let set = format!("proxy_set_header {name} {value};");
    match feature {
        Feature::KeyAuth => {
            "if ($consumer = \"\") { return 401; } proxy_set_header X-Consumer-Username $consumer; ".to_owned()
        }
        Feature::LimitCount => format!("limit_req zone=limit burst={} nodelay; ", LIMIT / 1000),
        Feature::Cors => {
            let mut text =
                "add_header Access-Control-Allow-Origin $allowed_origin; add_header Vary Origin; ".to_owned();
            for (name, value) in CORS {
                // A `String` takes every write.
                let _ = write!(text, "add_header {name} \"{value}\"; ");
            }
            text
        }
        Feature::FixedPath => format!("rewrite ^ {PATH_REWRITTEN} break; {set} "),
        Feature::RegexPath => format!("rewrite {PATH_PATTERN} {PATH_PREFIX}$1 break; {set} "),
        Feature::ResponseRewrite => format!("add_header {} {}; ", RESPONSE_FIELD.0, RESPONSE_FIELD.1),
    }
}

/// The node behind all gateways, on the other CPU. It refuses what should have been rewritten and was not.
pub(super) fn start_node(dir: &Path) -> Result<(Running, SocketAddr)> {
    let address = free_port()?;
    let small = format!("return 200 \"{}\\n\";", "x".repeat(SMALL_BYTES - 1));
    let rewriting = CASES.iter().filter(|case| case.rewrites());
    let refused: String = rewriting.map(|Case { path, .. }| format!("location = {path} {{ return 404; }} ")).collect();
    let (name, value) = REQUEST_FIELD;
    let variable = name.to_ascii_lowercase().replace('-', "_");
    let server = format!(
        "server {{ listen {address} backlog=4096; default_type text/plain; {refused}
  location = {PATH_REWRITTEN} {{ if ($http_{variable} != \"{value}\") {{ return 412; }} {small} }}
  location / {{ {small} }} }}"
    );
    let words = peers::nginx(dir, "upstream", NGINX_CONNECTIONS, &server)?;
    let mut running = Running::spawn(&words, Some(OTHER_CPU), &dir.join("upstream.log"))?;
    running.wait_for(address)?;
    Ok((running, address))
}
