//! Options of the process as a whole.

use crate::values::Pem;
use stillgate_plugin_api::Secret;

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
pub enum Role {
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
