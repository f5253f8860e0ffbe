//! One request and its response: its route, its nodes, the bytes of both, and our own answers.
//!
//! `request` is the whole of it and `attempt` one try at a node, whose bytes are moved by `relay` between the two halves of
//! each connection, `receiver` and `sender`.

pub(crate) mod attempt;
pub(crate) mod forwarding;
mod pool;
mod queue;
pub(crate) mod receiver;
mod record;
pub(crate) mod relay;
pub(crate) mod reply;
mod request;
pub(crate) mod sender;
mod upgraded;
pub(crate) mod variables;

pub(crate) use request::{After, Exchange, refuse, run};
pub(crate) use upgraded::{Upgraded, UpgradedRequest};
