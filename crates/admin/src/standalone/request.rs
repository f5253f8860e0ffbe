//! What clients of `configs` send: the whole configuration, and metadata about it.
//!
//! The configuration is split without being parsed: its lists stay text, and are parsed item by item. As a tree, a
//! configuration takes dozens of times the memory of its text. So a call holds only the text, one item, and what its caller
//! makes of the items.
//!
//! The metadata of the last client is valid as long as the resources stay unchanged. It is in memory: a restart forgets it.
//! Then versions and indexes are revisions, and the digest is unknown.

use crate::answer::Answer;
use crate::body::in_words_of_apisix;
use crate::collections::{Collection, whole_collections};
use serde::de::{IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::ops::ControlFlow;
use std::sync::{Mutex, MutexGuard, PoisonError};
use stillgate_datastore::{Document, Documents, Key};
use stillgate_schema::lenient_json;
use stillgate_schema::text::diagnostic::shortened;

/// The text of a request as valid JSON.
pub(super) struct Text<'a> {
    sent: &'a str,
    escaped: Cow<'a, str>,
}

/// The parts of the request.
#[derive(Default)]
pub(super) struct Whole<'a> {
    /// By the names of collections and of their versions.
    values: BTreeMap<String, &'a RawValue>,
    /// The first unknown name.
    unknown: Option<String>,
}

/// A version that a request sets for a collection.
pub(super) enum Version {
    None,
    Number(f64),
    /// The type that it has instead, as Lua names it.
    Other(&'static str),
}

impl<'a> Text<'a> {
    pub(super) fn new(sent: &'a str) -> Text<'a> {
        Text { sent, escaped: lenient_json::escaped(sent) }
    }

    /// Splits the text.
    pub(super) fn whole(&'a self) -> Result<Whole<'a>, Answer> {
        if self.sent.is_empty() {
            return Err(Answer::bad("invalid request body: empty request body"));
        }
        let whole: Whole<'a> = serde_json::from_str(&self.escaped).map_err(|error| {
            if error.is_data() {
                return Answer::bad("invalid request body: an object is expected");
            }
            let at = lenient_json::position(self.sent, &error);
            let why = in_words_of_apisix(&error, at, self.sent.len());
            Answer::bad(format!("invalid request body: {why}"))
        })?;
        match &whole.unknown {
            Some(unknown) => {
                Err(Answer::bad(format!("unknown key {:?}; what a list does not name is deleted", shortened(unknown))))
            }
            None => Ok(whole),
        }
    }
}

impl<'a> Whole<'a> {
    /// Calls `each` with the index and the text of each item of a collection until it breaks. `Err`: the value is not a list.
    pub(super) fn each_item(
        &self,
        collection: &Collection,
        each: &mut dyn FnMut(usize, &'a str) -> ControlFlow<()>,
    ) -> Result<(), String> {
        let Some(list) = self.values.get(collection.name) else { return Ok(()) };
        let is_list = list.get().starts_with('[');
        // If this or `null` were taken for an empty list, the whole collection would be deleted.
        let wrong = || format!("{} must be an array", collection.name);
        let mut reader = serde_json::Deserializer::from_str(list.get());
        let read = is_list.then(|| reader.deserialize_seq(Items(each)));
        read.and_then(Result::ok).ok_or_else(wrong)
    }

    pub(super) fn version(&self, collection: &Collection) -> Version {
        let Some(version) = self.values.get(&collection.version_key()) else { return Version::None };
        let text = version.get();
        match text.as_bytes().first() {
            Some(b'n') => Version::Other("userdata"),
            Some(b'-' | b'0'..=b'9') => text.parse().map_or(Version::Other("number"), Version::Number),
            Some(b'"') => Version::Other("string"),
            Some(b't' | b'f') => Version::Other("boolean"),
            _ => Version::Other("table"),
        }
    }
}

/// The keys allowed in the whole document, since GET returns them. `plugins`, for which APISIX has a version, is ignored.
fn is_known(key: &str) -> bool {
    let is_of_all = ["plugins", "X-Last-Modified", "X-Digest"].contains(&key);
    is_of_all || key.ends_with("_conf_version") || is_collection(key)
}

fn is_collection(key: &str) -> bool {
    whole_collections().any(|collection| collection.name == key)
}

impl<'de> Deserialize<'de> for Whole<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Whole<'de>, D::Error> {
        struct WholeVisitor;

        impl<'de> Visitor<'de> for WholeVisitor {
            type Value = Whole<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Whole<'de>, A::Error> {
                let mut whole = Whole::default();
                while let Some(key) = map.next_key::<String>()? {
                    let is_version = whole_collections().any(|collection| collection.version_key() == key);
                    if is_version || is_collection(&key) {
                        // If a key occurs twice, the last one counts, as in APISIX.
                        whole.values.insert(key, map.next_value()?);
                        continue;
                    }
                    if !is_known(&key) && whole.unknown.is_none() {
                        whole.unknown = Some(key);
                    }
                    map.next_value::<IgnoredAny>()?;
                }
                Ok(whole)
            }
        }

        deserializer.deserialize_map(WholeVisitor)
    }
}

/// Visits a list.
struct Items<'f, 'a>(&'f mut dyn FnMut(usize, &'a str) -> ControlFlow<()>);

impl<'de> Visitor<'de> for Items<'_, 'de> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<(), A::Error> {
        let mut index = 0;
        while let Some(item) = items.next_element::<&'de RawValue>()? {
            if (self.0)(index, item.get()).is_break() {
                while items.next_element::<IgnoredAny>()?.is_some() {}
                break;
            }
            index += 1;
        }
        Ok(())
    }
}

/// The state after the last replacement.
#[derive(Debug, Default)]
pub(crate) struct Standalone(Mutex<LastMetadata>);

#[derive(Debug, Default)]
struct LastMetadata {
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
type Fingerprint = (usize, u64);

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
        let of = |name: &str| fingerprint(&documents.list_below(&format!("{name}/")));
        let versions = versions.into_iter().map(|(name, version)| (name, (version, of(name)))).collect();
        let index = |(key, index): (Key, _)| {
            let modified = documents.get(&key)?.modified;
            Some((key, (index, modified)))
        };
        let indexes = indexes.into_iter().filter_map(index).collect();
        *self.lock() = LastMetadata { last: Some(last), seen: (0, 0), versions, indexes };
    }

    fn lock(&self) -> MutexGuard<'_, LastMetadata> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
