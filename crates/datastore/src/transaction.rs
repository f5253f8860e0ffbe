//! A change that is made whole or not at all: on which conditions, of what, and by whom.

use crate::key::Key;
use std::fmt;

/// Operations of a transaction, conditions not counted: etcd's default. What would need more is refused, never split.
pub const WRITES_MAX: usize = 128;

/// A change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Transaction {
    /// All must hold.
    pub conditions: Vec<(Key, Condition)>,
    /// 1 to [`WRITES_MAX`], at most one a key.
    pub writes: Vec<Write>,
    /// For history and audit.
    pub author: Author,
}

/// What must hold of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Condition {
    /// There is no document.
    Absent,
    /// There is one.
    Present,
    /// There is one, last written by this revision.
    Modified(u64),
}

/// What is done to a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Write {
    /// Writes a document.
    Put {
        /// Under this key.
        key: Key,
        /// JSON text.
        value: String,
        /// After so many seconds it deletes itself.
        ttl_seconds: Option<u64>,
    },
    /// Deletes it; without a document it is nothing.
    Delete {
        /// This one.
        key: Key,
    },
}

/// Who makes a change.
#[derive(Debug, Clone, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
pub struct Author {
    /// The name of the key or session it was made with.
    pub name: String,
    /// The client's address.
    pub address: String,
    /// As `PUT /apisix/admin/routes/1`.
    pub action: String,
}

/// Why a transaction was not made. Nothing of it was.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CommitError {
    /// A condition does not hold.
    Conflict {
        /// Of this key.
        key: Key,
        /// By what it was written last; `None`: there is no document.
        modified: Option<u64>,
    },
    /// It has more than [`WRITES_MAX`] writes, or is larger than the datastore takes.
    TooLarge(String),
    /// The datastore cannot be reached or written now; whether it was made may be unknown, which the text says.
    Unavailable(String),
}

impl Write {
    /// The key it is about.
    pub fn key(&self) -> &Key {
        match self {
            Write::Put { key, .. } | Write::Delete { key } => key,
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
