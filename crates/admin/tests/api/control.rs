//! A control side in memory. It validates only what tests need, and makes writes at once.

use serde_json::{Value as Json, json};
use std::io::{Seek as _, Write as _};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard};
use stillgate_admin::control::{Change, ChangeSummary, Edit, Pending};
use stillgate_admin::{Backup, Control, Outcome, Plugin, PluginSchema, Wait, WriteConsequences, WriteError};
use stillgate_datastore::transaction::WRITES_MAX;
use stillgate_datastore::{
    Author, Batch, Condition, Document, DocumentTable, Documents, Event, Key, ReferenceCheck, Snapshot, Transaction,
    Write,
};

#[derive(Default)]
pub(crate) struct Memory {
    documents: Arc<DocumentTable>,
    changes: Mutex<Vec<Change>>,
    /// Why nothing can be written.
    pub(crate) refusal: Mutex<Option<WriteError>>,
    pub(crate) is_file: bool,
    /// Writes that one request can make.
    pub(crate) writes_max: AtomicUsize,
    /// Whether readers of the documents wait, how many do, and how many were there at once.
    pub(crate) is_gated: AtomicBool,
    pub(crate) readers: AtomicUsize,
    pub(crate) readers_at_once: AtomicUsize,
    /// The write of another client just before the next write; null deletes.
    pub(crate) overtaking: Mutex<Option<(&'static str, Json)>>,
}

impl Memory {
    /// Writes without the API, as another node of a fleet does.
    pub(crate) fn put(&self, key: &str, value: &Json) {
        self.put_text(key, &value.to_string());
    }

    pub(crate) fn put_text(&self, key: &str, value: &str) {
        let put = Write::Put { key: Key::parse(key).unwrap(), value: value.to_owned(), ttl_seconds: None };
        self.commit(changing(vec![put], Author::default())).unwrap();
    }

    fn delete(&self, key: &str) {
        let delete = Write::Delete { key: Key::parse(key).unwrap() };
        self.commit(changing(vec![delete], Author::default())).unwrap();
    }

    pub(crate) fn get(&self, key: &str) -> Option<Json> {
        let document = self.documents.get(&Key::parse(key).unwrap())?;
        Some(serde_json::from_str(&document.value).unwrap())
    }

    /// Starts at a revision, so that golden files do not begin at 1 by chance.
    pub(crate) fn at_revision(revision: u64) -> Memory {
        let memory = Memory::default();
        memory.documents.replace(Snapshot { revision, documents: Vec::new() });
        memory
    }

    fn commit(&self, transaction: Transaction) -> Result<Outcome, WriteError> {
        let mut changes = self.changes.lock().unwrap();
        self.must_be_possible(&transaction)?;
        let revision = self.documents.revision() + 1;
        let mut edits = Vec::new();
        let event = |write: &Write| {
            let key = write.key().clone();
            let old = self.documents.get(&key);
            let document = match write {
                Write::Put { value, .. } => {
                    let created = old.as_ref().map_or(revision, |old| old.created);
                    Some(Document { value: value.as_str().into(), created, modified: revision })
                }
                Write::Delete { .. } => None,
            };
            edits.push(Edit {
                key: key.clone(),
                before: old.map(|old| old.value),
                after: document.as_ref().map(|document| document.value.clone()),
            });
            Event { key, document }
        };
        let events = transaction.writes.iter().map(event).collect();
        self.documents.apply(&Batch { revision, events });
        changes.push(Change { revision, unix_ms: 1_700_000_000_000, author: transaction.author, edits });
        Ok(Outcome { revision, generation: None, warnings: Vec::new() })
    }

    fn must_be_possible(&self, transaction: &Transaction) -> Result<(), WriteError> {
        if let Some(refusal) = self.refusal().clone() {
            return Err(refusal);
        }
        for (key, condition) in &transaction.conditions {
            let modified = self.documents.get(key).map(|document| document.modified);
            let holds = match condition {
                Condition::Absent => modified.is_none(),
                Condition::Present => modified.is_some(),
                Condition::Modified(revision) => modified == Some(*revision),
            };
            if !holds {
                return Err(WriteError::Conflict { key: key.clone(), modified });
            }
        }
        for ReferenceCheck { below, since, mentions } in &transaction.unreferenced {
            let mut written = self.documents.list_below(below);
            let is_mentioned =
                |text: &str| mentions.is_empty() || mentions.iter().any(|mention| text.contains(mention));
            written.retain(|(_, document)| document.modified > *since && is_mentioned(&document.value));
            if let Some((key, document)) = written.pop() {
                return Err(WriteError::Conflict { key, modified: Some(document.modified) });
            }
        }
        for write in &transaction.writes {
            if let Write::Put { key, value, .. } = write {
                let value = serde_json::from_str(value).unwrap();
                self.validate(key.collection(), &value).map_err(WriteError::Invalid)?;
            }
        }
        Ok(())
    }

    fn refusal(&self) -> MutexGuard<'_, Option<WriteError>> {
        self.refusal.lock().unwrap()
    }

    fn back_to(&self, revision: u64) -> Result<Vec<Write>, WriteError> {
        let changes = self.changes.lock().unwrap();
        if !changes.iter().any(|change| change.revision == revision) {
            return Err(WriteError::Invalid(format!("revision {revision} is not kept")));
        }
        let later = changes.iter().rev().take_while(|change| change.revision > revision);
        let edits = later.flat_map(|change| &change.edits);
        Ok(edits
            .map(|edit| match &edit.before {
                Some(value) => Write::Put { key: edit.key.clone(), value: value.to_string(), ttl_seconds: None },
                None => Write::Delete { key: edit.key.clone() },
            })
            .collect())
    }
}

