//! Envoy's part of the plugin bench: a listener for each case, since a filter that a route disables is not free.

use super::super::peers::Protocol;
use super::super::peers::envoy;
pub(super) use super::super::peers::envoy::EXTENSIONS;
use super::cases::Endpoint;
use crate::Result;
use serde_json::{Value, json};
use std::fs;
use std::net::SocketAddr;
use std::path::Path;

/// Writes the configuration; returns the command that runs it.
pub(super) fn configure(
    binary: &Path,
    dir: &Path,
    endpoints: &[Endpoint],
    upstream: SocketAddr,
) -> Result<Vec<String>> {
    let listeners: Vec<Value> = endpoints.iter().map(listener).collect();
    let config = dir.join("envoy.json");
    fs::write(&config, envoy::config(&listeners, upstream, Protocol::Http1).to_string())?;
    Ok(envoy::command(binary, &config))
}

fn listener(Endpoint { case, address }: &Endpoint) -> Value {
    let mut route = json!({ "match": { "path": case.path }, "route": { "cluster": "u" } });
    let (mut filters, mut managers) = (Vec::new(), Vec::new());
    for part in case.features.iter().filter_map(|feature| feature.envoy).map(|part| part()) {
        (part.route)(&mut route);
        managers.push(part.manager);
        filters.extend(part.filter.map(|(name, typed)| filter(name, typed)));
    }
    let mut listener = envoy::listener(*address, &route, filters);
    managers.iter().for_each(|change| change(&mut listener["filter_chains"][0]["filters"][0]["typed_config"]));
    listener
}

fn filter(name: &str, mut typed: Value) -> Value {
    typed["@type"] = json!(format!("{EXTENSIONS}.filters.http.{name}"));
    let short = name.split('.').next().unwrap_or_default();
    json!({ "name": format!("envoy.filters.http.{short}"), "typed_config": typed })
}
