//! References between resources, and what only one of them may have: checked for any number of writes that are made together.
//!
//! Only the state after all of the writes counts, not their order; a [`View`] shows it. Each stored document is read at most
//! once, however many writes there are. Messages are APISIX's, if it has some; [`reference_table`](super::reference_table)
//! defines the references.

use super::reference_table::{Reference, each, users_of};
use crate::answer::Answer;
use crate::collections::{Collection, DocumentNaming};
use axum::http::StatusCode;
use serde_json::Value as Json;
use std::cell::Cell;
use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::ops::Bound;
use std::sync::Arc;
use stillgate_datastore::{Condition, Document, Documents, Key, ReferenceCheck, Write};

/// Texts that documents are searched for before they are parsed; for more, all documents are parsed.
const TEXTS_MAX: usize = 16;

/// Deleted consumers with a condition each for their credentials; of more, all consumers are in one condition. A transaction of
/// etcd has few.
const CONSUMERS_MAX: usize = 16;

/// A write that cannot be made.
pub(crate) struct RefusedWrite {
    /// The document of the write that is refused.
    pub(crate) key: Key,
    pub(crate) answer: Answer,
}

/// Conditions that are checked again at the commit.
#[derive(Debug, Default)]
pub(crate) struct CommitConditions {
    /// The stored documents that the new ones refer to exist.
    pub(crate) conditions: Vec<(Key, Condition)>,
    /// Nothing has been written that refers to a deleted document, or has something that must be unique.
    pub(crate) unreferenced: Vec<ReferenceCheck>,
}

/// The documents as they will be after writes.
pub(crate) struct StateAfter<'a> {
    view: &'a View,
    writes: &'a [Write],
    /// The written keys; `None`: it is deleted.
    written: HashMap<&'a str, Option<&'a str>>,
}

