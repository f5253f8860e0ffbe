//! References between resources: what a document refers to has to be there, and what is referred to cannot be deleted.
//!
//! In APISIX's words. References that APISIX does not check, such as the upstreams of `traffic-split`, are not checked here
//! either; the gateway rejects resources with dangling references whatever their source is.

use super::view::View;
use crate::answer::Answer;
use crate::collections::Collection;
use axum::http::StatusCode;
use serde_json::Value as Json;
use stillgate_datastore::{Key, Unreferenced};

/// Fields that name another document: in which collections, and how APISIX calls what it looks for.
const REFERENCES: [(&[&str], &str, &str, &str); 4] = [
    (&["routes", "services", "stream_routes"], "upstream_id", "upstreams", "upstream"),
    (&["routes", "stream_routes"], "service_id", "services", "service"),
    (&["routes"], "plugin_config_id", "plugin_configs", "plugin config"),
    (&["consumers"], "group_id", "consumer_groups", "consumer group"),
];

/// What can use an upstream by a plugin, how APISIX calls it, and whether it has an `upstream_id` itself.
const USERS_OF_UPSTREAMS: [(&str, &str, bool); 7] = [
    ("routes", "route", true),
    ("services", "service", true),
    ("stream_routes", "stream_route", true),
    ("plugin_configs", "plugin_config", false),
    ("consumers", "consumer", false),
    ("consumer_groups", "consumer_group", false),
    ("global_rules", "global_rule", false),
];

/// The keys that a document refers to and that are stored; `Err`: one is missing.
pub(crate) fn present(view: &View, collection: &Collection, document: &Json) -> Result<Vec<Key>, Answer> {
    let mut found = Vec::new();
    for (collections, field, target, kind) in REFERENCES {
        let (true, Some(id)) = (collections.contains(&collection.name), text_of(&document[field])) else { continue };
        let missing = format!("failed to fetch {kind} info by {kind} id [{id}], response code: 404");
        found.push(stored(view, target, &id).ok_or_else(|| Answer::bad(missing))?);
    }
    if let ("stream_routes", Some(id)) = (collection.name, text_of(&document["protocol"]["superior_id"])) {
        let missing = format!("failed to fetch stream routes[{id}], response code: 404");
        let key = stored(view, "stream_routes", &id).ok_or_else(|| Answer::bad(missing))?;
        same_protocol(view, &key, document)?;
        found.push(key);
    }
    Ok(found)
}

/// The keys that the plugins of a document refer to and that are stored. Whether all of them have to be is not decided here.
pub(crate) fn of_plugins(view: &View, document: &Json) -> Vec<Key> {
    let upstreams = split_upstreams(document).filter_map(|upstream| text_of(&upstream["upstream_id"]));
    let upstreams = upstreams.filter_map(|id| stored(view, "upstreams", &id));
    let proto = text_of(&document["plugins"]["grpc-transcode"]["proto_id"]);
    upstreams.chain(proto.and_then(|id| stored(view, "protos", &id))).collect()
}

/// What has to hold until a document is deleted that nothing refers to.
pub(crate) fn still_unused(view: &View, collection: &Collection, id: &str) -> Vec<Unreferenced> {
    let users: Vec<&str> = match collection.name {
        "upstreams" => USERS_OF_UPSTREAMS.iter().map(|(users, ..)| *users).collect(),
        "services" => vec!["routes", "stream_routes"],
        "plugin_configs" => vec!["routes"],
        "consumer_groups" => vec!["consumers"],
        "protos" => vec!["routes", "services"],
        "stream_routes" => vec!["stream_routes"],
        _ => Vec::new(),
    };
    let still =
        |users: &str| Unreferenced { below: format!("{users}/"), since: view.revision(), mention: id.to_owned() };
    users.into_iter().map(still).collect()
}

/// What has to hold until a document is written that has what only one may have: plugins of a global rule, keys of a consumer,
/// names of a certificate.
pub(crate) fn still_alone(view: &View, collection: &Collection, document: &Json) -> Vec<Unreferenced> {
    let (below, mentions): (&str, Vec<String>) = match collection.name {
        "global_rules" => {
            let plugins = document["plugins"].as_object().into_iter().flat_map(|plugins| plugins.keys());
            ("global_rules/", plugins.map(|plugin| format!("\"{plugin}\"")).collect())
        }
        "consumers" | "credentials" => {
            ("consumers/", keys_of_consumer(document).map(|(_, _, key)| Json::from(key).to_string()).collect())
        }
        // Names may be written in several ways.
        "ssls" => ("ssls/", vec![String::new()]),
        _ => return Vec::new(),
    };
    let still = |mention| Unreferenced { below: below.to_owned(), since: view.revision(), mention };
    mentions.into_iter().map(still).collect()
}

/// What is stored of all that a document refers to.
pub(crate) fn referred(view: &View, collection: &Collection, key: &Key, document: &Json) -> Vec<Key> {
    let of_fields = REFERENCES.iter().filter(|(collections, ..)| collections.contains(&collection.name));
    let of_fields = of_fields.filter_map(|(_, field, target, _)| Some((*target, text_of(&document[*field])?)));
    let superior = text_of(&document["protocol"]["superior_id"]).filter(|_| collection.name == "stream_routes");
    let superior = superior.map(|id| ("stream_routes", id));
    let consumer = (collection.name == "credentials").then(|| ("consumers", owner_of(key).to_owned()));
    let named = of_fields.chain(superior).chain(consumer);
    let found = named.filter_map(|(target, id)| stored(view, target, &id));
    found.chain(of_plugins(view, document)).collect()
}

