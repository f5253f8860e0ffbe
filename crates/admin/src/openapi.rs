//! `GET /v1/openapi.json`: a description generated from the router's table and from the schemas that validate resources.

use crate::answer::Answer;
use crate::api::Api;
use crate::collections::COLLECTIONS;
use crate::endpoints::{Action, Endpoint};
use axum::http::StatusCode;
use serde_json::{Map, Value as Json, json};
use stillgate_datastore::transaction::STORE_WRITES_MAX;

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

pub(crate) fn describe(api: &Api) -> Answer {
    let mut paths: Map<String, Json> = Map::new();
    for endpoint in &api.described {
        let path = endpoint.path.replace("{*", "{");
        let item = paths.entry(path).or_insert_with(|| json!({}));
        item[endpoint.method.as_str().to_ascii_lowercase()] = operation(endpoint);
    }
    let schema = |name: &str| {
        let mut schema = api.control.schema(name)?;
        // A schema refers to its own parts from its own root.
        if schema.is_object() && schema["$id"].is_null() {
            schema["$id"] = format!("urn:stillgate:schema:{name}").into();
        }
        Some((name.to_owned(), schema))
    };
    let schemas: Map<String, Json> = COLLECTIONS.iter().filter_map(|collection| schema(collection.name)).collect();
    let body = json!({
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
    });
    Answer::json(StatusCode::OK, body)
}

fn operation(endpoint: &Endpoint) -> Json {
    let mut parameters: Vec<Json> = names_in(&endpoint.path).map(of_path).collect();
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
                let is_whole =
                    verb != crate::collections::Verb::Patch && collection.naming != crate::collections::Naming::Plugin;
                let reference = format!("#/components/schemas/{}", collection.name);
                let schema = if is_whole { json!({ "$ref": reference }) } else { json!({}) };
                operation["requestBody"] = json!({ "content": { "application/json": { "schema": schema } } });
            }
        }
    }
    if let Some(schema) = body_of(endpoint.action) {
        operation["requestBody"] = json!({ "content": { "application/json": { "schema": schema } } });
    }
    operation["parameters"] = parameters.into();
    operation
}

/// The schema of a body that does not contain a resource.
fn body_of(action: Action) -> Option<Json> {
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

fn of_path(name: &str) -> Json {
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
