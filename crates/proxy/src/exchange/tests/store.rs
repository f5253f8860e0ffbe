//! Serves from a store: a bad resource among good ones affects only what depends on it.

use super::*;
use serde_json::{Value as Json, json};
use stillgate_config::{Change, Origin as From, PluginSet, ResourceKind, Store};
use stillgate_plugin_api::{
    Authenticate, Compile, CompileCredential, CustomPlugins, Define, Descriptor, Ignorable, NoSecrets, PluginTable,
    Request, Scripts, Secret, secrets::SECRET,
};
use stillgate_schema::object;
use stillgate_wire::FieldName;

object! {
    /// Has no keys.
    struct NoKeys {
    }
}

object! {
    /// Credential that clients send.
    struct Key {
        /// The value of `X-Key`.
        key: Secret = SECRET => required;
    }
}

/// Finds consumers by the field `X-Key`.
struct ByKey;

impl Plugin for ByKey {
    fn rewrite(&self, request: &mut Request<'_>) -> Flow {
        let key = request.first_header(FieldName::constant("x-key")).unwrap_or_default();
        match request.consumers.find(Self::NAME, key) {
            Some(found) => {
                request.attach(found);
                Flow::Continue
            }
            None => Flow::Answer(stillgate_plugin_api::Answer::text(401, "who?")),
        }
    }
}

impl Define for ByKey {
    type Keys = NoKeys;
    const NAME: &'static str = "by-key";
    const PRIORITY: i32 = 1;
    const PHASES: Phases = Phases::of(&[Phase::Rewrite]);

    fn compile(_: NoKeys, _: &mut Compile<'_>) -> Option<ByKey> {
        Some(ByKey)
    }
}

impl Authenticate for ByKey {
    type Credential = Key;
    type Verifier = ();

    fn lookup(credential: &Key) -> &[u8] {
        credential.key.reveal().as_bytes()
    }

    fn verifier(_: Key, _: &mut CompileCredential<'_>) -> Option<()> {
        Some(())
    }
}

const TABLE: PluginTable = PluginTable {
    plugins: &[Descriptor::of::<ByKey>().authenticates::<ByKey>()],
    sought: &[],
    scripts: Scripts::NONE,
    custom: CustomPlugins::NONE,
    ignorable: Ignorable::NONE,
    drops_underscores: true,
};

/// A store, and a worker that serves its configuration.
struct StoreWorker {
    store: Store,
    plans: Arc<PlanCell>,
    bench: Bench,
}

impl StoreWorker {
    fn new() -> StoreWorker {
        let text = "gateway: {workers: 1, listeners: [{address: \"127.0.0.1:0\"}]}\nroutes: []\n";
        let gateway = stillgate_config::load(text, &|_| None).unwrap().config.gateway;
        let store =
            Store::new(gateway, PluginSet { table: TABLE, secrets: Arc::new(NoSecrets), ..PluginSet::default() });
        let plan = Plan::build(1, &store.load("").config, &HashMap::new(), None, None, None).unwrap();
        let plans = Arc::new(PlanCell::new(Arc::new(plan)));
        let config = store.load("").config;
        let bench = Bench::serving(&config, plans.clone());
        StoreWorker { store, plans, bench }
    }

    fn apply<const N: usize>(&mut self, changes: [Change; N]) {
        self.store.apply(changes);
        let config = self.store.load("").config;
        let plan = Plan::build(1, &config, &HashMap::new(), Some(&self.plans.load()), None, None).unwrap();
        self.plans.publish(Arc::new(plan));
    }

    /// The status of each path; for `PATH@KEY`, requested with that key.
    #[track_caller]
    fn check(&self, expected: &[(&str, u16)]) {
        for (path, status) in expected {
            let (path, key) = path.split_once('@').unwrap_or((path, ""));
            let mut client = self.bench.client();
            client.try_send(format!("GET {path} HTTP/1.1\r\nhost: a\r\nx-key: {key}\r\n\r\n")).unwrap();
            let response = client.read_response("GET").unwrap();
            assert_eq!(response.head.status(), *status, "{path}@{key}");
        }
    }

    fn served(&self) -> Vec<(String, String)> {
        self.store.rejected().map(|of| (format!("{}/{}", of.kind.name(), of.id), of.serving.to_string())).collect()
    }
}

fn put(kind: ResourceKind, id: &str, created: u64, document: Json) -> Change {
    let document = document.to_string().into();
    Change::Put { kind, id: id.to_owned(), document, created, origin: From::named(id) }
}

fn delete(kind: ResourceKind, id: &str) -> Change {
    Change::Delete { kind, id: id.to_owned() }
}

fn rejected(all: &[(&str, &str)]) -> Vec<(String, String)> {
    all.iter().map(|(what, serving)| ((*what).to_owned(), (*serving).to_owned())).collect()
}

