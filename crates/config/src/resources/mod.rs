//! Resources from a store, one by one: each is read, refused and replaced by itself.
//!
//! ```text
//! Change (put or delete of a kind and id) ─▶ document ─▶ by itself: right, or refused
//!                                                 │ the last right one serves on
//!                                                 ▼
//!      those that refer to it ◀── does it mean something else? ◀── resolved among the others
//! ```
//!
//! A file is refused whole; a store refuses the one resource and goes on, for its other writers cannot wait until one of them
//! has mended a mistake. It fails closed: what cannot be understood is answered 503 where it can be told what it would have taken,
//! and nothing is served without a part that could not be understood. What a store comes to depends on what it holds alone, not on
//! the order in which that came.

mod document;
mod store;

pub use store::Store;

use crate::model::{Kind, Origin};
use serde_json::Value as Json;

/// One change of a resource.
#[derive(Debug, Clone)]
pub enum Change {
    /// It is new, or another one.
    Put {
        /// What it is.
        kind: Kind,
        /// Unique among its kind.
        id: String,
        /// As APISIX's Admin API takes it.
        document: Json,
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

/// A resource that is not served as it was put.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rejected {
    /// What it is.
    pub kind: Kind,
    /// Unique among its kind.
    pub id: String,
    /// What is wrong with it.
    pub reason: String,
    /// Where it comes from.
    pub origin: Origin,
    /// What is served in its place.
    pub serving: Serving,
}

/// What becomes of everything where a global rule is rejected that was never right.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum RejectedGlobalRule {
    /// All is answered 503: the rule may be what keeps clients out.
    #[default]
    Deny,
    /// It is served without the rule.
    Ignore,
}

/// What is served in the place of a rejected resource.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Serving {
    /// The last one that was right.
    Previous,
    /// What it takes, or what refers to it, is answered 503.
    Unavailable,
    /// Nothing: what it would have taken cannot be told.
    Nothing,
}
