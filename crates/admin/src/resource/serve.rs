//! Requests about resources: GET of one document, and of lists with filters and pages; and writes with the conditions that
//! their clients state.
//!
//! Lists may be very long: documents whose text rules out a match are not parsed.

use super::address::{Address, key_of_stored};
use super::plan::{Operation, PREFIX, Plan, plan};
use super::references::{CommitConditions, StateAfter, View, has_escapes, parse_document, text_of};
use crate::answer::{Answer, answer_off_thread, off_thread};
use crate::collections::{Collection, Verb};
use crate::commit::{
    ATTEMPTS_MAX, caught_up, check_writable, commit, dry_run, precondition_failed, transaction, unix_seconds,
    with_outcome,
};
use crate::control::{Control, Outcome, WriteError};
use crate::endpoints::{Api, ParsedRequest};
use crate::masks::{hide_private_keys, mask};
use crate::query::Query;
use axum::http::header::{ETAG, HeaderName, IF_MATCH, IF_NONE_MATCH, IF_UNMODIFIED_SINCE};
use axum::http::{HeaderMap, StatusCode};
use regex::{Regex, RegexBuilder};
use serde_json::{Value as Json, json};
use std::collections::HashSet;
use std::sync::Arc;
use stillgate_datastore::{Condition, Document, Key};
use stillgate_door::Role;

const API_VERSION: HeaderName = HeaderName::from_static("x-api-version");

/// GET of one document or of a list. A long list takes a while, during which other requests are served.
pub(crate) async fn get(api: Arc<Api>, asked: ParsedRequest, collection: &'static Collection) -> Answer {
    if let Err(answer) = asked.query.ttl_seconds() {
        return answer;
    }
    let address = asked.address();
    let known = asked.headers.get(IF_NONE_MATCH).cloned();
    let role = asked.caller.role;
    // Lists may be long, and their filters expensive: only a few run at once.
    let place = match address.id {
        Some(_) => None,
        None => Some(api.list_permit().await),
    };
    let found = answer_off_thread(place, move || match address.id {
        Some(_) => read_one(&*api.control, role, collection, &address),
        None => read_list(&*api.control, role, collection, &address, &asked.query),
    });
    let answer = found.await;
    let is_known = known.is_some_and(|known| answer.headers.contains(&(ETAG, known)));
    let answer =
        if is_known { Answer { headers: answer.headers, ..Answer::empty(StatusCode::NOT_MODIFIED) } } else { answer };
    answer.with(API_VERSION, "v3")
}

/// PUT, POST, PATCH and DELETE.
pub(crate) async fn write(api: &Api, asked: ParsedRequest, verb: Verb, collection: &'static Collection) -> Answer {
    let answer = match operation(&asked, verb, collection) {
        Ok(operation) => execute(api, &asked, Arc::new(operation)).await.unwrap_or_else(|answer| answer),
        Err(answer) => answer,
    };
    answer.with(API_VERSION, "v3")
}

fn operation(asked: &ParsedRequest, verb: Verb, collection: &'static Collection) -> Result<Operation, Answer> {
    let body = (verb != crate::collections::Verb::Delete).then(|| asked.body.clone());
    let ttl_seconds = asked.query.ttl_seconds()?;
    let force = asked.query.is("force", "true");
    Ok(Operation { verb, collection, address: asked.address(), body, ttl_seconds, force })
}

