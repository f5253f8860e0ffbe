//! Documents of a datastore, and events that report their changes.

use crate::key::Key;
use std::sync::Arc;

/// One resource as it was written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Document {
    /// JSON text.
    pub value: Arc<str>,
    /// The revision that created it; it stays unchanged when the document is written again.
    pub created: u64,
    /// The revision that wrote it last.
    pub modified: u64,
}

/// A change of one key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// The key.
    pub key: Key,
    /// `None` if it was deleted, or its time to live is over.
    pub document: Option<Document>,
}

/// All changes of one revision.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Batch {
    /// The datastore's revision after the change.
    pub revision: u64,
    /// At most one per key.
    pub events: Vec<Event>,
}

/// Everything, at one revision.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Snapshot {
    /// The revision.
    pub revision: u64,
    /// In the order of keys.
    pub documents: Vec<(Key, Document)>,
}