impl<'a> StateAfter<'a> {
    /// The writes are about different documents.
    pub(crate) fn new(view: &'a View, writes: &'a [Write]) -> StateAfter<'a> {
        let written = writes.iter().map(|write| match write {
            Write::Put { key, value, .. } => (key.as_str(), Some(value.as_str())),
            Write::Delete { key } => (key.as_str(), None),
        });
        StateAfter { written: written.collect(), view, writes }
    }

    /// Whether all references lead to documents. `forced`: what is deleted although others refer to it.
    pub(crate) fn check_references(&self, forced: &HashSet<Key>) -> Result<CommitConditions, RefusedWrite> {
        let mut referred = BTreeSet::new();
        for (key, value) in self.puts() {
            self.check_references_of(key, value, forced, &mut referred)?;
        }
        self.check_deleted(forced)?;
        let conditions = referred.into_iter().map(|key| (key, Condition::Present)).collect();
        Ok(CommitConditions { conditions, unreferenced: self.unreferenced(forced) })
    }

    /// Whether no two consumers have one key, and no two global rules one plugin.
    pub(crate) fn check_unique(&self) -> Result<(), RefusedWrite> {
        let keys = |key: &Key, document: &Json| {
            let owner = owner_of(key).to_owned();
            let of_plugin =
                |(plugin, field, value): (&str, &str, &str)| (format!("{plugin} {field} {value}"), value.to_owned());
            UniqueValues { owner, values: keys_of_consumer(document).map(of_plugin).collect() }
        };
        self.check_owners("consumers/", &keys, &|_, owner| format!("duplicate key found with consumer: {owner}"))?;
        let plugins = |key: &Key, document: &Json| {
            let names = document["plugins"].as_object().into_iter().flatten();
            let values = names.map(|(name, _)| (name.clone(), name.clone())).collect();
            UniqueValues { owner: key.id().to_owned(), values }
        };
        self.check_owners("global_rules/", &plugins, &|name, id| {
            format!("plugin '{name}' already exists in global rule with id '{id}'")
        })
    }

    fn puts(&self) -> impl Iterator<Item = (&'a Key, &'a str)> {
        self.writes.iter().filter_map(|write| match write {
            Write::Put { key, value, .. } => Some((key, value.as_str())),
            Write::Delete { .. } => None,
        })
    }

    fn has(&self, key: &str) -> bool {
        let is_stored = || Key::parse(key).is_ok_and(|key| self.view.get(&key).is_some());
        self.written.get(key).map_or_else(is_stored, Option::is_some)
    }

    fn document(&self, key: &str) -> Option<Arc<str>> {
        let stored = || Some(self.view.get(&Key::parse(key).ok()?)?.value);
        self.written.get(key).map_or_else(stored, |value| value.map(Arc::from))
    }

    /// Checks what a new document refers to; `referred` gets what is stored and stays as it is.
    fn check_references_of(
        &self,
        key: &Key,
        value: &str,
        forced: &HashSet<Key>,
        referred: &mut BTreeSet<Key>,
    ) -> Result<(), RefusedWrite> {
        let Some(collection) = Collection::of_key(key.as_str()) else { return Ok(()) };
        let document = parse_document(value);
        let refusal = |answer| RefusedWrite { key: key.clone(), answer };
        let mut note = |target: &str| {
            if !self.written.contains_key(target) {
                referred.extend(Key::parse(target));
            }
        };
        if let Some(consumer) = consumer_of(key) {
            if !self.has(consumer) {
                return Err(refusal(Answer::error(StatusCode::NOT_FOUND, "consumer not found")));
            }
            note(consumer);
        }
        let mut refused = None;
        each(collection.name, &document, &mut |reference, id| {
            let target = format!("{}/{id}", reference.target);
            // A new document cannot refer to itself.
            let is_there = if target == key.as_str() { self.view.get(key).is_some() } else { self.has(&target) };
            if is_there {
                note(&target);
            } else if reference.is_required && !forced.iter().any(|forced| forced.as_str() == target) {
                refused.get_or_insert_with(|| Answer::bad(missing(reference, &id)));
            }
        });
        if let Some(answer) = refused {
            return Err(refusal(answer));
        }
        let superior = text_of(&document["protocol"]["superior_id"]).filter(|_| collection.name == "stream_routes");
        match superior.and_then(|id| self.document(&format!("stream_routes/{id}"))) {
            Some(superior) => same_protocol(&parse_document(&superior), &document).map_err(refusal),
            None => Ok(()),
        }
    }

    /// Checks that no unchanged document refers to a deleted one.
    fn check_deleted(&self, forced: &HashSet<Key>) -> Result<(), RefusedWrite> {
        let mut users: Vec<&str> = Vec::new();
        let mut lost: HashMap<&str, &Key> = HashMap::new();
        for (key, collection) in self.deleted_keys(forced) {
            let of_this = users_of(collection.name);
            if !of_this.is_empty() {
                lost.insert(key.as_str(), key);
            }
            let more = of_this.into_iter().filter(|user| !users.contains(user)).collect::<Vec<_>>();
            users.extend(more);
        }
        let texts = SearchedTexts::new(lost.values().map(|key| key.id().to_owned()));
        for users in users {
            for (user, document) in self.view.below(&format!("{users}/")) {
                if self.written.contains_key(user.as_str()) || !texts.may_be_in(&document.value) {
                    continue;
                }
                let mut refused = None;
                each(users, &parse_document(&document.value), &mut |reference, id| {
                    let key = lost.get(format!("{}/{id}", reference.target).as_str());
                    let Some((key, collection)) = key.zip(Collection::named(reference.target)) else { return };
                    refused.get_or_insert_with(|| RefusedWrite {
                        key: (*key).clone(),
                        answer: Answer::bad(in_use(collection, reference, users, user.id())),
                    });
                });
                refused.map_or(Ok(()), Err)?;
            }
        }
        // Forced or not: a credential does not outlive its consumer.
        let none = HashSet::new();
        let consumers =
            self.deleted_keys(&none).filter(|(_, collection)| collection.naming == DocumentNaming::Username);
        for (consumer, _) in consumers {
            // A credential written after this view was taken fails a condition of the commit, and everything is planned again.
            let is_left = |(key, document): &(Key, Document)| {
                !self.written.contains_key(key.as_str()) && document.modified <= self.view.revision()
            };
            let mut left = self.view.below(&format!("{consumer}/credentials/")).into_iter();
            if let Some((key, _)) = left.find(is_left) {
                return Err(RefusedWrite { key, answer: Answer::bad("consumer not found") });
            }
        }
        Ok(())
    }

    /// Checks that nothing in a collection has two owners.
    fn check_owners(
        &self,
        below: &str,
        owned: &dyn Fn(&Key, &Json) -> UniqueValues,
        message: &dyn Fn(&str, &str) -> String,
    ) -> Result<(), RefusedWrite> {
        let mut owners: HashMap<String, (String, Key)> = HashMap::new();
        let mut texts = Vec::new();
        for (key, value) in self.puts().filter(|(key, _)| key.as_str().starts_with(below)) {
            let UniqueValues { owner, values } = owned(key, &parse_document(value));
            for (value, text) in values {
                match owners.entry(value) {
                    Entry::Occupied(first) if first.get().0 != owner => {
                        let answer = Answer::bad(message(&text, &first.get().0));
                        return Err(RefusedWrite { key: key.clone(), answer });
                    }
                    Entry::Occupied(_) => {}
                    Entry::Vacant(place) => drop(place.insert((owner.clone(), key.clone()))),
                }
                texts.push(Json::from(text).to_string());
            }
        }
        if owners.is_empty() {
            return Ok(());
        }
        let texts = SearchedTexts::new(texts.into_iter());
        for (stored, document) in self.view.below(below) {
            if self.written.contains_key(stored.as_str()) || !texts.may_be_in(&document.value) {
                continue;
            }
            let UniqueValues { owner: other, values } = owned(&stored, &parse_document(&document.value));
            for (value, text) in values {
                if let Some((_, key)) = owners.get(&value).filter(|(owner, _)| *owner != other) {
                    return Err(RefusedWrite { key: key.clone(), answer: Answer::bad(message(&text, &other)) });
                }
            }
        }
        Ok(())
    }

    fn deleted_keys(&self, forced: &HashSet<Key>) -> impl Iterator<Item = (&'a Key, &'static Collection)> {
        let deleted = self.writes.iter().filter(|write| matches!(write, Write::Delete { .. })).map(Write::key);
        let deleted = deleted.filter(|key| !forced.contains(*key));
        deleted.filter_map(|key| Some((key, Collection::of_key(key.as_str())?)))
    }

    /// Checks at the commit that no write since refers to a deleted document, or takes what must be unique.
    fn unreferenced(&self, forced: &HashSet<Key>) -> Vec<ReferenceCheck> {
        // By path: the texts of documents that must not have been written; none: any document.
        let mut places: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        for (key, collection) in self.deleted_keys(forced) {
            for users in users_of(collection.name) {
                places.entry(format!("{users}/")).or_default().insert(key.id().to_owned());
            }
        }
        let mut whole = BTreeSet::new();
        for write in self.writes {
            let Some(collection) = Collection::of_key(write.key().as_str()) else { continue };
            match write {
                // A credential that is written meanwhile would outlive its consumer.
                Write::Delete { key } if collection.naming == DocumentNaming::Username => {
                    whole.insert(format!("{key}/credentials/"));
                }
                Write::Delete { .. } => {}
                // A name may be spelled in several ways.
                Write::Put { .. } if collection.name == "ssls" => drop(whole.insert("ssls/".to_owned())),
                Write::Put { value, .. } => {
                    let (below, texts) = unique_texts(collection, value);
                    if !texts.is_empty() {
                        places.entry(below.to_owned()).or_default().extend(texts);
                    }
                }
            }
        }
        if whole.len() > CONSUMERS_MAX {
            whole.retain(|below| !below.starts_with("consumers/"));
            whole.insert("consumers/".to_owned());
        }
        places.retain(|below, _| !whole.contains(below));
        let since = self.view.revision();
        let any = whole.into_iter().map(|below| (below, BTreeSet::new()));
        let checks = any.chain(places).map(|(below, mentions)| {
            let mentions = mentions.into_iter().collect();
            ReferenceCheck { below, since, mentions }
        });
        checks.collect()
    }
}

