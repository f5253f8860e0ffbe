//! Certificates and keys, who is shown them, and what is asked of others.

use crate::values::Pem;
use serde::{Serialize, Serializer};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// One enabled entry of `ssls`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Ssl {
    /// Unique in the file.
    pub id: String,
    /// Who is shown the certificates.
    pub usage: SslUse,
    /// `cert` and `key` first; empty only with [`SslUse::Refused`].
    pub pairs: Vec<KeyPair>,
    /// Its one pair is ordered from an ACME server: one file has both, and may not be there yet.
    pub acme: bool,
}

/// `type` of an entry of `ssls`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub enum SslUse {
    /// Clients of our listeners.
    Server(ServerSsl),
    /// Upstreams.
    Client,
    /// Nobody: the entry cannot be used. Handshakes that it would have taken are refused, so that none of them falls to
    /// another entry, which may not ask for a client's certificate.
    Refused(RefusedSsl),
}

/// What an entry of `ssls` that cannot be used would have taken.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct RefusedSsl {
    /// As [`ServerSsl::names`].
    pub names: Vec<String>,
    /// A name of it could not be read, so it takes every name that no earlier entry has exactly; later ones are refused.
    pub is_name_unread: bool,
    /// As [`ServerSsl::is_default`].
    pub is_default: bool,
}

/// What an entry of `ssls` says of the clients of our listeners.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ServerSsl {
    /// DNS names in lower case, without a trailing dot; one that begins with `*.` stands for any one label. No name is
    /// in two entries.
    pub names: Vec<String>,
    /// It takes clients that ask for no name or for one that no entry has. At most one entry of a file.
    pub is_default: bool,
    /// What is asked of a client's certificate; `None`: clients need none.
    pub client: Option<ClientAuth>,
    /// Which versions are spoken; at least one.
    pub versions: TlsVersions,
    /// A file with an OCSP response in DER.
    pub ocsp: Option<PathBuf>,
}

/// `client` of an entry of `ssls`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ClientAuth {
    /// The certificates that may have signed a client's.
    pub ca: Pem,
    /// Most certificates between a client's and one of `ca`.
    pub depth: u8,
}

/// `ssl_protocols` of an entry of `ssls`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct TlsVersions {
    /// TLS 1.2.
    pub v12: bool,
    /// TLS 1.3.
    pub v13: bool,
}

/// A certificate with those that lead to its root, and its private key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct KeyPair {
    /// The certificate first.
    pub cert: Pem,
    /// Not encrypted.
    pub key: Pem,
}

/// `tls` of an upstream with `scheme: https` or `tls`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct UpstreamTls {
    /// What nodes are shown that ask for a certificate.
    pub client: Option<ClientPair>,
    /// Whether a node's certificate must be valid for its name and lead to a known root.
    pub verify: bool,
    /// The roots; `None`: the system's.
    pub ca: Option<Pem>,
    /// The name that nodes are asked for, a DNS name or an IP address; `None`: the `Host` they see.
    pub sni: Option<String>,
}

/// The certificate that upstreams are shown.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub enum ClientPair {
    /// `client_cert` and `client_key`.
    Own(KeyPair),
    /// `client_cert_id`; its use is [`SslUse::Client`].
    Ssl(#[serde(serialize_with = "entry")] Arc<Ssl>),
}

impl UpstreamTls {
    /// The files it is read from.
    pub fn files(&self) -> impl Iterator<Item = &Path> {
        let own = match &self.client {
            Some(ClientPair::Own(pair)) => Some([&pair.cert, &pair.key]),
            _ => None,
        };
        own.into_iter().flatten().chain(&self.ca).filter_map(Pem::file)
    }
}

fn entry<S: Serializer>(entry: &Arc<Ssl>, to: S) -> Result<S::Ok, S::Error> {
    (**entry).serialize(to)
}
