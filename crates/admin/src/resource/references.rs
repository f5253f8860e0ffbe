//! References between resources: the references of a document must exist, and a document with references to it cannot be deleted.
//!
//! Messages are APISIX's, if it has some; [`reference_table`](super::reference_table) defines the references.

use super::reference_table::{Reference, each, users_of};
use super::view::View;
use crate::answer::Answer;
use crate::collections::Collection;
use axum::http::StatusCode;
use serde_json::Value as Json;
use stillgate_datastore::{Key, ReferenceCheck};

/// The stored keys that a document refers to; `Err`: a required one is missing.
pub(crate) fn present(view: &View, collection: &Collection, document: &Json) -> Result<Vec<Key>, Answer> {
    let (mut found, mut refusal) = (Vec::new(), None);
    each(collection.name, document, &mut |reference, id| match stored(view, reference.target, &id) {
        Some(key) => found.push(key),
        None if reference.is_required => {
            refusal.get_or_insert_with(|| Answer::bad(missing(reference, &id)));
        }
        None => {}
    });
    if let Some(refusal) = refusal {
        return Err(refusal);
    }
    let superior = text_of(&document["protocol"]["superior_id"]).filter(|_| collection.name == "stream_routes");
    if let Some(superior) = superior.and_then(|id| stored(view, "stream_routes", &id)) {
        same_protocol(view, &superior, document)?;
    }
    Ok(found)
}

/// The error for a reference to a missing document.
pub(crate) fn missing(reference: &Reference, id: &str) -> String {
    match (reference.target, reference.kind) {
        ("stream_routes", _) => format!("failed to fetch stream routes[{id}], response code: 404"),
        (_, kind) => format!("failed to fetch {kind} info by {kind} id [{id}], response code: 404"),
    }
}

/// The conditions for deleting a document without references to it.
pub(crate) fn still_unused(view: &View, collection: &Collection, key: &Key) -> Vec<ReferenceCheck> {
    let still = |users: &str| ReferenceCheck {
        below: format!("{users}/"),
        since: view.revision(),
        mention: key.id().to_owned(),
    };
    users_of(collection.name).into_iter().map(still).collect()
}

/// The conditions for writing a document with things that must be unique: plugins of a global rule, keys of a consumer, names of a
/// certificate.
pub(crate) fn still_alone(view: &View, collection: &Collection, document: &Json) -> Vec<ReferenceCheck> {
    let (below, mentions): (&str, Vec<String>) = match collection.name {
        "global_rules" => {
            let plugins = document["plugins"].as_object().into_iter().flat_map(|plugins| plugins.keys());
            ("global_rules/", plugins.map(|plugin| format!("\"{plugin}\"")).collect())
        }
        "consumers" | "credentials" => {
            ("consumers/", keys_of_consumer(document).map(|(_, _, key)| Json::from(key).to_string()).collect())
        }
        // A name may be spelled in several ways.
        "ssls" => ("ssls/", vec![String::new()]),
        _ => return Vec::new(),
    };
    let still = |mention| ReferenceCheck { below: below.to_owned(), since: view.revision(), mention };
    mentions.into_iter().map(still).collect()
}

/// The stored documents that a document refers to.
pub(crate) fn referred(view: &View, collection: &Collection, key: &Key, document: &Json) -> Vec<Key> {
    let mut found = Vec::new();
    each(collection.name, document, &mut |reference, id| found.extend(stored(view, reference.target, &id)));
    if collection.name == "credentials" {
        found.extend(stored(view, "consumers", owner_of(key)));
    }
    found
}

/// Whether a document can be deleted because nothing refers to it.
pub(crate) fn unused(view: &View, collection: &Collection, key: &Key) -> Result<(), Answer> {
    let id = key.id();
    for users in users_of(collection.name) {
        let documents = view.below(&format!("{users}/"));
        // A text without the id is not parsed: there may be very many.
        let may_name = |value: &str| value.contains(id) || has_escapes(value);
        let user = documents.iter().filter(|(_, document)| may_name(&document.value)).find_map(|(user, document)| {
            let reference = reference_to(key, users, &parsed(&document.value))?;
            // The document itself, or one that is deleted with it.
            let is_own = user.collection() == key.collection() && owner_of(user) == owner_of(key);
            (!is_own).then_some((reference, user.id()))
        });
        if let Some((reference, user)) = user {
            return Err(Answer::bad(in_use(collection, reference, users, user)));
        }
    }
    Ok(())
}

