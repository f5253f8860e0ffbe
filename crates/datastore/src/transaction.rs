//! A change that is made completely or not at all, with its conditions, its writes, and its author.

use crate::document::{Document, Key};
use std::fmt;

/// Operations of a transaction, conditions not counted: etcd's default. A larger change is refused, never split.
pub const WRITES_MAX: usize = 128;

/// Writes that one request to the embedded store can make as one change.
pub const STORE_WRITES_MAX: usize = 100_000;

/// A change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Transaction {
    /// All must hold.
    pub conditions: Vec<(Key, Condition)>,
    /// All must hold, too.
    pub unreferenced: Vec<ReferenceCheck>,
    /// 1 to [`WRITES_MAX`], at most one per key.
    pub writes: Vec<Write>,
    /// Used in history and audit.
    pub author: Author,
}

/// A condition on a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Condition {
    /// The document does not exist.
    Absent,
    /// The document exists.
    Present,
    /// The document exists, last written by this revision.
    Modified(u64),
}

/// No document has begun to refer to something since the author checked: for a change that deletes it, or that takes
/// something that only one document may have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReferenceCheck {
    /// The path of the documents that could refer to it, with a slash at its end: `routes/`.
    pub below: String,
    /// The revision at which the author checked.
    pub since: u64,
    /// Texts of which one is in every document that breaks it; none: any document does. etcd does not search documents, so there
    /// every later write below the path breaks the condition.
    pub mentions: Vec<String>,
}

/// A write of a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Write {
    /// Writes a document.
    Put {
        /// Its key.
        key: Key,
        /// JSON text.
        value: String,
        /// The time to live, after which it is deleted.
        ttl_seconds: Option<u64>,
    },
    /// Deletes a document, if it exists.
    Delete {
        /// Its key.
        key: Key,
    },
}

/// The author of a change.
#[derive(Debug, Clone, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
pub struct Author {
    /// The name of the key or session that was used.
    pub name: String,
    /// The client's address.
    pub address: String,
    /// The request, such as `PUT /apisix/admin/routes/1`.
    pub action: String,
}

/// Why a transaction was not made. No part of it was.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CommitError {
    /// A condition does not hold.
    Conflict {
        /// The key of the condition.
        key: Key,
        /// The revision that wrote it last; `None` if the document does not exist.
        modified: Option<u64>,
    },
    /// It has more than [`WRITES_MAX`] writes, or is larger than the datastore accepts.
    TooLarge(String),
    /// The datastore cannot be reached or written now; whether the transaction was made may be unknown, which the text
    /// then mentions.
    Unavailable(String),
}

impl ReferenceCheck {
    /// Whether a document below the path breaks the condition. A text with escapes may contain any other text.
    pub(crate) fn is_broken_by(&self, document: &Document) -> bool {
        let is_mentioned =
            |text: &str| self.mentions.iter().any(|mention| text.contains(mention)) || text.contains('\\');
        document.modified > self.since && (self.mentions.is_empty() || is_mentioned(&document.value))
    }
}

impl Write {
    /// The key that it writes.
    pub fn key(&self) -> &Key {
        match self {
            Write::Put { key, .. } | Write::Delete { key } => key,
        }
    }

    /// The new document; `None`: it deletes.
    pub fn document(&self) -> Option<&str> {
        match self {
            Write::Put { value, .. } => Some(value),
            Write::Delete { .. } => None,
        }
    }
}

impl fmt::Display for CommitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CommitError::Conflict { key, modified: Some(modified) } => {
                write!(f, "{key} has changed meanwhile (revision {modified}); read it again")
            }
            CommitError::Conflict { key, modified: None } => write!(f, "{key} does not exist"),
            CommitError::TooLarge(why) | CommitError::Unavailable(why) => f.write_str(why),
        }
    }
}

impl std::error::Error for CommitError {}
