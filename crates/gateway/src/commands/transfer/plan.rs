//! What leads from the resources of a gateway to those of a file: the changes, in an order in which each can be made.
//!
//! ```text
//!  what others refer to is put ─▶ consumers and global rules, the old ones first ─▶ routes ─▶ what nobody refers to any more goes
//! ```
//!
//! Global rules, consumers and credentials are deleted before new ones are created, because two may not have the same plugin or
//! key. No resource refers to them. Changes that do not fit into one batch have [another order](super::order).

use super::order::{gaps, put_in_order, reordered};
use super::resources::{Name, Resource, Resources, masks, path_of, without_possible_secrets};
use serde_json::{Map, Value as Json, json};
use std::borrow::Cow;
use std::collections::BTreeSet;
use std::sync::LazyLock;
use stillgate_config::{ResourceKind, Schemas};
use stillgate_datastore::transaction::WRITES_MAX;
use stillgate_schema::secret_texts::{MASK, is_masked};

/// What one batch takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct BatchBounds {
    changes: usize,
    /// Bytes of the operations.
    bytes: usize,
    /// Other documents that they refer to, each of which has to exist at the commit.
    references: usize,
}

impl BatchBounds {
    /// The bounds with etcd: a request has 1.5 MiB, and a transaction 128 conditions. Some are about whole collections, and each
    /// PATCH has one.
    pub(super) const SMALL: BatchBounds =
        BatchBounds { changes: WRITES_MAX, bytes: 1 << 20, references: WRITES_MAX - 24 };

    /// The bounds with a store, which makes this many as one change: the bytes are those of a request.
    pub(super) const fn of_store(changes: usize) -> BatchBounds {
        BatchBounds { changes, bytes: 31 << 20, references: usize::MAX }
    }

    /// How many of the first changes fit into one batch.
    fn fitting(&self, steps: &[TransferStep]) -> usize {
        let (mut bytes, mut references) = (0, BTreeSet::new());
        for (count, step) in steps.iter().take(self.changes).enumerate() {
            bytes += step.bytes;
            if self.references < usize::MAX {
                step.add_references(&mut references);
            }
            if bytes > self.bytes || references.len() > self.references {
                return count;
            }
        }
        steps.len().min(self.changes)
    }
}

/// What is done to a resource.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum StepKind {
    Create,
    /// A change, with the differences.
    Change(Vec<String>),
    Delete,
}

/// One change.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct TransferStep {
    pub(super) name: Name,
    pub(super) kind: StepKind,
    /// Line and column of the file.
    pub(super) at: Option<(u32, u32)>,
    /// The operation in the format of `POST /v1/batch`.
    pub(super) operation: Json,
    bytes: usize,
    /// Whether it shares a batch with the neighbours that are joined, too.
    pub(super) is_joined: bool,
}

/// All changes in their order.
#[derive(Debug)]
pub(super) struct TransferPlan {
    bounds: BatchBounds,
    pub(super) steps: Vec<TransferStep>,
    pub(super) unchanged: usize,
    /// Resources of the gateway that are not in the file.
    pub(super) extra: Vec<Name>,
    /// Routes that would be without a plugin for a moment, whatever the order.
    pub(super) gaps: Vec<String>,
    /// Pairs of routes that the gateway will try in another order than the file lists them.
    pub(super) reordered: Vec<String>,
}

