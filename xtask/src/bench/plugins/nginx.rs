//! nginx's part of the plugin bench: a server for each case, and the node behind all gateways.

use super::super::peers::{self, LARGE_BYTES, NGINX_CONNECTIONS, NGINX_PASS, SMALL_BYTES};
use super::super::{OTHER_CPU, free_port, start};
use super::cases::{Case, Endpoint};
use super::features::{PATH_REWRITTEN, REQUEST_FIELD};
use crate::Result;
use crate::step::root;
use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use stillgate_rig::Running;

/// The words of the large response.
const TEXT: &str = "docs/configuration.md";

/// Writes the configuration; returns the command that runs it.
pub(super) fn configure(dir: &Path, endpoints: &[Endpoint], upstream: SocketAddr) -> Result<Vec<String>> {
    // With two names, for a case that chooses one.
    let mut text = peers::nginx_upstream(upstream);
    text.push_str(&text.replace("upstream u", "upstream v"));
    let mut written = BTreeSet::new();
    for Endpoint { case, address } in endpoints {
        let (mut directives, mut pass) = (String::new(), NGINX_PASS.to_owned());
        for part in case.features.iter().filter_map(|feature| feature.nginx) {
            let part = part(dir)?;
            directives.push_str(&part.location);
            if !part.pass.is_empty() {
                pass = part.pass;
            }
            if written.insert(part.http.clone()) {
                text.push_str(&part.http);
            }
        }
        // Writing to a `String` cannot fail.
        let _ = write!(text, "server {{ listen {address}; location / {{ {directives}{pass} }} }}\n ");
    }
    peers::nginx(dir, "nginx", NGINX_CONNECTIONS, &text)
}

/// A natural-looking text of [`LARGE_BYTES`].
fn large() -> Result<Vec<u8>> {
    let mut text = fs::read(root().join(TEXT))?;
    if text.len() < LARGE_BYTES {
        return Err(format!("{TEXT}: less than {LARGE_BYTES} bytes").into());
    }
    text.truncate(LARGE_BYTES);
    Ok(text)
}

/// The node behind all gateways, on the other CPU. It refuses requests that should have been rewritten and were not.
pub(super) fn start_node(dir: &Path, cases: &[&'static Case]) -> Result<(Running, SocketAddr)> {
    let address = free_port()?;
    let small = format!("return 200 \"{}\\n\";", "x".repeat(SMALL_BYTES - 1));
    let rewriting = cases.iter().filter(|case| case.rewrites());
    let refused: String = rewriting.map(|case| format!("location = {} {{ return 404; }} ", case.path)).collect();
    let (name, value) = REQUEST_FIELD;
    let variable = name.to_ascii_lowercase().replace('-', "_");
    let text = dir.join("text");
    fs::write(&text, large()?)?;
    let allowed = r#"{"result":{"allow":true}}"#;
    // Loggers send larger bodies than most clients; all are read and discarded.
    let (elasticsearch, bulk) = (r#"{"version":{"number":"8.15.1"}}"#, r#"{"errors":false}"#);
    let server = format!(
        "server {{ listen {address} backlog=4096; default_type text/plain; client_max_body_size 16m; {refused}
  location ~ ^/[0-9]+/text$ {{ alias {text}; open_file_cache max=10; }}
  location = / {{ default_type application/json; return 200 '{elasticsearch}'; }}
  location = /_bulk {{ default_type application/json; return 200 '{bulk}'; }}
  location = /v1/data/bench {{ default_type application/json; return 200 '{allowed}'; }}
  location = {PATH_REWRITTEN} {{ if ($http_{variable} != \"{value}\") {{ return 412; }} {small} }}
  location / {{ {small} }} }}",
        text = text.display()
    );
    let words = peers::nginx(dir, "upstream", NGINX_CONNECTIONS, &server)?;
    let mut running = start(&words, &[OTHER_CPU], &dir.join("upstream.log"))?;
    running.wait_for(address, Running::START_TIMEOUT)?;
    Ok((running, address))
}
