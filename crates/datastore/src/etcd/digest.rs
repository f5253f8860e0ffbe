//! A digest of all documents at one revision, kept up to date with each change. It shows whether an etcd that answers after a break
//! still has the history that was followed.
//!
//! An etcd that was restored from a backup keeps its identity and may be at a later revision, and it may have written the same key at
//! the same revision with another value. So all values count.

use crate::document::{Batch, Document, Key};
use std::collections::HashMap;
use std::hash::{BuildHasher as _, RandomState};

/// The digest: 64 bits of each document, and their sum, in which the order has no part.
#[derive(Debug, Clone, Default)]
pub(crate) struct DocumentsDigest {
    /// It has a random key, so no one can construct two documents with the same digest.
    hasher: RandomState,
    of_each: HashMap<Key, u64>,
    sum: u64,
}

impl DocumentsDigest {
    /// A digest without documents, which can be compared with this one.
    pub(crate) fn empty(&self) -> DocumentsDigest {
        DocumentsDigest { hasher: self.hasher.clone(), of_each: HashMap::new(), sum: 0 }
    }

    /// Adds a document, or replaces the one of the same key.
    pub(crate) fn put(&mut self, key: &Key, document: &Document) {
        let Document { value, created, modified } = document;
        let digest = self.hasher.hash_one((key, value, created, modified));
        let before = self.of_each.insert(key.clone(), digest);
        self.sum = self.sum.wrapping_sub(before.unwrap_or_default()).wrapping_add(digest);
    }

    /// Applies a change.
    pub(crate) fn apply(&mut self, batch: &Batch) {
        for event in &batch.events {
            match &event.document {
                Some(document) => self.put(&event.key, document),
                None => {
                    let before = self.of_each.remove(&event.key).unwrap_or_default();
                    self.sum = self.sum.wrapping_sub(before);
                }
            }
        }
    }

    /// Whether both are of the same documents. One of them was made by [`Self::empty`] of the other.
    pub(crate) fn is_same(&self, other: &DocumentsDigest) -> bool {
        (self.of_each.len(), self.sum) == (other.of_each.len(), other.sum)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::document::Event;

    fn document(value: &str, created: u64, modified: u64) -> Document {
        Document { value: value.into(), created, modified }
    }

    #[test]
    fn everything_of_a_document_counts_and_their_order_does_not() {
        let (a, b) = (Key::from_etcd_path("routes/a"), Key::from_etcd_path("routes/b"));
        let mut digest = DocumentsDigest::default();
        digest.put(&a, &document("old", 1, 1));
        digest.put(&b, &document("{}", 2, 2));
        digest.put(&a, &document("{}", 1, 3));
        let same = |documents: &[(&Key, Document)]| {
            let mut other = digest.empty();
            documents.iter().for_each(|(key, document)| other.put(key, document));
            other.is_same(&digest)
        };
        let of_a = document("{}", 1, 3);
        let of_b = document("{}", 2, 2);
        assert!(same(&[(&b, of_b.clone()), (&a, of_a.clone())]));
        for other in [document("{ }", 1, 3), document("{}", 2, 3), document("{}", 1, 4)] {
            assert!(!same(&[(&a, other), (&b, of_b.clone())]));
        }
        assert!(!same(&[(&a, of_a.clone())]));
        assert!(!same(&[(&a, of_b), (&b, of_a.clone())]));
        let gone = Batch { revision: 4, events: vec![Event { key: b, document: None }] };
        digest.apply(&gone);
        let mut other = digest.empty();
        other.put(&a, &of_a);
        assert!(other.is_same(&digest));
    }
}
