//! A source in memory: the result depends only on the content of the store, and a bad resource affects no other.

mod beyond;
mod unreadable;

use crate::changes::change;
use crate::{cases, plugins};
use proptest::prelude::*;
use proptest::sample::Index;
use serde_json::{Value as Json, json};
use std::sync::Arc;
use stillgate_config::{
    Change, Config, Origin, PluginSet, RefusedSsl, Replacement, ResourceKind, Ssl, SslUse, Store, Target, load,
};
use stillgate_plugin_api::{CustomPlugins, NoSecrets};

fn store() -> Store {
    store_with("deny")
}

fn store_with(global_rule: &str) -> Store {
    let text = format!("gateway: {{config: {{rejected_global_rule: {global_rule}}}}}\nroutes: []\n");
    Store::new(
        load(text, &|_| None).unwrap().config.gateway,
        PluginSet { table: plugins::TABLE, secrets: Arc::new(NoSecrets), ..PluginSet::default() },
    )
}

pub(crate) fn put(kind: ResourceKind, id: &str, created: u64, document: Json) -> Change {
    let origin = Origin::named(format!("/apisix/{}/{id} @ {created}", kind.name()));
    Change::Put { kind, id: id.to_owned(), document: document.to_string().into(), created, origin }
}

pub(crate) fn delete(kind: ResourceKind, id: &str) -> Change {
    Change::Delete { kind, id: id.to_owned() }
}

/// The visible state of a store.
fn seen(store: &Store) -> String {
    let Config { upstreams, routes, stream_routes, ssls, plugins, .. } = store.load("r").config;
    let rejected: Vec<_> = store.rejected().collect();
    let warnings = store.load("r").warnings;
    let mut consumers: Vec<String> = plugins.consumers.iter().map(|consumer| format!("{consumer:?}")).collect();
    consumers.sort_unstable();
    let owners = owners(store);
    let global = plugins.global.entries();
    format!(
        "{upstreams:#?}\n{routes:#?}\n{stream_routes:#?}\n{ssls:#?}\n{global:?}\n{consumers:?}\n{owners:?}\n{rejected:#?}\n{warnings:#?}"
    )
}

/// The kind, the id and the replacement of everything that is rejected.
fn rejected(store: &Store) -> Vec<(ResourceKind, String, Replacement)> {
    store.rejected().map(|of| (of.kind, of.id.clone(), of.serving)).collect()
}

/// The target of each route.
fn targets(store: &Store) -> Vec<(String, Option<String>)> {
    let target = |target: &Target| target.key().map(str::to_owned);
    store.load("r").config.routes.iter().map(|route| (route.spec.id.clone(), target(&route.target))).collect()
}

#[track_caller]
fn check(store: &Store, expected: &[(&str, Option<&str>)], refused: &[(ResourceKind, &str, Replacement)]) {
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
        put(ResourceKind::Routes, "good", 2, json!({"uri": "/a", "upstream_id": "u"})),
        put(ResourceKind::Routes, "bad", 3, json!({"uri": "/b", "upstream_id": "u", "timeout": {"read": "soon"}})),
        put(ResourceKind::Routes, "unread", 4, json!({"uri": "/b", "hots": ["a"], "upstream_id": "u"})),
        put(ResourceKind::Routes, "off", 5, json!({"uri": 7, "status": 0})),
        put(ResourceKind::Upstreams, "u", 1, nodes()),
    ]);
    let unavailable = |id| (ResourceKind::Routes, id, Replacement::Unavailable);
    let refused = [unavailable("bad"), (ResourceKind::Routes, "off", Replacement::Nothing), unavailable("unread")];
    check(&store, &[("good", Some("u")), ("bad", None), ("unread", None)], &refused);
    let rejected: Vec<_> = store.rejected().collect();
    assert_eq!(rejected[0].origin.to_string(), "/apisix/routes/bad @ 3");
    assert!(rejected[0].reason.starts_with("timeout.read: "), "{}", rejected[0].reason);
    assert!(!rejected[0].reason.contains("refuses any"), "{}", rejected[0].reason);
    let unread = &rejected[2].reason;
    assert!(unread.ends_with("; so that no other answers in its place, it refuses any host"), "{unread}");
    // It is fixed.
    store.apply([
        put(ResourceKind::Routes, "bad", 3, json!({"uri": "/b", "upstream_id": "u"})),
        delete(ResourceKind::Routes, "unread"),
        delete(ResourceKind::Routes, "off"),
    ]);
    check(&store, &[("good", Some("u")), ("bad", Some("u"))], &[]);
}

