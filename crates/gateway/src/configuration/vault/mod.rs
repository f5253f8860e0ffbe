//! Secrets that Vaults keep: read when a configuration needs them, kept, and read again in the background.
//!
//! ```text
//!  resolve ─▶ kept? ─ yes ─▶ what was read last               thread `secrets`: every `refresh`, all paths in use again
//!               │ no                                             │ another value, or gone
//!               ▼                                                ▼
//!             ask and wait, at most `timeout`                  the configuration is read again
//! ```
//!
//! While a Vault does not answer, what was read before stays good. A Vault that did not answer, and a path that could not be
//! read, are left alone for five seconds, so that a configuration with a thousand references does not wait a thousand times.

mod client;
mod keeper;
#[cfg(test)]
mod tests;

pub(crate) use keeper::Vaults;

use stillgate_plugin::secrets::Manager;
use stillgate_tls::{ServiceRoots, towards_service};
use tokio_rustls::TlsConnector;

/// The TLS connector for a Vault behind an `https` URL.
pub(crate) fn connector(manager: &Manager) -> Result<TlsConnector, String> {
    let system: Vec<Vec<u8>>;
    let roots = match (&manager.ca, manager.verify) {
        (_, false) => ServiceRoots::Anyone,
        (Some(ca), true) => ServiceRoots::Pem(ca.as_bytes()),
        (None, true) => {
            let found = rustls_native_certs::load_native_certs();
            system = found.certs.iter().map(|certificate| certificate.to_vec()).collect();
            ServiceRoots::Der(&system)
        }
    };
    towards_service(roots).map(TlsConnector::from)
}
