//! Certificates and keys: to which peers they are presented, and what is required of the peers.

use crate::values::Pem;
use serde::{Serialize, Serializer};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// One enabled entry of `ssls`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Ssl {
    /// Unique in the file.
    pub id: String,
    /// How the certificates are used.
    pub usage: SslUse,
    /// `cert` and `key` first; empty only with [`SslUse::Refused`].
    pub pairs: Vec<KeyPair>,
    /// Whether its only pair is ordered from an ACME server: one file contains both, and may not exist yet.
    pub acme: bool,
}

/// `type` of an entry of `ssls`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub enum SslUse {
    /// For clients of our listeners.
    Server(ServerSsl),
    /// For upstreams.
    Client,
    /// For nobody: the entry cannot be used. Handshakes that it would have taken are refused, so that none of them gets another
    /// entry, which may not require a client certificate.
    Refused(RefusedSsl),
}

/// The handshakes that an unusable entry of `ssls` would have taken.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct RefusedSsl {
    /// Like [`ServerSsl::names`].
    pub names: Vec<String>,
    /// Whether one of its names could not be read: then it takes every name that no earlier entry has exactly, and later ones are
    /// refused.
    pub is_name_unread: bool,
    /// Like [`ServerSsl::is_default`].
    pub is_default: bool,
}

/// An entry of `ssls` for the clients of our listeners.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ServerSsl {
    /// DNS names in lower case, without a trailing dot; a leading `*.` matches any one label. No name is in two entries.
    pub names: Vec<String>,
    /// Whether it takes clients that request no name or an unknown one. At most one entry of a file does.
    pub is_default: bool,
    /// The requirements on a client's certificate; `None`: clients need none.
    pub client: Option<ClientAuth>,
    /// The allowed versions; at least one.
    pub versions: TlsVersions,
    /// A file with an OCSP response in DER.
    pub ocsp: Option<PathBuf>,
}

/// `client` of an entry of `ssls`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ClientAuth {
    /// The certificate authorities for client certificates.
    pub ca: Pem,
    /// The most certificates between a client's and one of `ca`.
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

/// A certificate with its chain, and its private key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct KeyPair {
    /// The certificate comes first.
    pub cert: Pem,
    /// Unencrypted.
    pub key: Pem,
}

/// `tls` of an upstream with `scheme: https` or `tls`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct UpstreamTls {
    /// The certificate for nodes that request one.
    pub client: Option<ClientPair>,
    /// Whether a node's certificate must be valid for its name and issued by a known root.
    pub verify: bool,
    /// The root certificates; `None`: the system's.
    pub ca: Option<Pem>,
    /// The server name sent to nodes, a DNS name or an IP address; `None`: the `Host` they receive.
    pub sni: Option<String>,
}

/// The client certificate for upstreams.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub enum ClientPair {
    /// `client_cert` and `client_key`.
    Own(KeyPair),
    /// `client_cert_id`; the use of that entry is [`SslUse::Client`].
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
