//! Balancing, connection pools, set-aside nodes, name resolution.
//!
//! A worker thread owns one [`UpstreamState`] per upstream; nothing in it is shared, locked or does IO, and time and
//! randomness are arguments. [`Resolver`] belongs to the control thread and is the only part that talks to a network.

#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod balancer;
mod dns;
mod endpoint;
mod health;
mod names;
mod pool;
mod retry;
mod slot;
mod state;

pub use balancer::{Balancer, TriedEndpoints};
pub use dns::{AddressChange, Resolver, ResolverSettings, UnresolvedName};
pub use endpoint::{Endpoint, expand, host_header, share_verdicts};
pub use health::{Circuit, HealthVerdict, News, SET_ASIDE_FIRST_MS, SET_ASIDE_MAX_MS, TryReport};
pub use names::{NAMES_MAX, NameFault};
pub use pool::{ConnMeta, Fit, Pool};
pub use retry::{Attempt, Decision, Failure, decide};
pub use slot::{NodeFigures, UNANSWERED_MS, UNANSWERED_REQUESTS};
pub use state::{EndpointStatus, Ticket, UpstreamState};
