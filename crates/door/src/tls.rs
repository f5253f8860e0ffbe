//! TLS of the admin address, and of the device API.

use std::sync::Arc;
use stillgate_config::{AdminTls, Config, Pem};
use stillgate_files::read_bounded;
use stillgate_tls::rustls::pki_types::pem::PemObject;
use stillgate_tls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use stillgate_tls::rustls::server::NoServerSessionStorage;
use stillgate_tls::rustls::{Error, RootCertStore, ServerConfig};
use stillgate_tls::{FILE_BYTES_MAX, Problem, client_verifier, provider};

/// The protocol that clients are offered.
const ALPN: &[u8] = b"http/1.1";

/// The path of the keys of the admin address in the configuration.
pub const ADMIN: &str = "gateway.admin.tls";

/// The path of the keys of the device API in the configuration.
pub const DEVICES: &str = "gateway.devices.tls";

/// Why TLS of the admin address of a configuration, or of its device API, cannot work, for `check`; `None`: it works, or is off.
pub fn problem(config: &Config) -> Option<Problem> {
    let gateway = &config.gateway;
    let admin = gateway.admin.as_ref().and_then(|admin| server_config(admin.tls.as_ref()?, ADMIN).err());
    let devices = gateway.devices.as_ref();
    let api = || devices.and_then(|devices| server_config(devices.tls.as_ref()?, DEVICES).err());
    admin.or_else(api)
}

/// Certificates to trust, in PEM.
pub fn trusted(pem: &Pem) -> Result<Vec<u8>, String> {
    read(pem)
}

/// TLS settings from the configuration; the error names the key.
pub fn server_config(keys: &AdminTls, path: &str) -> Result<Arc<ServerConfig>, Problem> {
    let at = |key: &str, message: String| Problem { path: format!("{path}.{key}"), message, hint: None };
    let (chain, key) = certificate(keys, path)?;
    let builder = ServerConfig::builder_with_provider(provider()).with_safe_default_protocol_versions();
    let builder = builder.map_err(|error| at("cert", error.to_string()))?;
    let builder = match &keys.client_ca {
        None => builder.with_no_client_auth(),
        Some(ca) => {
            let verifier = client_verifier(Arc::new(roots(ca, path)?));
            builder.with_client_cert_verifier(verifier.map_err(|error| at("client_ca", error.to_string()))?)
        }
    };
    let mut config = builder.with_single_cert(chain, key).map_err(|error| match error {
        Error::InconsistentKeys(_) => at("key", format!("the key does not belong to {path}.cert")),
        error => at("cert", error.to_string()),
    })?;
    config.alpn_protocols = vec![ALPN.to_vec()];
    if keys.client_ca.is_some() {
        // A resumed session would outlive the client's certificate, which is verified in full handshakes only.
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
    }
    Ok(Arc::new(config))
}

/// A certificate with its chain, and its key.
pub fn certificate(
    keys: &AdminTls,
    path: &str,
) -> Result<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>), Problem> {
    let at = |key: &str, message: String| Problem { path: format!("{path}.{key}"), message, hint: None };
    let chain = certificates(&keys.cert).map_err(|why| at("cert", why))?;
    let key = read(&keys.key).map_err(|why| at("key", why))?;
    let key = PrivateKeyDer::from_pem_slice(&key);
    let key = key.map_err(|_| at("key", "no private key found; write it as PEM, not encrypted".to_owned()))?;
    Ok((chain, key))
}

/// The certificate authorities to trust.
pub fn roots(ca: &Pem, path: &str) -> Result<RootCertStore, Problem> {
    let at = |message: String| Problem { path: format!("{path}.client_ca"), message, hint: None };
    let mut roots = RootCertStore::empty();
    for root in certificates(ca).map_err(at)? {
        roots.add(root).map_err(|error| at(error.to_string()))?;
    }
    Ok(roots)
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
