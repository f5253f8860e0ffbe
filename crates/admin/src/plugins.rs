//! `plugins/…` and `schema/…`: lists plugins, returns the schemas of plugins and resources, and validates against them.

use crate::answer::Answer;
use crate::api::Api;
use crate::collections::COLLECTIONS;
use crate::control::Plugin;
use crate::endpoints::ParsedRequest;
use crate::masks::{MASK, has_mask};
use crate::resource::rules;
use axum::http::StatusCode;
use axum::http::header::HeaderName;
use serde_json::{Map, Value as Json, json};

/// The version that APISIX reports for its plugins; ours have none.
const VERSION: f64 = 0.1;

/// `plugins/list`: names by descending priority.
pub(crate) fn list(api: &Api, asked: &ParsedRequest) -> Answer {
    let Some(is_listed) = subsystem(asked.query.get("subsystem")) else {
        return Answer::text(StatusCode::BAD_REQUEST, "invalid subsystem passed");
    };
    let names: Vec<Json> = of_subsystem(api, is_listed).map(|plugin| plugin.name.into()).collect();
    Answer::json(StatusCode::OK, names.into())
}

/// `plugins/{name}` and `plugins?all=true`.
pub(crate) fn schema(api: &Api, asked: &ParsedRequest) -> Answer {
    let asked_for = asked.query.get("subsystem");
    let Some(is_listed) = subsystem(asked_for) else {
        return Answer::bad(format!("unsupported subsystem: {}", asked_for.unwrap_or_default()));
    };
    if asked.query.is("all", "true") {
        let all: Map<String, Json> =
            of_subsystem(api, is_listed).map(|plugin| (plugin.name.to_owned(), described(api, plugin))).collect();
        return of_version_3(Answer::json(StatusCode::OK, all.into()));
    }
    let name = asked.parts.get("name").map_or("", String::as_str);
    let is_known = of_subsystem(api, is_listed).any(|plugin| plugin.name == name);
    let Some(schemas) = api.control.plugin_schema(name).filter(|_| is_known) else {
        let message = format!("plugin not found in subsystem {}", asked_for.unwrap_or("http"));
        return of_version_3(Answer::error(StatusCode::NOT_FOUND, message));
    };
    let schema = match asked.query.get("schema_type") {
        Some("consumer") => schemas.consumer,
        Some("metadata") => schemas.metadata,
        _ => Some(schemas.schema),
    };
    of_version_3(schema.map_or_else(|| Answer::bad("not found schema"), |schema| Answer::json(StatusCode::OK, schema)))
}

/// `schema/{kind}` with the kind in the singular; the plural is accepted, too.
pub(crate) fn schema_of_kind(api: &Api, asked: &ParsedRequest) -> Answer {
    let kind = asked.parts.get("kind").map_or("", String::as_str);
    let collection = COLLECTIONS.iter().find(|collection| collection.schema == kind || collection.name == kind);
    let schema = collection.and_then(|collection| api.control.schema(collection.name));
    let missing = || Answer::bad(format!("not found schema: {kind}"));
    of_version_3(schema.map_or_else(missing, |schema| Answer::json(StatusCode::OK, schema)))
}

/// `schema/validate/{kind}` with the kind in the plural.
pub(crate) fn validate(api: &Api, asked: &ParsedRequest) -> Answer {
    let kind = asked.parts.get("kind").cloned().unwrap_or_default();
    let Some(collection) = crate::collections::Collection::named(&kind) else {
        return Answer::error(StatusCode::NOT_FOUND, format!("Unsupported resource type: {kind}"));
    };
    let document = match asked.json() {
        Ok(document) => document.unwrap_or_default(),
        Err(answer) => return answer,
    };
    if has_mask(&document) {
        return Answer::bad(format!("the document has a masked secret ({MASK})"));
    }
    match rules::check(collection, &document).and_then(|()| api.control.validate(collection.name, &document)) {
        Ok(()) => Answer::empty(StatusCode::OK),
        Err(message) => Answer::bad(message),
    }
}

/// The filter for plugins of a subsystem; `None`: the subsystem does not exist.
fn subsystem(name: Option<&str>) -> Option<fn(&Plugin) -> bool> {
    match name {
        None | Some("http") => Some(|plugin| plugin.is_http),
        Some("stream") => Some(|plugin| plugin.is_stream),
        Some(_) => None,
    }
}

fn of_subsystem(api: &Api, is_listed: fn(&Plugin) -> bool) -> impl Iterator<Item = Plugin> {
    api.control.plugins().into_iter().filter(is_listed)
}

fn described(api: &Api, plugin: Plugin) -> Json {
    let schemas = api.control.plugin_schema(plugin.name).unwrap_or_default();
    let mut described = json!({ "version": VERSION, "priority": plugin.priority, "schema": schemas.schema });
    if plugin.is_auth {
        described["type"] = "auth".into();
    }
    if let Some(schema) = schemas.consumer {
        described["consumer_schema"] = schema;
    }
    if let Some(schema) = schemas.metadata {
        described["metadata_schema"] = schema;
    }
    described
}

fn of_version_3(answer: Answer) -> Answer {
    answer.with(HeaderName::from_static("x-api-version"), "v3")
}