#[test]
fn the_last_good_version_serves_until_it_is_deleted() {
    let mut store = store();
    let good = json!({"uri": "/a", "upstream": nodes()});
    store.apply([put(ResourceKind::Routes, "r", 1, good.clone())]);
    let before = store.load("r").config.routes;
    store.apply([put(ResourceKind::Routes, "r", 1, json!({"uri": 7}))]);
    check(&store, &[("r", Some("routes/r"))], &[(ResourceKind::Routes, "r", Replacement::Previous)]);
    assert_eq!(store.load("r").config.routes, before);
    // Another bad one does not replace it.
    store.apply([put(ResourceKind::Routes, "r", 1, json!([]))]);
    check(&store, &[("r", Some("routes/r"))], &[(ResourceKind::Routes, "r", Replacement::Previous)]);
    store.apply([delete(ResourceKind::Routes, "r")]);
    check(&store, &[], &[]);
    store.apply([put(ResourceKind::Routes, "r", 1, json!({"uri": 7}))]);
    check(&store, &[("r", None)], &[(ResourceKind::Routes, "r", Replacement::Unavailable)]);
}

#[test]
fn what_refers_to_a_refused_or_missing_resource_is_answered_503() {
    let mut store = store();
    store.apply([
        put(ResourceKind::Upstreams, "u", 1, json!({"nodes": "none"})),
        put(ResourceKind::Services, "s", 2, json!({"upstream_id": "u"})),
        put(ResourceKind::Routes, "a", 3, json!({"uri": "/a", "upstream_id": "u"})),
        put(ResourceKind::Routes, "b", 4, json!({"uri": "/b", "service_id": "s"})),
        put(ResourceKind::Routes, "c", 5, json!({"uri": "/c", "upstream": nodes(), "service_id": "gone"})),
        put(ResourceKind::Routes, "d", 6, json!({"uri": "/d", "upstream": nodes(), "plugin_config_id": "gone"})),
        put(ResourceKind::Routes, "e", 7, json!({"uri": "/e", "upstream": nodes()})),
    ]);
    let unavailable = |kind, id| (kind, id, Replacement::Unavailable);
    let all = ["a", "b", "c", "d"].map(|id| unavailable(ResourceKind::Routes, id));
    let refused =
        [&[unavailable(ResourceKind::Upstreams, "u"), unavailable(ResourceKind::Services, "s")], &all[..]].concat();
    check(&store, &[("a", None), ("b", None), ("c", None), ("d", None), ("e", Some("routes/e"))], &refused);
    // The missing resource is added.
    store.apply([
        put(ResourceKind::Upstreams, "u", 1, nodes()),
        put(ResourceKind::Services, "gone", 8, json!({"hosts": ["a.example"]})),
        put(ResourceKind::PluginConfigs, "gone", 9, json!({"plugins": {}})),
    ]);
    let good = [("a", "u"), ("b", "u"), ("c", "routes/c"), ("d", "routes/d"), ("e", "routes/e")];
    check(&store, &good.map(|(id, key)| (id, Some(key))), &[]);
    let hosts = &store.load("r").config.routes[2].spec.uri().unwrap().hosts.clone();
    assert_eq!(hosts.iter().map(ToString::to_string).collect::<Vec<_>>(), ["a.example"]);
    // And removed.
    store.apply([delete(ResourceKind::Services, "gone")]);
    check(&store, &good.map(|(id, key)| (id, (id != "c").then_some(key))), &[unavailable(ResourceKind::Routes, "c")]);
}

#[test]
fn what_is_still_encrypted_is_not_a_secret() {
    let with = |mut document: Json| {
        document[stillgate_config::ENCRYPTED_WITH] = "0a1b2c3d".into();
        document
    };
    let mut store = store();
    store.apply([
        put(ResourceKind::Consumers, "jack", 1, with(consumer("jack", &[1]))),
        put(ResourceKind::Consumers, "jill", 2, consumer("jill", &[2])),
        put(ResourceKind::Consumers, "jill", 2, with(consumer("jill", &[3]))),
        put(ResourceKind::Routes, "r", 3, with(json!({"uri": "/a", "upstream": nodes()}))),
    ]);
    let expected = [
        (ResourceKind::Consumers, "jack".to_owned(), Replacement::Nothing),
        (ResourceKind::Consumers, "jill".to_owned(), Replacement::Previous),
        (ResourceKind::Routes, "r".to_owned(), Replacement::Unavailable),
    ];
    let mut found = rejected(&store);
    found.sort_by_key(|(_, id, _)| id.clone());
    assert_eq!(found, expected);
    assert_eq!(owners(&store), [None, Some("jill".to_owned()), None]);
    let reason = store.rejected().next().unwrap().reason.clone();
    assert!(
        reason.contains("0a1b2c3d") && reason.contains("keyring") && reason.contains("put that key back"),
        "{reason}"
    );
    store.renew(load("gateway: {}\nroutes: []\n", &|_| None).unwrap().config.gateway, CustomPlugins::NONE);
    assert_eq!(rejected(&store).len(), 3, "also when everything is read again");
}

