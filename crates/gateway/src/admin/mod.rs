//! The admin API: its server, who may use it, and the shapes of its answers.
//!
//! It owns no state: the control loop fills the answers in.

pub(crate) mod access;
pub(crate) mod cardinality;
mod endpoint;
mod refusal;
pub(crate) mod server;
pub(crate) mod status;
pub(crate) mod upstreams;
