//! The state of a datastore: its documents in plain text, what they mean, and how far it is followed and served.
//!
//! Shared by the thread that talks to the datastore, the control loop, and the Admin API. Its lock is of the control side
//! only: no worker comes here.

use super::addresses::{key_of, resource_of};
use super::encryption::Encryption;
use serde_json::Value as Json;
use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::ops::Bound;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use stillgate_config::{Change, ELSEWHERE, Gateway, Kind, Origin, PluginSet, PutDocument, Store};
use stillgate_datastore::{Batch, Document, Documents, Event, Key, Snapshot, Transaction, Write};
use stillgate_measures::process_stats::now_unix_ms;
use stillgate_plugin_api::CustomPlugins;
use stillgate_schema::lenient_json;
use stillgate_tls::Material;
use tokio::sync::watch;

/// How far a datastore is followed.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct FollowedRevision {
    /// The revision of documents and store; `None`: nothing has been read yet.
    pub(crate) revision: Option<u64>,
    /// Whether later changes will be seen.
    pub(crate) connection: FollowStatus,
    /// When the datastore last answered, in milliseconds since 1970; `None`: never.
    pub(crate) heard_unix_ms: Option<u64>,
    /// The newest revision that it has named, whatever its contents.
    pub(crate) newest: u64,
    /// The newest revision of the resources of each kind.
    pub(crate) modified: [u64; Kind::COUNT],
}

impl FollowedRevision {
    /// Why it cannot be followed, where it cannot.
    pub(crate) fn error(&self) -> Option<String> {
        match &self.connection {
            FollowStatus::Good => None,
            FollowStatus::Lost(why) => Some(why.clone()),
            FollowStatus::HandedOver => Some("the store is with the new process".to_owned()),
        }
    }
}

/// Whether a datastore can be followed.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) enum FollowStatus {
    /// It can.
    #[default]
    Good,
    /// It is unavailable, or cannot be written; the last state is served.
    Lost(String),
    /// Another process has it open: the successor in an upgrade.
    HandedOver,
}

/// What the workers serve of a datastore.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct ServedRevision {
    /// Its revision.
    pub(crate) revision: u64,
    /// The number of the configuration.
    pub(crate) generation: u64,
}

/// What the rest of the process knows of a kind of datastore.
#[derive(Debug)]
pub(crate) struct DatastoreTraits {
    /// Its name in messages and in the status.
    pub(crate) name: &'static str,
    /// How many writes it makes as one change.
    pub(crate) writes_max: usize,
    /// Only this process writes it, in a form of our own. Otherwise it is followed, and its documents are in APISIX's form.
    pub(crate) is_embedded: bool,
}

/// A datastore, as the rest of the process sees it.
pub(crate) struct Keeper {
    pub(crate) traits: &'static DatastoreTraits,
    /// Prefix of the keys in the datastore; may be empty.
    pub(super) prefix: String,
    pub(crate) stored: watch::Sender<FollowedRevision>,
    pub(crate) served: watch::Sender<ServedRevision>,
    /// Another process is to follow it and to serve later writes.
    pub(crate) is_leaving: watch::Sender<bool>,
    known: Mutex<KnownDocuments>,
    /// The custom plugins of the store in `known`, for readers that must not wait while a change is tried out there.
    custom: Mutex<CustomPlugins>,
    pub(super) encryption: Encryption,
    /// Certificates as last read, so that unchanged ones are not read again.
    tls: Mutex<Option<Arc<Material>>>,
}

impl Keeper {
    /// An empty keeper.
    pub(super) fn new(traits: &'static DatastoreTraits, gateway: &Gateway, plugins: PluginSet) -> Keeper {
        let mut store = Store::new(gateway.clone(), plugins);
        store.wait();
        Keeper {
            traits,
            prefix: gateway.config.key_prefix().to_owned(),
            stored: watch::Sender::default(),
            served: watch::Sender::default(),
            is_leaving: watch::Sender::default(),
            custom: Mutex::new(store.custom_plugins().clone()),
            known: Mutex::new(KnownDocuments::new(store)),
            encryption: Encryption::of(traits, gateway),
            tls: Mutex::default(),
        }
    }

