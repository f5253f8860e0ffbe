//! Changes of a store for property tests, generated so that they affect each other.

use crate::store::{delete, put};
use proptest::prelude::*;
use proptest::sample::select;
use serde_json::{Value as Json, json};
use stillgate_config::{Change, ResourceKind};

/// Any change: valid documents and others, with a few ids.
pub(crate) fn change() -> impl Strategy<Value = Change> {
    select(ResourceKind::all().collect::<Vec<_>>()).prop_flat_map(|kind| {
        let ids = if kind == ResourceKind::PluginMetadata { vec!["count", "key-auth"] } else { vec!["1", "2", "3"] };
        (Just(kind), select(ids), 1..4u64, prop::option::weighted(0.8, document(kind))).prop_map(
            |(kind, id, created, document)| match document {
                Some(mut document) => {
                    if kind == ResourceKind::Consumers {
                        document["username"] = json!(id);
                    }
                    put(kind, id, created, document)
                }
                None => delete(kind, id),
            },
        )
    })
}

fn document(kind: ResourceKind) -> impl Strategy<Value = Json> {
    let reference = select(vec!["1", "2", "3"]);
    (reference, 0..8u32).prop_map(move |(id, which)| match (kind, which) {
        (ResourceKind::Upstreams, 0) => json!({"nodes": []}),
        (ResourceKind::Upstreams, 1) => json!({"nodes": {"a:1": 1}, "scheme": "tcp"}),
        (ResourceKind::Upstreams, 2) => json!({"nodes": {"a:1": 1}, "retries": "many"}),
        (ResourceKind::Upstreams, 3) => json!({"nodes": {"a": 1}, "scheme": "https", "tls": {"client_cert_id": id}}),
        (ResourceKind::Upstreams, _) => json!({"nodes": {"a:80": which}}),
        (ResourceKind::Services, 0) => json!({"upstream": {"nodes": {"a:80": 1}}}),
        (ResourceKind::Services, 1) => json!({"hosts": 7}),
        (ResourceKind::Services, 2) => json!({"hosts": ["a.example"], "upstream_id": id}),
        (ResourceKind::Services, 3) => json!({}),
        (ResourceKind::Services, _) => json!({"upstream_id": id}),
        (ResourceKind::PluginConfigs | ResourceKind::GlobalRules | ResourceKind::ConsumerGroups, 0) => {
            json!({"plugins": {"none": {}}})
        }
        (ResourceKind::PluginConfigs | ResourceKind::GlobalRules | ResourceKind::ConsumerGroups, 1..=4) => {
            json!({"plugins": {"count": {"count": which, "group": id}}})
        }
        (ResourceKind::PluginConfigs | ResourceKind::GlobalRules | ResourceKind::ConsumerGroups, _) => {
            json!({"plugins": {"key-auth": {}}})
        }
        (ResourceKind::PluginMetadata, _) => json!({"count": which}),
        (ResourceKind::Consumers, 0) => json!({"plugins": 1}),
        (ResourceKind::Consumers, 1 | 2) => json!({"group_id": id, "plugins": {"key-auth": {"key": format!("k{id}")}}}),
        (ResourceKind::Consumers, _) => json!({"plugins": {"key-auth": {"key": format!("k{id}")}},
            "credentials": [{"id": "c", "plugins": {"key-auth": {"key": format!("k{which}")}}}]}),
        (ResourceKind::Ssls, 0) => json!({"sni": 7}),
        (ResourceKind::Ssls, 1..=3) => json!({"snis": [format!("{id}.example")], "cert": "a.pem", "key": "a.key"}),
        (ResourceKind::Ssls, _) => json!({"type": "client", "cert": "a.pem", "key": "a.key"}),
        (ResourceKind::StreamRoutes, 0) => json!({"server_port": "x"}),
        (ResourceKind::StreamRoutes, 1) => json!({"upstream": {"nodes": {"a:1": 1}}}),
        (ResourceKind::StreamRoutes, 2) => json!({"service_id": id}),
        (ResourceKind::StreamRoutes, _) => json!({"upstream_id": id, "server_port": which}),
        (_, 0) => json!({"uri": "/a", "upstream_id": id, "unknown": 1}),
        (_, 1) => json!({"uri": "/a", "upstream_id": id, "retries": 1}),
        (_, 2) => json!({"uri": "/a", "upstream_id": id, "timeout": 1}),
        (_, 3) => json!({"uri": "/a", "service_id": id, "upstream": {"nodes": {"a:80": 1}}}),
        (_, 4) => json!({"expression": "http.path == \"/a\"", "service_id": id}),
        (_, 5) => json!({"uri": "/a", "upstream_id": id, "plugin_config_id": id}),
        (_, 6) => json!({"uri": "/a", "upstream_id": id, "status": 0}),
        (_, _) => json!({"uri": "/a", "upstream_id": id}),
    })
}