fn changing(writes: Vec<Write>, author: Author) -> Transaction {
    Transaction { conditions: Vec::new(), unreferenced: Vec::new(), writes, author }
}

impl Control for Memory {
    fn readable(&self) -> Pending<Result<(), String>> {
        Box::pin(async { Ok(()) })
    }

    fn documents(&self) -> Arc<dyn Documents> {
        self.readers_at_once.fetch_max(self.readers.fetch_add(1, Relaxed) + 1, Relaxed);
        while self.is_gated.load(Relaxed) {
            std::thread::yield_now();
        }
        self.readers.fetch_sub(1, Relaxed);
        self.documents.clone()
    }

    fn writable(&self) -> Result<(), String> {
        if self.is_file { Err("the resources come from a file".to_owned()) } else { Ok(()) }
    }

    fn writes_max(&self) -> usize {
        self.writes_max.load(Relaxed).max(WRITES_MAX)
    }

    fn write(&self, transaction: Transaction, wait: Wait) -> Pending<Result<Outcome, WriteError>> {
        if let Some((key, value)) = self.overtaking.lock().unwrap().take() {
            match value.is_null() {
                true => self.delete(key),
                false => self.put(key, &value),
            }
        }
        let outcome = self.commit(transaction).map(|outcome| Outcome {
            generation: (wait == Wait::Served).then_some(outcome.revision + 1000),
            warnings: Vec::new(),
            ..outcome
        });
        Box::pin(async move { outcome })
    }

    fn write_many(&self, transaction: Transaction, wait: Wait) -> Pending<Result<Outcome, WriteError>> {
        self.write(transaction, wait)
    }

    fn backup(&self) -> Pending<Result<Backup, WriteError>> {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(b"a store").unwrap();
        file.rewind().unwrap();
        Box::pin(async move { Ok(Backup { file, size: 7, path: "/x/config.redb".into() }) })
    }

    fn check(&self, transaction: Transaction) -> Pending<Result<WriteConsequences, WriteError>> {
        let key = transaction.writes[0].key().clone();
        let checked = self.must_be_possible(&transaction).map(|()| WriteConsequences {
            warnings: vec!["a lint".to_owned()],
            effects: vec![(key, "takes requests of routes/2".to_owned())],
            recent_requests: json!({ "requests": 3, "changed": 1 }),
        });
        Box::pin(async move { checked })
    }

    fn fetch_secrets(&self, _: &[u8]) -> Pending<()> {
        Box::pin(async {})
    }

    fn validate(&self, _: &str, value: &Json) -> Result<(), String> {
        if value["plugins"]["limit-count"]["count"] == 0 {
            return Err("failed to check the configuration of plugin limit-count err: count".to_owned());
        }
        let kind = |value: &Json| if value.is_number() { "number" } else { "table" };
        match &value["uri"] {
            Json::Null | Json::String(_) => Ok(()),
            uri => {
                let got = kind(uri);
                Err(format!("property \"uri\" validation failed: wrong type: expected string, got {got}"))
            }
        }
    }

    fn collection_schema(&self, collection: &str) -> Option<Json> {
        Some(json!({ "type": "object", "title": collection }))
    }

    fn plugins(&self) -> Vec<Plugin> {
        let plugin = |name, priority, is_auth, is_stream| Plugin { name, priority, is_auth, is_http: true, is_stream };
        vec![
            plugin("key-auth", 2500, true, false),
            plugin("limit-conn", 1003, false, true),
            plugin("limit-count", 1002, false, false),
            plugin("traffic-split", 966, false, false),
            plugin("grpc-transcode", 506, false, false),
        ]
    }

    fn plugin_schema(&self, name: &str) -> Option<PluginSchema> {
        let consumer = (name == "key-auth").then(|| json!({ "required": ["key"] }));
        let metadata = (name == "limit-count").then(|| json!({ "title": "metadata" }));
        let is_known = self.plugins().iter().any(|plugin| plugin.name == name);
        is_known.then(|| PluginSchema { schema: json!({ "title": name }), consumer, metadata })
    }

    fn secrets(&self, _: &str, value: &mut Json, each: &mut dyn FnMut(&mut String)) {
        for pointer in ["/plugins/key-auth/key", "/token"] {
            if let Some(Json::String(secret)) = value.pointer_mut(pointer) {
                each(secret);
            }
        }
    }

    fn history(&self, before: Option<u64>, count: usize) -> Pending<Result<Vec<ChangeSummary>, WriteError>> {
        let changes = self.changes.lock().unwrap();
        let asked = changes.iter().rev().filter(|change| before.is_none_or(|before| change.revision < before));
        let summary = |change: &Change| ChangeSummary {
            revision: change.revision,
            unix_ms: change.unix_ms,
            author: change.author.clone(),
            keys: change.edits.iter().map(|edit| edit.key.clone()).collect(),
            keys_total: change.edits.len(),
        };
        let summaries = asked.take(count).map(summary).collect();
        Box::pin(async move { Ok(summaries) })
    }

    fn change(&self, revision: u64) -> Pending<Result<Option<Change>, WriteError>> {
        let change = self.changes.lock().unwrap().iter().find(|change| change.revision == revision).cloned();
        Box::pin(async move { Ok(change) })
    }

    fn writes_back_to(&self, revision: u64) -> Pending<Result<Vec<Write>, WriteError>> {
        let writes = self.back_to(revision);
        Box::pin(async move { writes })
    }

    fn roll_back(&self, to: u64, author: Author, _: Wait) -> Pending<Result<Outcome, WriteError>> {
        let outcome = self.back_to(to).and_then(|writes| self.commit(changing(writes, author)));
        Box::pin(async move { outcome })
    }
}
