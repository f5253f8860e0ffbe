//! Workers: listeners, connections, exchanges.
//!
//! [`Fleet::start`] runs one [`worker`] per core; each serves from the [`Plan`] that the control thread last published
//! to the [`PlanCell`]. A connection is `client`, a request is `exchange`, one try of it at a node is `attempt`, and its
//! bytes are moved by `relay` between the two halves of each connection, `receiver` and `sender`. What it adds to the metrics
//! is in `metrics`; what follows a 101 is `tunnel`; what it remembers of routes in `caching`.

#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod accept;
pub mod access_log;
mod attempt;
mod buffer;
mod caching;
mod challenges;
mod client;
mod clock;
mod counters;
mod draining;
mod exchange;
mod fleet;
mod forwarding;
mod grpc;
pub mod handover;
mod handshake;
mod health;
mod http2;
mod metrics;
mod mistaken;
mod node;
mod node_tries;
mod overview;
mod plan;
mod proxy_protocol;
mod queue;
mod receiver;
mod relay;
mod reply;
mod sender;
mod snapshot;
mod sockets;
mod stream;
mod stream_proxy;
mod troubles;
mod tunnel;
mod turns;
mod uptake;
mod variables;
mod worker;

pub use caching::measure::MatchCost;
pub use challenges::{Challenges, Live};
pub use counters::{Counters, Tally};
pub use fleet::{Commander, Fleet, StartError, WORKER_NAME, raise_fd_limit, worker_count};
pub use metrics::MetricsPlan;
pub use overview::{Inquiry, UpstreamOverview};
pub use plan::{Changes, Plan, PlanCell, PlanError};
pub use sockets::{Inherited, Listening, Place, Sockets, Transport};
pub use variables::{argument_of, cookie_of};