/// The first reference of a document to another.
pub(crate) fn reference_to(key: &Key, users: &str, document: &Json) -> Option<&'static Reference> {
    let mut found = None;
    each(users, document, &mut |reference, named| {
        if reference.target == key.collection() && named == key.id() {
            found = found.or(Some(reference));
        }
    });
    found
}

/// Why a document with a reference to it cannot be deleted.
pub(crate) fn in_use(collection: &Collection, reference: &Reference, users: &str, user: &str) -> String {
    if reference.target == "stream_routes" {
        return format!(
            "can not delete this stream route directly, stream route [{user}] is still using it as superior_id"
        );
    }
    let user_kind = crate::collections::Collection::named(users).map_or(users, |users| users.schema);
    // APISIX names the plugin's resource only for upstreams, in these words; its protos are used by plugins alone.
    let plugin = if reference.is_of_plugin() && reference.target != "protos" { "plugin in " } else { "" };
    let directly = if reference.target == "services" { " directly" } else { "" };
    format!("can not delete this {}{directly}, {plugin}{user_kind} [{user}] is still using it now", collection.kind)
}

/// Whether no other global rule has one of this rule's plugins.
pub(crate) fn alone_among_global_rules(view: &View, key: &Key, document: &Json) -> Result<(), Answer> {
    let Json::Object(plugins) = &document["plugins"] else { return Ok(()) };
    for (other, rule) in view.below("global_rules/").iter().filter(|(other, _)| other != key) {
        let rule = parsed(&rule.value);
        if let Some(name) = plugins.keys().find(|name| rule["plugins"].get(name.as_str()).is_some()) {
            let id = other.id();
            return Err(Answer::bad(format!("plugin '{name}' already exists in global rule with id '{id}'")));
        }
    }
    Ok(())
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

/// Whether no other consumer has a key of this consumer or credential.
pub(crate) fn keys_are_free(view: &View, key: &Key, document: &Json) -> Result<(), Answer> {
    for (plugin, field, value) in keys_of_consumer(document) {
        // Most documents can be excluded by their text, which is much cheaper than parsing all of them.
        let in_text = Json::from(value).to_string();
        for (other, stored) in view.below("consumers/") {
            let owner = owner_of(&other);
            let is_found = owner != owner_of(key)
                && (stored.value.contains(&in_text) || has_escapes(&stored.value))
                && parsed(&stored.value)["plugins"][plugin][field].as_str() == Some(value);
            if is_found {
                return Err(Answer::bad(format!("duplicate key found with consumer: {owner}")));
            }
        }
    }
    Ok(())
}

/// For a credential: its consumer must exist.
pub(crate) fn consumer(view: &View, username: &str) -> Result<Key, Answer> {
    let missing = || Answer::error(StatusCode::NOT_FOUND, "consumer not found");
    stored(view, "consumers", username).ok_or_else(missing)
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

fn stored(view: &View, collection: &str, id: &str) -> Option<Key> {
    let key = Key::parse(&format!("{collection}/{id}")).ok()?;
    view.get(&key).map(|_| key)
}

/// The upstreams of its plugin traffic-split.
pub(crate) fn split_upstreams(document: &Json) -> impl Iterator<Item = &Json> {
    let rules = document["plugins"]["traffic-split"]["rules"].as_array().into_iter().flatten();
    rules.flat_map(|rule| rule["weighted_upstreams"].as_array().into_iter().flatten())
}

fn same_protocol(view: &View, superior: &Key, document: &Json) -> Result<(), Answer> {
    let superior = view.get(superior).map(|superior| parsed(&superior.value)).unwrap_or_default();
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
pub(crate) fn parsed(value: &str) -> Json {
    serde_json::from_str(value).unwrap_or_default()
}
