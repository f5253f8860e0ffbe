//! The resources of the bench, both as a file and as documents in the layout of APISIX.

use serde_json::{Value, json};
use std::fmt::Write as _;
use std::net::SocketAddr;

/// Number of routes that change, besides the others.
const CHANGING: u64 = 100;

/// The number of resources by kind.
pub(super) struct Resources {
    pub(super) routes: usize,
    pub(super) consumers: usize,
    pub(super) upstream: SocketAddr,
}

impl Resources {
    /// The resources as a file.
    pub(super) fn yaml(&self) -> String {
        let mut text =
            format!("upstreams:\n  - {{id: u, type: roundrobin, nodes: {{\"{}\": 1}}}}\nroutes:\n", self.upstream);
        for (id, uri) in self.routes() {
            // Writing to a `String` cannot fail.
            let _ = writeln!(text, "  - {{id: {id}, uri: {uri}, upstream_id: u}}");
        }
        text.push_str(if self.consumers == 0 { "" } else { "consumers:\n" });
        for number in 0..self.consumers {
            let _ = writeln!(text, "  - {{username: c{number}, plugins: {{key-auth: {{key: {}}}}}}}", key(number));
        }
        text
    }

    /// The resources as documents, by kind and id.
    pub(super) fn documents(&self) -> Vec<(String, Value)> {
        let nodes = json!({ self.upstream.to_string(): 1 });
        let mut all = vec![("upstreams/u".to_owned(), json!({"id": "u", "type": "roundrobin", "nodes": nodes}))];
        all.extend(self.routes().map(|(id, uri)| (format!("routes/{id}"), route(&id, &uri))));
        all.extend((0..self.consumers).map(|number| {
            let name = format!("c{number}");
            let plugins = json!({"key-auth": {"key": key(number)}});
            (format!("consumers/{name}"), json!({"username": name, "plugins": plugins}))
        }));
        all
    }

    fn routes(&self) -> impl Iterator<Item = (String, String)> {
        let changing = (0..CHANGING).map(|number| (format!("changing-{number}"), uri_of(number)));
        (0..self.routes).map(|number| (format!("r{number}"), format!("/service-{number}/v1/*"))).chain(changing)
    }

    /// Paths that routes take whatever changes.
    pub(super) fn fixed_paths(&self) -> Vec<String> {
        (0..self.routes).map(|number| format!("/service-{number}/v1/x")).collect()
    }
}

/// The change with this number, from [`CHANGING`] on: kind and id, document, and a path that only it takes.
pub(super) fn change(number: u64) -> (String, Value, String) {
    let id = format!("changing-{}", number % CHANGING);
    (format!("routes/{id}"), route(&id, &uri_of(number)), format!("/changing/v{number}/x"))
}

/// The number of the first change.
pub(super) const FIRST_CHANGE: u64 = CHANGING;

fn uri_of(number: u64) -> String {
    format!("/changing/v{number}/*")
}

fn route(id: &str, uri: &str) -> Value {
    json!({"id": id, "uri": uri, "upstream_id": "u"})
}

fn key(number: usize) -> String {
    format!("key-of-the-consumer-{number:08}")
}