#[test]
fn good_routes_are_served_beside_bad_ones() {
    let node = Upstream::echo();
    let mut served = StoreWorker::new();
    let nodes = json!({"nodes": {node.addr().to_string(): 1}});
    served.apply([
        put(ResourceKind::Upstreams, "u", 1, nodes.clone()),
        put(ResourceKind::Routes, "good", 2, json!({"uri": "/good", "upstream_id": "u"})),
        put(ResourceKind::Routes, "bad", 3, json!({"uri": "/bad", "upstream_id": "u", "timeout": {"read": "soon"}})),
        put(ResourceKind::Routes, "lost", 4, json!({"uri": "/lost", "upstream_id": "u", "service_id": "none"})),
        put(ResourceKind::Routes, "below", 5, json!({"uri": "/*", "upstream_id": "u"})),
    ]);
    // Requests for the bad routes do not fall through to the broader route.
    served.check(&[("/good", 200), ("/bad", 503), ("/lost", 503), ("/else", 200)]);
    assert_eq!(served.served(), rejected(&[("routes/bad", "503"), ("routes/lost", "503")]));
    // A wrong version leaves the previous one in effect.
    served.apply([
        put(ResourceKind::Routes, "good", 2, json!({"uri": "/good", "upstream_id": 7.5})),
        put(ResourceKind::Upstreams, "u", 1, json!({"nodes": "none"})),
        put(ResourceKind::Services, "none", 6, json!({})),
    ]);
    served.check(&[("/good", 200), ("/bad", 503), ("/lost", 200)]);
    let expected = [("upstreams/u", "previous"), ("routes/bad", "503"), ("routes/good", "previous")];
    assert_eq!(served.served(), rejected(&expected));
    served.apply([delete(ResourceKind::Upstreams, "u"), delete(ResourceKind::Routes, "bad")]);
    served.check(&[("/good", 503), ("/bad", 503), ("/lost", 503)]);
}

#[test]
fn a_refused_global_rule_lets_nothing_through() {
    let node = Upstream::echo();
    let mut served = StoreWorker::new();
    let nodes = json!({"nodes": {node.addr().to_string(): 1}});
    served.apply([
        put(ResourceKind::Routes, "r", 1, json!({"uri": "/r", "upstream": nodes})),
        put(ResourceKind::GlobalRules, "g", 2, json!({"plugins": {"no-such-plugin": {}}})),
    ]);
    served.check(&[("/r", 503), ("/none", 503)]);
    served.apply([put(ResourceKind::GlobalRules, "g", 2, json!({"plugins": {"by-key": {}}}))]);
    served.check(&[("/r", 401), ("/none", 401)]);
    // From here on there is a previous version.
    served.apply([put(ResourceKind::GlobalRules, "g", 2, json!({"plugins": {"no-such-plugin": {}}}))]);
    served.check(&[("/r", 401), ("/none", 401)]);
    assert_eq!(served.served(), rejected(&[("global_rules/g", "previous")]));
    served.apply([delete(ResourceKind::GlobalRules, "g")]);
    served.check(&[("/r", 200), ("/none", 404)]);
}

#[test]
fn consumers_come_from_a_store() {
    let node = Upstream::echo();
    let mut served = StoreWorker::new();
    let nodes = json!({"nodes": {node.addr().to_string(): 1}});
    let consumer = |name: &str, key: &str| json!({"username": name, "plugins": {"by-key": {"key": key}}});
    served.apply([
        put(
            ResourceKind::Routes,
            "r",
            1,
            json!({"uri": "/r", "upstream": nodes, "plugins": {"by-key": {"unknown": 1}}}),
        ),
        put(ResourceKind::Consumers, "late", 9, consumer("late", "one")),
        put(ResourceKind::Consumers, "early", 2, consumer("early", "one")),
        put(ResourceKind::Consumers, "other", 3, consumer("other", "two")),
        put(
            ResourceKind::Consumers,
            "alone",
            4,
            json!({"username": "alone", "group_id": "g",
            "plugins": {"by-key": {"key": "three"}}}),
        ),
    ]);
    served.check(&[("/r@one", 200), ("/r@two", 200), ("/r@three", 503), ("/r@four", 401), ("/r", 401)]);
    assert_eq!(served.served(), rejected(&[("consumers/alone", "503"), ("consumers/late", "nothing")]));
    // The key is free, and the group exists.
    served.apply([
        delete(ResourceKind::Consumers, "early"),
        put(ResourceKind::ConsumerGroups, "g", 7, json!({"plugins": {}})),
    ]);
    served.check(&[("/r@one", 200), ("/r@three", 200)]);
    assert_eq!(served.served(), rejected(&[]));
    served.apply([put(ResourceKind::Consumers, "late", 9, json!({"username": "late"}))]);
    served.check(&[("/r@one", 401)]);
}
