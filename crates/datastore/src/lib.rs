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
pub mod documents;
pub mod embedded;
pub mod etcd;
pub mod key;
pub mod transaction;

pub use document::{Batch, Document, Event, Snapshot};
pub use documents::{DocumentTable, Documents};
pub use key::{Key, KeyError};
pub use transaction::{Author, CommitError, Condition, ReferenceCheck, Transaction, Write};
