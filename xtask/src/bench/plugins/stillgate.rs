//! Stillgate's part of the plugin bench: a route for each case, all on one listener.

use super::super::{check, free_port, peers};
use super::cases::{Case, Endpoint, consumers};
use super::features::credentials::{PASSWORD, TOKEN_SECRET, USER};
use crate::Result;
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::fs;
use std::net::SocketAddr;
use std::path::Path;

/// The cases whose configuration the binary accepts; those it refuses are printed with the reason.
pub(super) fn accepted(
    binary: &Path,
    dir: &Path,
    cases: &[&'static Case],
    upstream: SocketAddr,
) -> Result<Vec<&'static Case>> {
    let (file, address) = (dir.join("stillgate.yaml"), free_port()?);
    let mut accepted = Vec::new();
    for &case in cases {
        fs::write(&file, config(address, &[case], upstream))?;
        match check::refused(binary, &file)? {
            None => accepted.push(case),
            Some(reason) => println!("stillgate: left out: {}: its configuration is refused: {reason}", case.name),
        }
    }
    Ok(accepted)
}

/// Writes the configuration; returns the command that runs it. All endpoints get the address of the first.
pub(super) fn configure(
    binary: &Path,
    dir: &Path,
    endpoints: &mut [Endpoint],
    upstream: SocketAddr,
) -> Result<Vec<String>> {
    let address = endpoints.first().ok_or("no endpoint")?.address;
    for endpoint in endpoints.iter_mut() {
        endpoint.address = address;
    }
    let cases: Vec<&Case> = endpoints.iter().map(|endpoint| endpoint.case).collect();
    let file = dir.join("stillgate.yaml");
    fs::write(&file, config(address, &cases, upstream))?;
    Ok(peers::stillgate_command(binary, &file))
}

fn config(address: SocketAddr, cases: &[&Case], upstream: SocketAddr) -> String {
    let mut text = peers::stillgate_head(address, None, (upstream, "http"), "");
    for (number, case) in cases.iter().enumerate() {
        let plugins: serde_json::Map<String, Value> = case
            .features
            .iter()
            .map(|feature| (feature.stillgate)(upstream))
            .map(|(name, keys)| (name.to_owned(), keys))
            .collect();
        // Writing to a `String` cannot fail; JSON is YAML.
        let _ = write!(text, "  - id: r{number}\n    uri: {}\n    upstream_id: u\n", case.uri());
        if !plugins.is_empty() {
            let _ = writeln!(text, "    plugins: {}", Value::Object(plugins));
        }
    }
    let features = || cases.iter().flat_map(|case| &case.features);
    let mut metadata: Vec<String> =
        features().filter_map(|feature| feature.metadata).map(|of| of(upstream).to_string()).collect();
    metadata.sort_unstable();
    // Two cases of a plugin share it.
    metadata.dedup();
    if !metadata.is_empty() {
        text.push_str("plugin_metadata:\n");
    }
    for metadata in metadata {
        // As above.
        let _ = writeln!(text, "  - {metadata}");
    }
    text.push_str("consumers:\n");
    let basic = json!({ "username": USER, "password": PASSWORD });
    let token = json!({ "key": USER, "secret": TOKEN_SECRET });
    let signed = json!({ "key_id": USER, "secret_key": TOKEN_SECRET });
    let plugins = json!({ "basic-auth": basic, "jwt-auth": token, "hmac-auth": signed });
    let _ = writeln!(text, "  - {}", json!({ "username": USER, "plugins": plugins }));
    if features().any(|feature| feature.name == "key-auth") {
        for (key, name) in consumers() {
            let _ =
                writeln!(text, "  - {{username: {name}, labels: {{team: a}}, plugins: {{key-auth: {{key: {key}}}}}}}");
        }
    }
    text
}
