//! What a datastore holds of a resource, and how changes of it are told.

use crate::key::Key;
use std::sync::Arc;

/// One resource as it was written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Document {
    /// JSON text.
    pub value: Arc<str>,
    /// The revision that created it; it stays when it is written again.
    pub created: u64,
    /// The revision that wrote it last.
    pub modified: u64,
}

/// Something that happened to one key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// To which.
    pub key: Key,
    /// `None`: it is deleted, or its time to live is over.
    pub document: Option<Document>,
}

/// All that one revision changed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Batch {
    /// Of the datastore, after the change.
    pub revision: u64,
    /// At most one a key.
    pub events: Vec<Event>,
}

/// Everything, at one revision.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Snapshot {
    /// At which.
    pub revision: u64,
    /// In the order of keys.
    pub documents: Vec<(Key, Document)>,
}
