//! The documents of a datastore: resources by their meaning, the others as they are.

use super::addresses::{key_of, resource_of};
use super::keeper::Keeper;
use std::collections::BTreeMap;
use std::ops::Bound;
use stillgate_config::{Change, ELSEWHERE, Kind, Origin, PutDocument, Store};
use stillgate_datastore::{Batch, Document, Documents, Key, Snapshot};

/// The documents of a datastore at one revision, in plain text, and what they mean.
pub(super) struct KnownDocuments {
    pub(super) revision: u64,
    /// The documents that are resources.
    pub(super) store: Store,
    /// What other programs keep there.
    others: BTreeMap<Key, Document>,
    /// The newest revision of the resources of each kind.
    modified: [u64; Kind::COUNT],
}

impl KnownDocuments {
    /// Nothing has been read yet.
    pub(super) fn new(store: Store) -> KnownDocuments {
        KnownDocuments { revision: 0, store, others: BTreeMap::new(), modified: Default::default() }
    }

    fn get(&self, key: &Key) -> Option<Document> {
        match resource_of(key) {
            Some((kind, id)) => self.store.document(kind, &id).map(document),
            None => self.others.get(key).cloned(),
        }
    }

    fn below(&self, path: &str) -> Vec<(Key, Document)> {
        let (collection, rest) = path.split_once('/').unwrap_or((path, ""));
        let kind = Kind::named(collection).filter(|kind| *kind != Kind::Credentials);
        let of_kind = kind.into_iter().flat_map(|kind| self.store.documents_of(kind, rest));
        let of_kind = of_kind.filter(|put| !put.id.starts_with(ELSEWHERE)).map(entry);
        // Their keys need not be below their collection.
        let kinds = Kind::all().filter(|kind| *kind != Kind::Credentials);
        let elsewhere = kinds.flat_map(|kind| self.store.documents_of(kind, ELSEWHERE)).map(entry);
        let mut found: Vec<(Key, Document)> =
            of_kind.chain(elsewhere.filter(|(key, _)| key.as_str().starts_with(path))).collect();
        if kind == Some(Kind::Consumers) {
            // Credentials of one consumer, or of all: `consumers/jack/credentials/` or `consumers/`.
            let consumer = rest.split_inclusive('/').next().filter(|name| name.ends_with('/')).unwrap_or("");
            let credentials = self.store.documents_of(Kind::Credentials, consumer).map(entry);
            found.extend(credentials.filter(|(key, _)| key.as_str().starts_with(path)));
        }
        let others = self.others.range::<str, _>((Bound::Included(path), Bound::Unbounded));
        let others = others.take_while(|(key, _)| key.as_str().starts_with(path));
        found.extend(others.map(|(key, document)| (key.clone(), document.clone())));
        found.sort_by(|(a, _), (b, _)| a.cmp(b));
        found
    }

    /// The keys of documents that nothing reads: APISIX has no collection of their names.
    pub(super) fn unread(&self) -> impl Iterator<Item = &Key> {
        // APISIX's list of plugins, which is read from files here.
        self.others.keys().filter(|key| key.as_str() != "plugins")
    }

    /// Everything.
    pub(super) fn snapshot(&self) -> Snapshot {
        let others = self.others.iter().map(|(key, document)| (key.clone(), document.clone()));
        let mut documents: Vec<(Key, Document)> = self.store.documents().map(entry).chain(others).collect();
        documents.sort_by(|(a, _), (b, _)| a.cmp(b));
        Snapshot { revision: self.revision, documents }
    }

    /// Takes in documents that are not resources; the store has the rest by now.
    pub(super) fn take_others(&mut self, batch: Batch) {
        self.revision = batch.revision;
        for event in batch.events.into_iter().filter(|event| resource_of(&event.key).is_none()) {
            match event.document {
                Some(document) => drop(self.others.insert(event.key, document)),
                None => drop(self.others.remove(&event.key)),
            }
        }
    }

    /// The kinds whose newest resource these changes replace or delete.
    pub(super) fn newest_among(&self, changes: &[Change]) -> Vec<Kind> {
        let is_newest = |(kind, id): (Kind, &str)| {
            let put = self.store.document(kind, id);
            put.is_some_and(|put| document(put).modified == self.modified[kind as usize])
        };
        changes.iter().map(Change::of).filter(|of| is_newest(*of)).map(|(kind, _)| kind).collect()
    }

    /// The newest revision of the resources of each kind, after changes that the store has taken in. `gone`: see
    /// [`KnownDocuments::newest_among`].
    pub(super) fn modified_by(&mut self, batch: &Batch, gone: &[Kind]) -> [u64; Kind::COUNT] {
        let mut gone = gone.to_vec();
        for event in &batch.events {
            if let (Some((kind, _)), Some(document)) = (resource_of(&event.key), &event.document) {
                let newest = &mut self.modified[kind as usize];
                *newest = document.modified.max(*newest);
                // What it takes the place of was older.
                gone.retain(|of| *of != kind);
            }
        }
        gone.into_iter().for_each(|kind| self.modified[kind as usize] = self.newest_of(kind));
        self.modified
    }