#[test]
fn a_global_rule_that_was_never_right_denies_everything() {
    let changes = || {
        [
            put(ResourceKind::Routes, "r", 1, json!({"uri": "/a", "upstream": nodes()})),
            put(ResourceKind::GlobalRules, "g", 2, json!({"plugins": {"no-such-plugin": {}}})),
        ]
    };
    let mut denying = store();
    denying.apply(changes());
    let global = |store: &Store| {
        let chain = store.load("r").config.plugins.global;
        chain.entries().iter().map(|entry| entry.name).collect::<Vec<_>>()
    };
    check(&denying, &[("r", Some("routes/r"))], &[(ResourceKind::GlobalRules, "g", Replacement::Unavailable)]);
    assert_eq!(global(&denying), ["unavailable"]);
    denying.apply([delete(ResourceKind::GlobalRules, "g")]);
    assert!(global(&denying).is_empty());
    let mut ignoring = store_with("ignore");
    ignoring.apply(changes());
    check(&ignoring, &[("r", Some("routes/r"))], &[(ResourceKind::GlobalRules, "g", Replacement::Nothing)]);
    assert!(global(&ignoring).is_empty());
}

/// The owner of each key.
fn owners(store: &Store) -> Vec<Option<String>> {
    let consumers = store.load("r").config.plugins.consumers;
    let owner = |key: u8| {
        consumers.find("key-auth", format!("k{key}").as_bytes()).map(|found| consumers.of(found).name.to_string())
    };
    (1..=3).map(owner).collect()
}

fn consumer(name: &str, keys: &[u8]) -> Json {
    let credential = |(at, key): (usize, &u8)| json!({"id": at, "plugins": {"key-auth": {"key": format!("k{key}")}}});
    let credentials: Vec<Json> = keys.iter().enumerate().map(credential).collect();
    json!({"username": name, "credentials": credentials})
}

#[test]
fn the_consumer_that_was_made_first_keeps_a_key() {
    let all = [
        put(ResourceKind::Consumers, "late", 9, consumer("late", &[1, 2])),
        put(ResourceKind::Consumers, "early", 3, consumer("early", &[1])),
        put(ResourceKind::Consumers, "later", 10, consumer("later", &[2, 3])),
        put(ResourceKind::Consumers, "twice", 11, consumer("twice", &[3, 3])),
    ];
    for order in [[0, 1, 2, 3], [1, 0, 3, 2], [3, 2, 1, 0], [2, 3, 0, 1]] {
        let mut store = store();
        order.iter().for_each(|at| store.apply([all[*at].clone()]));
        assert_eq!(owners(&store), [Some("early".to_owned()), None, None], "{order:?}");
        let reasons: Vec<_> = store.rejected().map(|of| (of.id.as_str(), of.reason.as_str(), of.serving)).collect();
        let has = |who: &str| format!("consumer {who:?} has the same key-auth credential; give each consumer its own");
        let expected = [("late", has("early")), ("later", has("late")), ("twice", has("later"))];
        let expected: Vec<_> = expected.iter().map(|(id, why)| (*id, why.as_str(), Replacement::Nothing)).collect();
        assert_eq!(reasons, expected);
        // The first of them is removed.
        store.apply([delete(ResourceKind::Consumers, "early")]);
        assert_eq!(owners(&store), ["late", "late", ""].map(|name| (!name.is_empty()).then(|| name.to_owned())));
        store.apply([delete(ResourceKind::Consumers, "late"), delete(ResourceKind::Consumers, "later")]);
        assert_eq!(owners(&store), [None, None, Some("twice".to_owned())]);
    }
}