/// Compares; `Err`: the masks in the file in place of secrets that cannot be known.
pub(super) fn plan(
    file: &Resources,
    there: &Resources,
    prunes: bool,
    bounds: BatchBounds,
) -> Result<TransferPlan, Vec<String>> {
    let mut plan = TransferPlan {
        bounds,
        steps: Vec::new(),
        unchanged: 0,
        extra: Vec::new(),
        gaps: Vec::new(),
        reordered: reordered(file, there),
    };
    let mut masked = Vec::new();
    for (name, resource) in file {
        let old = there.get(name);
        let keeps_keys = name.0 == ResourceKind::Ssls
            && old.is_some_and(|old| has_same_certificates(&resource.document, &old.document));
        let is_hidden_key = |place: &String| place == "key" || place.starts_with("keys[");
        let found = masks(&resource.document).into_iter().filter(|place| !(keeps_keys && is_hidden_key(place)));
        masked.extend(found.map(|place| located(name, resource, &format!("{place} is a mask"))));
        let what = match old.map(|old| differences(name, &resource.document, &old.document)) {
            None => StepKind::Create,
            Some(differences) if differences.is_empty() => {
                plan.unchanged += 1;
                continue;
            }
            Some(differences) => StepKind::Change(differences),
        };
        let operation = match old.filter(|_| keeps_keys) {
            Some(old) => patch(name, &resource.document, &old.document),
            None => json!({"method": "PUT", "path": api_path(name), "body": resource.document}),
        };
        plan.steps.push(TransferStep::new(name, what, resource.at, operation));
    }
    if !masked.is_empty() {
        return Err(masked);
    }
    plan.extra = there.keys().filter(|name| !file.contains_key(*name)).cloned().collect();
    if prunes {
        let delete = |name: &Name| {
            TransferStep::new(name, StepKind::Delete, None, json!({"method": "DELETE", "path": api_path(name)}))
        };
        plan.steps.extend(plan.extra.drain(..).map(|name| delete(&name)));
    }
    let place = |name: &Name| file.get(name).map_or(0, |resource| resource.created);
    plan.steps.sort_by_cached_key(|step| (phase(step), rank(step), place(&step.name), step.name.clone()));
    if plan.batches().len() > 1 {
        put_in_order(&mut plan.steps, file, there);
        plan.gaps = gaps(&plan.batches(), file, there);
    }
    Ok(plan)
}

impl TransferPlan {
    /// The changes that are made together.
    pub(super) fn batches(&self) -> Vec<&[TransferStep]> {
        let mut batches = Vec::new();
        let mut rest = &self.steps[..];
        while !rest.is_empty() {
            let fitting = self.bounds.fitting(rest).max(1);
            let is_cut = rest[fitting - 1].is_joined && rest.get(fitting).is_some_and(|next| next.is_joined);
            let joined = rest[..fitting].iter().rev().take_while(|step| is_cut && step.is_joined).count();
            // More than a batch takes are refused by the gateway, or found as gaps.
            let count = if joined == fitting { fitting } else { fitting - joined };
            let (batch, others) = rest.split_at(count);
            batches.push(batch);
            rest = others;
        }
        batches
    }
}

impl TransferStep {
    fn new(name: &Name, what: StepKind, at: Option<(u32, u32)>, operation: Json) -> TransferStep {
        let bytes = operation.to_string().len();
        TransferStep { name: name.clone(), kind: what, at, operation, bytes, is_joined: false }
    }

    /// Adds what is a condition of the change: each document that it may refer to, and for a PATCH its own.
    fn add_references<'a>(&'a self, references: &mut BTreeSet<Cow<'a, str>>) {
        if self.operation["method"] == "PATCH" {
            references.insert(path_of(&self.name).into());
        }
        if let (ResourceKind::Credentials, Some((consumer, _))) = (self.name.0, self.name.1.split_once('/')) {
            references.insert(consumer.into());
        }
        each_reference("", &self.operation["body"], references);
    }
}

/// Ids under keys such as `upstream_id` and `anonymous_consumer`, and secrets. Some are not references: too many are counted, never
/// too few.
fn each_reference<'a>(key: &str, value: &'a Json, references: &mut BTreeSet<Cow<'a, str>>) {
    match value {
        Json::Object(fields) => fields.iter().for_each(|(key, value)| each_reference(key, value, references)),
        Json::Array(items) => items.iter().for_each(|item| each_reference(key, item, references)),
        Json::String(text) if key.ends_with("_id") || key == "anonymous_consumer" || text.starts_with('$') => {
            references.insert(text.into());
        }
        Json::Number(number) if key.ends_with("_id") => drop(references.insert(number.to_string().into())),
        _ => {}
    }
}

/// A message about a resource of a file.
pub(super) fn located(name: &Name, resource: &Resource, message: &str) -> String {
    match resource.at {
        Some((line, column)) => format!("{line}:{column}: {}: {message}", path_of(name)),
        None => format!("{}: {message}", path_of(name)),
    }
}

fn api_path(name: &Name) -> String {
    format!("/apisix/admin/{}", path_of(name))
}

/// The change of a certificate's other fields: its keys are nowhere but in the store, so they are left alone.
fn patch(name: &Name, here: &Json, there: &Json) -> Json {
    let is_hidden = |field: &str| matches!(field, "key" | "keys" | "id");
    let fields = |document: &Json| document.as_object().cloned().unwrap_or_default();
    let mut body: Map<String, Json> = fields(here).into_iter().filter(|(field, _)| !is_hidden(field)).collect();
    for field in fields(there).keys().filter(|field| !is_hidden(field)) {
        if !body.contains_key(field) {
            body.insert(field.clone(), Json::Null);
        }
    }
    json!({"method": "PATCH", "path": api_path(name), "body": body})
}

