//! GET of one document, and of lists with filters and pages.
//!
//! Lists may be very long: documents whose text rules out a match are not parsed.

use super::address::{Address, key_of_stored};
use super::plan::PREFIX;
use super::references::{has_escapes, parsed, text_of};
use crate::answer::Answer;
use crate::collections::Collection;
use crate::control::Control;
use crate::masks::{hide_private_keys, mask};
use crate::query::Query;
use axum::http::StatusCode;
use axum::http::header::ETAG;
use regex::{Regex, RegexBuilder};
use serde_json::{Value as Json, json};
use stillgate_datastore::{Document, Key};
use stillgate_door::Role;

/// The most bytes of a filter's regex.
const FILTER_BYTES_MAX: usize = 1024;

/// The memory of a filter's compiled regex, and again of its search, in bytes. A regex that needs more matches nothing: a
/// repetition such as `(\w{100}){100}` grows to many times its text.
const REGEX_BYTES_MAX: usize = 1 << 17;

/// Fields by which routes and stream routes can be filtered.
const REFERENCE_FIELDS: [&str; 2] = ["service_id", "upstream_id"];

/// One document.
pub(crate) fn one(control: &dyn Control, role: Role, collection: &'static Collection, address: &Address) -> Answer {
    let documents = control.documents();
    let found = key_of_stored(collection, address).and_then(|key| documents.get(&key).map(|document| (key, document)));
    let Some((key, document)) = found else { return Answer::key_not_found() };
    let etag = format!("\"{}\"", document.modified);
    let value = shown(control, role, collection, parsed(&document.value));
    Answer::json(StatusCode::OK, node(&key, &document, value)).with(ETAG, &etag)
}

/// All documents of a collection that match the query.
pub(crate) fn list(
    control: &dyn Control,
    role: Role,
    collection: &'static Collection,
    address: &Address,
    query: &Query,
) -> Answer {
    let page = match query.page() {
        Ok(page) => page,
        Err(answer) => return answer,
    };
    let mut found = documents(control, collection, address);
    if found.is_empty() && collection.naming == crate::collections::Naming::Credential {
        return Answer::key_not_found();
    }
    let filter = Filter::of(collection, query);
    if let Some(filter) = &filter {
        let hides = role == Role::Viewer || collection.name == "ssls";
        let shown = |json| shown(control, role, collection, json);
        found.retain(|(_, document)| {
            if !filter.may_be_in(&document.value) {
                return false;
            }
            let must_parse = hides || filter.has_fields() || has_escapes(&document.value);
            // A filter must not find hidden secrets.
            let json = if must_parse { shown(parsed(&document.value)) } else { Json::Null };
            filter.matches(&json) && (!must_parse || filter.is_found_in(&json.to_string()))
        });
    }
    let total = found.len();
    if let Some(page) = page {
        found.sort_by_key(|(_, document)| document.created);
        let from = (page.number - 1).saturating_mul(page.size).min(total);
        found.truncate(from.saturating_add(page.size).min(total));
        found.drain(..from);
    }
    let node = |(key, document): &(Key, Document)| {
        node(key, document, shown(control, role, collection, parsed(&document.value)))
    };
    let list: Vec<Json> = found.iter().map(node).collect();
    Answer::json(StatusCode::OK, json!({ "total": total, "list": list }))
}

fn documents(control: &dyn Control, collection: &Collection, address: &Address) -> Vec<(Key, Document)> {
    let documents = control.documents();
    match (collection.naming, address.parent.as_deref()) {
        (crate::collections::Naming::Credential, parent) => {
            documents.below(&format!("consumers/{}/credentials/", parent.unwrap_or_default()))
        }
        (crate::collections::Naming::Username, _) => {
            let mut found = documents.below("consumers/");
            found.retain(|(key, _)| !key.id().contains('/'));
            found
        }
        _ => documents.below(&format!("{}/", collection.name)),
    }
}

