//! Features of stores only: credentials and protos as separate resources, attempts, and resources that are refused from outside.

use super::{delete, nodes, put, rejected, seen, store, targets};
use serde_json::json;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use stillgate_config::{PluginSet, Replacement, ResourceKind, SslUse, Store, load};
use stillgate_plugin_api::Secrets;
use stillgate_plugin_api::secrets::Managers;

/// The ids of a consumer's credentials; `None`: the consumer does not exist.
fn credentials(store: &Store, name: &str) -> Option<Vec<String>> {
    let consumers = store.load("r").config.plugins.consumers;
    let at = consumers.find_by_name(name)?;
    Some(consumers.of(at).credentials.iter().map(ToString::to_string).collect())
}

#[test]
fn credentials_are_resources_of_their_own() {
    let mut store = store();
    let key = |key: &str| json!({"plugins": {"key-auth": {"key": key}}});
    let jack = || json!({"username": "jack", "plugins": {}});
    // Before its consumer exists, and in any order.
    store.apply([put(ResourceKind::Credentials, "jack/one", 3, key("one"))]);
    assert_eq!(rejected(&store), [(ResourceKind::Credentials, "jack/one".to_owned(), Replacement::Nothing)]);
    store.apply([
        put(ResourceKind::Consumers, "jack", 4, jack()),
        put(ResourceKind::Credentials, "jack/two", 5, key("two")),
    ]);
    assert_eq!((rejected(&store), credentials(&store, "jack")), (vec![], Some(vec!["one".into(), "two".into()])));
    // A name with another's as its prefix.
    store.apply([put(ResourceKind::Consumers, "jackie", 6, json!({"username": "jackie"}))]);
    assert_eq!(credentials(&store, "jackie"), Some(vec![]));
    // One that another consumer has, one with two plugins, one without any: each is left out by itself.
    store.apply([
        put(ResourceKind::Credentials, "jackie/x", 7, key("one")),
        put(
            ResourceKind::Credentials,
            "jackie/y",
            8,
            json!({"plugins": {"key-auth": {"key": "y"}, "count": {"count": 1}}}),
        ),
        put(ResourceKind::Credentials, "jackie/z", 9, json!({"plugins": {"count": {"count": 1}}})),
        put(ResourceKind::Credentials, "jackie/good", 10, key("good")),
    ]);
    let left_out = |id: &str| (ResourceKind::Credentials, id.to_owned(), Replacement::Nothing);
    assert_eq!(rejected(&store), ["jackie/x", "jackie/y", "jackie/z"].map(left_out));
    assert_eq!(credentials(&store, "jackie"), Some(vec!["good".into()]));
    // Once the first is removed, the other gets it.
    store.apply([delete(ResourceKind::Credentials, "jack/one")]);
    assert_eq!(credentials(&store, "jackie"), Some(vec!["good".into(), "x".into()]));
    assert_eq!(credentials(&store, "jack"), Some(vec!["two".into()]));
    // The last valid one stays if the next is invalid; without the consumer none is left.
    store.apply([put(ResourceKind::Credentials, "jack/two", 5, json!({"plugins": {}}))]);
    assert_eq!(credentials(&store, "jack"), Some(vec!["two".into()]));
    store.apply([delete(ResourceKind::Consumers, "jack")]);
    assert_eq!(credentials(&store, "jack"), None);
    assert!(rejected(&store).contains(&(ResourceKind::Credentials, "jack/two".to_owned(), Replacement::Nothing)));
}

#[test]
fn protos_are_kept_and_mean_nothing() {
    let mut store = store();
    let before = store.load("r");
    store.apply([put(ResourceKind::Protos, "1", 1, json!({"content": "syntax = \"proto3\";"}))]);
    assert_eq!((rejected(&store), store.load("r")), (vec![], before));
    store.apply([put(ResourceKind::Protos, "2", 2, json!({"desc": "nothing"}))]);
    assert_eq!(rejected(&store), [(ResourceKind::Protos, "2".to_owned(), Replacement::Nothing)]);
}

#[test]
fn what_is_attempted_leaves_no_trace() {
    let mut store = store();
    store.apply([
        put(ResourceKind::Upstreams, "u", 1, nodes()),
        put(ResourceKind::Routes, "r", 2, json!({"uri": "/a", "upstream_id": "u"})),
        put(ResourceKind::Routes, "bad", 3, json!({"uri": "/b", "upstream_id": "u"})),
        put(ResourceKind::Routes, "bad", 3, json!({"uri": 7})),
        put(ResourceKind::Consumers, "jack", 4, json!({"username": "jack", "plugins": {"key-auth": {"key": "k"}}})),
    ]);
    let before = seen(&store);
    let mut targets_seen = Vec::new();
    let attempt = store.attempt(
        vec![
            delete(ResourceKind::Upstreams, "u"),
            put(ResourceKind::Routes, "bad", 3, json!({"uri": "/c", "upstream": nodes()})),
            put(ResourceKind::Consumers, "jill", 9, json!({"username": "jill", "plugins": {"key-auth": {"key": "k"}}})),
        ],
        |store| targets_seen = targets(store),
    );
    let refused: Vec<_> = attempt.rejected.iter().map(|of| (of.kind, of.id.as_str(), of.serving)).collect();
    let expected = [
        (ResourceKind::Consumers, "jill", Replacement::Nothing),
        (ResourceKind::Routes, "r", Replacement::Unavailable),
    ];
    assert_eq!(refused, expected);
    assert_eq!(targets_seen, [("r".to_owned(), None), ("bad".to_owned(), Some("routes/bad".to_owned()))]);
    assert_eq!(seen(&store), before);
    // Writing a resource that is already rejected again does not improve it.
    let again = store.attempt(vec![put(ResourceKind::Routes, "bad", 3, json!({"uri": 7}))], |_| {});
    assert_eq!(again.rejected.iter().map(|of| of.id.as_str()).collect::<Vec<_>>(), ["bad"]);
    assert_eq!(seen(&store), before);
}

