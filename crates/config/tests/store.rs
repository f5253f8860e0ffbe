//! A source in memory: what a store comes to depends on what it holds, and one bad resource spoils no other.

#![allow(clippy::unwrap_used)]

use proptest::prelude::*;
use proptest::sample::{Index, select};
use serde_json::{Value as Json, json};
use std::sync::Arc;
use stillgate_config::{Change, Config, Kind, Origin, PluginSet, RejectedGlobalRule, Serving, Store, Target, load};

fn store() -> Store {
    store_with(RejectedGlobalRule::Deny)
}

fn store_with(global_rule: RejectedGlobalRule) -> Store {
    let gateway = load("routes: []\n", &|_| None).unwrap().config.gateway;
    Store::new(gateway, PluginSet::default(), global_rule)
}

fn put(kind: Kind, id: &str, created: u64, document: Json) -> Change {
    let origin = Origin::Named(format!("/apisix/{}/{id} @ {created}", kind.name()).into());
    Change::Put { kind, id: id.to_owned(), document, created, origin }
}

fn delete(kind: Kind, id: &str) -> Change {
    Change::Delete { kind, id: id.to_owned() }
}

/// What can be seen of a store.
fn seen(store: &Store) -> String {
    let Config { upstreams, routes, stream_routes, ssls, plugins, .. } = store.config("r");
    let rejected: Vec<_> = store.rejected().collect();
    let warnings: Vec<_> = store.warnings().collect();
    format!("{upstreams:#?}\n{routes:#?}\n{stream_routes:#?}\n{ssls:#?}\n{plugins:?}\n{rejected:#?}\n{warnings:#?}")
}

/// Kind, id and what is served of everything that is rejected.
fn rejected(store: &Store) -> Vec<(Kind, String, Serving)> {
    store.rejected().map(|of| (of.kind, of.id.clone(), of.serving)).collect()
}

/// The target of each route.
fn targets(store: &Store) -> Vec<(String, Option<String>)> {
    let target = |target: &Target| target.key().map(str::to_owned);
    store.config("r").routes.iter().map(|route| (route.spec.id.clone(), target(&route.target))).collect()
}

#[track_caller]
fn check(store: &Store, expected: &[(&str, Option<&str>)], refused: &[(Kind, &str, Serving)]) {
    let expected: Vec<_> = expected.iter().map(|(id, key)| ((*id).to_owned(), key.map(str::to_owned))).collect();
    assert_eq!(targets(store), expected);
    let refused: Vec<_> = refused.iter().map(|(kind, id, serving)| (*kind, (*id).to_owned(), *serving)).collect();
    assert_eq!(rejected(store), refused, "{:#?}", store.rejected().collect::<Vec<_>>());
}

fn nodes() -> Json {
    json!({"nodes": {"10.0.0.1:80": 1}})
}

#[test]
fn one_bad_resource_among_good_ones_is_refused_by_itself() {
    let mut store = store();
    store.apply([
        put(Kind::Routes, "good", 2, json!({"uri": "/a", "upstream_id": "u"})),
        put(Kind::Routes, "bad", 3, json!({"uri": "/b", "upstream_id": "u", "timeout": {"read": "soon"}})),
        put(Kind::Routes, "unread", 4, json!({"uri": "/b", "hots": ["a"], "upstream_id": "u"})),
        put(Kind::Upstreams, "u", 1, nodes()),
    ]);
    let refused = [(Kind::Routes, "bad", Serving::Unavailable), (Kind::Routes, "unread", Serving::Nothing)];
    check(&store, &[("good", Some("u")), ("bad", None)], &refused);
    let bad = store.rejected().next().unwrap();
    assert_eq!(bad.origin.to_string(), "/apisix/routes/bad @ 3");
    assert!(bad.reason.starts_with("timeout.read: "), "{}", bad.reason);
    // It is mended.
    store
        .apply([put(Kind::Routes, "bad", 3, json!({"uri": "/b", "upstream_id": "u"})), delete(Kind::Routes, "unread")]);
    check(&store, &[("good", Some("u")), ("bad", Some("u"))], &[]);
}

