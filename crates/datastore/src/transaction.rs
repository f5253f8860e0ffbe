//! A change that is made whole or not at all: on which conditions, of what, and by whom.

use crate::document::Document;
use crate::key::Key;
use std::fmt;

/// Operations of a transaction, conditions not counted: etcd's default. What would need more is refused, never split.
pub const WRITES_MAX: usize = 128;

/// A change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Transaction {
    /// All must hold.
    pub conditions: Vec<(Key, Condition)>,
    /// All must hold, too.
    pub unreferenced: Vec<Unreferenced>,
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

/// No document has come to refer to something since its author looked: for a change that deletes it, or that takes what only one
/// document may have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unreferenced {
    /// The path of the documents that could refer to it, with a slash at its end: `routes/`.
    pub below: String,
    /// The revision at which the author looked.
    pub since: u64,
    /// A text that is in every document that refers to it; with an empty one, any document does. etcd does not look into
    /// documents, so there every later write below the path breaks the condition.
    pub mention: String,
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

impl Unreferenced {
    /// Whether a document below the path breaks the condition. A text with escapes may have any other text in it.
    pub(crate) fn is_broken_by(&self, document: &Document) -> bool {
        let mentions = |text: &str| text.contains(&self.mention) || text.contains('\\');
        document.modified > self.since && mentions(&document.value)
    }
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