async fn execute(api: &Api, asked: &ParsedRequest, operation: Arc<Operation>) -> Result<Answer, Answer> {
    check_writable(api)?;
    let stated = StatedCondition::of(&asked.headers)?;
    for _ in 0..ATTEMPTS_MAX {
        let (control, planned, place) = (api.control.clone(), operation.clone(), asked.place.clone());
        // All documents are searched for references to a document.
        let planning = off_thread(move || {
            let view = View::new(control.documents());
            let planned = checked_plan(&*control, &view, &planned);
            drop(place);
            planned.map(|(plan, still)| (view, plan, still))
        });
        let (view, mut plan, still) = planning.await??;
        let old = view.get(&plan.key);
        stated.check(&plan.key, old.as_ref())?;
        if let Some(condition) = stated.condition(old.as_ref()) {
            plan.conditions.retain(|(key, _)| *key != plan.key);
            plan.conditions.push((plan.key.clone(), condition));
        }
        let conditions = plan.conditions.iter().cloned().chain(still.conditions).collect();
        let transaction = transaction(asked, conditions, still.unreferenced, plan.writes.clone());
        if asked.query.dry_run()? {
            return dry_run(api, view, transaction).await;
        }
        match commit(api, asked, transaction).await {
            Ok(outcome) => return Ok(committed_answer(plan, operation.verb, &outcome)),
            Err(WriteError::Conflict { key, modified }) if key == plan.key && stated != StatedCondition::Nothing => {
                return Err(precondition_failed(&key, modified));
            }
            Err(WriteError::Conflict { modified, .. }) => caught_up(api, modified).await,
            Err(error) => return Err(Answer::refused(&error)),
        }
    }
    Err(Answer::changed_meanwhile())
}

/// The plan of an operation whose references have been checked.
fn checked_plan(control: &dyn Control, view: &View, operation: &Operation) -> Result<(Plan, CommitConditions), Answer> {
    let plan = plan(control, view, operation, unix_seconds())?;
    let forced = if operation.force { HashSet::from([plan.key.clone()]) } else { HashSet::new() };
    let after = StateAfter::new(view, &plan.writes);
    let still = after.check_unique().and_then(|()| after.check_references(&forced));
    let still = still.map_err(|refusal| refusal.answer)?;
    Ok((plan, still))
}

fn committed_answer(plan: Plan, verb: Verb, outcome: &Outcome) -> Answer {
    let answer = match verb {
        crate::collections::Verb::Delete => plan.answer,
        _ => plan.answer.with(ETAG, &format!("\"{}\"", outcome.revision)),
    };
    with_outcome(answer, outcome)
}

// `If-Match` and `If-None-Match` of a write: the revision of the document that a client expects.
//
// An ignored condition would let a client overwrite changes it has not seen, so a condition that cannot be parsed is refused.

/// The headers that state a condition of a write (RFC 9110, section 13.1).
const CONDITIONS: [HeaderName; 3] = [IF_MATCH, IF_NONE_MATCH, IF_UNMODIFIED_SINCE];

/// Refuses conditions on a request that is not about one document, since there is no revision to compare.
pub(crate) fn refuse_conditions(headers: &HeaderMap) -> Result<(), Answer> {
    match CONDITIONS.iter().find(|name| headers.contains_key(*name)) {
        Some(name) => Err(Answer::bad(format!(
            "{} is supported in writes of one resource only, at its own path; remove it here",
            shown(name)
        ))),
        None => Ok(()),
    }
}

fn shown(name: &HeaderName) -> &'static str {
    match *name {
        IF_MATCH => "If-Match",
        IF_NONE_MATCH => "If-None-Match",
        _ => "If-Unmodified-Since",
    }
}

/// The condition that a client states.
#[derive(Debug, PartialEq, Eq)]
enum StatedCondition {
    Nothing,
    /// `If-Match: *`.
    Present,
    /// `If-None-Match: *`.
    Absent,
    /// `If-Match` with revisions.
    Revisions(Vec<u64>),
}

impl StatedCondition {
    pub(super) fn of(headers: &HeaderMap) -> Result<StatedCondition, Answer> {
        if headers.contains_key(IF_UNMODIFIED_SINCE) {
            return Err(Answer::bad("If-Unmodified-Since is not supported; send If-Match with the ETag"));
        }
        // Several lines form one list.
        let text = |name| {
            let lines = headers.get_all(name).iter().map(|value| value.to_str().unwrap_or_default().trim());
            lines.map(str::to_owned).reduce(|all, line| format!("{all},{line}"))
        };
        match (text(IF_MATCH).as_deref(), text(IF_NONE_MATCH).as_deref()) {
            (None, None) => Ok(StatedCondition::Nothing),
            (Some("*"), None) => Ok(StatedCondition::Present),
            (None, Some("*")) => Ok(StatedCondition::Absent),
            (Some(tags), None) => {
                let revision = |tag: &str| tag.trim().trim_start_matches("W/").trim_matches('"').parse().ok();
                // A tag that is not a revision matches none.
                Ok(StatedCondition::Revisions(tags.split(',').filter_map(revision).collect()))
            }
            _ => Err(Answer::bad("send either If-Match or If-None-Match: *")),
        }
    }