fn phase(step: &TransferStep) -> u8 {
    let kind = step.name.0;
    let stands_alone = matches!(kind, ResourceKind::GlobalRules | ResourceKind::Credentials | ResourceKind::Consumers);
    let is_last = matches!(kind, ResourceKind::StreamRoutes | ResourceKind::Routes);
    match step.kind {
        StepKind::Delete if stands_alone => 1,
        StepKind::Delete => 4,
        _ if stands_alone => 2,
        _ if is_last => 3,
        _ => 0,
    }
}

/// Among those of a phase.
pub(super) fn rank(step: &TransferStep) -> usize {
    let kind = step.name.0 as usize;
    match (&step.kind, step.name.0) {
        // A credential needs its consumer, and goes before it.
        (StepKind::Delete, ResourceKind::Consumers) => 2 * ResourceKind::COUNT,
        // Routes and services may name protos.
        (StepKind::Delete, ResourceKind::Protos) => ResourceKind::COUNT - 1,
        (StepKind::Delete, _) => ResourceKind::COUNT - kind,
        (_, ResourceKind::Credentials) => ResourceKind::COUNT,
        (_, ResourceKind::GlobalRules) => 2 * ResourceKind::COUNT,
        (_, ResourceKind::Protos) => 0,
        // A stream route that others are subordinate to comes before them.
        (_, ResourceKind::StreamRoutes) if step.operation["body"]["protocol"]["superior_id"].is_null() => kind,
        (_, ResourceKind::StreamRoutes) => kind + 1,
        (_, ResourceKind::Routes) => kind + 2,
        _ => kind + 1,
    }
}

// Whether two documents mean the same: without ids, and without what is as if it were not written.
//
// What a key is by default says the JSON Schema, which is made of the same tables that read the documents. What is not
// recognised as equal is only written once too often: the second time it is.

/// Places that a line names; more are counted.
const PLACES_MAX: usize = 8;

/// Characters of a value that is shown.
const SHOWN_CHARS_MAX: usize = 40;

static SCHEMAS: LazyLock<Vec<Option<Json>>> = LazyLock::new(|| {
    let schemas = Schemas::new(stillgate_plugins::TABLE);
    ResourceKind::all().map(|kind| schemas.kind(kind)).collect()
});

/// The differences of two documents, as `uri: /a -> /b`; none where they mean the same. What may be a secret is not shown, since
/// logs of other programs keep these lines. Where `there` has a mask, nothing is known.
pub(super) fn differences(name: &Name, here: &Json, there: &Json) -> Vec<String> {
    let (a, b) = (normal(name, here), normal(name, there));
    if a == b {
        return Vec::new();
    }
    let mut places = Vec::new();
    compare(&a, &b, "", &mut places);
    let (shown_a, shown_b) = (without_possible_secrets(name, &a), without_possible_secrets(name, &b));
    // A key that may be a secret is not found under its name.
    let value = |document: &Json, place: &DocumentDifference| {
        value_at(document, &place.keys).map_or_else(|| MASK.to_owned(), shown)
    };
    let left_out = places.len().saturating_sub(PLACES_MAX);
    let line = |place: &DocumentDifference| match (value_at(&a, &place.keys), value_at(&b, &place.keys)) {
        (Some(_), Some(_)) => match (value(&shown_a, place), value(&shown_b, place)) {
            (here, there) if here == there => format!("{} (a secret)", place.path),
            (here, there) => format!("{}: {there} -> {here}", place.path),
        },
        (Some(_), None) => format!("{}: + {}", place.path, value(&shown_a, place)),
        (None, _) => format!("{}: removed", place.path),
    };
    let mut lines: Vec<String> = places.iter().take(PLACES_MAX).map(line).collect();
    if left_out > 0 {
        lines.push(format!("and {left_out} more"));
    }
    lines
}

/// Whether both have the same certificates: then they have the same keys, too, whatever is shown of those.
pub(super) fn has_same_certificates(here: &Json, there: &Json) -> bool {
    ["cert", "certs"].iter().all(|name| here.get(*name) == there.get(*name))
}

