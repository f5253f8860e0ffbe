//! The documents of a store as they were put, whatever is served of them.

use super::Store;
use super::stored_resource::{Key, StoredResource};
use crate::model::{Kind, Origin};
use std::ops::Bound;
use std::sync::Arc;

/// Begins the id of a resource whose key is not below its collection; the key follows.
pub const ELSEWHERE: &str = "../";

/// The key of a resource in a datastore, below its prefix: `routes/1`, `consumers/jack/credentials/1`.
pub fn path_of(kind: Kind, id: &str) -> String {
    if let Some(path) = id.strip_prefix(ELSEWHERE).filter(|_| kind != Kind::Credentials) {
        return path.to_owned();
    }
    match (kind, id.split_once('/')) {
        (Kind::Credentials, Some((name, id))) => format!("{}/{name}/{}/{id}", Kind::Consumers.name(), kind.name()),
        _ => format!("{}/{id}", kind.name()),
    }
}

/// A document as it was put.
#[derive(Debug, Clone, Copy)]
pub struct PutDocument<'a> {
    /// Its kind.
    pub kind: Kind,
    /// Unique within its kind.
    pub id: &'a str,
    /// JSON text.
    pub document: &'a Arc<str>,
    /// When it was created.
    pub created: u64,
    /// Its origin.
    pub origin: &'a Origin,
}

impl<'a> PutDocument<'a> {
    fn new(((kind, id), held): (&'a Key, &'a StoredResource)) -> PutDocument<'a> {
        PutDocument { kind: *kind, id, document: &held.document, created: held.created, origin: &held.origin }
    }
}

impl Store {
    /// One of them.
    pub fn document(&self, kind: Kind, id: &str) -> Option<PutDocument<'_>> {
        self.held.get_key_value(&(kind, id.into())).map(|(key, held)| PutDocument::new((key, held)))
    }

    /// The documents of a kind with this id prefix, in the order of ids.
    pub fn documents_of(&self, kind: Kind, beginning: &str) -> impl Iterator<Item = PutDocument<'_>> {
        let from: (Bound<Key>, Bound<Key>) = (Bound::Included((kind, beginning.into())), Bound::Unbounded);
        let all = self.held.range(from).map(|(key, held)| PutDocument::new((key, held)));
        all.take_while(move |put| put.kind == kind && put.id.starts_with(beginning))
    }

    /// All of them, by kind and id.
    pub fn documents(&self) -> impl Iterator<Item = PutDocument<'_>> {
        self.held.iter().map(|(key, held)| PutDocument::new((key, held)))
    }
}
