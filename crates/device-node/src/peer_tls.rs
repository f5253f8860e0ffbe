//! TLS between nodes: the files that a configuration names.

use super::thread::node_name;
use stillgate_cluster::peers::PeerTls;
use stillgate_config::{Config, Devices};
use stillgate_door::tls::{certificate, roots};
use stillgate_tls::Problem;
use stillgate_tls::rustls::RootCertStore;

/// The path of the keys in the configuration.
const PEER: &str = "gateway.devices.peer.tls";

/// Why a node of a configuration cannot authenticate itself, for `check`; `None`: it can, or does not have to.
pub fn problem(config: &Config) -> Option<Problem> {
    let devices = config.gateway.devices.as_ref()?;
    peer_tls(devices, &node_name(devices)).err()
}

/// TLS of a node among others; `None`: it has no peers, or none on other machines.
pub(super) fn peer_tls(devices: &Devices, node: &str) -> Result<Option<PeerTls>, Problem> {
    let Some(keys) = devices.peer.as_ref().and_then(|peer| peer.tls.as_ref()) else { return Ok(None) };
    let at = |key: &str, message: String| Problem { path: format!("{PEER}.{key}"), message, hint: None };
    let (chain, key) = certificate(keys, PEER)?;
    let roots = keys.client_ca.as_ref().map(|ca| roots(ca, PEER)).transpose()?.unwrap_or_else(RootCertStore::empty);
    PeerTls::new(node, chain, key, roots).map(Some).map_err(|error| at("cert", error.to_string()))
}
