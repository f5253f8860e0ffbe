//! The store source: resources are read, refused and replaced one by one.
//!
//! ```text
//! Change (put or delete of a kind and id) ─▶ document ─▶ by itself: right, or refused
//!                                                 │ the last right one serves on
//!                                                 ▼
//!      those that refer to it ◀── does it mean something else? ◀── resolved among the others
//! ```
//!
//! A file is refused as a whole; a store refuses one resource and continues, because its other writers cannot wait until a mistake
//! is fixed. It fails closed: requests for an invalid resource are answered with 503 if its match is known, and nothing is served
//! without its invalid parts. The result depends only on the content of the store, not on the order of changes.

mod attempt;
mod documents;
mod placing;
mod served;
mod stored_resource;

pub use attempt::Attempt;
pub use documents::{ELSEWHERE, PutDocument, path_of};
pub use served::Store;
pub use stored_resource::ENCRYPTED_WITH;

use crate::model::{Kind, Origin};
use std::sync::Arc;

/// One change of a resource.
#[derive(Debug, Clone)]
pub enum Change {
    /// A new resource, or a new version of one.
    Put {
        /// Its kind.
        kind: Kind,
        /// Unique within its kind: `1`; `jack/1` for credentials; `vault/1` for secret managers.
        id: String,
        /// JSON text, in the form of APISIX's Admin API.
        document: Arc<str>,
        /// When it was created: of two resources with the same claim the older one keeps it.
        created: u64,
        /// Its origin.
        origin: Origin,
    },
    /// A removed resource.
    Delete {
        /// Its kind.
        kind: Kind,
        /// Unique within its kind.
        id: String,
    },
}

impl Change {
    /// The kind and id of the resource.
    pub fn of(&self) -> (Kind, &str) {
        match self {
            Change::Put { kind, id, .. } | Change::Delete { kind, id } => (*kind, id),
        }
    }
}
