//! The resources of an experiment, both as a file and as documents in the layout of APISIX.

use serde_json::{Value, json};
use std::fmt::Write as _;
use std::net::SocketAddr;

/// Number of routes that change, besides the others.
const CHANGING: u64 = 100;

/// The number of resources by kind.
#[derive(Debug, Clone, Copy)]
pub(super) struct Resources {
    pub(super) routes: usize,
    pub(super) consumers: usize,
}

impl Resources {
    /// The resources as a part of a file.
    pub(super) fn yaml(self, upstream: SocketAddr) -> String {
        let mut text = format!("upstreams:\n  - {{id: u, type: roundrobin, nodes: {{\"{upstream}\": 1}}}}\nroutes:\n");
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
    pub(super) fn documents(self, upstream: SocketAddr) -> Vec<(String, Value)> {
        let nodes = json!({ upstream.to_string(): 1 });
        let mut all = vec![("upstreams/u".to_owned(), json!({"id": "u", "type": "roundrobin", "nodes": nodes}))];
        all.extend(self.routes().map(|(id, uri)| (format!("routes/{id}"), route(&id, &uri))));
        all.extend((0..self.consumers).map(|number| {
            let name = format!("c{number}");
            let plugins = json!({"key-auth": {"key": key(number)}});
            (format!("consumers/{name}"), json!({"username": name, "plugins": plugins}))
        }));
        all
    }

    fn routes(self) -> impl Iterator<Item = (String, String)> {
        let changing = (0..CHANGING).map(|number| (format!("changing-{number}"), uri_of(number)));
        (0..self.routes).map(|number| (format!("r{number}"), format!("/service-{number}/v1/*"))).chain(changing)
    }

    /// Paths that are taken whatever changes.
    pub(super) fn fixed_paths(self) -> Vec<String> {
        (0..self.routes).map(|number| format!("/service-{number}/v1/x")).collect()
    }
}

/// The change with this number, from [`FIRST_CHANGE`] on: kind and id, document, and a path that only it takes.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_and_documents_have_the_same_resources() {
        let (resources, upstream) = (Resources { routes: 3, consumers: 2 }, SocketAddr::from(([127, 0, 0, 1], 80)));
        let (yaml, documents) = (resources.yaml(upstream), resources.documents(upstream));
        assert_eq!(documents.len(), 1 + 3 + CHANGING as usize + 2);
        for id in ["r2", "changing-99"] {
            let (_, document) = documents.iter().find(|(key, _)| *key == format!("routes/{id}")).unwrap();
            assert!(yaml.contains(&format!("id: {id}, uri: {},", document["uri"].as_str().unwrap())), "{id}");
        }
        assert!(yaml.contains("username: c1, plugins: {key-auth: {key: key-of-the-consumer-00000001}}"));
    }

    #[test]
    fn a_change_is_of_a_route_that_is_there() {
        let (key, document, path) = change(FIRST_CHANGE + 7);
        assert_eq!(
            (key.as_str(), document["uri"].as_str(), path.as_str()),
            ("routes/changing-7", Some("/changing/v107/*"), "/changing/v107/x")
        );
    }
}