fn normal(name: &Name, document: &Json) -> Json {
    let (kind, _) = name;
    let mut document = document.clone();
    if let Some(fields) = document.as_object_mut() {
        ["id", "create_time", "update_time"].iter().for_each(|added| drop(fields.shift_remove(*added)));
        if *kind == ResourceKind::Ssls {
            // A key belongs to its certificate, and no answer has it.
            ["key", "keys"].iter().for_each(|hidden| drop(fields.shift_remove(*hidden)));
        }
    }
    match SCHEMAS.get(*kind as usize).and_then(Option::as_ref) {
        Some(schema) => by_schema(&document, schema, schema.get("$defs").unwrap_or(&Json::Null)),
        None => document,
    }
}

/// A value without the defaults in it.
fn by_schema(value: &Json, schema: &Json, defs: &Json) -> Json {
    let Some(schema) = fitting(value, schema, defs) else { return number(value) };
    match value {
        Json::Object(fields) => {
            let properties = schema.get("properties");
            let others = schema.get("additionalProperties").filter(|others| others.is_object());
            let mut normal = Map::new();
            for (name, field) in fields {
                match (properties.and_then(|all| all.get(name)), others) {
                    (Some(_), _) if field.is_null() => {}
                    (Some(known), _) => {
                        let field = by_schema(field, known, defs);
                        let default = known.get("default").map(|default| by_schema(default, known, defs));
                        if default.as_ref() != Some(&field) {
                            normal.insert(name.clone(), field);
                        }
                    }
                    (None, Some(others)) => drop(normal.insert(name.clone(), by_schema(field, others, defs))),
                    (None, None) => drop(normal.insert(name.clone(), number(field))),
                }
            }
            Json::Object(normal)
        }
        Json::Array(items) => match schema.get("items") {
            Some(of_items) => items.iter().map(|item| by_schema(item, of_items, defs)).collect(),
            None => number(value),
        },
        value => number(value),
    }
}

/// The part of a schema that a value is of.
fn fitting<'a>(value: &Json, schema: &'a Json, defs: &'a Json) -> Option<&'a Json> {
    if let Some(reference) = schema.get("$ref").and_then(Json::as_str) {
        let name = reference.strip_prefix("#/$defs/")?;
        return fitting(value, defs.get(name)?, defs);
    }
    let Some(choices) = schema.get("anyOf").or_else(|| schema.get("oneOf")).and_then(Json::as_array) else {
        return Some(schema);
    };
    let choices: Vec<&Json> = choices.iter().filter_map(|choice| fitting(value, choice, defs)).collect();
    let of_type = |wanted: &str| {
        let is_wanted = move |schema: &&&Json| match schema.get("type") {
            Some(Json::String(own)) => own == wanted,
            Some(Json::Array(all)) => all.iter().any(|own| own == wanted),
            _ => false,
        };
        choices.iter().filter(is_wanted).copied().collect::<Vec<_>>()
    };
    match value {
        Json::Object(fields) => {
            let objects = of_type("object");
            let knows_all = |schema: &&&Json| fields.keys().all(|name| schema["properties"].get(name).is_some());
            objects.iter().find(knows_all).or(objects.first()).copied()
        }
        Json::Array(_) => of_type("array").first().copied(),
        _ => choices.first().copied(),
    }
}

/// 1.0 is 1, as Lua has it.
fn number(value: &Json) -> Json {
    match value {
        Json::Number(number) => match number.as_f64() {
            Some(float) if number.is_f64() && float.fract() == 0.0 && float.abs() < 1e15 => (float as i64).into(),
            _ => value.clone(),
        },
        Json::Array(items) => items.iter().map(number).collect(),
        Json::Object(fields) => {
            Json::Object(fields.iter().map(|(name, field)| (name.clone(), number(field))).collect())
        }
        value => value.clone(),
    }
}

/// Where two documents differ.
struct DocumentDifference {
    keys: Vec<String>,
    path: String,
}

fn compare(here: &Json, there: &Json, path: &str, places: &mut Vec<DocumentDifference>) {
    let mut walk = Walk { keys: Vec::new(), places };
    walk.compare(here, there, path);
}

struct Walk<'a> {
    keys: Vec<String>,
    places: &'a mut Vec<DocumentDifference>,
}

