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
mod keeper;
mod open;
mod snapshot_file;
mod thread;
mod trial;

pub(crate) use addresses::resource_of;
pub(crate) use encryption::{Offline, back_up, read_store};
pub(crate) use keeper::{FollowStatus, FollowedRevision, Keeper, ServedRevision};
pub(crate) use open::{KeptSource, OpenStore, problem};
pub(crate) use thread::{CommittedChange, StoreCopy, StoreRequest, WriteFailure};
pub(crate) use trial::Trial;
