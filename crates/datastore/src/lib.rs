//! Keeps resources as documents with revisions: in an embedded file (`embedded/`), or in etcd (`etcd/`).
//!
//! ```text
//!  Transaction (conditions, writes, author) ─▶ a datastore ─▶ Batch: revision, events ─▶ Documents, and other followers
//! ```
//!
//! A document is text, JSON by contract; this crate knows neither its meaning nor the kinds of resources. Revisions
//! count changes of the whole datastore, as in etcd, so that "created first" has the same meaning for all nodes that
//! follow it.

#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod cipher;
pub mod document;
pub mod embedded;
pub mod etcd;
pub mod transaction;

pub use document::{Batch, Document, DocumentTable, Documents, Event, Key, KeyError, Snapshot};
pub use transaction::{Author, CommitError, Condition, ReferenceCheck, Transaction, Write};
