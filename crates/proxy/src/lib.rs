//! Workers: listeners, connections, exchanges.
//!
//! [`Fleet::start`] runs one worker per core; each serves from the [`Plan`] that the control thread last published to the
//! [`PlanCell`]. The crate is divided into modules, called rooms, whose `mod.rs` describes their purpose. A room knows those below
//! it and none above it:
//!
//! ```text
//!   fleet          threads, their turns, how connections come to them, how they end
//!   client         a client's connection, of either version of HTTP
//!   stream_proxy   connections and datagrams that carry no HTTP
//!   devices        connections of devices, which are terminated here
//!   tunnel         bytes both ways: what follows a 101, and all of a TCP session
//!   listen         what comes before a first request: the PROXY protocol's header, the TLS handshake
//!   exchange       a request: its tries at nodes, its bytes, our own answers
//!   node           connections to nodes, and their known health
//!   worker         what one worker has, and lends to its connections
//!   calls          HTTP to servers other than nodes, for plugins
//!   device_link    messages between workers and the thread of devices
//!   handover       live connections that go to another process, as they are written and sent
//!   telemetry      metrics, access log, overview
//!   plan           the configuration being served: routes, upstreams, a worker's view of them
//!   connection     what bytes go through: the socket, TLS, a stream of HTTP/2
//!   sockets        what is listened on, bound or inherited
//!   basics         clock, memory, counts
//!   random         numbers that differ
//! ```

#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod basics;
mod calls;
mod client;
mod connection;
pub mod device_link;
mod devices;
mod exchange;
mod fleet;
pub mod handover;
mod listen;
mod node;
mod plan;
pub mod random;
mod sockets;
mod stream_proxy;
mod telemetry;
mod tunnel;
mod worker;

pub use basics::counters::{Counters, WorkerTally};
pub use basics::slow_request as slow;
pub use fleet::{Commander, Fleet, FleetMetrics, WORKER_NAME, raise_fd_limit, worker_count};
pub use node::health::describe_failure;
pub use plan::caching::MatchCost;
pub use plan::challenges::{Challenges, LiveChallenges};
pub use plan::metrics::{LIVE_DURATION, LIVE_SERIES_BYTES, MetricsPlan, declare_live};
pub use plan::{Plan, PlanCell, PlanError, SeriesChanges, SeriesSubject};
pub use sockets::{InheritedSockets, ListenError, ListenerSockets, Sockets, StartError};
pub use stillgate_plugin_api::facts::{argument_of, cookie_of};
pub use telemetry::access_log;
pub use telemetry::overview::{Inquiry, UpstreamOverview};
pub use worker::Expose;

/// The phases of a worker's work, for profiles: each with a part of the names of the functions that begin it, those of the module
/// that does it. The first match counts.
pub const PROFILE_PHASES: &[(&str, &str)] = &[
    ("TLS handshake", "stillgate_proxy::listen::handshake"),
    ("parsing", "stillgate_wire::"),
    ("routing", "stillgate_proxy::exchange::matching"),
    ("routing", "stillgate_route::"),
    ("plugins", "stillgate_plugins::"),
    ("choosing a node", "stillgate_upstream::"),
    ("connecting to a node", "stillgate_proxy::exchange::connecting"),
    ("relaying bodies", "stillgate_proxy::exchange::relay"),
    ("log and metrics", "stillgate_proxy::telemetry::"),
    ("log and metrics", "stillgate_metrics::"),
    ("HTTP/2", "h2::"),
    ("TLS records", "rustls::"),
    ("rest of the request", "stillgate_proxy::exchange::"),
    ("client connection", "stillgate_proxy::client::"),
    ("event loop", "stillgate_proxy::fleet::"),
    ("event loop", "tokio::runtime::"),
];
