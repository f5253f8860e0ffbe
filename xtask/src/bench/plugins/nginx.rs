//! nginx's part of the plugin bench: a server for each case, and the node behind all gateways.

use super::super::OTHER_CPU;
use super::super::peers::{self, NGINX_CONNECTIONS, NGINX_PASS, SMALL_BYTES};
use super::super::process::{Running, free_port};
use super::cases::{Case, Endpoint};
use super::features::{PATH_REWRITTEN, REQUEST_FIELD};
use crate::Result;
use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::net::SocketAddr;
use std::path::Path;

/// Writes the configuration; the command that runs it.
pub(super) fn configure(dir: &Path, endpoints: &[Endpoint], upstream: SocketAddr) -> Result<Vec<String>> {
    let mut text = peers::nginx_upstream(upstream);
    let mut written = BTreeSet::new();
    for Endpoint { case, address } in endpoints {
        let mut directives = String::new();
        for part in case.features.iter().filter_map(|feature| feature.nginx) {
            let part = part(dir)?;
            directives.push_str(&part.location);
            if written.insert(part.http.clone()) {
                text.push_str(&part.http);
            }
        }
        // A `String` takes every write.
        let _ = write!(text, "server {{ listen {address}; location / {{ {directives}{NGINX_PASS} }} }}\n ");
    }
    peers::nginx(dir, "nginx", NGINX_CONNECTIONS, &text)
}

/// The node behind all gateways, on the other CPU. It refuses what should have been rewritten and was not.
pub(super) fn start_node(dir: &Path, cases: &[&'static Case]) -> Result<(Running, SocketAddr)> {
    let address = free_port()?;
    let small = format!("return 200 \"{}\\n\";", "x".repeat(SMALL_BYTES - 1));
    let rewriting = cases.iter().filter(|case| case.rewrites());
    let refused: String = rewriting.map(|case| format!("location = {} {{ return 404; }} ", case.path)).collect();
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
