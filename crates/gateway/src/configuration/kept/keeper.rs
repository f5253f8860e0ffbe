//! The state of a datastore: its documents in plain text, what they mean, and how far it is followed and served.
//!
//! Shared by the thread that talks to the datastore, the control loop, and the Admin API. Its locks are of the control side
//! only: no worker comes here. The lock of the documents is held for one page or one change. The lock of what they mean is
//! held while a change is compiled, which can take seconds, so readers do without it.

use super::addresses::{key_of, resource_of};
use super::encryption::Encryption;
use serde_json::Value as Json;
use std::borrow::Cow;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use stillgate_config::{Change, DocumentChecker, Gateway, Origin, PluginSet, ResourceKind, Store};
use stillgate_datastore::etcd::Etcd;
use stillgate_datastore::{Batch, Document, DocumentTable, Documents, Event, Key, Snapshot, Transaction, Write};
use stillgate_measures::process_stats::now_unix_ms;
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
    /// The last revision that changed a resource, deletions included.
    pub(crate) changed: u64,
    /// The newest revision of the resources of each kind.
    pub(crate) modified: [u64; ResourceKind::COUNT],
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
    /// The etcd that it follows, for reports of nodes about themselves.
    pub(crate) etcd: OnceLock<Arc<Etcd>>,
    /// Another process is to follow it and to serve later writes.
    pub(crate) is_leaving: watch::Sender<bool>,
    /// In plain text.
    documents: DocumentTable,
    meaning: Mutex<DocumentMeaning>,
    /// What the store in `meaning` checks documents with.
    checker: Mutex<DocumentChecker>,
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
            etcd: OnceLock::new(),
            is_leaving: watch::Sender::default(),
            documents: DocumentTable::default(),
            checker: Mutex::new(store.checker()),
            meaning: Mutex::new(DocumentMeaning { revision: 0, store, unread: BTreeSet::new() }),
            encryption: Encryption::of(traits, gateway),
            tls: Mutex::default(),
        }
    }

    /// What the documents mean. While a change is compiled, this waits for it.
    pub(super) fn meaning(&self) -> MutexGuard<'_, DocumentMeaning> {
        self.meaning.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Checks documents by themselves.
    pub(crate) fn checker(&self) -> DocumentChecker {
        self.checker.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Notes how documents are checked from now on.
    pub(super) fn set_checker(&self, checker: DocumentChecker) {
        *self.checker.lock().unwrap_or_else(PoisonError::into_inner) = checker;
    }

    /// All documents, in plain text.
    pub(super) fn snapshot(&self) -> Snapshot {
        self.documents.snapshot()
    }

    /// Certificates as they were read last.
    pub(super) fn tls(&self) -> MutexGuard<'_, Option<Arc<Material>>> {
        self.tls.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A transaction with its documents as they are to be kept.
    pub(super) fn as_kept(&self, transaction: Transaction) -> Transaction {
        let writes = transaction.writes.into_iter().map(|write| match write {
            Write::Put { key, value, ttl_seconds } => {
                let value = self.encryption.stored_text(&key, &value.into()).to_string();
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
        let old: HashMap<Key, Document> = self.documents.snapshot().documents.into_iter().collect();
        let new: HashSet<&Key> = documents.iter().map(|(key, _)| key).filter(|_| !old.is_empty()).collect();
        let put = |(key, document): &(Key, Document)| {
            let before = old.get(key);
            if before == Some(document) {
                return [None, None];
            }
            // Versions in between were missed: the one before is not the last good one, should this one be refused.
            if before.is_some() {
                return [self.change(key, None), self.change(key, Some(document))];
            }
            let good = last_good.get(key).and_then(|good| {
                let value = Document { value: good.clone(), ..document.clone() };
                self.change(key, Some(&self.decrypted(key.clone(), value).1))
            });
            [good, self.change(key, Some(document))]
        };
        let gone = old.keys().filter(|key| !new.contains(key)).filter_map(|key| self.change(key, None));
        self.checker().fetch(documents.iter().map(|(_, document)| &*document.value));
        let mut meaning = self.meaning();
        meaning.store.go_on();
        // One by one: a list of them would be as large as what stays.
        meaning.store.apply(documents.iter().flat_map(put).flatten().chain(gone));
        meaning.revision = revision;
        meaning.unread = documents.iter().map(|(key, _)| key).filter(|key| is_unread(key)).cloned().collect();
        self.set_checker(meaning.store.checker());
        self.documents.replace(Snapshot { revision, documents });
        drop(meaning);
        let modified = self.recompute_newest();
        self.stored.send_modify(|stored| {
            (stored.revision, stored.connection) = (Some(revision), FollowStatus::Good);
            stored.changed = stored.changed.max(modified.into_iter().max().unwrap_or(0));
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
        self.checker().fetch(changes.iter().filter_map(Change::document));
        let newest = self.newest_without(&batch);
        let mut meaning = self.meaning();
        meaning.store.apply(changes);
        meaning.revision = batch.revision;
        for event in batch.events.iter().filter(|event| is_unread(&event.key)) {
            match event.document {
                Some(_) => meaning.unread.insert(event.key.clone()),
                None => meaning.unread.remove(&event.key),
            };
        }
        self.set_checker(meaning.store.checker());
        self.documents.apply(&batch);
        drop(meaning);
        let modified = self.newest_with(&batch, newest);
        self.stored.send_modify(|stored| {
            stored.revision = Some(batch.revision);
            if !batch.events.is_empty() {
                stored.changed = batch.revision;
            }
            stored.modified = modified;
        });
    }

    /// Checks one document of a collection by itself; the error says what is wrong.
    pub(crate) fn validate(&self, collection: &str, value: &Json) -> Result<(), String> {
        let kind =
            ResourceKind::from_name(collection).ok_or_else(|| format!("there is no collection {collection:?}"))?;
        let document = value.to_string();
        let checker = self.checker();
        checker.fetch([&*document]);
        checker.check(kind, &document)
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
    pub(super) fn note_contact(&self, revision: Option<u64>) {
        self.stored.send_modify(|stored| {
            stored.heard_unix_ms = Some(now_unix_ms());
            stored.newest = stored.newest.max(revision.unwrap_or_default());
        });
    }

    /// The last good documents, as they are to be kept.
    pub(super) fn last_good(&self) -> HashMap<Key, Arc<str>> {
        let meaning = self.meaning();
        let previous = meaning.store.previous().map(|(kind, id, text)| {
            let key = key_of(kind, id);
            let text = self.encryption.stored_text(&key, text);
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

/// What the documents of a datastore mean at one revision.
pub(super) struct DocumentMeaning {
    pub(super) revision: u64,
    pub(super) store: Store,
    /// The keys of documents that nothing reads: APISIX has no collection of their names.
    pub(super) unread: BTreeSet<Key>,
}

/// Whether nothing reads the document of a key.
fn is_unread(key: &Key) -> bool {
    // APISIX's list of plugins is read from files here.
    resource_of(key).is_none() && key.as_str() != "plugins"
}

// The newest revision of the resources of each kind, which changes with each write and with each deletion of the newest.

impl Keeper {
    /// The newest revisions, with `None` for the kinds whose newest resource a change replaces or deletes.
    fn newest_without(&self, batch: &Batch) -> [Option<u64>; ResourceKind::COUNT] {
        let mut newest = self.stored.borrow().modified.map(Some);
        for event in &batch.events {
            let of = resource_of(&event.key).zip(self.documents.get(&event.key));
            if let Some(((kind, _), before)) = of
                && newest[kind as usize] == Some(before.modified)
            {
                newest[kind as usize] = None;
            }
        }
        newest
    }

    /// The newest revisions after a change that the documents have.
    fn newest_with(&self, batch: &Batch, before: [Option<u64>; ResourceKind::COUNT]) -> [u64; ResourceKind::COUNT] {
        let mut newest = before;
        for event in &batch.events {
            if let (Some((kind, _)), Some(document)) = (resource_of(&event.key), &event.document) {
                let newest = &mut newest[kind as usize];
                // What it takes the place of was older.
                *newest = Some(newest.unwrap_or_default().max(document.modified));
            }
        }
        match newest.contains(&None) {
            true => self.recompute_newest(),
            false => newest.map(Option::unwrap_or_default),
        }
    }

    fn recompute_newest(&self) -> [u64; ResourceKind::COUNT] {
        self.documents.fold([0; ResourceKind::COUNT], |mut newest, key, document| {
            if let Some((kind, _)) = resource_of(key) {
                newest[kind as usize] = newest[kind as usize].max(document.modified);
            }
            newest
        })
    }
}

/// The part that the Admin API uses.
impl Documents for Keeper {
    fn revision(&self) -> u64 {
        self.documents.revision()
    }

    fn get(&self, key: &Key) -> Option<Document> {
        self.documents.get(key)
    }

    fn list_below(&self, path: &str) -> Vec<(Key, Document)> {
        self.documents.list_below(path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::configuration::kept::store;
    use crate::configuration::source::plugins;
    use serde_json::json;
    use std::sync::mpsc;
    use std::thread;
    use std::time::Duration;
    use stillgate_config::load;

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

    fn keeper() -> Keeper {
        let gateway = load("gateway: {}\nroutes: []\n", &|_| None).unwrap().config.gateway;
        Keeper::new(&store::KIND.traits, &gateway, plugins())
    }

    fn batch(revision: u64, keys: &[&str], value: Option<&str>) -> Batch {
        let document = value.map(|value| Document { value: value.into(), created: revision, modified: revision });
        let event = |key: &&str| Event { key: Key::from_etcd_path(key), document: document.clone() };
        Batch { revision, events: keys.iter().map(event).collect() }
    }

    /// The documents are the written ones, whether they are valid, invalid or not resources, and the newest of each kind is known.
    #[test]
    fn documents_are_kept_as_they_were_written() {
        let (keeper, table) = (keeper(), DocumentTable::default());
        let take = |revision: u64, keys: &[&str], value: Option<&str>| {
            let batch = batch(revision, keys, value);
            table.apply(&batch);
            keeper.take_batch(batch);
            assert_eq!(keeper.snapshot(), table.snapshot());
            assert_eq!(keeper.stored.borrow().modified, keeper.recompute_newest());
            assert_eq!(keeper.meaning().revision, revision);
        };
        take(1, &KEYS, Some(r#"{"uri":"/a","upstream":{"nodes":{"127.0.0.1:1":1}}}"#));
        let unread: Vec<String> = keeper.meaning().unread.iter().map(ToString::to_string).collect();
        assert_eq!(unread, ["/routes/1", "credentials/1", "data_plane/server_info/x"]);
        take(2, &KEYS[3..7], Some("wrong"));
        take(3, &KEYS[5..9], None);
        take(4, &KEYS[8..], Some("{}"));
        take(5, &KEYS[13..], None);
        assert_eq!(keeper.meaning().unread.len(), 1);
        let snapshot = Snapshot { revision: 9, ..table.snapshot() };
        keeper.take_snapshot(snapshot.clone(), &HashMap::new());
        assert_eq!(keeper.snapshot(), snapshot);
        assert_eq!(keeper.stored.borrow().modified, keeper.recompute_newest());
    }

    /// A version is served in place of a refused one only if none was missed in between: the missed one may have kept clients out.
    #[test]
    fn a_list_that_misses_versions_brings_no_former_one_back() {
        let keeper = keeper();
        let good = r#"{"uri":"/a","upstream":{"nodes":{"127.0.0.1:1":1}}}"#;
        keeper.take_batch(batch(1, &["routes/1", "routes/2"], Some(good)));
        keeper.take_batch(batch(2, &["routes/1", "routes/2"], Some("{}")));
        assert_eq!(keeper.last_good().len(), 2);
        let Snapshot { mut documents, .. } = keeper.snapshot();
        let changed = Document { value: r#"{"uri":1}"#.into(), created: 1, modified: 5 };
        documents[0].1 = changed;
        keeper.take_snapshot(Snapshot { revision: 5, documents }, &HashMap::new());
        let left: Vec<String> = keeper.last_good().keys().map(ToString::to_string).collect();
        assert_eq!(left, ["routes/2"]);
    }

    /// A change can take seconds to compile: readers and checks of the Admin API do not wait for it.
    #[test]
    fn readers_do_not_wait_for_a_change_that_is_compiled() {
        let keeper = Arc::new(keeper());
        keeper.take_batch(batch(1, &["protos/1"], Some("{}")));
        let _compiling = keeper.meaning();
        let (reader, (done, finished)) = (keeper.clone(), mpsc::sync_channel(1));
        thread::spawn(move || {
            let (key, right) = (Key::from_etcd_path("protos/1"), json!({"plugins": {"cors": {}}}));
            let wrong = json!({"plugins": {"cors": {"allow_origins": 1}}});
            let read = (reader.revision(), reader.get(&key).is_some(), reader.list_below("protos/").len());
            let checked =
                (reader.validate("plugin_configs", &right), reader.validate("plugin_configs", &wrong).is_err());
            let custom = reader.checker().custom_plugins().iter().count();
            done.send((read, checked, custom, reader.snapshot().documents.len())).unwrap();
        });
        let found = finished.recv_timeout(Duration::from_secs(60)).expect("a reader waits");
        assert_eq!(found, ((1, true, 1), (Ok(()), true), 0, 1));
    }
}
