//! The OpenAPI description, made from the table of endpoints that requests are matched with.

use super::endpoints::{ENDPOINTS, Endpoint};
use serde_json::{Map, Value as Json, json};

pub(super) fn describe() -> Json {
    let mut paths: Map<String, Json> = Map::new();
    for endpoint in &ENDPOINTS {
        let item = paths.entry(endpoint.path).or_insert_with(|| json!({}));
        item[endpoint.method.as_str().to_ascii_lowercase()] = operation(endpoint);
    }
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Stillgate device API",
            "version": env!("CARGO_PKG_VERSION"),
            "description": "Send messages to devices that are connected to the gateway.",
        },
        "paths": paths,
        "components": { "securitySchemes": { "key": { "type": "apiKey", "in": "header", "name": "X-API-KEY" } } },
        "security": [{ "key": [] }],
    })
}

fn operation(endpoint: &Endpoint) -> Json {
    let parameter = |place: &str, is_required: bool, name: &str, what: &str| {
        let schema = json!({ "type": "string" });
        json!({ "name": name, "in": place, "required": is_required, "description": what, "schema": schema })
    };
    let of_path = endpoint.path.split('/').filter_map(|part| part.strip_prefix('{')?.strip_suffix('}'));
    let parameters: Vec<Json> = of_path
        .map(|name| parameter("path", true, name, "percent-encoded"))
        .chain(endpoint.query.iter().map(|(name, what)| parameter("query", false, name, what)))
        .chain(endpoint.headers.iter().map(|(name, what)| parameter("header", false, name, what)))
        .collect();
    let answers: Map<String, Json> =
        endpoint.answers.iter().map(|(status, what)| (status.to_string(), json!({ "description": what }))).collect();
    let mut operation = json!({ "summary": endpoint.summary, "parameters": parameters, "responses": answers });
    if !endpoint.body.is_empty() {
        operation["requestBody"] = json!({ "description": endpoint.body, "content": { "*/*": {} } });
    }
    operation
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_endpoint_is_described() {
        let described = describe();
        for endpoint in &ENDPOINTS {
            let operation = &described["paths"][endpoint.path][endpoint.method.as_str().to_ascii_lowercase()];
            assert_eq!(operation["summary"], endpoint.summary);
            assert_eq!(operation["responses"].as_object().map(Map::len), Some(endpoint.answers.len()));
        }
    }
}