#[test]
fn a_consumer_without_its_group_is_answered_503() {
    let mut store = store();
    let document = json!({"username": "a", "group_id": "g", "plugins": {"key-auth": {"key": "k1"}}});
    store.apply([put(ResourceKind::Consumers, "a", 1, document)]);
    let plugins = |store: &Store| {
        let consumers = store.load("r").config.plugins.consumers;
        let found = consumers.find("key-auth", b"k1").unwrap();
        consumers.of(found).plugins.iter().map(|entry| entry.name).collect::<Vec<_>>()
    };
    assert_eq!((plugins(&store), rejected(&store)[0].2), (vec!["unavailable"], Replacement::Unavailable));
    store.apply([put(ResourceKind::ConsumerGroups, "g", 2, json!({"plugins": {"count": {"count": 7}}}))]);
    assert_eq!((plugins(&store), rejected(&store)), (vec!["count"], vec![]));
    // The previous version of the group stays.
    store.apply([put(ResourceKind::ConsumerGroups, "g", 2, json!({"plugins": {"count": {"count": 0}}}))]);
    assert_eq!((plugins(&store), rejected(&store)[0].2), (vec!["count"], Replacement::Previous));
}

#[test]
fn the_rule_that_was_made_first_keeps_a_plugin() {
    let mut store = store();
    store.apply([
        put(ResourceKind::GlobalRules, "b", 2, json!({"plugins": {"count": {"count": 2}, "key-auth": {}}})),
        put(ResourceKind::GlobalRules, "a", 5, json!({"plugins": {"count": {"count": 1}}})),
    ]);
    let loaded = store.load("r");
    let kept: Vec<String> = loaded.config.plugins.global.entries().iter().map(|of| format!("{of:?}")).collect();
    assert_eq!(kept, ["count of global rule \"b\"", "key-auth of global rule \"b\""]);
    let warnings: Vec<String> = loaded.warnings.iter().map(ToString::to_string).collect();
    assert_eq!(
        warnings,
        ["warning: global_rules/a: plugins.count: global rule \"b\" has count already, which stays; keep one of them"]
    );
    assert!(loaded.rejected.is_empty());
}

#[test]
fn a_rule_that_is_switched_off_or_filtered_leaves_the_plugin_to_another() {
    let disabled = || json!({"_meta": {"disable": true}});
    let filtered = || json!({"_meta": {"filter": [["arg_a", "==", "1"]]}});
    let check = |rules: [Json; 3], expected: &[&str], warnings: usize| {
        let mut store = store();
        for (id, key_auth) in ["a", "b", "c"].into_iter().zip(&rules) {
            store.apply([put(ResourceKind::GlobalRules, id, 1, json!({"plugins": {"key-auth": key_auth}}))]);
        }
        let loaded = store.load("r");
        let chain = &loaded.config.plugins.global;
        let running: Vec<&str> = chain.entries().iter().map(|entry| &*entry.origin.id).collect();
        assert_eq!((&running[..], loaded.warnings.len()), (expected, warnings), "{rules:?}");
    };
    check([disabled(), json!({}), json!({})], &["b"], 1);
    check([json!({}), disabled(), json!({})], &["a"], 1);
    check([disabled(), disabled(), json!({})], &["c"], 0);
    check([filtered(), json!({}), json!({})], &["a", "b"], 1);
    check([filtered(), filtered(), disabled()], &["a", "b"], 0);
    check([json!({}), filtered(), filtered()], &["a"], 2);
}

#[test]
fn unknown_keys_of_plugins_pass_where_apisix_takes_them() {
    let mut store = store();
    let route = |plugins: Json| json!({"uri": "/a", "upstream": nodes(), "plugins": plugins});
    store.apply([
        put(
            ResourceKind::Routes,
            "1",
            1,
            route(json!({"count": {"count": 1, "colour": "red", "inner": {"key": "x"}}})),
        ),
        put(ResourceKind::Routes, "2", 2, route(json!({"count": {"count": 1, "inner": {"colour": "red"}}}))),
        put(ResourceKind::Routes, "3", 3, route(json!({"none": {}}))),
        put(
            ResourceKind::Consumers,
            "a",
            4,
            json!({"username": "a", "plugins": {"key-auth": {"key": "k1", "colour": 1}}}),
        ),
        put(ResourceKind::PluginMetadata, "count", 5, json!({"id": "count", "count": 1, "colour": 1})),
        put(ResourceKind::PluginMetadata, "none", 6, json!({"count": 1})),
        put(ResourceKind::Routes, "4", 7, route(json!({"count": {"count": 1, "_meta": {"filters": []}}}))),
    ]);
    let unavailable = |id| (ResourceKind::Routes, id, Replacement::Unavailable);
    let metadata = (ResourceKind::PluginMetadata, "none", Replacement::Unavailable);
    let refused = [metadata, unavailable("2"), unavailable("3"), unavailable("4")];
    check(&store, &[("1", Some("routes/1")), ("2", None), ("3", None), ("4", None)], &refused);
    let warnings: Vec<String> = store.load("r").warnings.into_iter().map(|warning| warning.path).collect();
    let expected =
        ["plugin_metadata/count: colour", "consumers/a: plugins.key-auth.colour", "routes/1: plugins.count.colour"];
    assert_eq!(warnings, expected);
}

