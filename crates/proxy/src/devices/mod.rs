//! Connections of devices that are terminated here: WebSocket frames, messages and their acknowledgements, pings, events.
//!
//! ```text
//!   exchange ── 101 is out ──▶ BegunDevice ──▶ Connection ── close, silence, a newer connection, the worker's end ──▶ one record
//!                                               ▲      │
//!                              mailbox: Command ┘      └▶ Report, events to the upstream
//! ```
//!
//! A connection is a task of its own, and small: while nothing moves it has no buffer, and its timer is in its worker's wheel. The
//! protocol is in the crate `devices`; here are the socket, the clock and the notifications. The thread of devices knows how the
//! device relates to others, and who waits for it ([`crate::device_link`]).

mod closing;
mod connection;
mod credential;
mod events;
mod handover;
mod input;
mod output;
mod posting;
mod telling;

pub(crate) use handover::take;

use crate::connection::client::ClientConnection;
use crate::exchange::Switch;
use crate::tunnel::Tunnel;
use crate::worker::Open;
use connection::DeviceConnection;
use tokio::task::spawn_local;

/// Continues a connection that a request has turned into something else, as a task of its own.
pub(crate) fn go_on(open: Open, client: ClientConnection, switch: Switch) {
    match switch {
        Switch::Tunnel(upgraded) => drop(spawn_local(Tunnel::new(open, client, (*upgraded).into()))),
        Switch::Device(begun) => drop(spawn_local(DeviceConnection::new(open, client, *begun))),
    }
}
