//! What clients can learn of the interface itself. `plugins/…` and `schema/…` list plugins, return the schemas of plugins
//! and resources, and validate against them. `GET /v1/openapi.json` is a description generated from the router's table and
//! from the schemas that validate resources.

use crate::answer::{Answer, Content};
use crate::collections::COLLECTIONS;
use crate::control::Plugin;
use crate::endpoints::{Action, Api, Endpoint, ParsedRequest};
use crate::masks::{MASK, has_mask};
use crate::resource::rules;
use axum::http::StatusCode;
use axum::http::header::HeaderName;
use serde_json::{Map, Value as Json, json};
use stillgate_datastore::transaction::STORE_WRITES_MAX;

/// The version that APISIX reports for its plugins; ours have none.
const VERSION: f64 = 0.1;

/// `plugins/list`: names by descending priority.
pub(crate) fn list_plugins(api: &Api, asked: &ParsedRequest) -> Answer {
    let Some(is_listed) = subsystem(asked.query.get("subsystem")) else {
        return Answer::text(StatusCode::BAD_REQUEST, "invalid subsystem passed");
    };
    let names: Vec<Json> = of_subsystem(api, is_listed).map(|plugin| plugin.name.into()).collect();
    Answer::json(StatusCode::OK, names.into())
}

/// `plugins/{name}` and `plugins?all=true`.
pub(crate) fn plugin_schema(api: &Api, asked: &ParsedRequest) -> Answer {
    let asked_for = asked.query.get("subsystem");
    let Some(is_listed) = subsystem(asked_for) else {
        return Answer::bad(format!("unsupported subsystem: {}", asked_for.unwrap_or_default()));
    };
    if asked.query.is("all", "true") {
        let all: Map<String, Json> =
            of_subsystem(api, is_listed).map(|plugin| (plugin.name.to_owned(), describe_plugin(api, plugin))).collect();
        return with_version_3(Answer::json(StatusCode::OK, all.into()));
    }
    let name = asked.parts.get("name").map_or("", String::as_str);
    let is_known = of_subsystem(api, is_listed).any(|plugin| plugin.name == name);
    let Some(schemas) = api.control.plugin_schema(name).filter(|_| is_known) else {
        let message = format!("plugin not found in subsystem {}", asked_for.unwrap_or("http"));
        return with_version_3(Answer::error(StatusCode::NOT_FOUND, message));
    };
    let schema = match asked.query.get("schema_type") {
        Some("consumer") => schemas.consumer,
        Some("metadata") => schemas.metadata,
        _ => Some(schemas.schema),
    };
    with_version_3(
        schema.map_or_else(|| Answer::bad("not found schema"), |schema| Answer::json(StatusCode::OK, schema)),
    )
}

/// `schema/{kind}` with the kind in the singular; the plural is accepted, too.
pub(crate) fn schema_of_kind(api: &Api, asked: &ParsedRequest) -> Answer {
    let kind = asked.parts.get("kind").map_or("", String::as_str);
    let collection = COLLECTIONS.iter().find(|collection| collection.schema == kind || collection.name == kind);
    let schema = collection.and_then(|collection| api.control.collection_schema(collection.name));
    let missing = || Answer::bad(format!("not found schema: {kind}"));
    with_version_3(schema.map_or_else(missing, |schema| Answer::json(StatusCode::OK, schema)))
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

fn describe_plugin(api: &Api, plugin: Plugin) -> Json {
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

fn with_version_3(answer: Answer) -> Answer {
    answer.with(HeaderName::from_static("x-api-version"), "v3")
}

/// Arguments of every write.
const OF_WRITES: [(&str, &str); 2] = [
    ("dry_run", "true: answer what would change, without changing it"),
    ("wait", "stored: answer before all workers serve the change"),
];

/// Arguments of lists.
const OF_LISTS: [(&str, &str); 7] = [
    ("page", "from 1; with page_size"),
    ("page_size", "10 to 500"),
    ("name", "a regex for the name"),
    ("uri", "a regex for uri, or one of uris"),
    ("label", "the key of a label, whatever its value"),
    ("filter", "service_id=1&upstream_id=2, encoded as one value"),
    ("search", "text anywhere in the document"),
];

/// The OpenAPI description, which takes long to make and stays the same.
pub(crate) fn describe_api(api: &Api) -> Answer {
    let text = api.openapi.get_or_init(|| format!("{}\n", openapi(api)).into()).clone();
    Answer { status: StatusCode::OK, content: Content::Kept(text), headers: Vec::new() }
}

fn openapi(api: &Api) -> Json {
    let mut paths: Map<String, Json> = Map::new();
    for endpoint in &api.described {
        let path = endpoint.path.replace("{*", "{");
        let item = paths.entry(path).or_insert_with(|| json!({}));
        item[endpoint.method.as_str().to_ascii_lowercase()] = operation(endpoint);
    }
    let schema = |name: &str| {
        let mut schema = api.control.collection_schema(name)?;
        // A schema refers to its own parts from its own root.
        if schema.is_object() && schema["$id"].is_null() {
            schema["$id"] = format!("urn:stillgate:schema:{name}").into();
        }
        Some((name.to_owned(), schema))
    };
    let schemas: Map<String, Json> = COLLECTIONS.iter().filter_map(|collection| schema(collection.name)).collect();
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Stillgate Admin API",
            "version": env!("CARGO_PKG_VERSION"),
            "description": "The Admin API of APISIX 3 below /apisix/admin/, and Stillgate's additions below /v1/.",
        },
        "paths": paths,
        "components": {
            "schemas": schemas,
            "securitySchemes": { "key": { "type": "apiKey", "in": "header", "name": "X-API-KEY" } },
        },
        "security": [{ "key": [] }],
    })
}

