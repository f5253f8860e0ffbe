//! What a configuration means once it is known to be right: the plain values everything else is built from.
//!
//! Nothing here can be invalid: references are resolved to what they name, defaults are filled in, services are folded into
//! their routes. An object whose keys mean what they say (such as `gateway`) is what its table in the room `keys` makes of
//! it. How text is read and where a value stood in it is not known here.
//!
//! What an upgrade compares between two processes has a form for `serde`. No secret is in it: of PEM text there is a digest.

mod listeners;
mod loaded;
mod origin;
pub mod plugins;
mod route_list;
mod routes;
mod ssls;
mod upstream;

pub use listeners::{ListenPlace, Listener, ListenerKind, Transport, listener_paths};
pub(crate) use listeners::{listed, listeners_of};
pub use loaded::{Loaded, Rejected, Serving};
pub use origin::{Kind, Origin};
pub use route_list::RouteList;
pub use routes::{Route, StreamRoute, Target};
pub use ssls::{ClientAuth, ClientPair, KeyPair, RefusedSsl, ServerSsl, Ssl, SslUse, TlsVersions, UpstreamTls};
pub use upstream::{Balance, HashKey, Node, PassHost, Protocol, Upstream, UpstreamTimeouts};

use crate::keys::gateway::Gateway;
use std::sync::Arc;

/// One whole configuration: the process, and all resources.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    /// The process: limits, logs, and the listeners as they were written.
    pub gateway: Gateway,
    /// Where it listens, whatever for; no two in one place.
    pub listeners: Vec<Listener>,
    /// All upstreams, the shared ones first and then those written inline in a service, stream route or route.
    pub upstreams: Vec<Arc<Upstream>>,
    /// All enabled routes, in the order of the file. `status: 0` routes are not in here.
    pub routes: RouteList,
    /// In which line of the file each of them begins, from 1; of a store 0. Apart from the routes, so that one that only moved is
    /// the same as before.
    pub route_lines: Vec<u32>,
    /// All enabled stream routes, in the order of the file.
    pub stream_routes: Vec<Arc<StreamRoute>>,
    /// All enabled entries of `ssls`, in the order of the file.
    pub ssls: Vec<Arc<Ssl>>,
    /// What of plugins belongs to no route.
    pub plugins: plugins::Shared,
    /// SHA-256 of the file's bytes as loaded (before `${ENV}`), in lower-case hex, and of plugins' files where there are some; a
    /// store's revision.
    pub digest: String,
}
