//! All documents in memory, for readers: kept up to date by a follower of a datastore.
//!
//! Protected by a lock, since only the control side of a process uses them. It is held only for one page or one change.

use crate::document::{Batch, Document, Snapshot};
use crate::key::Key;
use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The documents of a datastore at one revision.
pub trait Documents: Send + Sync {
    /// Their revision.
    fn revision(&self) -> u64;

    /// The document of a key.
    fn get(&self, key: &Key) -> Option<Document>;

    /// Documents below a path that ends with a slash, such as `routes/` or `consumers/jack/credentials/`, in the order
    /// of keys.
    fn below(&self, path: &str) -> Vec<(Key, Document)>;
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

    fn below(&self, path: &str) -> Vec<(Key, Document)> {
        let state = self.state();
        let from = (Bound::Included(path), Bound::Unbounded);
        let is_below = |key: &&Key| key.as_str().starts_with(path);
        let range = state.documents.range::<str, _>(from);
        range.take_while(|(key, _)| is_below(key)).map(|(key, document)| (key.clone(), document.clone())).collect()
    }
}