/// Where other documents with something that must be unique would be, and the texts that they would have: plugins of a global rule,
/// keys of a consumer.
fn unique_texts(collection: &Collection, value: &str) -> (&'static str, Vec<String>) {
    match collection.name {
        "global_rules" => {
            let document = parse_document(value);
            let plugins = document["plugins"].as_object().into_iter().flatten();
            ("global_rules/", plugins.map(|(plugin, _)| format!("\"{plugin}\"")).collect())
        }
        "consumers" | "credentials" => {
            let document = parse_document(value);
            ("consumers/", keys_of_consumer(&document).map(|(_, _, key)| Json::from(key).to_string()).collect())
        }
        _ => ("", Vec::new()),
    }
}

/// What only one document may have.
struct UniqueValues {
    /// Documents of one owner may share values.
    owner: String,
    /// Each with a text that is in the document.
    values: Vec<(String, String)>,
}

/// Texts by which documents are found: most can be excluded by their text, which is much cheaper than parsing all of them.
struct SearchedTexts(Option<Vec<String>>);

impl SearchedTexts {
    fn new(texts: impl Iterator<Item = String>) -> SearchedTexts {
        let texts: Vec<String> = texts.take(TEXTS_MAX + 1).collect();
        SearchedTexts((texts.len() <= TEXTS_MAX).then_some(texts))
    }