/// Nothing is refused in place of a resource that is not stored.
#[test]
fn the_reason_of_a_refused_change_names_no_wider_refusal() {
    let mut store = store();
    let unread = |uri: &str| json!({"uri": uri, "hots": ["a"], "upstream": nodes()});
    store.apply([put(ResourceKind::Routes, "stored", 1, unread("/a"))]);
    let before = seen(&store);
    let attempt = store.attempt(vec![put(ResourceKind::Routes, "new", 2, unread("/b"))], |_| {});
    let reasons: Vec<_> =
        attempt.rejected.iter().map(|of| (of.id.as_str(), of.reason.contains("refuses any"))).collect();
    assert_eq!(reasons, [("new", false)]);
    assert_eq!(seen(&store), before);
    assert!(store.rejected().all(|of| of.reason.ends_with("it refuses any host")));
}

/// A change that takes long to compile holds up other writers: all its regexes have a bound. What is stored has none.
#[test]
fn regexes_of_a_change_have_a_bound_together() {
    let route = |number: usize| {
        let large = |at: usize| json!(["http_a", "~~", format!(r"(\w{{40}}){{40}}{at}_{number}")]);
        let vars: Vec<_> = (0..40).map(large).collect();
        put(
            ResourceKind::Routes,
            &number.to_string(),
            1,
            json!({"uri": format!("/{number}"), "vars": vars, "upstream": nodes()}),
        )
    };
    let mut store = store();
    let refused = |store: &mut Store, count: usize| store.attempt((0..count).map(route).collect(), |_| {}).rejected;
    assert_eq!(refused(&mut store, 5), []);
    let of_many = refused(&mut store, 30);
    assert_eq!(of_many.len(), 30, "it is refused as a whole");
    assert!(of_many.iter().all(|of| of.reason.contains("of all resources in this change")), "{:?}", of_many[0]);
    store.apply((0..30).map(route));
    assert_eq!((rejected(&store), store.load("r").config.routes.len()), (vec![], 30));
}

/// Trying a change out must not make a source forget the secrets that are in use.
#[test]
fn an_attempt_announces_no_secrets() {
    #[derive(Clone, Default)]
    struct Announced(Arc<AtomicUsize>);
    impl Secrets for Announced {
        fn resolve(&self, reference: &str) -> Result<String, String> {
            Ok(reference.to_owned())
        }

        fn with_managers(&self, _: &Managers) -> Option<Arc<dyn Secrets>> {
            Some(Arc::new(self.clone()))
        }

        fn in_use(&self, _: &[String]) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }
    let announced = Announced::default();
    let plugins = PluginSet { secrets: Arc::new(announced.clone()), ..PluginSet::default() };
    let gateway = load("upstreams: []\n", &|_| None).unwrap().config.gateway;
    let mut store = Store::new(gateway, plugins);
    let manager = json!({"uri": "http://127.0.0.1:8200", "prefix": "kv", "token": "t"});
    store.apply([put(ResourceKind::Secrets, "vault/a", 1, manager)]);
    assert_eq!(announced.0.load(Ordering::SeqCst), 1);
    store.attempt(vec![delete(ResourceKind::Secrets, "vault/a")], |_| {});
    assert_eq!(announced.0.load(Ordering::SeqCst), 1);
    store.apply([delete(ResourceKind::Secrets, "vault/a")]);
    assert_eq!(announced.0.load(Ordering::SeqCst), 2);
}

#[test]
fn a_resource_can_be_refused_from_outside() {
    let ssl = |name: &str, cert: &str| json!({"snis": [name], "cert": cert, "key": "a.key"});
    let mut store = store();
    store.apply([
        put(ResourceKind::Ssls, "1", 1, ssl("a.example", "a.pem")),
        put(ResourceKind::Ssls, "2", 2, ssl("b.example", "b.pem")),
    ]);
    store.refuse(ResourceKind::Ssls, "2", "the certificate has ended");
    assert_eq!(rejected(&store), [(ResourceKind::Ssls, "2".to_owned(), Replacement::Unavailable)]);
    let usages: Vec<_> = store.load("r").config.ssls.iter().map(|ssl| ssl.usage.clone()).collect();
    assert!(matches!(&usages[..], [SslUse::Server(_), SslUse::Refused(of)] if of.names == ["b.example"]));
    // If there is a previous version, that one is served.
    store.apply([put(ResourceKind::Ssls, "1", 1, ssl("a.example", "new.pem"))]);
    let before = store.load("r").config.ssls[0].clone();
    store.refuse(ResourceKind::Ssls, "1", "the key is another's");
    assert_eq!(rejected(&store)[0], (ResourceKind::Ssls, "1".to_owned(), Replacement::Previous));
    assert_ne!(store.load("r").config.ssls[0], before);
    // A refused resource stays refused until it is written again.
    store.refuse(ResourceKind::Ssls, "1", "again");
    store.refuse(ResourceKind::Routes, "none", "is not there");
    assert_eq!(store.rejected().next().unwrap().reason, "the key is another's");
    store.apply([put(ResourceKind::Ssls, "1", 1, ssl("a.example", "newer.pem")), delete(ResourceKind::Ssls, "2")]);
    assert_eq!(rejected(&store), []);
}
