//! The Admin API: APISIX's below `/apisix/admin/`, and our extensions below `/v1/`.
//!
//! ```text
//!  request ─▶ Guard: who is it ─▶ table of endpoints ─▶ Operation ─▶ plan: references, ids, merge ─▶ Control::write
//!                                                    └▶ reads: Documents, masked for viewers
//! ```
//!
//! It has no state except the metadata from the last client of `configs`; sessions and counts of wrong keys are in the [`Guard`].
//! Storing, checking and serving is behind [`Control`], which the gateway implements; tests have an implementation in memory. It
//! accepts no connections: the server of the [`router`] adds a [`Peer`] to each request.
//!
//! [`Guard`]: stillgate_door::Guard
//! [`Peer`]: stillgate_door::Peer

#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod answer;
mod batch;
pub mod body;
mod collections;
mod commit;
pub mod control;
mod endpoints;
mod history;
mod masks;
mod query;
mod resource;
mod router;
mod schemas;
mod standalone;
mod ui;

pub use control::{Backup, Control, Outcome, Plugin, PluginSchema, Wait, WriteConsequences, WriteError};
pub use endpoints::Page;
pub use masks::{MASK, is_masked};
pub use router::router;
