//! The meaning of a valid configuration: the plain values from which everything else is built.
//!
//! Nothing here can be invalid: references are resolved, defaults are filled in, services are merged into their routes. A section
//! whose keys need no interpretation (such as `gateway`) is the type that its table in `keys` generates. How text is parsed, and
//! where a value was in it, is not known here.
//!
//! Types that an upgrade compares between two processes implement `serde`'s traits. They contain no secret: PEM text is replaced by
//! a digest.

mod listeners;
mod origin;
mod route_list;
mod routes;
mod upstream;

pub use listeners::{ListenPlace, Listener, ListenerKind, Transport, listener_paths};
pub(crate) use listeners::{listed, listeners_of};
pub use origin::{Origin, ResourceKind};
pub use route_list::RouteList;
pub use routes::{Route, StreamRoute, Target};
pub use upstream::{
    Balance, ClientAuth, ClientPair, HashKey, KeyPair, Node, NodeProtocol, PassHost, RefusedSsl, ServerSsl, Ssl,
    SslUse, TlsVersions, Upstream, UpstreamTimeouts, UpstreamTls,
};

use crate::keys::gateway::Gateway;
use std::fmt;
use std::sync::Arc;
use stillgate_plugin_api::{Chain, Consumers, CustomPlugins, MetadataTable};
use stillgate_schema::text::diagnostic::Diagnostic;

/// One whole configuration: the process, and all resources.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    /// The process: limits, logs, and the listeners as they were written.
    pub gateway: Gateway,
    /// The listeners of all kinds; no two have the same address.
    pub listeners: Vec<Listener>,
    /// All upstreams, the shared ones first and then those written inline in a service, stream route or route.
    pub upstreams: Vec<Arc<Upstream>>,
    /// All enabled routes, in the order of the file. Routes with `status: 0` are not included.
    pub routes: RouteList,
    /// The line of the file in which each route begins, from 1; 0 for a store. Separate from the routes, so that one that only
    /// moved is unchanged.
    pub route_lines: Vec<u32>,
    /// All enabled stream routes, in the order of the file.
    pub stream_routes: Vec<Arc<StreamRoute>>,
    /// All enabled entries of `ssls`, in the order of the file.
    pub ssls: Vec<Arc<Ssl>>,
    /// The plugins that do not belong to a route.
    pub plugins: SharedPlugins,
    /// SHA-256 of the file's bytes as loaded (before `${ENV}`), in lower-case hex, and of plugin files, if there are any; for a
    /// store, its revision.
    pub digest: String,
}

/// The plugins that do not belong to a route.
#[derive(Debug, Clone, Default)]
pub struct SharedPlugins {
    /// The merged plugins of `global_rules`.
    pub global: Arc<Chain>,
    /// The consumers.
    pub consumers: Arc<Consumers>,
    /// `plugin_metadata`
    pub metadata: Arc<MetadataTable>,
    /// The plugins from the operator's files.
    pub custom: CustomPlugins,
}

/// Compares pointers first, since there may be many consumers.
impl PartialEq for SharedPlugins {
    fn eq(&self, other: &SharedPlugins) -> bool {
        self.global == other.global
            && (Arc::ptr_eq(&self.consumers, &other.consumers) || self.consumers == other.consumers)
            && self.metadata == other.metadata
            && self.custom == other.custom
    }
}

/// A valid configuration.
#[derive(Debug, Clone, PartialEq)]
pub struct LoadedConfig {
    /// The configuration.
    pub config: Config,
    /// Warnings for its authors, in the order of the file.
    pub warnings: Vec<Diagnostic>,
    /// Warnings about the file next to a datastore; empty if everything comes from the file.
    pub warnings_beside: Vec<Diagnostic>,
    /// Resources that are not served as they were put. Always empty for a file, which is refused as a whole.
    pub rejected: Vec<RejectedResource>,
}

/// A resource that is not served as it was put.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RejectedResource {
    /// Its kind.
    pub kind: ResourceKind,
    /// Unique within its kind.
    pub id: String,
    /// Its errors.
    pub reason: String,
    /// Its origin.
    pub origin: Origin,
    /// Its replacement.
    pub serving: Replacement,
}

/// The replacement of a rejected resource.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Replacement {
    /// The last valid version.
    Previous,
    /// Requests that it would take, or that need it, are answered with 503.
    Unavailable,
    /// Nothing: the requests that it would have taken are unknown.
    Nothing,
}

/// The name in the status.
impl fmt::Display for Replacement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Replacement::Previous => "previous",
            Replacement::Unavailable => "503",
            Replacement::Nothing => "nothing",
        })
    }
}
