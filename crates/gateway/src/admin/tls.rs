//! TLS of the admin address.

use crate::configuration::source::read_bounded;
use std::sync::Arc;
use stillgate_config::{AdminTls, Pem};
use stillgate_tls::FILE_BYTES_MAX;
use stillgate_tls::rustls::pki_types::pem::PemObject;
use stillgate_tls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use stillgate_tls::rustls::server::WebPkiClientVerifier;
use stillgate_tls::rustls::{RootCertStore, ServerConfig};

/// What clients are offered.
const ALPN: &[u8] = b"http/1.1";

/// As the configuration has it; the error names the key.
pub(crate) fn server_config(keys: &AdminTls) -> Result<Arc<ServerConfig>, String> {
    let fail = |key: &str, why: String| format!("gateway.admin.tls.{key}: {why}");
    let chain = certificates(&keys.cert).map_err(|why| fail("cert", why))?;
    let key = read(&keys.key).map_err(|why| fail("key", why))?;
    let key = PrivateKeyDer::from_pem_slice(&key);
    let key = key.map_err(|_| fail("key", "no private key found; write it as PEM, not encrypted".to_owned()))?;
    let builder = ServerConfig::builder();
    let builder = match &keys.client_ca {
        None => builder.with_no_client_auth(),
        Some(ca) => {
            let mut roots = RootCertStore::empty();
            for root in certificates(ca).map_err(|why| fail("client_ca", why))? {
                roots.add(root).map_err(|error| fail("client_ca", error.to_string()))?;
            }
            let verifier = WebPkiClientVerifier::builder(Arc::new(roots)).build();
            builder.with_client_cert_verifier(verifier.map_err(|error| fail("client_ca", error.to_string()))?)
        }
    };
    let mut config = builder.with_single_cert(chain, key).map_err(|error| fail("cert", error.to_string()))?;
    config.alpn_protocols = vec![ALPN.to_vec()];
    Ok(Arc::new(config))
}

fn certificates(pem: &Pem) -> Result<Vec<CertificateDer<'static>>, String> {
    let text = read(pem)?;
    let found = CertificateDer::pem_slice_iter(&text).collect::<Result<Vec<_>, _>>();
    match found {
        Ok(found) if !found.is_empty() => Ok(found),
        _ => Err("no certificate found; write it as PEM".to_owned()),
    }
}

fn read(pem: &Pem) -> Result<Vec<u8>, String> {
    match pem {
        Pem::Inline(text) => Ok(text.clone().into_bytes()),
        Pem::File(file) => {
            read_bounded(file, FILE_BYTES_MAX).map_err(|error| format!("cannot read {}: {error}", file.display()))
        }
    }
}
