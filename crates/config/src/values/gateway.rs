//! What there is to choose from for the process as a whole.

use crate::values::Pem;
use stillgate_plugin::Secret;

/// When the route cache is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RouteCacheMode {
    /// Where the measured cost of matching makes it pay.
    Auto,
    /// Always.
    On,
    /// Never.
    Off,
}

/// How the process's own log looks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogFormat {
    /// Human on a terminal, JSON otherwise.
    Auto,
    /// For people.
    Human,
    /// For machines.
    Json,
}

/// What is served where a global rule is rejected that was never right.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum RejectedGlobalRule {
    /// All requests are answered 503: the rule may be what keeps clients out.
    #[default]
    Deny,
    /// Requests are served without the rule.
    Ignore,
}

/// Where resources come from.
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

/// What the holder of a key of the Admin API may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// Everything.
    Admin,
    /// Reading, without secrets.
    Viewer,
}

/// Who knows which node has a device.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum DeviceRegistry {
    /// This node, which is the only one.
    #[default]
    Memory,
    /// A directory that nodes share.
    Redis {
        /// Where it is, with credentials.
        url: Secret,
        /// Whether it is a Redis Cluster.
        is_cluster: bool,
        /// Over TLS, whom to trust; `None`: the system's roots.
        ca: Option<Pem>,
    },
}
