//! The resources of the demo: a handful of routes, a service, a consumer and a rule, written into its store as documents.
//!
//! They pass the same checks as resources put through the Admin API; tests/control/demo.rs checks that none is rejected.

use serde_json::{Value as Json, json};
use std::net::SocketAddr;
use std::path::Path;
use std::time::{Duration, SystemTime};
use stillgate_datastore::embedded::{EmbeddedStore, HistoryBounds};
use stillgate_datastore::{Author, Key, Transaction, Write};

/// Routes of the demo.
pub(super) const ROUTES: usize = 7;

/// The demo ends before any history is too old.
const BOUNDS: HistoryBounds = HistoryBounds { history_changes_max: 1000, history_age_max: Duration::from_secs(86_400) };

/// Where its upstreams listen.
pub(super) struct Nodes {
    pub(super) apple: SocketAddr,
    pub(super) pear: SocketAddr,
}

/// Makes the store, with all documents by one change.
/// `with_devices`: also a route where they connect.
pub(super) fn fill(store: &Path, nodes: &Nodes, with_devices: bool) -> Result<(), String> {
    let mut embedded = EmbeddedStore::open(store, BOUNDS).map_err(|error| error.to_string())?;
    let devices = with_devices.then(|| ("routes/devices", devices()));
    let writes = documents(nodes).into_iter().chain(devices).map(|(key, value)| {
        let key = Key::parse(key).map_err(|error| format!("{key}: {error}"))?;
        Ok(Write::Put { key, value: value.to_string(), ttl_seconds: None })
    });
    let writes = writes.collect::<Result<_, String>>()?;
    let author = Author { name: "demo".to_owned(), address: String::new(), action: "POST /v1/batch".to_owned() };
    let transaction = Transaction { conditions: Vec::new(), unreferenced: Vec::new(), writes, author };
    let made = embedded.commit(&transaction, SystemTime::now());
    made.map(drop).map_err(|error| error.to_string())
}

fn documents(nodes: &Nodes) -> Vec<(&'static str, Json)> {
    let (apple, pear) = (nodes.apple.to_string(), nodes.pear.to_string());
    let upstream = |nodes: Json| json!({ "type": "roundrobin", "nodes": nodes });
    let checked = json!({
        "type": "roundrobin", "nodes": { &*apple: 1, &*pear: 1 },
        "checks": { "active": { "http_path": "/", "healthy": { "interval": 5 }, "unhealthy": { "interval": 5 } } },
    });
    vec![
        ("upstreams/both", checked),
        ("upstreams/apple", upstream(json!({ &*apple: 1 }))),
        ("upstreams/pear", upstream(json!({ &*pear: 1 }))),
        (
            "services/shop",
            json!({ "name": "shop", "upstream_id": "both", "plugins": { "cors": {}, "response-rewrite": { "headers": { "set": { "X-Shop": "demo" } } } } }),
        ),
        ("global_rules/everywhere", json!({ "plugins": { "request-id": {} } })),
        (
            "consumers/rose",
            json!({ "username": "rose", "desc": "May send requests to /orders/; its key is rose.", "plugins": { "key-auth": { "key": "rose" } } }),
        ),
        ("routes/everything", json!({ "name": "everything else", "uri": "/*", "upstream_id": "both" })),
        ("routes/hello", json!({ "name": "hello", "uri": "/hello/:name", "upstream_id": "apple" })),
        ("routes/echo", json!({ "name": "echo", "uri": "/echo", "methods": ["POST"], "upstream_id": "apple" })),
        ("routes/pear-only", json!({ "name": "pear", "host": "pear.example.com", "uri": "/*", "upstream_id": "pear" })),
        (
            "routes/orders",
            json!({
                "name": "orders", "desc": "For consumers only, ten requests a second.", "uri": "/orders/*", "service_id": "shop",
                "plugins": { "key-auth": {}, "limit-count": { "count": 10, "time_window": 1, "rejected_code": 429 } },
            }),
        ),
        (
            "routes/search",
            json!({ "name": "search", "desc": "Every request has a different URI, and the URI is a label of the metrics.", "uri": "/search/*", "service_id": "shop" }),
        ),
        (
            "routes/payments",
            json!({ "name": "payments", "desc": "Its node declines one payment in twelve.", "uri": "/payments/*", "methods": ["POST"], "service_id": "shop" }),
        ),
    ]
}

/// A route for appliances, which name themselves: the demo listens on loopback only.
fn devices() -> Json {
    json!({
        "name": "devices", "desc": "Connections of appliances end here.", "uri": "/connect",
        "plugins": { "device-gateway": { "id": "$arg_device" } },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_routes_are_counted() {
        let nodes = Nodes { apple: ([127, 0, 0, 1], 1).into(), pear: ([127, 0, 0, 1], 2).into() };
        let documents = documents(&nodes);
        assert_eq!(documents.iter().filter(|(key, _)| key.starts_with("routes/")).count(), ROUTES);
    }
}