    /// Recomputes the revisions of all kinds that the store has.
    pub(super) fn modified_anew(&mut self) -> [u64; Kind::COUNT] {
        Kind::all().for_each(|kind| self.modified[kind as usize] = self.newest_of(kind));
        self.modified
    }

    fn newest_of(&self, kind: Kind) -> u64 {
        self.store.documents_of(kind, "").map(|put| document(put).modified).max().unwrap_or_default()
    }

    /// Replaces all documents that are not resources by those of a snapshot.
    pub(super) fn replace_others(&mut self, Snapshot { revision, documents }: Snapshot) {
        self.revision = revision;
        self.others = documents.into_iter().filter(|(key, _)| resource_of(key).is_none()).collect();
    }
}

/// A resource as the datastore has it.
fn entry(put: PutDocument<'_>) -> (Key, Document) {
    (key_of(put.kind, put.id), document(put))
}

fn document(put: PutDocument<'_>) -> Document {
    // All that is put here comes from a datastore.
    let modified = if let Origin::Revision(modified) = put.origin { *modified } else { 0 };
    Document { value: put.document.clone(), created: put.created, modified }
}

/// The part that the Admin API uses.
impl Documents for Keeper {
    fn revision(&self) -> u64 {
        self.known().revision
    }

    fn get(&self, key: &Key) -> Option<Document> {
        self.known().get(key)
    }

    fn below(&self, path: &str) -> Vec<(Key, Document)> {
        self.known().below(path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::configuration::source::plugins;
    use stillgate_config::load;
    use stillgate_datastore::{DocumentTable, Event};

    const KEYS: [&str; 20] = [
        "routes/1",
        "routes/10",
        "routes/2",
        "services/1",
        "consumers/j",
        "consumers/jack",
        "consumers/jack/credentials/a",
        "consumers/jack/credentials/b",
        "consumers/jack/keys/1",
        "consumers/jacky/credentials/a",
        "secrets/vault/1",
        "secrets/1",
        "credentials/1",
        "data_plane/server_info/x",
        "routes/",
        "routes",
        "routes_old/1",
        "routes/../1",
        "consumers/../credentials/1",
        "/routes/1",
    ];

    const PATHS: [&str; 15] = [
        "routes/",
        "routes/1",
        "services/",
        "consumers/",
        "consumers/jack/",
        "consumers/jack/credentials/",
        "consumers/jacky/credentials/",
        "consumers/nobody/credentials/",
        "secrets/",
        "credentials/",
        "data_plane/",
        "nothing/",
        "routes_old/",
        "routes/../",
        "consumers/../credentials/",
    ];

    /// The known documents are the written ones, whether they are valid, invalid or not resources.
    #[test]
    fn it_is_a_table_of_documents() {
        let gateway = load("gateway: {}\nroutes: []\n", &|_| None).unwrap().config.gateway;
        let (mut known, table) = (KnownDocuments::new(Store::new(gateway, plugins())), DocumentTable::default());
        let mut take = |revision: u64, keys: &[&str], value: Option<&str>| {
            let event = |key: &&str| {
                let key = Key::found(key);
                let created = table.get(&key).map_or(revision, |known| known.created);
                let document = value.map(|value| Document { value: value.into(), created, modified: revision });
                Event { key, document }
            };
            let batch = Batch { revision, events: keys.iter().map(event).collect() };
            let changes = batch.events.iter().filter_map(|event| {
                let (kind, id) = resource_of(&event.key)?;
                Some(match event.document.clone() {
                    None => Change::Delete { kind, id },
                    Some(Document { value: document, created, modified }) => {
                        Change::Put { kind, id, document, created, origin: Origin::Revision(modified) }
                    }
                })
            });
            let changes: Vec<Change> = changes.collect();
            let gone = known.newest_among(&changes);
            known.store.apply(changes);
            let modified = known.modified_by(&batch, &gone);
            assert_eq!(modified, Kind::all().map(|kind| known.newest_of(kind)).collect::<Vec<_>>()[..]);
            table.apply(&batch);
            known.take_others(batch);
            assert_eq!(known.snapshot(), table.snapshot());
            for path in PATHS {
                assert_eq!(known.below(path), table.below(path), "{path}");
            }
            for key in KEYS.map(Key::found) {
                assert_eq!(known.get(&key), table.get(&key), "{key}");
            }
        };
        take(1, &KEYS, Some(r#"{"uri":"/a","upstream":{"nodes":{"127.0.0.1:1":1}}}"#));
        take(2, &KEYS[3..7], Some("wrong"));
        take(3, &KEYS[5..9], None);
        take(4, &KEYS[8..], Some("{}"));
        let snapshot = Snapshot { revision: 9, ..table.snapshot() };
        known.replace_others(snapshot.clone());
        assert_eq!(known.snapshot(), snapshot);
    }
}
