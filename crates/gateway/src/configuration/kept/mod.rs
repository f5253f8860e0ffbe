//! Resources that are kept outside the file: in an embedded store, or in etcd.
//!
//! ```text
//!  datastore ─▶ Batch ─▶ Keeper: plain documents, and the store that says what they mean ─▶ KeptSource ─▶ reload
//!     ▲                     │ attempt: would it be rejected?
//!     └── Transaction ◀─────┴───────────── Admin API
//! ```
//!
//! One thread talks to the datastore; it takes changes in and makes those that are requested, one after the other, so that what was
//! checked is what is written. The control loop is only notified that there is something new.

mod addresses;
mod backend;
mod embedded_file;
mod encryption;
mod followed_etcd;
mod keeper;
mod known_documents;
mod linting;
mod offline;
mod open;
mod snapshot_file;
mod source;
mod thread;
mod trial;

pub(crate) use addresses::resource_of;
pub(crate) use keeper::{FollowStatus, FollowedRevision, Keeper, ServedRevision};
pub(crate) use offline::{Offline, back_up, read_store};
pub(crate) use open::{OpenStore, problem};
pub(crate) use source::{KeptSource, revision_of};
pub(crate) use thread::{CommittedChange, StoreCopy, StoreRequest, WriteFailure};
pub(crate) use trial::Trial;