    /// Whether it holds for the stored document.
    pub(super) fn check(&self, key: &Key, old: Option<&Document>) -> Result<(), Answer> {
        let modified = old.map(|old| old.modified);
        let holds = match self {
            StatedCondition::Nothing => true,
            StatedCondition::Present => old.is_some(),
            StatedCondition::Absent => old.is_none(),
            StatedCondition::Revisions(revisions) => modified.is_some_and(|modified| revisions.contains(&modified)),
        };
        if holds { Ok(()) } else { Err(precondition_failed(key, modified)) }
    }

    /// The condition of the transaction, after [`check`](StatedCondition::check).
    fn condition(&self, old: Option<&Document>) -> Option<Condition> {
        match (self, old) {
            (StatedCondition::Nothing, _) => None,
            (StatedCondition::Absent, _) => Some(Condition::Absent),
            (StatedCondition::Present, _) => Some(Condition::Present),
            (StatedCondition::Revisions(_), old) => old.map(|old| Condition::Modified(old.modified)),
        }
    }
}

/// The most bytes of a filter's regex.
const FILTER_BYTES_MAX: usize = 1024;

/// The memory of a filter's compiled regex, and again of its search, in bytes. A regex that needs more matches nothing: a
/// repetition such as `(\w{100}){100}` grows to many times its text.
const REGEX_BYTES_MAX: usize = 1 << 17;

/// Fields by which routes and stream routes can be filtered.
const REFERENCE_FIELDS: [&str; 2] = ["service_id", "upstream_id"];

/// One document.
fn read_one(control: &dyn Control, role: Role, collection: &'static Collection, address: &Address) -> Answer {
    let documents = control.documents();
    let found = key_of_stored(collection, address).and_then(|key| documents.get(&key).map(|document| (key, document)));
    let Some((key, document)) = found else { return Answer::key_not_found() };
    let etag = format!("\"{}\"", document.modified);
    let value = shown_to(control, role, collection, parse_document(&document.value));
    Answer::json(StatusCode::OK, node(&key, &document, value)).with(ETAG, &etag)
}

/// All documents of a collection that match the query.
fn read_list(
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
    let mut found = stored_documents(control, collection, address);
    if found.is_empty() && collection.naming == crate::collections::DocumentNaming::Credential {
        return Answer::key_not_found();
    }
    let filter = Filter::of(collection, query);
    if let Some(filter) = &filter {
        let hides = role == Role::Viewer || collection.name == "ssls";
        let shown = |json| shown_to(control, role, collection, json);
        found.retain(|(_, document)| {
            if !filter.may_be_in(&document.value) {
                return false;
            }
            let must_parse = hides || filter.has_fields() || has_escapes(&document.value);
            // A filter must not find hidden secrets.
            let json = if must_parse { shown(parse_document(&document.value)) } else { Json::Null };
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
        node(key, document, shown_to(control, role, collection, parse_document(&document.value)))
    };
    let list: Vec<Json> = found.iter().map(node).collect();
    let mut body = json!({ "total": total });
    // Moved; `json!` would copy it.
    body["list"] = list.into();
    Answer::json(StatusCode::OK, body)
}

fn stored_documents(control: &dyn Control, collection: &Collection, address: &Address) -> Vec<(Key, Document)> {
    let documents = control.documents();
    match (collection.naming, address.parent.as_deref()) {
        (crate::collections::DocumentNaming::Credential, parent) => {
            documents.list_below(&format!("consumers/{}/credentials/", parent.unwrap_or_default()))
        }
        (crate::collections::DocumentNaming::Username, _) => {
            let mut found = documents.list_below("consumers/");
            found.retain(|(key, _)| !key.id().contains('/'));
            found
        }
        _ => documents.list_below(&format!("{}/", collection.name)),
    }
}

/// A document as this role may see it.
fn shown_to(control: &dyn Control, role: Role, collection: &Collection, mut value: Json) -> Json {
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