/// A document as this role may see it.
fn shown(control: &dyn Control, role: Role, collection: &Collection, mut value: Json) -> Json {
    hide_private_keys(collection, &mut value);
    if role == Role::Viewer {
        mask(control, collection, &mut value);
    }
    value
}

fn node(key: &Key, document: &Document, value: Json) -> Json {
    json!({
        "key": format!("{PREFIX}{key}"),
        "value": value,
        "createdIndex": document.created,
        "modifiedIndex": document.modified,
    })
}

/// The filters of a list; all have to match.
struct Filter {
    name: Option<Matcher>,
    uri: Option<Matcher>,
    label: Option<String>,
    references: Vec<(&'static str, String)>,
    /// Text anywhere in the document, case-insensitive. APISIX does not have this filter.
    search: Option<Matcher>,
}

/// A regex; `None`: it is invalid and matches nothing, as in APISIX.
struct Matcher(Option<Regex>);

impl Matcher {
    fn of(query: &Query, name: &str) -> Option<Matcher> {
        query.get(name).map(|text| Matcher(regex(text, false)))
    }

    fn matches(&self, text: &Json) -> bool {
        text.as_str().is_some_and(|text| self.is_in(text))
    }

    fn is_in(&self, text: &str) -> bool {
        self.0.as_ref().is_some_and(|regex| regex.is_match(text))
    }
}

impl Filter {
    /// `None`: everything matches.
    fn of(collection: &Collection, query: &Query) -> Option<Filter> {
        let references = match query.get("filter") {
            Some(filter) if collection.has_reference_filter => {
                let asked = Query::parse(Some(filter));
                let value = |field: &'static str| asked.get(field).map(|value| (field, value.to_owned()));
                REFERENCE_FIELDS.into_iter().filter_map(value).collect()
            }
            _ => Vec::new(),
        };
        let filter = Filter {
            name: Matcher::of(query, "name"),
            uri: Matcher::of(query, "uri"),
            label: query.get("label").map(str::to_owned),
            references,
            search: query.get("search").filter(|text| !text.is_empty()).map(|text| Matcher(anywhere(text))),
        };
        (filter.has_fields() || filter.search.is_some()).then_some(filter)
    }

    /// Whether it has more than a search, which needs no parsing.
    fn has_fields(&self) -> bool {
        self.name.is_some() || self.uri.is_some() || self.label.is_some() || !self.references.is_empty()
    }

    /// False only if the text certainly does not occur in the decoded document.
    fn may_be_in(&self, text: &str) -> bool {
        self.is_found_in(text) || has_escapes(text)
    }

    fn is_found_in(&self, text: &str) -> bool {
        self.search.as_ref().is_none_or(|search| search.is_in(text))
    }

    fn matches(&self, json: &Json) -> bool {
        let in_uris = |uri: &Matcher| {
            let uris = json["uris"].as_array().into_iter().flatten();
            uri.matches(&json["uri"]) || uris.into_iter().any(|each| uri.matches(each))
        };
        let refers = |(field, id): &(&str, String)| text_of(&json[*field]).as_ref() == Some(id);
        self.name.as_ref().is_none_or(|name| name.matches(&json["name"]))
            && self.uri.as_ref().is_none_or(in_uris)
            && self.label.as_ref().is_none_or(|label| json["labels"].get(label.as_str()).is_some())
            && self.references.iter().all(refers)
    }
}

/// Searches for a text in its JSON encoding.
fn anywhere(text: &str) -> Option<Regex> {
    let quoted = Json::from(text).to_string();
    let pattern = regex::escape(&quoted[1..quoted.len() - 1]);
    regex(&pattern, true)
}

fn regex(pattern: &str, is_any_case: bool) -> Option<Regex> {
    if pattern.len() > FILTER_BYTES_MAX {
        return None;
    }
    let mut builder = RegexBuilder::new(pattern);
    builder.case_insensitive(is_any_case).size_limit(REGEX_BYTES_MAX).dfa_size_limit(REGEX_BYTES_MAX);
    builder.build().ok()
}
