//! The Admin API: APISIX's below `/apisix/admin/`, and what goes beyond it below `/v1/`.
//!
//! ```text
//!  request ─▶ Guard: who is it ─▶ table of endpoints ─▶ Operation ─▶ plan: references, ids, merge ─▶ Control::write
//!                                                    └▶ reads: Documents, masked for viewers
//! ```
//!
//! It owns no state but sessions, counts of wrong keys, and what the last client of `configs` said. What is stored, checked
//! and served is behind [`Control`], which the gateway implements; tests have one in memory. It accepts no connections:
//! the server of the [`router`] puts a [`Peer`] into each request.

#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod access;
mod answer;
mod backup;
mod batch;
pub mod body;
mod collections;
mod commit;
pub mod control;
mod endpoints;
mod history;
mod masks;
mod off_thread;
mod openapi;
mod plugins;
mod query;
mod resource;
mod router;
mod sign_in;
mod standalone;
mod ui;

pub use access::{Access, AdminKey, Caller, Guard, KEY_ARGUMENT, Peer, Role, loopback};
pub use control::{Backup, Checked, Control, Outcome, Plugin, PluginSchema, Wait, WriteError};
pub use endpoints::Page;
pub use masks::{MASK, is_masked};
pub use router::router;