/// Whether nothing refers to a document, so that it can be deleted.
pub(crate) fn unused(view: &View, collection: &Collection, id: &str) -> Result<(), Answer> {
    let by_field = |users: &str, field: &str| user(view, users, id, |document| is_text(&document[field], id));
    let message = match collection.name {
        "upstreams" => user_of_upstream(view, id).map(|user| format!("can not delete this upstream, {user}")),
        "services" => {
            let user = |users: &str, kind: &str| by_field(users, "service_id").map(|user| format!("{kind} [{user}]"));
            let found = user("routes", "route").or_else(|| user("stream_routes", "stream_route"));
            found.map(|user| format!("can not delete this service directly, {user}"))
        }
        "plugin_configs" => by_field("routes", "plugin_config_id")
            .map(|route| format!("can not delete this plugin config, route [{route}]")),
        "consumer_groups" => by_field("consumers", "group_id")
            .map(|consumer| format!("can not delete this consumer group, consumer [{consumer}]")),
        "protos" => {
            let uses = |document: &Json| is_text(&document["plugins"]["grpc-transcode"]["proto_id"], id);
            let user = |users: &str, kind: &str| user(view, users, id, uses).map(|user| format!("{kind} [{user}]"));
            let found = user("routes", "route").or_else(|| user("services", "service"));
            found.map(|user| format!("can not delete this proto, {user}"))
        }
        "stream_routes" => {
            let superior =
                user(view, "stream_routes", id, |document| is_text(&document["protocol"]["superior_id"], id));
            return superior.map_or(Ok(()), |route| {
                Err(Answer::bad(format!(
                    "can not delete this stream route directly, stream route [{route}] is still using it as superior_id"
                )))
            });
        }
        _ => None,
    };
    message.map_or(Ok(()), |message| Err(Answer::bad(format!("{message} is still using it now"))))
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

/// Whether no other consumer is found by a key of this consumer or credential.
pub(crate) fn keys_are_free(view: &View, key: &Key, document: &Json) -> Result<(), Answer> {
    for (plugin, field, value) in keys_of_consumer(document) {
        // Most documents are told apart by their text, which is much cheaper than parsing all of them.
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

/// For a credential: its consumer has to be there.
pub(crate) fn consumer(view: &View, username: &str) -> Result<Key, Answer> {
    let missing = || Answer::error(StatusCode::NOT_FOUND, "consumer not found");
    stored(view, "consumers", username).ok_or_else(missing)
}

/// An id as text, written as a number or as text.
pub(crate) fn text_of(id: &Json) -> Option<String> {
    match id {
        Json::String(text) => Some(text.clone()),
        Json::Number(number) => Some(match number.as_f64() {
            // Lua knows no difference between 1 and 1.0.
            Some(whole) if whole.fract() == 0.0 && whole.abs() < 1e15 => format!("{whole:.0}"),
            _ => number.to_string(),
        }),
        _ => None,
    }
}

fn is_text(id: &Json, text: &str) -> bool {
    text_of(id).is_some_and(|id| id == text)
}

fn stored(view: &View, collection: &str, id: &str) -> Option<Key> {
    let key = Key::parse(&format!("{collection}/{id}")).ok()?;
    view.get(&key).map(|_| key)
}

/// The id of the first document that uses `id`. A text without it is not parsed: there may be very many.
fn user(view: &View, collection: &str, id: &str, uses: impl Fn(&Json) -> bool) -> Option<String> {
    let documents = view.below(&format!("{collection}/"));
    let found =
        documents.into_iter().find(|(_, document)| document.value.contains(id) && uses(&parsed(&document.value)));
    found.map(|(key, _)| key.id().to_owned())
}

fn user_of_upstream(view: &View, id: &str) -> Option<String> {
    USERS_OF_UPSTREAMS.iter().find_map(|(collection, kind, has_upstream)| {
        let documents = view.below(&format!("{collection}/"));
        documents.iter().filter(|(_, document)| document.value.contains(id)).find_map(|(key, document)| {
            let (user, document) = (key.id(), parsed(&document.value));
            match splits_to(&document, id) {
                true => Some(format!("plugin in {kind} [{user}]")),
                false => (*has_upstream && is_text(&document["upstream_id"], id)).then(|| format!("{kind} [{user}]")),
            }
        })
    })
}

/// Whether its plugin traffic-split sends requests to this upstream.
fn splits_to(document: &Json, id: &str) -> bool {
    split_upstreams(document).any(|upstream| is_text(&upstream["upstream_id"], id))
}

/// What its plugin traffic-split sends requests to.
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

/// Whether a text of JSON may have other letters than the texts that it stands for: APISIX writes `\/` for a slash.
pub(crate) fn has_escapes(value: &str) -> bool {
    value.contains('\\')
}

/// A stored document. One that is no JSON refers to nothing.
pub(crate) fn parsed(value: &str) -> Json {
    serde_json::from_str(value).unwrap_or_default()
}
