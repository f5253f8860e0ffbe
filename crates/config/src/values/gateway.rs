//! Options of the process as a whole, the format and destination of its access log, and the options of an ACME server.

use crate::values::Pem;
use std::fmt;
use std::path::PathBuf;
use stillgate_plugin_api::Secret;
pub use stillgate_plugin_api::record::AccessValue;

/// When the route cache is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RouteCacheMode {
    /// If the measured cost of matching makes it worthwhile.
    Auto,
    /// Always.
    On,
    /// Never.
    Off,
}

/// The format of the process's own log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogFormat {
    /// Human on a terminal, JSON otherwise.
    Auto,
    /// For people.
    Human,
    /// For machines.
    Json,
}

/// The behaviour if a global rule is rejected that never had a valid version.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum RejectedGlobalRule {
    /// All requests are answered 503: the rule may be what keeps clients out.
    #[default]
    Deny,
    /// Requests are served without the rule.
    Ignore,
}

/// The source of resources.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum SourceKind {
    /// The file with the `gateway:` section.
    #[default]
    File,
    /// A file that the Admin API writes.
    Store,
    /// An etcd.
    Etcd,
}

impl SourceKind {
    /// All of them, with the names that `gateway.config.source` takes.
    pub const ALL: &[(&str, SourceKind)] =
        &[("file", SourceKind::File), ("store", SourceKind::Store), ("etcd", SourceKind::Etcd)];

    /// Whether the resources are in the file, not in a datastore.
    pub fn is_file(self) -> bool {
        self == SourceKind::File
    }
}

/// The rights of a key of the Admin API.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ApiKeyRole {
    /// Everything.
    Admin,
    /// Reading, without secrets.
    Viewer,
}

/// The directory that maps devices to nodes.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum DeviceRegistry {
    /// This node, which is the only one.
    #[default]
    Memory,
    /// A directory that nodes share.
    Redis {
        /// Its address, with credentials.
        url: Secret,
        /// Whether it is a Redis Cluster.
        is_cluster: bool,
        /// The trusted roots for TLS; `None`: the system's.
        ca: Option<Pem>,
    },
}

/// `gateway.access_log`.
#[derive(Debug, Clone, PartialEq)]
pub struct AccessLog {
    /// The destination of lines.
    pub destination: LogDestination,
    /// The format of a line.
    pub format: AccessFormat,
}

/// The destination of a log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LogDestination {
    /// Standard output.
    Stdout,
    /// A file that is appended to, and reopened on SIGUSR1.
    File(PathBuf),
}

/// The format of an access log line.
#[derive(Debug, Clone, PartialEq)]
pub enum AccessFormat {
    /// The combined format of Apache and nginx.
    Combined,
    /// One JSON object per line with these fields, in this order.
    Json(Vec<AccessField>),
}

/// One field of a JSON access log line.
#[derive(Debug, Clone, PartialEq)]
pub struct AccessField {
    /// The JSON key.
    pub name: String,
    /// The source of its value.
    pub value: AccessValue,
}

/// `gateway.acme.eab.hmac_key`, in Base64 as for URLs without padding.
#[derive(Clone, PartialEq, Eq)]
pub struct HmacKey(pub String);

/// Never shown: it is a secret.
impl fmt::Debug for HmacKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HmacKey({} bytes)", self.0.len())
    }
}

/// `gateway.acme.challenge`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AcmeChallenge {
    /// `http-01`: RFC 8555 section 8.3.
    Http01,
    /// `tls-alpn-01`: RFC 8737.
    TlsAlpn01,
}