    fn may_be_in(&self, value: &str) -> bool {
        self.0.as_ref().is_none_or(|texts| has_escapes(value) || texts.iter().any(|text| value.contains(text.as_str())))
    }
}

/// The error for a reference to a missing document.
fn missing(reference: &Reference, id: &str) -> String {
    match (reference.target, reference.kind) {
        ("stream_routes", _) => format!("failed to fetch stream routes[{id}], response code: 404"),
        (_, kind) => format!("failed to fetch {kind} info by {kind} id [{id}], response code: 404"),
    }
}

/// Why a document with a reference to it cannot be deleted.
fn in_use(collection: &Collection, reference: &Reference, users: &str, user: &str) -> String {
    if reference.target == "stream_routes" {
        return format!(
            "can not delete this stream route directly, stream route [{user}] is still using it as superior_id"
        );
    }
    let user_kind = Collection::named(users).map_or(users, |users| users.schema);
    // APISIX names the plugin's resource only for upstreams, in these words; its protos are used by plugins alone.
    let plugin = if reference.is_of_plugin() && reference.target != "protos" { "plugin in " } else { "" };
    let directly = if reference.target == "services" { " directly" } else { "" };
    format!("can not delete this {}{directly}, {plugin}{user_kind} [{user}] is still using it now", collection.kind)
}

/// Fields by which plugins find a consumer.
const KEYS_OF_CONSUMERS: [(&str, &str); 4] =
    [("key-auth", "key"), ("basic-auth", "username"), ("jwt-auth", "key"), ("hmac-auth", "key_id")];

/// The keys by which plugins find a consumer: plugin, field and value.
fn keys_of_consumer(document: &Json) -> impl Iterator<Item = (&'static str, &'static str, &str)> {
    KEYS_OF_CONSUMERS
        .into_iter()
        .filter_map(|(plugin, field)| Some((plugin, field, document["plugins"][plugin][field].as_str()?)))
}

/// The consumer of `consumers/NAME` and of `consumers/NAME/credentials/ID`.
fn owner_of(key: &Key) -> &str {
    key.id().split('/').next().unwrap_or_default()
}

/// The key of a credential's consumer.
fn consumer_of(key: &Key) -> Option<&str> {
    key.as_str().split_once("/credentials/").map(|(consumer, _)| consumer)
}

/// An id as text, whether it is a number or a string.
pub(crate) fn text_of(id: &Json) -> Option<String> {
    match id {
        Json::String(text) => Some(text.clone()),
        Json::Number(number) => Some(match number.as_f64() {
            // Lua does not distinguish 1 from 1.0.
            Some(whole) if whole.fract() == 0.0 && whole.abs() < 1e15 => format!("{whole:.0}"),
            _ => number.to_string(),
        }),
        _ => None,
    }
}

/// The upstreams of its plugin traffic-split.
pub(crate) fn split_upstreams(document: &Json) -> impl Iterator<Item = &Json> {
    let rules = document["plugins"]["traffic-split"]["rules"].as_array().into_iter().flatten();
    rules.flat_map(|rule| rule["weighted_upstreams"].as_array().into_iter().flatten())
}

fn same_protocol(superior: &Json, document: &Json) -> Result<(), Answer> {
    let (own, others) = (&document["protocol"]["name"], &superior["protocol"]["name"]);
    match superior.get("protocol").is_some() && own != others {
        true => Err(Answer::bad(format!(
            "protocol mismatch: subordinate protocol [{}] does not match superior protocol [{}]",
            own.as_str().unwrap_or_default(),
            others.as_str().unwrap_or_default()
        ))),
        false => Ok(()),
    }
}

/// Whether a JSON text may encode characters differently from the searched text: APISIX writes `\/` for a slash.
pub(crate) fn has_escapes(value: &str) -> bool {
    value.contains('\\')
}

/// A stored document. One that is not JSON has no references.
pub(crate) fn parse_document(value: &str) -> Json {
    serde_json::from_str(value).unwrap_or_default()
}

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
        let mut stored = self.documents.list_below(path).into_iter().peekable();
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