#[test]
fn nothing_is_served_with_a_plugin_whose_metadata_is_refused() {
    let mut store = store();
    let route = json!({"uri": "/a", "upstream": nodes(), "plugins": {"count": {"count": 1}}});
    let metadata = |count: u32| put(ResourceKind::PluginMetadata, "count", 2, json!({"count": count}));
    store.apply([put(ResourceKind::Routes, "r", 1, route), metadata(0)]);
    let unavailable = |kind, id| (kind, id, Replacement::Unavailable);
    check(
        &store,
        &[("r", None)],
        &[unavailable(ResourceKind::PluginMetadata, "count"), unavailable(ResourceKind::Routes, "r")],
    );
    store.apply([metadata(1)]);
    check(&store, &[("r", Some("routes/r"))], &[]);
    store.apply([metadata(0)]);
    check(&store, &[("r", Some("routes/r"))], &[(ResourceKind::PluginMetadata, "count", Replacement::Previous)]);
    store.apply([delete(ResourceKind::PluginMetadata, "count")]);
    check(&store, &[("r", Some("routes/r"))], &[]);
}

#[test]
fn names_of_certificates_and_groups_belong_to_the_first() {
    let mut store = store();
    let ssl = |name: &str| json!({"snis": [name], "cert": "a.pem", "key": "a.key"});
    let route =
        |count: u32| json!({"uri": "/a", "upstream": nodes(), "plugins": {"count": {"count": count, "group": "g"}}});
    store.apply([
        put(ResourceKind::Ssls, "2", 2, ssl("a.example")),
        put(ResourceKind::Ssls, "1", 1, ssl("a.example")),
        put(ResourceKind::Routes, "1", 4, route(1)),
        put(ResourceKind::Routes, "2", 3, route(2)),
        put(ResourceKind::Routes, "3", 5, route(2)),
    ]);
    let refused =
        [(ResourceKind::Ssls, "2", Replacement::Unavailable), (ResourceKind::Routes, "1", Replacement::Unavailable)];
    check(&store, &[("2", Some("routes/2")), ("1", None), ("3", Some("routes/3"))], &refused);
    let reasons: Vec<_> = store.rejected().map(|of| of.reason.clone()).collect();
    assert!(reasons[0].contains("\"a.example\" is a name of the entry \"1\""), "{reasons:?}");
    assert!(reasons[1].contains("the group \"g\" is not the same in route \"2\""), "{reasons:?}");
    store.apply([
        delete(ResourceKind::Ssls, "1"),
        delete(ResourceKind::Routes, "2"),
        put(ResourceKind::Routes, "3", 5, route(1)),
    ]);
    check(&store, &[("1", Some("routes/1")), ("3", Some("routes/3"))], &[]);
}

#[test]
fn a_rejected_certificate_that_asks_clients_says_so() {
    let entry = |client: Json| {
        let mut entry = json!({"sni": "a.example", "cert": "a.pem", "key": "a.key", "client": client});
        entry.as_object_mut().unwrap().retain(|_, value| !value.is_null());
        entry
    };
    for (client, expected) in [
        (json!({"ca": "c.pem"}), true),
        (json!({"ca": 7}), true),
        (json!({"skip_mtls_uri_regex": ["/"], "ca": "c.pem"}), true),
        (json!(null), false),
    ] {
        let mut store = store();
        store.apply([
            put(ResourceKind::Ssls, "1", 1, entry(json!(null))),
            put(ResourceKind::Ssls, "2", 2, entry(client.clone())),
        ]);
        let asks = store.load("r").config.ssls.iter().any(|ssl| matches!(&ssl.usage, SslUse::Refused(of) if of.asks));
        assert_eq!(asks, expected, "{client}");
        let reason = store.rejected().next().expect("one of them").reason.clone();
        assert!(reason.contains("\"a.example\" is a name of the entry \"1\"") || reason.contains("client"), "{reason}");
        assert_eq!(reason.contains("handshakes for its names are refused"), expected, "{reason}");
    }
}

