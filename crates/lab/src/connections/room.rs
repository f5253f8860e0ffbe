//! How many tunnels are possible on this machine.

use stillgate_rig::{descriptors, ports};

/// Descriptors that a gateway needs besides its tunnels' two each.
const OTHER_FILES: u64 = 512;
/// Ports of loopback left for other uses.
const OTHER_PORTS: u64 = 2_000;

/// The requested number of tunnels, or the possible one with the reason why it is lower. This process, and what it starts, may then
/// open as many files as the system allows.
pub(crate) fn tunnels(wanted: usize) -> (usize, Option<String>) {
    descriptors::raise_to(descriptors::limit().hard);
    let files = descriptors::limit().current;
    let range = ports::of_connections();
    let by_files = files.saturating_sub(OTHER_FILES) / 2;
    let by_ports = (range.len() as u64).saturating_sub(OTHER_PORTS);
    let most = usize::try_from(by_files.min(by_ports)).unwrap_or(usize::MAX);
    if most >= wanted {
        return (wanted, None);
    }
    let why = if by_files <= by_ports {
        format!("a process may open {files} files (ulimit -Hn), and a gateway needs two for each tunnel")
    } else {
        format!("there are {} ports for connections to one address (ip_local_port_range)", range.len())
    };
    (most, Some(format!("{most} tunnels and not {wanted}: {why}.")))
}
