//! The HTTP servers of Admin API, device API and exporter: accepting, bounds on connections, TLS, and who is admitted.
//!
//! ```text
//!  accept ─▶ a place among the connections ─▶ TLS ─▶ server: head, age, end ─▶ Guard: who is it ─▶ endpoints
//! ```
//!
//! The exporter takes [`accept`], [`ConnectionSlots`] and [`Hosts`] from here, and serves its connections itself. This crate knows
//! no endpoint: the Admin API is in `admin`, the device API in `device-node`.

#![cfg_attr(test, allow(clippy::unwrap_used))]
#![forbid(unsafe_code)]

mod access;
mod connection_slots;
mod hosts;
mod large_answers;
mod server;
pub mod tls;

pub use access::{
    Access, AdminKey, Caller, Guard, KEY_ARGUMENT, Peer, Rejection, Role, SESSION_COOKIE, Session, cookie, loopback,
};
pub use connection_slots::{CONNECTIONS_MAX, ConnectionSlot, ConnectionSlots, accept};
pub use hosts::{Hosts, Stranger};
pub use server::{Answers, Bounds, RunningServer, Server, serve};
