//! Hands live connections to another process: in a binary upgrade, from the old workers to the new ones.
//!
//! ```text
//!  old: task gives itself up ─▶ outbox ─▶ sending thread ══ one datagram a connection ══▶ receiving thread ─▶ inbox ─▶ task :new
//! ```
//!
//! Tunnels, connections of devices, and connections that wait for a request are handed over, unless a side of theirs goes through
//! TLS or HTTP/2, whose state is in memory that cannot be moved. A connection is whole at every moment: what is in the kernel's
//! buffers goes along with its descriptor, what was read and not written is part of its `state`. What cannot be handed over at once
//! is tried again, so only the thread that sends waits for the other process.

mod digests;
mod inbox;
mod leaving_worker;
mod places;
mod state;
#[cfg(test)]
mod tests;

pub(crate) use digests::{ROUTES, STREAM_ROUTES};
pub use digests::{RouteDigest, digest};
pub(crate) use inbox::Arrival;
pub use inbox::{INBOX, Inbox};
pub(crate) use leaving_worker::{GIVING_MS, LeavingWorker, share};
pub use leaving_worker::{OUTBOX, Successor};
pub(crate) use places::RoutePlaces;
pub use state::{BROADCAST_BYTES_MAX, HandedState, PARCEL_BYTES_MAX, Parcel, ParcelError};
pub(crate) use state::{
    ConnectionState, CredentialState, DEVICE_MESSAGES_BYTES_MAX, DEVICE_MESSAGES_MAX, DeviceState, DirectionState,
    Ends, MessageState, OriginState, PolicyState, ProtocolState, RequestState, SessionState, TunnelState,
};