#[test]
fn names_of_a_rejected_certificate_are_refused() {
    let use_of = |ssl: &Arc<Ssl>| match ssl.usage.clone() {
        SslUse::Refused(of) => SslUse::Refused(RefusedSsl { asks: false, ..of }),
        other => other,
    };
    let uses = |store: &Store| -> Vec<SslUse> { store.load("r").config.ssls.iter().map(use_of).collect() };
    let refused = |names: &[&str], is_name_unread, is_default| {
        let names = names.iter().map(ToString::to_string).collect();
        SslUse::Refused(RefusedSsl { names, is_name_unread, is_default, asks: false })
    };
    let good =
        json!({"snis": ["a.example", "*.b.example"], "cert": "a.pem", "key": "a.key", "client": {"ca": "c.pem"}});
    // Each lacks something else, but contains its names.
    let without_key = json!({"snis": ["a.example", "*.b.example"], "cert": "a.pem", "keys": []});
    let bad_client = json!({"sni": "a.example", "cert": "a.pem", "key": "a.key", "client": {"ca": 7}});
    let bad_default = json!({"default": true, "cert": "a.pem", "key": "a.key", "certs": ["b.pem"]});
    for (document, expected) in [
        (&without_key, refused(&["a.example", "*.b.example"], false, false)),
        (&bad_default, refused(&[], false, true)),
    ] {
        let mut store = store();
        store.apply([put(ResourceKind::Ssls, "1", 1, document.clone())]);
        assert_eq!(rejected(&store), [(ResourceKind::Ssls, "1".to_owned(), Replacement::Unavailable)], "{document}");
        assert_eq!(uses(&store), [expected], "{document}");
    }
    let mut store = store();
    store.apply([
        put(ResourceKind::Ssls, "1", 1, bad_client),
        put(ResourceKind::Ssls, "2", 2, json!({"snis": [7], "cert": "a.pem"})),
    ]);
    assert_eq!(rejected(&store), ["1", "2"].map(|id| (ResourceKind::Ssls, id.to_owned(), Replacement::Unavailable)));
    assert_eq!(uses(&store), [refused(&["a.example"], false, false), refused(&[], true, false)]);
    for (document, expected) in [
        (json!(7), Some(refused(&[], true, true))),
        (json!([{"sni": "a.example"}]), Some(refused(&["a.example"], false, false))),
        (json!({"cert": "a.pem"}), None),
        (json!({"snis": [7], "default": "x"}), Some(refused(&[], true, true))),
        (json!({"sny": "a.example", "cert": "a.pem"}), Some(refused(&[], true, true))),
        (json!({"snis": ["a.example"], "default": 7}), Some(refused(&["a.example"], false, true))),
        (json!({"sni": "a.example", "snis": ["b.example"]}), Some(refused(&["a.example", "b.example"], false, false))),
        (json!({"type": "client", "snis": 7}), None),
        (json!({"type": 7, "sni": "a.example"}), Some(refused(&["a.example"], false, false))),
        (json!({"status": 0, "snis": 7}), None),
    ] {
        let mut store = self::store();
        store.apply([put(ResourceKind::Ssls, "1", 1, document.clone())]);
        assert_eq!(uses(&store), Vec::from_iter(expected), "{document}");
    }
    // A later entry does not get a name of a refused one.
    let mut store = self::store();
    let later = json!({"sni": "a.example", "cert": "a.pem", "key": "a.key"});
    store.apply([put(ResourceKind::Ssls, "1", 1, json!({"sni": "a.example"})), put(ResourceKind::Ssls, "2", 2, later)]);
    assert_eq!(uses(&store), vec![refused(&["a.example"], false, false); 2]);
    // The previous valid version stays.
    let mut store = self::store();
    store.apply([put(ResourceKind::Ssls, "1", 1, good), put(ResourceKind::Ssls, "1", 1, without_key)]);
    assert_eq!(rejected(&store), [(ResourceKind::Ssls, "1".to_owned(), Replacement::Previous)]);
    assert!(matches!(&uses(&store)[..], [SslUse::Server(server)] if server.client.is_some()));
    // A disabled entry claims nothing.
    let mut off = json!({"snis": ["a.example"], "cert": "a.pem", "status": 0});
    off["keys"] = json!(["b.key"]);
    let mut store = self::store();
    store.apply([put(ResourceKind::Ssls, "1", 1, off)]);
    assert_eq!(uses(&store), []);
}