fn operation(endpoint: &Endpoint) -> Json {
    let mut parameters: Vec<Json> = names_in(&endpoint.path).map(path_argument).collect();
    let mut operation = json!({ "summary": endpoint.summary, "responses": responses(endpoint.action) });
    if let Action::Resource(verb, collection) = endpoint.action {
        let is_list = endpoint.path == collection.list_path();
        let of_query: &[(&str, &str)] = match verb {
            crate::collections::Verb::Get if is_list => &OF_LISTS,
            crate::collections::Verb::Get => &[],
            _ => &OF_WRITES,
        };
        parameters.extend(of_query.iter().map(|(name, what)| argument(name, what)));
        match verb {
            crate::collections::Verb::Get => {}
            crate::collections::Verb::Delete => {
                parameters.push(argument("force", "true: delete the document even if others refer to it"))
            }
            _ => {
                parameters.push(argument("ttl", "seconds after which the document is deleted"));
                let is_whole = verb != crate::collections::Verb::Patch
                    && collection.naming != crate::collections::DocumentNaming::Plugin;
                let reference = format!("#/components/schemas/{}", collection.name);
                let schema = if is_whole { json!({ "$ref": reference }) } else { json!({}) };
                operation["requestBody"] = json!({ "content": { "application/json": { "schema": schema } } });
            }
        }
    }
    if let Some(schema) = body_schema(endpoint.action) {
        operation["requestBody"] = json!({ "content": { "application/json": { "schema": schema } } });
    }
    operation["parameters"] = parameters.into();
    operation
}

/// The schema of a body that does not contain a resource.
fn body_schema(action: Action) -> Option<Json> {
    let object = |fields: Json| json!({ "type": "object", "properties": fields });
    match action {
        Action::Batch => {
            let text = json!({ "type": "string" });
            let operation = object(json!({ "method": text, "path": text, "body": {} }));
            Some(json!({ "type": "array", "minItems": 1, "maxItems": STORE_WRITES_MAX, "items": operation }))
        }
        Action::RollBack => Some(object(json!({ "to": { "type": "integer", "minimum": 0 } }))),
        Action::SessionOpen => Some(object(json!({ "key": { "type": "string" }, "token": { "type": "string" } }))),
        Action::ConfigsReplace | Action::ConfigsValidate => Some(object(json!({}))),
        Action::SchemaValidate => Some(object(json!({}))),
        _ => None,
    }
}

/// The parts of a path in braces.
fn names_in(path: &str) -> impl Iterator<Item = &str> {
    path.split('/')
        .filter_map(|part| part.strip_prefix('{')?.strip_suffix('}'))
        .map(|name| name.trim_start_matches('*'))
}

fn path_argument(name: &str) -> Json {
    json!({ "name": name, "in": "path", "required": true, "schema": { "type": "string" } })
}

fn argument(name: &str, what: &str) -> Json {
    json!({ "name": name, "in": "query", "required": false, "description": what, "schema": { "type": "string" } })
}

fn responses(action: Action) -> Json {
    let described = |what: &str| json!({ "description": what });
    match action {
        Action::Resource(crate::collections::Verb::Get, _) => {
            json!({ "200": described("found"), "404": described("not found") })
        }
        Action::Resource(verb, _) => {
            let mut responses = json!({
                "200": described(if verb == crate::collections::Verb::Delete { "deleted" } else { "replaced" }),
                "400": described("the document or one of its references is invalid"),
                "401": described("no key, a wrong key, or a key that may not write"),
                "412": described("If-Match or If-None-Match does not hold"),
                "501": described("this gateway's resources come from a file"),
                "503": described("the datastore cannot be written now"),
            });
            if matches!(verb, crate::collections::Verb::Put | crate::collections::Verb::Post) {
                responses["201"] = described("created");
            }
            responses
        }
        _ => json!({ "default": described("see docs/admin-api.md") }),
    }
}
