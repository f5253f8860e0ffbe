//! The store source: resources one by one, each read, refused and replaced by itself.
//!
//! ```text
//! Change (put or delete of a kind and id) ─▶ document ─▶ by itself: right, or refused
//!                                                 │ the last right one serves on
//!                                                 ▼
//!      those that refer to it ◀── does it mean something else? ◀── resolved among the others
//! ```
//!
//! A file is refused whole; a store refuses one resource and goes on, because its other writers cannot wait until a mistake is
//! mended. It fails closed: what cannot be understood is answered 503 where its match is known, and nothing is served without a
//! part that could not be understood. What a store serves depends only on what it holds, not on the order in which that came.

mod attempt;
mod documents;
mod held;
mod placing;
mod served;

pub use attempt::Attempt;
pub use documents::Put;
pub use held::ENCRYPTED_WITH;
pub use served::{Store, path_of};

use crate::model::{Kind, Origin};
use std::sync::Arc;

/// One change of a resource.
#[derive(Debug, Clone)]
pub enum Change {
    /// It is new, or another one.
    Put {
        /// What it is.
        kind: Kind,
        /// Unique among its kind: `1`, of credentials `jack/1`, of secret managers `vault/1`.
        id: String,
        /// JSON text, as APISIX's Admin API takes it.
        document: Arc<str>,
        /// When it was made: the one of two that both claim something which was made first keeps it.
        created: u64,
        /// Where it comes from.
        origin: Origin,
    },
    /// It is gone.
    Delete {
        /// What it is.
        kind: Kind,
        /// Unique among its kind.
        id: String,
    },
}

impl Change {
    /// Kind and id of the resource.
    pub fn of(&self) -> (Kind, &str) {
        match self {
            Change::Put { kind, id, .. } | Change::Delete { kind, id } => (*kind, id),
        }
    }
}