/// The other entry may require client certificates.
#[test]
fn no_later_certificate_has_a_name_that_another_may_have() {
    let ssl = |names: Json| json!({"snis": names, "cert": "a.pem", "key": "a.key"});
    let unread = |store: &mut Store| {
        let text = r#"{"snis": ["a.example", 010], "cert": "a.pem", "key": "a.key", "client": {"ca": "c.pem"}}"#;
        let (kind, id) = (ResourceKind::Ssls, "unread".to_owned());
        store.apply([Change::Put { kind, id, document: text.into(), created: 2, origin: Origin::named("test") }]);
    };
    let of = |ids: &[&str]| -> Vec<_> {
        ids.iter().map(|id| (ResourceKind::Ssls, (*id).to_owned(), Replacement::Unavailable)).collect()
    };
    for is_first in [false, true] {
        let mut store = store();
        if is_first {
            unread(&mut store);
        }
        store.apply([
            put(ResourceKind::Ssls, "before", 1, ssl(json!(["a.example", "*.b.example"]))),
            put(ResourceKind::Ssls, "behind", 3, ssl(json!(["c.example"]))),
            put(ResourceKind::Ssls, "default", 4, json!({"default": true, "cert": "a.pem", "key": "a.key"})),
            put(ResourceKind::Ssls, "client", 5, json!({"type": "client", "cert": "a.pem", "key": "a.key"})),
        ]);
        if !is_first {
            assert_eq!(rejected(&store), []);
            unread(&mut store);
        }
        assert_eq!(rejected(&store), of(&["behind", "unread"]), "{is_first}");
        let reason = store.rejected().find(|of| of.id == "behind").unwrap().reason.clone();
        let why = "\"c.example\" may be a name of the entry \"unread\", of which one cannot be read";
        assert!(reason.contains(why), "{reason}");
        // Once it is fixed, it has its written names.
        store.apply([put(ResourceKind::Ssls, "unread", 2, ssl(json!(["c.example"])))]);
        assert_eq!(rejected(&store), of(&["behind"]));
        store.apply([put(ResourceKind::Ssls, "unread", 2, ssl(json!(["d.example"])))]);
        assert_eq!(rejected(&store), []);
        let mut store = self::store();
        unread(&mut store);
        store.apply([
            put(ResourceKind::Ssls, "behind", 3, ssl(json!(["c.example"]))),
            delete(ResourceKind::Ssls, "unread"),
        ]);
        assert_eq!(rejected(&store), []);
    }
    // Whatever else of it is unreadable, its readable names are its own.
    for first in [
        json!({"snis": ["a.example"], "cert": 7, "key": "a.key", "client": 7}),
        json!({"snis": ["a.example"], "ssl_protocols": 7}),
    ] {
        let mut store = self::store();
        store.apply([
            put(ResourceKind::Ssls, "1", 1, first.clone()),
            put(ResourceKind::Ssls, "2", 2, ssl(json!(["a.example"]))),
        ]);
        assert_eq!(rejected(&store), of(&["1", "2"]), "{first}");
    }
}

#[test]
fn a_secret_that_cannot_be_looked_up_refuses_its_resource() {
    let mut store = store();
    let document = json!({"username": "a", "plugins": {"key-auth": {"key": "$env://NONE"}}});
    store.apply([put(ResourceKind::Consumers, "a", 1, document)]);
    assert_eq!(rejected(&store), [(ResourceKind::Consumers, "a".to_owned(), Replacement::Nothing)]);
    let reason = store.rejected().next().unwrap().reason.clone();
    assert!(store.load("r").config.plugins.consumers.is_empty() && reason.contains("$env://NONE"), "{reason}");
}