#[test]
fn the_last_good_version_serves_until_it_is_deleted() {
    let mut store = store();
    let good = json!({"uri": "/a", "upstream": nodes()});
    store.apply([put(Kind::Routes, "r", 1, good.clone())]);
    let before = store.config("r").routes;
    store.apply([put(Kind::Routes, "r", 1, json!({"uri": 7}))]);
    check(&store, &[("r", Some("routes/r"))], &[(Kind::Routes, "r", Serving::Previous)]);
    assert_eq!(store.config("r").routes, before);
    // Another one that is bad does not take its place.
    store.apply([put(Kind::Routes, "r", 1, json!([]))]);
    check(&store, &[("r", Some("routes/r"))], &[(Kind::Routes, "r", Serving::Previous)]);
    store.apply([delete(Kind::Routes, "r")]);
    check(&store, &[], &[]);
    store.apply([put(Kind::Routes, "r", 1, json!({"uri": 7}))]);
    check(&store, &[], &[(Kind::Routes, "r", Serving::Nothing)]);
}

#[test]
fn what_refers_to_a_refused_or_missing_resource_is_answered_503() {
    let mut store = store();
    store.apply([
        put(Kind::Upstreams, "u", 1, json!({"nodes": "none"})),
        put(Kind::Services, "s", 2, json!({"upstream_id": "u"})),
        put(Kind::Routes, "a", 3, json!({"uri": "/a", "upstream_id": "u"})),
        put(Kind::Routes, "b", 4, json!({"uri": "/b", "service_id": "s"})),
        put(Kind::Routes, "c", 5, json!({"uri": "/c", "upstream": nodes(), "service_id": "gone"})),
        put(Kind::Routes, "d", 6, json!({"uri": "/d", "upstream": nodes(), "plugin_config_id": "gone"})),
        put(Kind::Routes, "e", 7, json!({"uri": "/e", "upstream": nodes()})),
    ]);
    let unavailable = |kind, id| (kind, id, Serving::Unavailable);
    let all = ["a", "b", "c", "d"].map(|id| unavailable(Kind::Routes, id));
    let refused = [&[unavailable(Kind::Upstreams, "u"), unavailable(Kind::Services, "s")], &all[..]].concat();
    check(&store, &[("a", None), ("b", None), ("c", None), ("d", None), ("e", Some("routes/e"))], &refused);
    // What is missing comes.
    store.apply([
        put(Kind::Upstreams, "u", 1, nodes()),
        put(Kind::Services, "gone", 8, json!({"hosts": ["a.example"]})),
        put(Kind::PluginConfigs, "gone", 9, json!({"plugins": {}})),
    ]);
    let good = [("a", "u"), ("b", "u"), ("c", "routes/c"), ("d", "routes/d"), ("e", "routes/e")];
    check(&store, &good.map(|(id, key)| (id, Some(key))), &[]);
    let hosts = &store.config("r").routes[2].spec.uri().unwrap().hosts.clone();
    assert_eq!(hosts.iter().map(ToString::to_string).collect::<Vec<_>>(), ["a.example"]);
    // And goes.
    store.apply([delete(Kind::Services, "gone")]);
    check(&store, &good.map(|(id, key)| (id, (id != "c").then_some(key))), &[unavailable(Kind::Routes, "c")]);
}

#[test]
fn a_global_rule_that_was_never_right_denies_everything() {
    let changes = || {
        [
            put(Kind::Routes, "r", 1, json!({"uri": "/a", "upstream": nodes()})),
            put(Kind::GlobalRules, "g", 2, json!({"plugins": {"no-such-plugin": {}}})),
        ]
    };
    let mut denying = store();
    denying.apply(changes());
    check(&denying, &[("r", None)], &[(Kind::GlobalRules, "g", Serving::Unavailable)]);
    denying.apply([delete(Kind::GlobalRules, "g")]);
    check(&denying, &[("r", Some("routes/r"))], &[]);
    let mut ignoring = store_with(RejectedGlobalRule::Ignore);
    ignoring.apply(changes());
    check(&ignoring, &[("r", Some("routes/r"))], &[(Kind::GlobalRules, "g", Serving::Nothing)]);
}

#[test]
fn an_upstream_that_changes_leaves_its_routes_alone() {
    let mut store = store();
    store.apply([put(Kind::Upstreams, "u", 1, nodes()), put(Kind::Services, "s", 2, json!({"upstream_id": "u"}))]);
    store.apply((0..100).map(|n| {
        put(Kind::Routes, &n.to_string(), 3, json!({"uri": format!("/{n}"), "service_id": "s", "timeout": {"read": 7}}))
    }));
    let before = store.config("1");
    store.apply([put(Kind::Upstreams, "u", 1, json!({"nodes": {"10.0.0.9:80": 1}, "timeout": {"send": 3}}))]);
    let after = store.config("2");
    assert_ne!(before.upstreams, after.upstreams);
    assert!(before.routes.iter().zip(&after.routes).all(|(old, new)| Arc::ptr_eq(old, new)));
}

