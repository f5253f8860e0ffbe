//! The meaning of a valid configuration: the plain values from which everything else is built.
//!
//! Nothing here can be invalid: references are resolved, defaults are filled in, services are merged into their routes. A section
//! whose keys need no interpretation (such as `gateway`) is the type that its table in `keys` generates. How text is parsed, and
//! where a value was in it, is not known here.
//!
//! Types that an upgrade compares between two processes implement `serde`'s traits. They contain no secret: PEM text is replaced by
//! a digest.

mod listeners;
mod loaded;
mod origin;
pub mod plugins;
mod route_list;
mod routes;
mod upstream;

pub use listeners::{ListenPlace, Listener, ListenerKind, Transport, listener_paths};
pub(crate) use listeners::{listed, listeners_of};
pub use loaded::{LoadedConfig, RejectedResource, Replacement};
pub use origin::{Origin, ResourceKind};
pub use route_list::RouteList;
pub use routes::{Route, StreamRoute, Target};
pub use upstream::{
    Balance, ClientAuth, ClientPair, HashKey, KeyPair, Node, NodeProtocol, PassHost, RefusedSsl, ServerSsl, Ssl,
    SslUse, TlsVersions, Upstream, UpstreamTimeouts, UpstreamTls,
};

use crate::keys::gateway::Gateway;
use std::sync::Arc;

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
    pub plugins: plugins::SharedPlugins,
    /// SHA-256 of the file's bytes as loaded (before `${ENV}`), in lower-case hex, and of plugin files, if there are any; for a
    /// store, its revision.
    pub digest: String,
}
