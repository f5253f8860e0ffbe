//! TLS towards receivers: one configuration that verifies certificates with the system's roots, and one that
//! accepts any.

use std::sync::{Arc, OnceLock};
use stillgate_tls::rustls::ClientConfig;
use stillgate_tls::rustls::pki_types::ServerName;
use stillgate_tls::{Peer, ServiceRoots, handshake_failure, towards_service};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

/// Begins TLS on a connection.
pub(crate) async fn begin(stream: TcpStream, name: &str, verifies: bool) -> Result<TlsStream<TcpStream>, String> {
    let connector = TlsConnector::from(config(verifies)?);
    let name = ServerName::try_from(name.to_owned()).map_err(|_| format!("{name:?} is not a server name"))?;
    let begun = connector.connect(name, stream).await;
    begun.map_err(|error| format!("TLS: {}", handshake_failure(&error, Peer::Service)))
}

fn config(verifies: bool) -> Result<Arc<ClientConfig>, String> {
    static CONFIGS: [OnceLock<Result<Arc<ClientConfig>, String>>; 2] = [const { OnceLock::new() }; 2];
    CONFIGS[usize::from(verifies)].get_or_init(|| made(verifies)).clone()
}

fn made(verifies: bool) -> Result<Arc<ClientConfig>, String> {
    if !verifies {
        return towards_service(ServiceRoots::Anyone);
    }
    let found = rustls_native_certs::load_native_certs().certs;
    let roots: Vec<Vec<u8>> = found.into_iter().map(|certificate| certificate.to_vec()).collect();
    towards_service(ServiceRoots::Der(&roots))
}