impl Walk<'_> {
    fn compare(&mut self, here: &Json, there: &Json, path: &str) {
        if here == there || there.as_str().is_some_and(is_masked) {
            return;
        }
        let (Json::Object(a), Json::Object(b)) = (here, there) else {
            self.places.push(DocumentDifference { keys: self.keys.clone(), path: path.to_owned() });
            return;
        };
        let added = b.keys().filter(|name| !a.contains_key(*name));
        for name in a.keys().chain(added) {
            let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
            self.keys.push(name.clone());
            match (a.get(name), b.get(name)) {
                (Some(here), Some(there)) => self.compare(here, there, &path),
                _ => self.places.push(DocumentDifference { keys: self.keys.clone(), path }),
            }
            self.keys.pop();
        }
    }
}

fn value_at<'a>(value: &'a Json, keys: &[String]) -> Option<&'a Json> {
    keys.iter().try_fold(value, |value, key| value.get(key))
}

fn shown(value: &Json) -> String {
    let text = value.to_string();
    match text.char_indices().nth(SHOWN_CHARS_MAX) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resources(names: &[(ResourceKind, &str, Json)]) -> Resources {
        let resource = |(index, (kind, id, document)): (usize, &(ResourceKind, &str, Json))| {
            let resource = Resource { document: document.clone(), created: index as u64, at: Some((7, 3)) };
            ((*kind, (*id).to_owned()), resource)
        };
        names.iter().enumerate().map(resource).collect()
    }

    fn steps(plan: &TransferPlan) -> Vec<String> {
        let step =
            |step: &TransferStep| format!("{} {}", step.operation["method"].as_str().unwrap(), path_of(&step.name));
        plan.steps.iter().map(step).collect()
    }

    #[test]
    fn what_is_referred_to_comes_first_and_goes_last() {
        let all = |suffix: &str| {
            let id = |name: &str| format!("{name}{suffix}");
            ResourceKind::all()
                .map(|kind| {
                    (kind, if kind == ResourceKind::Credentials { id("jack/1") } else { id("x") }, json!({"n": suffix}))
                })
                .collect::<Vec<_>>()
        };
        let (new, old) = (all(""), all("-old"));
        let borrowed = |all: &[(ResourceKind, String, Json)]| {
            resources(&all.iter().map(|(kind, id, json)| (*kind, id.as_str(), json.clone())).collect::<Vec<_>>())
        };
        let plan = plan(&borrowed(&new), &borrowed(&old), true, BatchBounds::SMALL).unwrap();
        assert_eq!(
            steps(&plan),
            [
                "PUT protos/x",
                "PUT secrets/x",
                "PUT ssls/x",
                "PUT upstreams/x",
                "PUT plugin_metadata/x",
                "PUT plugin_configs/x",
                "PUT consumer_groups/x",
                "PUT services/x",
                "DELETE global_rules/x-old",
                "DELETE consumers/jack/credentials/1-old",
                "DELETE consumers/x-old",
                "PUT consumers/x",
                "PUT consumers/jack/credentials/1",
                "PUT global_rules/x",
                "PUT stream_routes/x",
                "PUT routes/x",
                "DELETE routes/x-old",
                "DELETE stream_routes/x-old",
                "DELETE services/x-old",
                "DELETE consumer_groups/x-old",
                "DELETE plugin_configs/x-old",
                "DELETE plugin_metadata/x-old",
                "DELETE upstreams/x-old",
                "DELETE ssls/x-old",
                "DELETE protos/x-old",
                "DELETE secrets/x-old",
            ]
        );
    }

    #[test]
    fn batches_are_bounded_in_number_and_bytes() {
        let routes = |count: usize, name: &str, bounds| {
            let route = |id: usize| ((ResourceKind::Routes, id.to_string()), json!({"uri": "/", "name": name}));
            let all = (0..count).map(route).map(|(name, document)| (name, Resource { document, created: 0, at: None }));
            plan(&all.collect(), &Resources::new(), false, bounds).unwrap()
        };
        let sizes = |plan: &TransferPlan| plan.batches().iter().map(|batch| batch.len()).collect::<Vec<_>>();
        assert_eq!(sizes(&routes(300, "", BatchBounds::SMALL)), [128, 128, 44]);
        assert_eq!(sizes(&routes(300, "", BatchBounds::of_store(1000))), [300]);
        let long = "x".repeat(600_000);
        assert_eq!(sizes(&routes(3, &long, BatchBounds::SMALL)), [1, 1, 1]);
        assert_eq!(sizes(&routes(55, &long, BatchBounds::of_store(1000))), [54, 1]);
        assert_eq!(sizes(&routes(0, "", BatchBounds::SMALL)), [0; 0]);
        // Each of two upstreams is a condition of the transaction.
        let route = |id: usize| {
            let document = json!({"uri": "/", "upstream_id": format!("u{}", id / 2), "service_id": id});
            ((ResourceKind::Routes, id.to_string()), Resource { document, created: 0, at: None })
        };
        let referring = |bounds| plan(&(0..140).map(route).collect(), &Resources::new(), false, bounds).unwrap();
        assert_eq!(sizes(&referring(BatchBounds::SMALL)), [69, 69, 2]);
        assert_eq!(sizes(&referring(BatchBounds::of_store(1000))), [140]);
    }

    #[test]
    fn masks_are_refused_but_for_a_key_that_is_known() {
        let mask = stillgate_admin::MASK;
        let ssl = |sni: &str, key: &str| json!({"cert": "c", "key": key, "snis": [sni]});
        let of = |document| resources(&[(ResourceKind::Ssls, "1", document)]);
        let changed = plan(&of(ssl("b", mask)), &of(ssl("a", mask)), false, BatchBounds::SMALL).unwrap();
        assert_eq!(
            changed.steps[0].operation,
            json!({"method": "PATCH", "path": "/apisix/admin/ssls/1", "body": {"cert": "c", "snis": ["b"]}})
        );
        let refused = plan(&of(ssl("b", mask)), &Resources::new(), false, BatchBounds::SMALL).unwrap_err();
        assert_eq!(refused, ["7:3: ssls/1: key is a mask"]);
        let consumer = json!({"username": "jack", "plugins": {"key-auth": {"key": mask}}});
        let consumers = resources(&[(ResourceKind::Consumers, "jack", consumer)]);
        assert_eq!(
            plan(&consumers, &consumers, false, BatchBounds::SMALL).unwrap_err(),
            ["7:3: consumers/jack: plugins.key-auth.key is a mask"]
        );
    }
}

