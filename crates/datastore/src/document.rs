//! Documents of a datastore, their keys, events that report their changes, and all of them in memory, for readers: a table
//! that a follower of a datastore keeps up to date.
//!
//! The table is protected by a lock, since only the control side of a process uses it. It is held only for one page or one
//! change.

use std::borrow::Borrow;
use std::collections::BTreeMap;
use std::fmt;
use std::ops::Bound;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

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

/// Most bytes of one segment of a key. APISIX's ids have up to 64; names of secret managers and plugins fit, too.
pub const SEGMENT_BYTES_MAX: usize = 256;

/// Most segments of a key: those of `consumers/jack/credentials/1`.
pub const SEGMENTS_MAX: usize = 4;

/// A path of 2 to [`SEGMENTS_MAX`] segments without a leading slash: `routes/1`, `consumers/jack/credentials/1`, `secrets/vault/1`.
/// No segment is empty, `.` or `..`, and none has a control character. A key made by [`Key::from_etcd_path`] may be any other path.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key(Arc<str>);

/// Why a text is not a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyError {
    /// The number of segments is not 2 to [`SEGMENTS_MAX`].
    Segments,
    /// A segment is empty, `.`, `..`, longer than [`SEGMENT_BYTES_MAX`], or has a control character.
    Segment,
}

impl Key {
    /// Checks a path.
    pub fn parse(path: &str) -> Result<Key, KeyError> {
        let is_good = |segment: &str| {
            !matches!(segment, "" | "." | "..")
                && segment.len() <= SEGMENT_BYTES_MAX
                && !segment.chars().any(char::is_control)
        };
        if !(2..=SEGMENTS_MAX).contains(&path.split('/').count()) {
            return Err(KeyError::Segments);
        }
        match path.split('/').all(is_good) {
            true => Ok(Key(path.into())),
            false => Err(KeyError::Segment),
        }
    }

    /// The key of a path that was found in etcd, where anybody may have written it. A path that [`Key::parse`] refuses must not be
    /// overlooked: it may name a document that keeps clients out.
    pub fn from_etcd_path(path: &str) -> Key {
        Key(path.into())
    }

    /// The whole path.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The first segment: `routes`.
    pub fn collection(&self) -> &str {
        self.0.split_once('/').map_or(&*self.0, |(collection, _)| collection)
    }

    /// Everything behind the first segment: `1`, `jack/credentials/1`, `vault/1`.
    pub fn id(&self) -> &str {
        self.0.split_once('/').map_or("", |(_, id)| id)
    }
}

impl Borrow<str> for Key {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

impl fmt::Display for KeyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            KeyError::Segments => write!(f, "a key has 2 to {SEGMENTS_MAX} segments, such as routes/1"),
            KeyError::Segment => write!(
                f,
                "a segment of a key has 1 to {SEGMENT_BYTES_MAX} bytes without control characters, and is not . or .."
            ),
        }
    }
}

impl std::error::Error for KeyError {}

/// The documents of a datastore at one revision.
pub trait Documents: Send + Sync {
    /// Their revision.
    fn revision(&self) -> u64;

    /// The document of a key.
    fn get(&self, key: &Key) -> Option<Document>;

    /// Documents below a path that ends with a slash, such as `routes/` or `consumers/jack/credentials/`, in the order
    /// of keys.
    fn list_below(&self, path: &str) -> Vec<(Key, Document)>;
}

/// Documents by their keys, without any index.
#[derive(Debug, Default)]
pub struct DocumentTable(Mutex<TableState>);

#[derive(Debug, Default)]
struct TableState {
    revision: u64,
    documents: BTreeMap<Key, Document>,
}

impl DocumentTable {
    /// Everything.
    pub fn snapshot(&self) -> Snapshot {
        let state = self.state();
        let documents = state.documents.iter().map(|(key, document)| (key.clone(), document.clone()));
        Snapshot { revision: state.revision, documents: documents.collect() }
    }

    /// Replaces everything.
    pub fn replace(&self, snapshot: Snapshot) {
        let Snapshot { revision, documents } = snapshot;
        *self.state() = TableState { revision, documents: documents.into_iter().collect() };
    }

    /// Applies a change.
    pub fn apply(&self, batch: &Batch) {
        let mut state = self.state();
        state.revision = batch.revision;
        for event in &batch.events {
            match &event.document {
                Some(document) => drop(state.documents.insert(event.key.clone(), document.clone())),
                None => drop(state.documents.remove(&event.key)),
            }
        }
    }

    /// Folds all documents, in the order of their keys.
    pub fn fold<T>(&self, first: T, mut each: impl FnMut(T, &Key, &Document) -> T) -> T {
        self.state().documents.iter().fold(first, |folded, (key, document)| each(folded, key, document))
    }

    fn state(&self) -> MutexGuard<'_, TableState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Documents for DocumentTable {
    fn revision(&self) -> u64 {
        self.state().revision
    }

    fn get(&self, key: &Key) -> Option<Document> {
        self.state().documents.get(key).cloned()
    }

    fn list_below(&self, path: &str) -> Vec<(Key, Document)> {
        let state = self.state();
        let from = (Bound::Included(path), Bound::Unbounded);
        let is_below = |key: &&Key| key.as_str().starts_with(path);
        let range = state.documents.range::<str, _>(from);
        range.take_while(|(key, _)| is_below(key)).map(|(key, document)| (key.clone(), document.clone())).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whatever_is_found_has_a_key() {
        for path in ["routes/1", "routes/a/b/c/d/e", "routes/..", "routes//", "routes/a\nb", "routes/a/"] {
            assert_eq!(Key::from_etcd_path(path).as_str(), path);
        }
        for (path, collection, id) in
            [("routes", "routes", ""), ("routes/", "routes", ""), ("/1", "", "1"), ("", "", "")]
        {
            let key = Key::from_etcd_path(path);
            assert_eq!((key.collection(), key.id()), (collection, id), "{path:?}");
        }
    }

    #[test]
    fn keys_are_checked() {
        let check = |path: &str, expected: Result<(&str, &str), KeyError>| {
            let key = Key::parse(path);
            let found = key.as_ref().map(|key| (key.collection(), key.id())).map_err(|error| *error);
            assert_eq!(found, expected, "{path:?}");
        };
        check("routes/1", Ok(("routes", "1")));
        check("consumers/jack/credentials/1", Ok(("consumers", "jack/credentials/1")));
        check("secrets/vault/1", Ok(("secrets", "vault/1")));
        check("routes/a.b-c_d%2F", Ok(("routes", "a.b-c_d%2F")));
        check("routes", Err(KeyError::Segments));
        check("a/b/c/d/e", Err(KeyError::Segments));
        check("routes/", Err(KeyError::Segment));
        check("/1", Err(KeyError::Segment));
        check("routes/..", Err(KeyError::Segment));
        check("routes/a\nb", Err(KeyError::Segment));
        check(&format!("routes/{}", "x".repeat(257)), Err(KeyError::Segment));
    }
}
