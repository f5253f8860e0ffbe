//! The documents as a write sees them: the stored ones, with the pending changes of earlier operations in its batch.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;
use stillgate_datastore::{Document, Documents, Key, Write};

/// Stored documents below pending writes.
pub(crate) struct View {
    documents: Arc<dyn Documents>,
    /// The revision of the documents when this view was made; they may have changed since.
    revision: u64,
    pending: BTreeMap<Key, Option<Arc<str>>>,
    /// The number of the next id that is made here; 0: none was yet.
    next_id: Cell<u64>,
}

impl View {
    pub(crate) fn new(documents: Arc<dyn Documents>) -> View {
        View { revision: documents.revision(), documents, pending: BTreeMap::new(), next_id: Cell::new(0) }
    }

    /// One document. A pending one has revision 0.
    pub(crate) fn get(&self, key: &Key) -> Option<Document> {
        match self.pending.get(key) {
            Some(pending) => pending.clone().map(unwritten),
            None => self.documents.get(key),
        }
    }

    /// The documents below a path that ends with a slash, in the order of keys.
    pub(crate) fn below(&self, path: &str) -> Vec<(Key, Document)> {
        let mut stored = self.documents.below(path).into_iter().peekable();
        let pending = self.pending.range::<str, _>((Bound::Included(path), Bound::Unbounded));
        let mut all = Vec::new();
        for (key, value) in pending.take_while(|(key, _)| key.as_str().starts_with(path)) {
            while let Some(before) = stored.next_if(|(stored, _)| stored < key) {
                all.push(before);
            }
            drop(stored.next_if(|(stored, _)| stored == key));
            all.extend(value.clone().map(|value| (key.clone(), unwritten(value))));
        }
        all.extend(stored);
        all
    }

    /// The number for a new id: from the revision that will be written on, each once.
    pub(crate) fn next_id(&self) -> u64 {
        let number = self.next_id.get().max(self.revision + 1);
        self.next_id.set(number + 1);
        number
    }

    /// Whether a pending write is about this key.
    pub(crate) fn is_pending(&self, key: &Key) -> bool {
        self.pending.contains_key(key)
    }

    /// Adds a pending write.
    pub(crate) fn add(&mut self, write: &Write) {
        let value = match write {
            Write::Put { value, .. } => Some(value.as_str().into()),
            Write::Delete { .. } => None,
        };
        self.pending.insert(write.key().clone(), value);
    }

    /// The revision of the stored documents; some may be newer.
    pub(crate) fn revision(&self) -> u64 {
        self.revision
    }
}

fn unwritten(value: Arc<str>) -> Document {
    Document { value, created: 0, modified: 0 }
}
