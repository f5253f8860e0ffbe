//! A certificate that is ordered from an ACME server: one file with its key, which may be missing or no longer usable.
//!
//! Errors of this file do not refuse a configuration, since the next order fixes them: clients get the previous
//! certificate or a self-signed placeholder.

use crate::entry::SslEntry;
use crate::identity::{ChainReceiver, Expiry, Identity, Purpose, UsablePair, pair};
use crate::loading::{Text, TlsLoad};
use crate::pem::Files;
use crate::problem::ConfigLocation;
use crate::provider;
use rcgen::CustomExtension;
use rustls::ServerConfig;
use rustls::pki_types::UnixTime;
use rustls::server::NoServerSessionStorage;
use rustls::version::{TLS12, TLS13};
use std::io;
use std::path::Path;
use std::sync::Arc;
use stillgate_config::{KeyPair, Pem, Ssl, SslUse};
use x509_parser::extensions::ParsedExtension;
use x509_parser::prelude::{FromDer, X509Certificate};

/// The contents of a file with an ordered certificate, if it can be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OrderedCertificateInfo {
    /// The DNS names it is for, in lower case.
    pub names: Vec<String>,
    /// When it began and when it ends, in seconds since 1970.
    pub not_before_seconds: i64,
    /// When the first certificate of its chain ends.
    pub not_after_seconds: i64,
    /// The server's identifier for it (RFC 9773 section 4.1): the contents of its authority key identifier, and of its
    /// serial number. `None` if it does not name the key that signed it.
    pub ari_identifier: Option<(Vec<u8>, Vec<u8>)>,
}

impl OrderedCertificateInfo {
    /// Reads a certificate, with those that lead to its root, and its key; an error says why they cannot be used `now`.
    pub fn read(text: &[u8], now: UnixTime) -> Result<OrderedCertificateInfo, String> {
        let mut loading = TlsLoad::new(&NoFiles, now);
        let nowhere = Pem::Inline(String::new());
        let checked = usable_pair(&KeyPair { cert: nowhere.clone(), key: nowhere }, text, "", &mut loading);
        match (loading.problems.finish(), checked) {
            (Ok(_), Some(checked)) => {
                parse_ordered(&checked).ok_or_else(|| "the certificate cannot be read".to_owned())
            }
            (Err(refused), _) => Err(refused.to_string()),
            (Ok(_), None) => Err("it cannot be used".to_owned()),
        }
    }
}

/// The certificates for clients, and their ends if they have one. `text`: the file's contents, if it could be read;
/// `known`: the previous entry.
pub(crate) fn identity(
    ssl: &Ssl,
    text: Option<&Text>,
    path: &str,
    known: Option<&Arc<SslEntry>>,
    loading: &mut TlsLoad<'_>,
) -> Option<(Arc<Identity>, Vec<Expiry>)> {
    let path = format!("{path}.acme");
    let place = ConfigLocation { path: &path, file: ssl.pairs[0].cert.file() };
    if let Some(text) = text {
        let outer = std::mem::take(&mut loading.problems);
        let checked = usable_pair(&ssl.pairs[0], text, &path, loading);
        match (std::mem::replace(&mut loading.problems, outer).finish(), checked) {
            (Ok(warnings), Some(checked)) => {
                loading.problems.warn_again(&warnings);
                let expiries = vec![checked.expiry.clone()];
                return Some((Arc::new(Identity::new(vec![checked], None)), expiries));
            }
            (Ok(_), None) => {}
            (Err(refused), _) => loading.problems.warn_again(&refused.errors),
        }
    }
    // This also holds if another server is to issue the next one, into another file.
    if let Some(known) = known.filter(|known| known.ssl.acme && !known.expiries.is_empty()) {
        let hint = "what was shown before goes on being shown; another is ordered";
        loading.problems.warning(place, "there is no certificate any more that can be used", hint);
        return Some((known.identity.clone(), known.expiries.clone()));
    }
    let hint = "it is ordered while the gateway runs, and the log tells how that goes";
    loading.problems.warning(place, "there is no certificate yet; clients are shown one that none trusts", hint);
    match (known.filter(|known| *known.ssl == *ssl), &ssl.usage) {
        (Some(known), _) => Some((known.identity.clone(), Vec::new())),
        (None, SslUse::Server(server)) => match provider::stand_in(&server.names) {
            Ok(key) => Some((Arc::new(Identity::single(key)), Vec::new())),
            Err(error) => {
                loading.problems.error(place, error, "is the system out of random numbers?");
                None
            }
        },
        // `resolve::ssls` of the configuration refuses all others.
        (None, SslUse::Client | SslUse::Refused(_)) => None,
    }
}