    /// The documents, and what they mean.
    pub(super) fn known(&self) -> MutexGuard<'_, KnownDocuments> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The plugins of files that documents may have.
    pub(crate) fn custom_plugins(&self) -> CustomPlugins {
        self.custom.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Notes the plugins of files that documents may have from now on.
    pub(super) fn set_custom_plugins(&self, custom: &CustomPlugins) {
        custom.clone_into(&mut self.custom.lock().unwrap_or_else(PoisonError::into_inner));
    }

    /// Certificates as they were read last.
    pub(super) fn tls(&self) -> MutexGuard<'_, Option<Arc<Material>>> {
        self.tls.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A transaction with its documents as they are to be kept.
    pub(super) fn as_kept(&self, transaction: Transaction) -> Transaction {
        let writes = transaction.writes.into_iter().map(|write| match write {
            Write::Put { key, value, ttl_seconds } => {
                let value = self.encryption.kept(&key, &value.into()).to_string();
                Write::Put { key, value, ttl_seconds }
            }
            delete => delete,
        });
        Transaction { writes: writes.collect(), ..transaction }
    }

    /// Writes of kept documents, in plain text.
    pub(super) fn in_plain(&self, writes: Vec<Write>) -> Vec<Write> {
        let in_plain = |write| match write {
            Write::Put { key, value, ttl_seconds } => {
                let value = self.text_in_plain(&key, &value.into()).to_string();
                Write::Put { key, value, ttl_seconds }
            }
            delete => delete,
        };
        writes.into_iter().map(in_plain).collect()
    }

    /// The text of a kept document, in plain text.
    pub(crate) fn text_in_plain(&self, key: &Key, text: &Arc<str>) -> Arc<str> {
        // Others write to an etcd, and APISIX reads strings with raw line breaks.
        match lenient_json::escaped(text) {
            Cow::Borrowed(_) => self.encryption.plain(key, text),
            Cow::Owned(text) => self.encryption.plain(key, &text.into()),
        }
    }

    /// Takes in a snapshot in its stored form. `last_good`: for refused documents, the last ones that were not.
    pub(super) fn take_snapshot(&self, snapshot: Snapshot, last_good: &HashMap<Key, Arc<str>>) {
        let Snapshot { revision, documents } = snapshot;
        let documents: Vec<(Key, Document)> =
            documents.into_iter().map(|(key, document)| self.decrypted(key, document)).collect();
        let mut known = self.known();
        let old: HashMap<Key, Document> = known.snapshot().documents.into_iter().collect();
        let new: HashSet<&Key> = documents.iter().map(|(key, _)| key).filter(|_| !old.is_empty()).collect();
        let put = |(key, document): &(Key, Document)| {
            let before = old.get(key);
            if before == Some(document) {
                return [None, None];
            }
            let good = last_good.get(key).filter(|_| before.is_none()).and_then(|good| {
                let value = Document { value: good.clone(), ..document.clone() };
                self.change(key, Some(&self.decrypted(key.clone(), value).1))
            });
            [good, self.change(key, Some(document))]
        };
        let gone = old.keys().filter(|key| !new.contains(key)).filter_map(|key| self.change(key, None));
        known.store.go_on();
        // One by one: a list of them would be as large as what stays.
        known.store.apply(documents.iter().flat_map(put).flatten().chain(gone));
        known.replace_others(Snapshot { revision, documents });
        let modified = known.modified_anew();
        drop(known);
        self.stored.send_modify(|stored| {
            (stored.revision, stored.connection) = (Some(revision), FollowStatus::Good);
            stored.modified = modified;
        });
    }

    /// Takes in a change in its stored form.
    pub(super) fn take_batch(&self, batch: Batch) {
        let events = batch.events.into_iter().map(|Event { key, document }| match document {
            Some(document) => {
                let (key, document) = self.decrypted(key, document);
                Event { key, document: Some(document) }
            }
            None => Event { key, document: None },
        });
        let batch = Batch { revision: batch.revision, events: events.collect() };
        let changes: Vec<Change> =
            batch.events.iter().filter_map(|event| self.change(&event.key, event.document.as_ref())).collect();
        let revision = batch.revision;
        let mut known = self.known();
        let gone = known.newest_among(&changes);
        known.store.apply(changes);
        let modified = known.modified_by(&batch, &gone);
        known.take_others(batch);
        drop(known);
        self.stored.send_modify(|stored| {
            stored.revision = Some(revision);
            stored.modified = modified;
        });
    }

    /// Checks one document of a collection by itself; the error says what is wrong.
    pub(crate) fn validate(&self, collection: &str, value: &Json) -> Result<(), String> {
        let kind = Kind::named(collection).ok_or_else(|| format!("there is no collection {collection:?}"))?;
        self.known().store.check_alone(kind, &value.to_string())
    }

    /// Notes whether the datastore can be followed.
    pub(super) fn set_connection(&self, connection: FollowStatus) {
        self.stored.send_if_modified(|stored| {
            let is_other = stored.connection != connection;
            // A store is available until it cannot be written; etcd is, when it sends something.
            if self.traits.is_embedded && is_other && stored.connection == FollowStatus::Good {
                stored.heard_unix_ms = Some(now_unix_ms());
            }
            stored.connection = connection;
            is_other
        });
    }

    /// Notes that etcd has answered, and the revision that it has named.
    pub(super) fn heard(&self, revision: Option<u64>) {
        self.stored.send_modify(|stored| {
            stored.heard_unix_ms = Some(now_unix_ms());
            stored.newest = stored.newest.max(revision.unwrap_or_default());
        });
    }

    /// The last good documents, as they are to be kept.
    pub(super) fn last_good(&self) -> HashMap<Key, Arc<str>> {
        let known = self.known();
        let previous = known.store.previous().map(|(kind, id, text)| {
            let key = key_of(kind, id);
            let text = self.encryption.kept(&key, text);
            (key, text)
        });
        previous.collect()
    }

    /// A change of what a document means; `None`: the document is not a resource.
    pub(super) fn change(&self, key: &Key, document: Option<&Document>) -> Option<Change> {
        let (kind, id) = resource_of(key)?;
        Some(match document {
            None => Change::Delete { kind, id },
            Some(Document { value, created, modified }) => Change::Put {
                kind,
                id,
                document: value.clone(),
                created: *created,
                origin: Origin::Revision(*modified),
            },
        })
    }

    /// A document with its secrets in plain text.
    fn decrypted(&self, key: Key, document: Document) -> (Key, Document) {
        let value = self.text_in_plain(&key, &document.value);
        (key, Document { value, ..document })
    }
}

/// The collection of a document, in which credentials have their own.
pub(super) fn collection(key: &Key) -> &str {
    match resource_of(key) {
        Some((kind, _)) => kind.name(),
        None => key.collection(),
    }
}

// The documents of a datastore: resources by their meaning, the others as they are.

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
