//! The metadata that the last client of `configs` sent, valid as long as the resources stay unchanged.
//!
//! In memory: a restart forgets it. Then versions and indexes are revisions, and the digest is unknown.

use crate::collections::Collection;
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use stillgate_datastore::{Document, Documents, Key};

/// The state after the last replacement.
#[derive(Debug, Default)]
pub(crate) struct Standalone(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// The digest with its revision, and the time of its arrival.
    last: Option<(String, u64, u64)>,
    /// The last observed revision, and the time of its observation.
    seen: (u64, u64),
    /// By collection: its version, and the state that has it.
    versions: BTreeMap<&'static str, (u64, Fingerprint)>,
    /// By document: the index it was sent with, and its revision.
    indexes: BTreeMap<Key, (Option<u64>, u64)>,
}

/// Identifies the state of a collection: the number of documents, and the revision that wrote the last one.
pub(super) type Fingerprint = (usize, u64);

pub(super) fn fingerprint(documents: &[(Key, Document)]) -> Fingerprint {
    (documents.len(), documents.iter().map(|(_, document)| document.modified).max().unwrap_or(0))
}

impl Standalone {
    /// The version of a collection in this state. It never decreases.
    pub(super) fn version(&self, collection: &Collection, now: Fingerprint) -> u64 {
        match self.lock().versions.get(collection.name) {
            Some((version, known)) if *known == now => *version,
            Some((version, _)) => now.1.max(version + 1),
            None => now.1,
        }
    }

    /// The index of a document.
    pub(super) fn index(&self, key: &Key, document: &Document) -> Option<u64> {
        match self.lock().indexes.get(key) {
            Some((index, of)) if *of == document.modified => *index,
            _ => Some(document.modified),
        }
    }

    /// The time and digest of the documents stored at this revision. ADC takes a gateway without a time for empty, so a revision
    /// written by others has the time at which it was first seen here.
    pub(super) fn last(&self, revision: u64, unix_seconds: u64) -> (Option<u64>, Option<String>) {
        let mut state = self.lock();
        if let Some((digest, _, at)) = state.last.as_ref().filter(|(_, of, _)| *of == revision) {
            return (Some(*at), Some(digest.clone()));
        }
        if state.seen.0 != revision {
            state.seen = (revision, unix_seconds);
        }
        ((revision > 0).then_some(state.seen.1), None)
    }

    /// Remembers a digest with its revision and time, and the metadata sent with it.
    pub(super) fn remember(
        &self,
        documents: &dyn Documents,
        last: (String, u64, u64),
        versions: Vec<(&'static str, u64)>,
        indexes: Vec<(Key, Option<u64>)>,
    ) {
        let of = |name: &str| fingerprint(&documents.below(&format!("{name}/")));
        let versions = versions.into_iter().map(|(name, version)| (name, (version, of(name)))).collect();
        let index = |(key, index): (Key, _)| {
            let modified = documents.get(&key)?.modified;
            Some((key, (index, modified)))
        };
        let indexes = indexes.into_iter().filter_map(index).collect();
        *self.lock() = State { last: Some(last), seen: (0, 0), versions, indexes };
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
