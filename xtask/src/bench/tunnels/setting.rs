//! The possible number of tunnels, and the gateways they pass.

use super::super::peers::{self, stillgate_command};
use super::super::{GATEWAY_CPU, OTHER_CPU, free_port, open_files_max, start};
use super::node;
use crate::Result;
use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use stillgate_rig::{Running, ports};

/// The path of tunnels.
pub(in crate::bench) const PATH: &str = "/tunnel";
/// The default number of tunnels; often more than a process may have.
pub(in crate::bench) const TUNNELS: usize = 10_000;

/// Descriptors that a gateway needs besides its tunnels' two each.
const OTHER_FILES: u64 = 512;
/// Ports of loopback left for other uses.
const OTHER_PORTS: u64 = 2_000;
/// Connections of a gateway besides its tunnels.
const OTHER_CONNECTIONS: usize = 1_000;

/// The requested number of tunnels, or the possible one; prints the reason if it is lower.
pub(in crate::bench) fn tunnels(wanted: usize) -> Result<usize> {
    let files = open_files_max();
    let range = ports::of_connections();
    let (first, last) = (u64::from(*range.start()), u64::from(*range.end()));
    let by_files = files.saturating_sub(OTHER_FILES) / 2;
    let by_ports = (last - first).saturating_sub(OTHER_PORTS);
    let most = usize::try_from(by_files.min(by_ports))?;
    if most >= wanted {
        return Ok(wanted);
    }
    let why = if by_files <= by_ports {
        format!(
            "a process may open {files} files (ulimit -Hn), and the gateway needs two for each, {OTHER_FILES} for all else"
        )
    } else {
        format!("ports {first} to {last} are all there are for connections to one address (ip_local_port_range)")
    };
    println!("{most} tunnels and not {wanted}: {why}");
    Ok(most)
}

/// Starts the node on the other CPU.
pub(in crate::bench) fn start_node(dir: &Path) -> Result<(Running, SocketAddr)> {
    let address = free_port()?;
    let program = std::env::current_exe()?;
    let words = [&program.to_string_lossy(), "bench", node::ROLE, &address.to_string()].map(str::to_owned);
    let mut running = start(&words, &[OTHER_CPU], &dir.join("node.log"))?;
    running.wait_for(address, Running::START_TIMEOUT)?;
    Ok((running, address))
}

/// nginx on its CPU, as its manual advises for WebSocket.
pub(super) fn start_nginx(dir: &Path, node: SocketAddr, tunnels: usize) -> Result<(Running, SocketAddr)> {
    let address = free_port()?;
    let server = format!(
        "server {{ listen {address} backlog=4096; location / {{ proxy_pass http://{node}; proxy_http_version 1.1;
  proxy_set_header Upgrade $http_upgrade; proxy_set_header Connection upgrade; proxy_read_timeout 24h; proxy_send_timeout 24h; }} }}"
    );
    let words = peers::nginx(dir, "nginx", 2 * tunnels + OTHER_CONNECTIONS, &server)?;
    let mut running = start(&words, &[GATEWAY_CPU], &dir.join("nginx.log"))?;
    running.wait_for(address, Running::START_TIMEOUT)?;
    Ok((running, address))
}

/// Stillgate, on its CPU if it is to be alone there. Requests that are not for tunnels go to `other`.
pub(in crate::bench) fn start_stillgate(
    binary: &Path,
    dir: &Path,
    (node, other): (SocketAddr, SocketAddr),
    tunnels: usize,
    cpu: Option<usize>,
) -> Result<(Running, SocketAddr)> {
    let address = free_port()?;
    let connections = tunnels + OTHER_CONNECTIONS;
    let path = dir.join("stillgate.yaml");
    fs::write(
        &path,
        format!(
            "gateway:
  workers: 1
  listeners:
    - address: \"{address}\"
  limits: {{connections_per_worker: {connections}}}
  metrics: {{enabled: false}}
  timeouts: {{tunnel_idle: 24h}}
upstreams:
  - {{id: node, type: roundrobin, nodes: {{\"{node}\": 1}}}}
  - {{id: other, type: roundrobin, nodes: {{\"{other}\": 1}}}}
routes:
  - {{id: tunnel, uri: {PATH}, enable_websocket: true, upstream_id: node}}
  - {{id: other, uri: /*, upstream_id: other}}
"
        ),
    )?;
    let mut running = start(&stillgate_command(binary, &path), cpu.as_slice(), &dir.join("stillgate.log"))?;
    running.wait_for(address, Running::START_TIMEOUT)?;
    Ok((running, address))
}
