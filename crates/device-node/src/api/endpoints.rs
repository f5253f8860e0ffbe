//! The table of endpoints, and the OpenAPI description that is made from it. Requests are matched with the same table.

use axum::http::Method;
use serde_json::{Map, Value as Json, json};

/// One method of one path.
#[derive(Debug)]
pub(super) struct Endpoint {
    pub(super) method: Method,
    /// With at most one variable, in braces, which matches a whole segment.
    pub(super) path: &'static str,
    pub(super) action: Action,
    pub(super) summary: &'static str,
    /// Arguments of the query: name and description.
    pub(super) query: &'static [(&'static str, &'static str)],
    /// Header fields: name and description.
    pub(super) headers: &'static [(&'static str, &'static str)],
    /// Description of the body; empty: the request has none.
    pub(super) body: &'static str,
    /// Statuses and their meaning.
    pub(super) answers: &'static [(u16, &'static str)],
}

/// The action of an endpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Action {
    Send,
    Show,
    Close,
    List,
    Events,
    Top,
    Broadcast,
    Job,
    OpenApi,
}

/// All endpoints.
pub(super) static ENDPOINTS: [Endpoint; 9] = [
    Endpoint {
        method: Method::POST,
        path: "/v1/devices/{id}/messages",
        action: Action::Send,
        summary: "Send a message to a device",
        query: &[
            ("ack", "what to wait for: written (default), device (its acknowledgement) or reply"),
            ("timeout", "how long to wait, such as 500ms, 5s or 1m; default 5s, at most 5m"),
            ("key", "with queue_policy latest: the message replaces an earlier one with this key"),
        ],
        headers: &[("Idempotency-Key", "a request that is repeated within 10 minutes is sent only once")],
        body: "application/json is embedded unchanged, text/* as a string, anything else as base64",
        answers: &[
            (200, "the device has acknowledged the message, or this is its reply"),
            (202, "the message was written to the socket"),
            (400, "the request is wrong, or the device's protocol has no acknowledgements"),
            (404, "the device has not been seen in the last 30 days"),
            (408, "the body did not arrive within 30 s"),
            (409, "replaced by a later message, or the connection was replaced or ended; not delivered"),
            (410, "the device is not connected"),
            (413, "the message is too long"),
            (422, "the Idempotency-Key was used before with another body"),
            (429, "the queue of the device or the node is full, or too many Idempotency-Keys: see Retry-After"),
            (503, "it is not known right now where the device is, or the gateway is busy: see Retry-After"),
            (504, "no acknowledgement in time; the body says whether the message may have arrived"),
        ],
    },
    Endpoint {
        method: Method::GET,
        path: "/v1/devices/{id}",
        action: Action::Show,
        summary: "Show whether a device is connected, since when, from where, and what is queued for it",
        query: &[],
        headers: &[],
        body: "",
        answers: &[
            (200, "the state of the device"),
            (404, "it has not been seen in the last 30 days"),
            (503, "it is not known right now where the device is: see Retry-After"),
        ],
    },
    Endpoint {
        method: Method::DELETE,
        path: "/v1/devices/{id}/connection",
        action: Action::Close,
        summary: "Close the connection of a device",
        query: &[],
        headers: &[],
        body: "",
        answers: &[
            (202, "it is being closed"),
            (404, "it has not been seen in the last 30 days"),
            (410, "it is not connected"),
            (503, "it is not known right now where the device is: see Retry-After"),
        ],
    },
    Endpoint {
        method: Method::GET,
        path: "/v1/devices",
        action: Action::List,
        summary: "List devices, sorted by id",
        query: &[
            ("prefix", "ids that begin with it"),
            ("online", "true (default): connected; false: not connected"),
            ("page", "next_page of the previous page"),
            ("page_size", "1 to 1000; default 100"),
        ],
        headers: &[],
        body: "",
        answers: &[
            (200, "a page; next_page is present if there are more, missing names nodes that did not answer"),
            (400, "the request is wrong, or online=false with a shared directory"),
        ],
    },
    Endpoint {
        method: Method::GET,
        path: "/v1/device-events",
        action: Action::Events,
        summary: "Follow connects and disconnects, as server-sent events",
        query: &[("prefix", "ids that begin with it")],
        headers: &[],
        body: "",
        answers: &[(200, "text/event-stream, with events from now on"), (503, "too many listeners: see Retry-After")],
    },
    Endpoint {
        method: Method::GET,
        path: "/v1/device-stats/top",
        action: Action::Top,
        summary: "List the connected devices with the most traffic, in bytes",
        query: &[],
        headers: &[],
        body: "",
        answers: &[(200, "at most 20, most traffic first")],
    },
    Endpoint {
        method: Method::POST,
        path: "/v1/broadcast",
        action: Action::Broadcast,
        summary: "Send a message to all connected devices that match, as a job",
        query: &[],
        headers: &[],
        body: "{\"match\": {\"prefix\": …, \"label\": {NAME: TEXT}}, \"body\": …}; \"encoding\": \"base64\" for bytes",
        answers: &[
            (202, "the job has started; Location has its path"),
            (400, "the body is wrong"),
            (408, "the body did not arrive within 30 s"),
            (413, "the message is too long"),
            (429, "8 jobs are being sent: see Retry-After"),
        ],
    },
    Endpoint {
        method: Method::GET,
        path: "/v1/broadcast/{job}",
        action: Action::Job,
        summary: "Get a job with its counts",
        query: &[],
        headers: &[],
        body: "",
        answers: &[
            (200, "one of the last 100 jobs; missing names nodes that did not answer"),
            (404, "there is no such job"),
        ],
    },
    Endpoint {
        method: Method::GET,
        path: "/v1/openapi.json",
        action: Action::OpenApi,
        summary: "Get this description",
        query: &[],
        headers: &[],
        body: "",
        answers: &[(200, "OpenAPI 3.1")],
    },
];

pub(super) fn describe_endpoints() -> Json {
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
        let described = describe_endpoints();
        for endpoint in &ENDPOINTS {
            let operation = &described["paths"][endpoint.path][endpoint.method.as_str().to_ascii_lowercase()];
            assert_eq!(operation["summary"], endpoint.summary);
            assert_eq!(operation["responses"].as_object().map(Map::len), Some(endpoint.answers.len()));
        }
    }
}