#[test]
fn the_environment_is_not_for_writers_of_a_store() {
    let mut store = store();
    let rewrite = json!({"nodes": {"a:80": 1}, "pass_host": "rewrite", "upstream_host": "${HOME}"});
    store.apply([put(Kind::Upstreams, "u", 1, rewrite)]);
    assert_eq!(rejected(&store), [(Kind::Upstreams, "u".to_owned(), Serving::Unavailable)]);
}

fn document(kind: Kind) -> impl Strategy<Value = Json> {
    let reference = select(vec!["1", "2", "3"]);
    (reference, 0..8u32).prop_map(move |(id, which)| match (kind, which) {
        (Kind::Upstreams, 0) => json!({"nodes": []}),
        (Kind::Upstreams, 1) => json!({"nodes": {"a:1": 1}, "scheme": "tcp"}),
        (Kind::Upstreams, 2) => json!({"nodes": {"a:1": 1}, "retries": "many"}),
        (Kind::Upstreams, 3) => json!({"nodes": {"a": 1}, "scheme": "https", "tls": {"client_cert_id": id}}),
        (Kind::Upstreams, _) => json!({"nodes": {"a:80": which}}),
        (Kind::Services, 0) => json!({"upstream": {"nodes": {"a:80": 1}}}),
        (Kind::Services, 1) => json!({"hosts": 7}),
        (Kind::Services, 2) => json!({"hosts": ["a.example"], "upstream_id": id}),
        (Kind::Services, 3) => json!({}),
        (Kind::Services, _) => json!({"upstream_id": id}),
        (Kind::PluginConfigs | Kind::GlobalRules, 0) => json!({"plugins": {"none": {}}}),
        (Kind::PluginConfigs | Kind::GlobalRules, _) => json!({"plugins": {}}),
        (Kind::Ssls, 0) => json!({"sni": 7}),
        (Kind::Ssls, _) => json!({"type": "client", "cert": "a.pem", "key": "a.key"}),
        (Kind::StreamRoutes, 0) => json!({"server_port": "x"}),
        (Kind::StreamRoutes, 1) => json!({"upstream": {"nodes": {"a:1": 1}}}),
        (Kind::StreamRoutes, 2) => json!({"service_id": id}),
        (Kind::StreamRoutes, _) => json!({"upstream_id": id, "server_port": which}),
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

fn change() -> impl Strategy<Value = Change> {
    let kinds = [
        Kind::Ssls,
        Kind::PluginConfigs,
        Kind::Upstreams,
        Kind::Services,
        Kind::GlobalRules,
        Kind::StreamRoutes,
        Kind::Routes,
    ];
    select(kinds.to_vec()).prop_flat_map(|kind| {
        // Consumers, groups and the like are not read yet.
        (Just(kind), select(vec!["1", "2", "3"]), 1..4u64, prop::option::weighted(0.8, document(kind))).prop_map(
            |(kind, id, created, document)| match document {
                Some(document) => put(kind, id, created, document),
                None => delete(kind, id),
            },
        )
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 600, failure_persistence: None, ..ProptestConfig::default() })]

    /// One change after the other, some at a time, and all that is left in any order come to the same.
    #[test]
    fn what_a_store_comes_to_depends_on_what_it_holds(
        changes in prop::collection::vec((change(), any::<bool>()), 0..40),
        places in prop::collection::vec(any::<Index>(), 40),
    ) {
        let mut live = store();
        let mut together = Vec::new();
        for (change, is_last) in changes {
            together.push(change);
            if is_last {
                live.apply(together.drain(..));
            }
        }
        live.apply(together);
        let mut fresh = store();
        fresh.apply(live.list());
        prop_assert_eq!(seen(&live), seen(&fresh));
        // One by one, in another order; the previous version of a resource stays before it.
        let mut groups: Vec<Vec<Change>> = Vec::new();
        for change in live.list() {
            match groups.last_mut() {
                Some(group) if is_of_same(&group[0], &change) => group.push(change),
                _ => groups.push(vec![change]),
            }
        }
        for (at, place) in (0..groups.len()).zip(&places) {
            let other = place.index(groups.len());
            groups.swap(at, other);
        }
        let mut other = store();
        groups.into_iter().flatten().for_each(|change| other.apply([change]));
        prop_assert_eq!(seen(&live), seen(&other));
    }
}

fn is_of_same(a: &Change, b: &Change) -> bool {
    matches!((a, b), (Change::Put { kind, id, .. }, Change::Put { kind: other, id: other_id, .. })
        if kind == other && id == other_id)
}