#[cfg(test)]
mod meaning_tests {
    use super::*;
    use serde_json::json;
    use stillgate_admin::MASK;

    fn check(kind: ResourceKind, here: Json, there: Json, expected: &[&str]) {
        assert_eq!(differences(&(kind, "1".to_owned()), &here, &there), expected, "{here} {there}");
    }

    #[test]
    fn what_means_the_same_does_not_differ() {
        check(
            ResourceKind::Routes,
            json!({"uri": "/a", "status": 1, "priority": 0, "name": null, "upstream": {"type": "roundrobin", "nodes": {"a:80": 1}}}),
            json!({"id": "1", "uri": "/a", "create_time": 5, "upstream": {"nodes": {"a:80": 1.0}}}),
            &[],
        );
        check(
            ResourceKind::Routes,
            json!({"uri": "/a", "plugins": {}}),
            json!({"uri": "/a", "plugins": {"cors": {}}}),
            &["plugins.cors: removed"],
        );
        check(
            ResourceKind::Routes,
            json!({"uri": "/a"}),
            json!({"uri": "/b", "priority": 1}),
            &["uri: \"/b\" -> \"/a\"", "priority: removed"],
        );
        check(ResourceKind::Ssls, json!({"cert": "c", "key": "k"}), json!({"cert": "c", "key": MASK}), &[]);
    }

    #[test]
    fn secrets_are_not_shown() {
        let with = |key: &str| json!({"username": "jack", "plugins": {"key-auth": {"key": key}}});
        check(ResourceKind::Consumers, with("one"), with("two"), &["plugins.key-auth.key (a secret)"]);
        check(ResourceKind::Consumers, with("one"), with(MASK), &[]);
        let route =
            |value: &str| json!({"plugins": {"proxy-rewrite": {"headers": {"set": {"X": value}}, "uri": value}}});
        check(
            ResourceKind::Routes,
            route("/a?x=one"),
            route("/b?x=two"),
            &[
                "plugins.proxy-rewrite.headers.set.X (a secret)",
                "plugins.proxy-rewrite.uri: \"/b?********\" -> \"/a?********\"",
            ],
        );
        check(
            ResourceKind::Routes,
            json!({"unknown": {"k": 1}}),
            json!({"unknown": {"k": 2}}),
            &["unknown.k (a secret)"],
        );
        check(
            ResourceKind::Routes,
            json!({"vars": [["http_x", "==", "a"]]}),
            json!({}),
            &["vars: + [[\"http_x\",\"==\",\"********\"]]"],
        );
    }
}