/// The file's bytes, if it can be read; every error is warned of, except that it does not exist yet.
pub(crate) fn text(ssl: &Ssl, path: &str, loading: &mut TlsLoad<'_>) -> Option<Text> {
    let file = ssl.pairs[0].cert.file()?;
    match loading.files.read(file) {
        Ok(bytes) => Some(bytes.into()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(error) => {
            let path = format!("{path}.acme");
            let place = ConfigLocation { path: &path, file: Some(file) };
            loading.problems.warning(place, format!("cannot be read: {error}"), "mend the permissions of the folder");
            None
        }
    }
}

fn usable_pair(of: &KeyPair, text: &[u8], path: &str, loading: &mut TlsLoad<'_>) -> Option<UsablePair> {
    // The code that orders it compares the names.
    let purpose = Purpose { shown: ChainReceiver::ToClients, names: &[] };
    pair(of, (text, text), (path, path), purpose, loading)
}

fn parse_ordered(checked: &UsablePair) -> Option<OrderedCertificateInfo> {
    let (_, leaf) = X509Certificate::from_der(checked.leaf()).ok()?;
    Some(OrderedCertificateInfo {
        names: crate::identity::names(&leaf),
        not_before_seconds: leaf.validity().not_before.timestamp(),
        not_after_seconds: checked.expiry.not_after_seconds,
        ari_identifier: authority_key(&leaf).map(|authority| (authority, leaf.raw_serial().to_vec())),
    })
}

fn authority_key(leaf: &X509Certificate<'_>) -> Option<Vec<u8>> {
    leaf.iter_extensions().find_map(|extension| match extension.parsed_extension() {
        ParsedExtension::AuthorityKeyIdentifier(identifier) => Some(identifier.key_identifier.as_ref()?.0.to_vec()),
        _ => None,
    })
}

/// File access for a text that is not in a file.
struct NoFiles;

impl Files for NoFiles {
    fn read(&self, _: &Path) -> io::Result<Vec<u8>> {
        Err(io::ErrorKind::NotFound.into())
    }

    fn is_readable_by_all(&self, _: &Path) -> bool {
        false
    }

    fn system_roots(&self) -> io::Result<Vec<Vec<u8>>> {
        Ok(Vec::new())
    }
}

// The answer to an ACME server that checks by TLS whether a name is ours.

/// The ALPN protocol of an ACME server's check (RFC 8737 section 6.2).
pub const ACME_TLS_ALPN: &[u8] = b"acme-tls/1";

/// The answer to an ACME server that checks `name` by [`ACME_TLS_ALPN`] (RFC 8737 section 3). `digest`: SHA-256 of the
/// key authorization.
pub fn acme_challenge(name: &str, digest: &[u8; 32]) -> Result<Arc<ServerConfig>, String> {
    let key = provider::self_signed(&[name.to_owned()], |params| {
        params.custom_extensions.push(CustomExtension::new_acme_identifier(digest));
    })?;
    let builder = ServerConfig::builder_with_provider(provider::provider()).with_protocol_versions(&[&TLS13, &TLS12]);
    let builder = builder.map_err(|error| error.to_string())?.with_no_client_auth();
    // Not `with_single_cert`: it reads the certificate, and refuses a critical extension that it does not know.
    let mut config = builder.with_cert_resolver(Arc::new(Identity::single(key)));
    config.alpn_protocols = vec![ACME_TLS_ALPN.to_vec()];
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    Ok(Arc::new(config))
}
