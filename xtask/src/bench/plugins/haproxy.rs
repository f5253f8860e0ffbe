//! HAProxy's part of the plugin bench: a frontend for each case.

use super::super::peers::{self, Protocol};
use super::cases::Endpoint;
use crate::Result;
use std::fs;
use std::net::SocketAddr;
use std::path::Path;

/// Writes the configuration; returns the command that runs it.
pub(super) fn configure(dir: &Path, endpoints: &[Endpoint], upstream: SocketAddr) -> Result<Vec<String>> {
    let mut frontends = String::new();
    for (number, Endpoint { case, address }) in endpoints.iter().enumerate() {
        frontends.push_str(&peers::haproxy_frontend(number, *address, ""));
        for rules in case.features.iter().filter_map(|feature| feature.haproxy) {
            frontends.push_str(&rules(dir)?);
        }
    }
    let config = dir.join("haproxy.cfg");
    fs::write(&config, peers::haproxy_config(&frontends, upstream, Protocol::Http1))?;
    Ok(peers::haproxy_command(&config))
}
