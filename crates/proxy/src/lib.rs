//! Workers: listeners, connections, exchanges.
//!
//! [`Fleet::start`] runs one [`worker`] per core; each serves from the [`Plan`] that the control thread last published
//! to the [`PlanCell`]. The crate is divided into rooms, whose `mod.rs` says what each is for:
//!
//! ```text
//!   worker         threads, their turns, and what they own: clock, memory, counts
//!   listen         sockets, accepting, the PROXY protocol's header, the TLS handshake
//!   client         a client's connection, of either version of HTTP
//!   exchange       a request: its tries at nodes, its bytes, our own answers
//!   stream_proxy   connections and datagrams that carry no HTTP
//!   tunnel         bytes both ways: what follows a 101, and all of a TCP session
//!   handover       live connections that go to another process
//!   node           connections to nodes, and what is known of their health
//!   connection     what bytes go through: the socket, TLS, a stream of HTTP/2
//!   telemetry      metrics, access log, overview
//!   plan           what is served from: routes, upstreams, a worker's view of them
//!   random         numbers that differ
//! ```

#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod client;
mod connection;
mod exchange;
pub mod handover;
mod listen;
mod node;
mod plan;
pub mod random;
mod stream_proxy;
mod telemetry;
mod tunnel;
mod worker;

pub use exchange::variables::{argument_of, cookie_of};
pub use listen::sockets::{Inherited, ListenPlace, Listening, Sockets, Transport};
pub use plan::caching::measure::MatchCost;
pub use plan::challenges::{Challenges, LiveChallenges};
pub use plan::{Changes, Plan, PlanCell, PlanError};
pub use telemetry::access_log;
pub use telemetry::metrics::MetricsPlan;
pub use telemetry::overview::{Inquiry, UpstreamOverview};
pub use worker::counters::{Counters, Tally};
pub use worker::fleet::{Commander, Fleet, StartError, WORKER_NAME, raise_fd_limit, worker_count};