#[test]
fn hostile_documents_are_refused() {
    let mut store = store();
    let deep = (0..100).fold(json!(1), |inner, _| json!({"a": inner}));
    let long = "x".repeat(70_000);
    for kind in ResourceKind::all() {
        for document in [
            json!(null),
            json!(7),
            json!("x"),
            json!([]),
            json!({"id": 1.5}),
            json!({"plugins": 1}),
            deep.clone(),
            json!({"username": long, "uri": long, "plugins": {"key-auth": {"key": long}}}),
            json!({"username": "other", "id": "other", "uri": "/a", "upstream": nodes(), "plugins": {}}),
            json!({"plugins": {"key-auth": deep}}),
        ] {
            store.apply([put(kind, "x", 1, document)]);
            let is_refused = store.rejected().any(|of| (of.kind, of.id.as_str()) == (kind, "x"));
            assert!(is_refused || matches!(kind, ResourceKind::Services | ResourceKind::PluginMetadata), "{kind:?}");
        }
    }
    assert!(store.load("r").config.plugins.consumers.is_empty());
}

#[test]
fn text_that_is_not_json_is_refused() {
    let mut store = store();
    let origin = || Origin::named("test");
    // A truncated object, and what may have been one, may guard anything.
    for (text, serving) in [
        ("", Replacement::Nothing),
        ("{", Replacement::Unavailable),
        ("{\"uri\": \"/a\"} x", Replacement::Unavailable),
        ("\u{0}", Replacement::Unavailable),
        ("[1,", Replacement::Unavailable),
        ("init_dir", Replacement::Nothing),
        ("{\"a\":1e999}", Replacement::Unavailable),
    ] {
        let document = text.into();
        store.apply([Change::Put {
            kind: ResourceKind::Routes,
            id: "r".to_owned(),
            document,
            created: 1,
            origin: origin(),
        }]);
        assert_eq!(rejected(&store), [(ResourceKind::Routes, "r".to_owned(), serving)], "{text:?}");
    }
}

/// As in APISIX, the key determines the identity. A consumer is identified by its name.
#[test]
fn the_key_of_a_document_is_its_id() {
    let mut store = store();
    store.apply([
        put(ResourceKind::Routes, "r", 1, json!({"id": "other", "uri": "/a", "plugins": {}})),
        put(ResourceKind::Consumers, "jack", 2, json!({"username": "jill"})),
    ]);
    assert_eq!(rejected(&store), [(ResourceKind::Consumers, "jack".to_owned(), Replacement::Nothing)]);
    let loaded = store.load("r");
    assert_eq!((&*loaded.config.routes[0].spec.id, &loaded.config.routes[0].target), ("r", &Target::Nowhere));
    assert!(loaded.warnings[0].to_string().contains("its document says \"other\""), "{:?}", loaded.warnings);
}

#[test]
fn another_gateway_section_reads_everything_again() {
    let mut store = store();
    store.apply([
        put(ResourceKind::Upstreams, "u", 1, nodes()),
        put(ResourceKind::Routes, "r", 2, json!({"uri": "/a", "upstream_id": "u"})),
        put(ResourceKind::Routes, "r", 2, json!({"uri": 7})),
    ]);
    let before = seen(&store);
    store.renew(store.load("r").config.gateway, CustomPlugins::NONE);
    assert_eq!(seen(&store), before);
}

#[test]
fn an_upstream_that_changes_leaves_its_routes_alone() {
    let mut store = store();
    store.apply([
        put(ResourceKind::Upstreams, "u", 1, nodes()),
        put(ResourceKind::Services, "s", 2, json!({"upstream_id": "u"})),
    ]);
    store.apply((0..100).map(|n| {
        put(
            ResourceKind::Routes,
            &n.to_string(),
            3,
            json!({"uri": format!("/{n}"), "service_id": "s", "timeout": {"read": 7}}),
        )
    }));
    let before = store.load("1").config;
    store.apply([put(ResourceKind::Upstreams, "u", 1, json!({"nodes": {"10.0.0.9:80": 1}, "timeout": {"send": 3}}))]);
    let after = store.load("2").config;
    assert_ne!(before.upstreams, after.upstreams);
    assert!(before.routes.iter().zip(&after.routes).all(|(old, new)| Arc::ptr_eq(old, new)));
}

#[test]
fn the_environment_is_not_for_writers_of_a_store() {
    let mut store = store();
    let rewrite = json!({"nodes": {"a:80": 1}, "pass_host": "rewrite", "upstream_host": "${HOME}"});
    store.apply([put(ResourceKind::Upstreams, "u", 1, rewrite)]);
    assert_eq!(rejected(&store), [(ResourceKind::Upstreams, "u".to_owned(), Replacement::Unavailable)]);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(600), failure_persistence: None, ..ProptestConfig::default() })]

    /// Applying changes one by one, in groups, or only the remaining ones in any order gives the same result.
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
        // One by one, in another order; the previous version of a resource precedes it.
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
