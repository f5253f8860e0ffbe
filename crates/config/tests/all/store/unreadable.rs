//! Partly unreadable resources are refused, and the requests they would have guarded are not answered by others.

use super::{nodes, put, rejected, store};
use crate::cases;
use crate::hostile::{PATIENCE, cpu_time};
use proptest::prelude::*;
use serde_json::{Value as Json, json};
use std::sync::Arc;
use stillgate_config::{Change, Config, Origin, Replacement, ResourceKind, Route, Store, Target};
use stillgate_route::path::normalise;
use stillgate_route::{Lookup, MatchRequest, Matcher, Method, Scratch, Variable};

/// The argument `x`.
struct Argument<'a>(&'a [u8]);

impl Lookup for Argument<'_> {
    fn value<'a>(&'a self, variable: &Variable, _: &'a mut Vec<u8>) -> Option<&'a [u8]> {
        (variable.to_string() == "arg_x").then_some(self.0)
    }

    fn each_header(&self, _: &mut dyn FnMut(&[u8], &[u8])) {}
}

/// A request.
#[derive(Debug, Clone, Copy)]
struct TestRequest<'a> {
    host: &'a str,
    path: &'a str,
    method: Method,
    client: [u8; 4],
    x: &'a str,
}

/// Every combination of the conditions that the routes below may have.
fn requests() -> Vec<TestRequest<'static>> {
    let mut all = Vec::new();
    for host in ["a.test", "b.a.test", "s.test", "other.test"] {
        for path in ["/a", "/a/1", "/b/2", "/"] {
            for (method, client, x) in [
                (Method::Get, [10, 0, 0, 1], "1"),
                (Method::Post, [10, 0, 0, 1], ""),
                (Method::Get, [192, 0, 2, 1], ""),
            ] {
                all.push(TestRequest { host, path, method, client, x });
            }
        }
    }
    all
}

/// The route that takes each request; `None`: none does.
fn taken(config: &Config, requests: &[TestRequest<'_>]) -> Vec<Option<Arc<Route>>> {
    let matcher = Matcher::compile(config.routes.iter().map(|route| route.spec.clone()).collect()).unwrap();
    let find = |asked: &TestRequest<'_>| {
        let mut buffer = Vec::new();
        let path = normalise(asked.path.as_bytes(), &mut buffer).unwrap();
        let vars = Argument(asked.x.as_bytes());
        let (host, client) = (asked.host.as_bytes(), asked.client.into());
        let request = MatchRequest { method: asked.method, host, path, client, vars: &vars };
        let found = matcher.find(&request, &mut Scratch::default()).unwrap();
        found.map(|found| config.routes[found.route].clone())
    };
    requests.iter().map(find).collect()
}

fn is_refused(route: &Option<Arc<Route>>) -> bool {
    matches!(route.as_deref(), Some(Route { target: Target::Unavailable(_), .. }))
}

/// Routes of all shapes, and their references, by kind and id; each is valid.
fn documents(mut number: impl FnMut(usize) -> usize) -> Vec<(ResourceKind, String, Json)> {
    let mut all = vec![
        (ResourceKind::Upstreams, "u".to_owned(), nodes()),
        (ResourceKind::Services, "s".to_owned(), json!({"hosts": ["s.test"], "upstream_id": "u"})),
        (ResourceKind::Services, "t".to_owned(), json!({"upstream": nodes()})),
        (ResourceKind::PluginConfigs, "p".to_owned(), json!({"plugins": {"count": {"count": 1}}})),
    ];
    for id in 0..2 + number(4) {
        let by_expression =
            [json!({"expression": "http.path ^= \"/a\""}), json!({"expression": "http.host == \"a.test\""})];
        let paths = [
            json!({"uri": "/*"}),
            json!({"uri": "/a"}),
            json!({"uri": "/a/*"}),
            json!({"uri": "/a/:id"}),
            json!({"uris": ["/a", "/b/*"]}),
        ];
        let hosts = [
            json!({}),
            json!({}),
            json!({"host": "a.test"}),
            json!({"host": "*.test"}),
            json!({"hosts": ["b.a.test", "*.a.test"]}),
        ];
        let is_expression = number(5) == 0;
        let mut route = json!({});
        let mut set = |choices: &[Json]| {
            if let Json::Object(keys) = &choices[number(choices.len())] {
                keys.iter().for_each(|(key, value)| route[key] = value.clone());
            }
        };
        if is_expression {
            set(&by_expression);
            set(&[json!({"upstream_id": "u"}), json!({"service_id": "t"})]);
        } else {
            set(&paths);
            set(&hosts);
            set(&[json!({}), json!({}), json!({"methods": ["GET"]}), json!({"methods": ["POST", "PUT"]})]);
            set(&[json!({}), json!({}), json!({"remote_addr": "10.0.0.0/8"})]);
            set(&[json!({}), json!({}), json!({"vars": [["arg_x", "==", "1"]]})]);
            set(&[json!({"upstream_id": "u"}), json!({"service_id": "s"}), json!({"service_id": "t"})]);
        }
        set(&[json!({}), json!({}), json!({"priority": 1}), json!({"priority": -1})]);
        set(&[json!({}), json!({}), json!({"plugin_config_id": "p"}), json!({"labels": {"a": "b"}})]);
        all.push((ResourceKind::Routes, format!("r{id}"), route));
    }
    all
}

/// Values that lua-cjson accepts, and some that no program does; none is JSON.
const NO_JSON: [&str; 14] = [
    "010",
    "-007",
    "0x10",
    "-.5",
    "1.",
    "1e999",
    "inf",
    "-Infinity",
    "nan",
    "+1",
    r#""\ud800""#,
    r#""\x""#,
    "\"\0\"",
    "x",
];

/// Nested lists that lua-cjson accepts.
const DEPTH: usize = 900;

/// A placeholder in a document for one of [`NO_JSON`], or for a list that is too deep.
fn no_json(index: usize) -> Json {
    format!("no JSON {index}").into()
}

/// A document as text, with its placeholder replaced by the text that is not JSON.
fn written(document: &Json) -> String {
    let mut text = document.to_string();
    let deep = "[".repeat(DEPTH) + &"]".repeat(DEPTH);
    for (index, value) in NO_JSON.into_iter().chain([&*deep]).enumerate() {
        text = text.replace(&no_json(index).to_string(), value);
    }
    text
}

/// Makes a random part of a document unreadable, as text.
fn spoil(document: &Json, mut number: impl FnMut(usize) -> usize) -> String {
    // No key accepts any of them.
    let mut junk = vec![json!({"?": 1}), json!("~^(?"), json!(1.5), json!([[7]]), json!(true)];
    junk.extend((0..=NO_JSON.len()).map(no_json));
    let mut document = document.clone();
    for _ in 0..1 + number(2) {
        let keys: Vec<String> = document.as_object().unwrap().keys().cloned().collect();
        let key = &keys[number(keys.len())];
        let value = document.as_object_mut().unwrap().remove(key).unwrap();
        match number(6) {
            // A misspelt key.
            0 => document[format!("{key}_")] = value,
            // A part of a list.
            1 if value.as_array().is_some_and(|items| !items.is_empty()) => {
                let mut items = value.as_array().unwrap().clone();
                let at = number(items.len());
                items[at] = junk[number(junk.len())].clone();
                document[key] = items.into();
            }
            // A key that cannot be served.
            2 => {
                document["script"] = "local _M = {} return _M".into();
                document[key] = value;
            }
            _ => document[key] = junk[number(junk.len())].clone(),
        }
    }
    if number(3) == 0 {
        document["desc"] = no_json(number(NO_JSON.len() + 1));
    }
    let text = written(&document);
    match number(8) {
        // It is truncated.
        0 => text[..1 + number(text.len() - 1)].to_owned(),
        1 => text + ["}", ",", "\0{}", "x"][number(4)],
        _ => text,
    }
}

fn put_text(kind: ResourceKind, id: &str, created: u64, text: &str) -> Change {
    Change::Put { kind, id: id.to_owned(), document: text.into(), created, origin: Origin::named("test") }
}

/// Whether a route is one of those that are answered with 503 without this resource.
fn needs(route: &Route, kind: ResourceKind, id: &str, documents: &[(ResourceKind, String, Json)]) -> bool {
    let own = documents.iter().find(|(kind, own, _)| *kind == ResourceKind::Routes && *own == route.spec.id);
    let refers = |key: &str, to: &str| own.is_some_and(|(_, _, document)| document[key] == to);
    match kind {
        ResourceKind::Routes => route.spec.id == id,
        ResourceKind::Services => refers("service_id", id),
        ResourceKind::PluginConfigs => refers("plugin_config_id", id),
        _ => refers("upstream_id", id) || id == "u" && refers("service_id", "s"),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(cases(2_000)))]

    #[test]
    fn nothing_that_it_would_have_guarded_is_answered_by_another(seed in any::<u64>()) {
        let mut state = seed;
        let mut number = |below: usize| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) as usize % below
        };
        let documents = documents(&mut number);
        let requests = requests();
        let (mut right, mut spoilt) = (store(), store());
        right.apply(documents.iter().zip(1..).map(|((kind, id, document), at)| put(*kind, id, at, document.clone())));
        prop_assert_eq!(rejected(&right), vec![]);
        let victim = number(documents.len());
        let (kind, id, document) = &documents[victim];
        let text = spoil(document, &mut number);
        let texts = documents.iter().zip(1..).enumerate().map(|(index, ((kind, id, document), at))| {
            let own = document.to_string();
            put_text(*kind, id, at, if index == victim { &text } else { &own })
        });
        spoilt.apply(texts.collect::<Vec<_>>());
        prop_assert!(spoilt.rejected().any(|of| (of.kind, &of.id) == (*kind, id)), "{}", text);
        let before = taken(&right.load("r").config, &requests);
        let after = taken(&spoilt.load("r").config, &requests);
        for ((asked, before), after) in requests.iter().zip(before).zip(after) {
            let guarded = before.as_ref().is_some_and(|route| needs(route, *kind, id, &documents));
            prop_assert!(!guarded || is_refused(&after), "{:?}: {:?}\n{}\n{:#?}", asked, after, text, documents);
            // Whatever else is refused, no request takes another route than before.
            let same = |a: &Option<Arc<Route>>, b: &Option<Arc<Route>>| {
                a.as_ref().map(|route| &route.spec.id) == b.as_ref().map(|route| &route.spec.id)
            };
            prop_assert!(is_refused(&after) || same(&before, &after), "{:?}\n{}\n{:#?}", asked, text, documents);
        }
    }
}

/// The results for paths and hosts, with an open route for everything.
#[track_caller]
fn check(change: Change, expected: &[(&str, &str, bool)]) {
    let mut store = store();
    store.apply([put(ResourceKind::Routes, "open", 1, json!({"uri": "/*", "upstream": nodes()})), change]);
    let config = store.load("r").config;
    for (host, path, refused) in expected {
        let asked = TestRequest { host, path, method: Method::Get, client: [10, 0, 0, 1], x: "" };
        assert_eq!(is_refused(&taken(&config, &[asked])[0]), *refused, "{host} {path}");
    }
}

#[test]
fn a_refusal_is_as_narrow_as_what_cannot_be_read() {
    let route = |document: Json| put(ResourceKind::Routes, "r", 2, document);
    let known = [("a.test", "/a/1", true), ("a.test", "/b", false)];
    check(route(json!({"uri": "/a/*", "script": "x", "upstream": nodes()})), &known);
    check(route(json!({"uri": "/a/*", "service_protocol": "grpc", "upstream": nodes()})), &known);
    check(route(json!({"uri": "/a/*", "vars": [["http_x", "~~", "^(?!a)"]], "upstream": nodes()})), &known);
    check(route(json!({"uri": "/a/*", "filter_func": "function(", "upstream": nodes()})), &known);
    check(route(json!({"uri": "/a/*", "hosts": [7], "upstream": nodes()})), &known);
    check(route(json!({"uri": "/a/*", "upstream": nodes(), "plugins": 7})), &known);
    check(
        route(json!({"uri": "/a/*", "uris": ["/c"], "upstream": nodes()})),
        &[("a.test", "/a/1", true), ("a.test", "/c", true)],
    );
    let of_host = [("a.test", "/a/1", true), ("a.test", "/b", true), ("b.test", "/b", false)];
    check(route(json!({"uri": 7, "host": "a.test", "upstream": nodes()})), &of_host);
    check(route(json!({"host": "a.test", "uris": [], "upstream": nodes()})), &of_host);
    check(route(json!({"uri": "/a", "status": 0, "host": 7})), &[("a.test", "/a", false)]);
    let all = [("a.test", "/a/1", true), ("b.test", "/", true)];
    check(route(json!({"expression": "http.path ==", "upstream": nodes()})), &all);
    check(route(json!({"urii": "/a", "upstream": nodes()})), &all);
    // Bytes that are not UTF-8, as APISIX accepts them anywhere.
    let text = format!("(no text: byte 30){{\"uri\": \"/a/*\", \"desc\": \"caf\u{fffd}\", \"upstream\": {}}}", nodes());
    check(put_text(ResourceKind::Routes, "r", 2, &text), &known);
    // In the path they could be any bytes.
    let text = format!("(no text: byte 12){{\"uri\": \"/caf\u{fffd}/*\", \"upstream\": {}}}", nodes());
    check(put_text(ResourceKind::Routes, "r", 2, &text), &[("a.test", "/a/1", true), ("b.test", "/", true)]);
    // Markers are not resources, and an object without a path is a route that takes no request.
    let none = [("a.test", "/a/1", false)];
    for text in ["", "init_dir", "{}", "{\"host\": \"a.test\"}"] {
        check(put_text(ResourceKind::Routes, "r", 2, text), &none);
    }
    // Any other text may be a route, whatever its author took for its form.
    let yaml = "id: r\nuri: /a/*\nplugins: {count: {}}\n";
    for text in
        ["7", "null", "[]", "[{\"uri\": 010}]", " ", "init_dir ", yaml, "// guard\n{\"uri\": \"/a/*\"}", "\u{feff}"]
    {
        check(put_text(ResourceKind::Routes, "r", 2, text), &all);
    }
    let object = json!({"uri": "/a/*", "upstream": nodes()}).to_string();
    check(put_text(ResourceKind::Routes, "r", 2, &format!("\u{feff}{object}")), &known);
    check(put_text(ResourceKind::Routes, "r", 2, &format!("[{object}]")), &known);
    check(put_text(ResourceKind::Routes, "r", 2, &Json::String(object.clone()).to_string()), &known);
    check(put_text(ResourceKind::Routes, "r", 2, &format!("[{object}, {object}]")), &all);
    check(put_text(ResourceKind::Routes, "r", 2, &format!("(no text: byte 1) \u{fffd}\u{fffd}{{{object}")), &all);
    // What a template leaves empty opens nothing.
    check(route(json!({"uri": "/a/*", "plugins": null, "upstream": nodes()})), &known);
    // A path that is too large to be read, in a list.
    check(route(json!({"uris": ["/a", "x".repeat(70_000)], "upstream": nodes()})), &all);
}

/// Input that lua-cjson accepts and the standard does not is refused by itself, in any position.
#[test]
fn a_value_that_is_not_json_leaves_the_others_readable() {
    let text = |text: &str| put_text(ResourceKind::Routes, "r", 2, &text.replace("NODES", &nodes().to_string()));
    let known = [("a.test", "/a/1", true), ("a.test", "/b", false)];
    let of_host = [("a.test", "/a/1", true), ("a.test", "/b", true), ("b.test", "/b", false)];
    let all = [("a.test", "/a/1", true), ("b.test", "/", true)];
    let deep = "[".repeat(DEPTH) + &"]".repeat(DEPTH);
    for value in NO_JSON.into_iter().chain([&*deep]) {
        let check = |document: &str, expected| check(text(&document.replace("VALUE", value)), expected);
        check(r#"{"uri": "/a/*", "desc": VALUE, "upstream": NODES}"#, &known);
        check(r#"{"uri": "/a/*", "plugins": {"count": {"count": VALUE}}, "upstream": NODES}"#, &known);
        check(r#"{"priority": VALUE, "uri": "/a/*", "upstream": NODES}"#, &known);
        check(r#"{"uri": "/a/*", "vars": [["arg_y", "==", VALUE]], "upstream": NODES}"#, &known);
        check(r#"{"uri": VALUE, "host": "a.test", "upstream": NODES}"#, &of_host);
        check(r#"{"uris": ["/a/*", VALUE], "host": "a.test", "upstream": NODES}"#, &of_host);
        check(r#"{"uri": "/c", "hosts": [VALUE], "uri": VALUE, "upstream": NODES}"#, &all);
        check(r#"{"uri": VALUE, "uri": "/a/*", "upstream": NODES}"#, &known);
    }
    // The text after the truncation could have contained any missing key.
    check(text(r#"{"uri": "/a/*", "upstream": {"nodes": "#), &known);
    check(
        text(r#"{"uri": "/a/*", "host": "a.test", "plugins": {"key-auth""#),
        &[("a.test", "/a/1", true), ("b.test", "/a/1", false)],
    );
    check(text("{\"uri\": \"/a/*\", \"upstream\": NODES}\0{}"), &known);
    check(text(r#"{"host": "a.test" "uri": "/a/*", "upstream": NODES}"#), &of_host);
    for broken in ["{", "{not JSON", r#"{"uri": "/a"#, r#"{"upstream": NODES, "uri"#] {
        check(text(broken), &all);
    }
    // Strings may contain line breaks, as in lua-cjson.
    check(text("{\"uri\": \"/a/*\", \"desc\": \"a\nb\", \"upstream\": NODES}"), &[("a.test", "/a/1", false)]);
}

/// The error names the key once, and never shows the value.
#[test]
fn the_reason_says_where_the_document_is_not_json() {
    for (text, expected) in [
        (
            r#"{"uri": "/a", "plugins": {"count": {"count": 0123456}}, "upstream_id": "u"}"#,
            "plugins.count.count: not JSON: invalid number",
        ),
        (
            r#"{"uri": "/a", "upstream_id": "u", "plugins": {"key-auth": {"key": "s3cret"#,
            "plugins: not JSON: end of the text in a string at byte 74",
        ),
        ("(no text: byte 9 is not UTF-8) {\"uri\": \"/a\", \"upstream_id\": \"u\"}", "not JSON: byte 9 is not UTF-8"),
    ] {
        let mut store = store();
        store.apply([put(ResourceKind::Upstreams, "u", 1, nodes()), put_text(ResourceKind::Routes, "r", 2, text)]);
        let reason = store.rejected().find(|of| of.id == "r").unwrap().reason.clone();
        let own = reason.split("; so that no other").next().unwrap();
        assert_eq!(own, expected, "{reason}");
    }
}

/// The hosts of a service apply to its routes without hosts.
#[test]
fn the_hosts_of_a_service_that_is_refused_hold() {
    let route = json!({"uri": "/a/*", "service_id": "s"});
    let cases = [
        (json!({"hosts": ["s.test"], "script": "x"}), [("s.test", true), ("a.test", false)]),
        (json!({"hosts": ["s.test", 7]}), [("s.test", true), ("a.test", true)]),
        // A service without hosts leaves its routes open to any host, behind routes with hosts.
        (json!({"upstream": 7}), [("s.test", false), ("a.test", false)]),
        (json!(7), [("s.test", true), ("a.test", true)]),
    ];
    for (service, expected) in cases {
        let mut store = store();
        let of_host = |host: &str| json!({"uri": "/*", "host": host, "upstream": nodes()});
        store.apply([
            put(ResourceKind::Routes, "s-open", 1, of_host("s.test")),
            put(ResourceKind::Routes, "a-open", 2, of_host("a.test")),
            put(ResourceKind::Routes, "r", 3, route.clone()),
        ]);
        store.apply([put(ResourceKind::Services, "s", 4, service.clone())]);
        let config = store.load("r").config;
        for (host, refused) in expected {
            let asked = TestRequest { host, path: "/a/1", method: Method::Get, client: [10, 0, 0, 1], x: "" };
            assert_eq!(is_refused(&taken(&config, &[asked])[0]), refused, "{host} {service}");
        }
    }
}

#[test]
fn a_stream_route_refuses_what_can_be_read_of_it() {
    let cases = [
        (json!({"server_port": 1, "sni": 7}), Some((Some(1), true))),
        (json!({"server_port": "x", "sni": "a.test"}), Some((None, false))),
        (json!({"server_port": 1, "protocol": {"name": "x"}}), Some((Some(1), false))),
        (json!({"server_port": 1, "snii": "a.test"}), Some((Some(1), true))),
        (json!("x"), Some((None, true))),
        (json!([{"server_port": 1, "sni": "a.test"}]), Some((Some(1), false))),
        (json!(null), Some((None, true))),
        (json!({"plugins": {"x": {}}}), Some((None, false))),
        (json!({"server_port": 1, "sni": 7, "status": 0}), None),
    ];
    for (document, expected) in cases {
        let mut store = store();
        store.apply([put(ResourceKind::StreamRoutes, "r", 1, document.clone())]);
        let serving = if expected.is_some() { Replacement::Unavailable } else { Replacement::Nothing };
        assert_eq!(rejected(&store), [(ResourceKind::StreamRoutes, "r".to_owned(), serving)], "{document}");
        let config = store.load("r").config;
        let found: Vec<_> = config.stream_routes.iter().map(|of| (of.server_port, of.is_sni_unread)).collect();
        assert_eq!(found, Vec::from_iter(expected), "{document}");
        assert!(config.stream_routes.iter().all(|of| matches!(of.target, Target::Unavailable(_))));
    }
}

/// Whatever kind of resource it is, a document that is not an object closes what the resource could have closed.
#[test]
fn a_document_that_is_not_an_object_is_refused_whatever_its_kind() {
    let object = json!({"id": "r", "username": "r", "unknown": 1});
    let texts = [
        format!("\u{feff}{object}"),
        format!("// r\n{object}"),
        format!("[{object}]"),
        Json::String(object.to_string()).to_string(),
        "id: r\nusername: r\n".to_owned(),
        "null".to_owned(),
        " ".to_owned(),
    ];
    for kind in ResourceKind::all() {
        let id = if matches!(kind, ResourceKind::Credentials | ResourceKind::Secrets) { "r/r" } else { "r" };
        for text in &texts {
            let mut store = store();
            store.apply([put(ResourceKind::Routes, "open", 1, json!({"uri": "/*", "upstream": nodes()}))]);
            store.apply([put_text(kind, id, 2, text)]);
            let (of, id, serving) = rejected(&store).into_iter().find(|(of, ..)| *of == kind).expect("it is rejected");
            let is_alone = matches!(kind, ResourceKind::Consumers | ResourceKind::Credentials | ResourceKind::Protos);
            let expected = if is_alone { Replacement::Nothing } else { Replacement::Unavailable };
            assert_eq!((of, serving), (kind, expected), "{id} {text:?}");
            assert!(store.checker().check(kind, text).is_err(), "{kind:?} {text:?}");
        }
    }
}

/// Each finding is looked through for each text that may be a secret; most findings are not shown.
#[test]
fn a_document_full_of_errors_takes_no_minutes() {
    let hosts: Vec<String> = (0..20_000).map(|number| format!("a b{number}")).collect();
    let route = json!({"uri": "/a", "hosts": hosts, "upstream": nodes()});
    let (store, began) = (store(), cpu_time());
    let refusal = store.checker().check(ResourceKind::Routes, &route.to_string()).unwrap_err();
    assert!(cpu_time() - began < PATIENCE, "{:?}", cpu_time() - began);
    assert!(refusal.contains("hosts[0]"), "{refusal}");
}

/// Each pair of a host and a path is compiled.
#[test]
fn a_route_with_too_many_pairs_is_refused_alone() {
    let all = |count: usize, prefix: &str| (0..count).map(|at| format!("{prefix}{at}")).collect::<Vec<_>>();
    let (hosts, uris) = (all(300, "h"), all(300, "/p"));
    let mut store = store();
    let upstream = nodes();
    store.apply([
        put(ResourceKind::Routes, "good", 1, json!({"uris": uris, "hosts": hosts[..200], "upstream": upstream})),
        put(ResourceKind::Routes, "bad", 2, json!({"uris": uris, "hosts": hosts, "upstream": upstream})),
        put(ResourceKind::Services, "s", 3, json!({"hosts": hosts, "upstream": upstream})),
        put(ResourceKind::Routes, "of-service", 4, json!({"uris": uris, "service_id": "s"})),
    ]);
    let mut refused: Vec<String> = rejected(&store).into_iter().map(|(_, id, _)| id).collect();
    refused.sort();
    assert_eq!(refused, ["bad", "of-service"]);
    let config = store.load("").config.clone();
    let places = |id: &str| {
        let route = config.routes.iter().find(|route| route.spec.id == id).unwrap();
        (route.spec.uri().unwrap().places(), matches!(route.target, Target::Unavailable(_)))
    };
    // In its place all paths of its hosts are closed.
    assert_eq!([places("good"), places("bad"), places("of-service")], [(60_000, false), (300, true), (300, true)]);
}

/// A partly unreadable consumer is identified by its credentials, which no later consumer gets.
#[test]
fn a_consumer_keeps_the_credentials_that_can_be_read() {
    let owner = |store: &Store| {
        let consumers = store.load("r").config.plugins.consumers;
        let found = consumers.find("key-auth", b"k").map(|found| consumers.of(found));
        found.map(|of| (of.name.to_string(), of.plugins.iter().map(|entry| entry.name).collect::<Vec<_>>()))
    };
    let mut store = store();
    let jack = json!({"username": "jack", "plugins": {"key-auth": {"key": "k"}, "count": {"count": 0}}});
    let jill = json!({"username": "jill", "plugins": {"key-auth": {"key": "k"}}});
    store.apply([put(ResourceKind::Consumers, "jack", 1, jack), put(ResourceKind::Consumers, "jill", 2, jill)]);
    assert_eq!(owner(&store), Some(("jack".to_owned(), vec!["unavailable"])));
    let of = |id: &str, serving| (ResourceKind::Consumers, id.to_owned(), serving);
    assert_eq!(rejected(&store), [of("jack", Replacement::Unavailable), of("jill", Replacement::Nothing)]);
    // This also holds if a part of it is not JSON.
    for jack in [
        r#"{"username": "jack", "plugins": {"key-auth": {"key": "k"}, "count": {"count": 010}}}"#,
        r#"{"username": "jack", "desc": nan, "plugins": {"key-auth": {"key": "k"}}}"#,
        r#"{"username": "jack", "plugins": {"key-auth": {"key": "k"}}, "labels": {"a"#,
        "(no text: byte 9) {\"username\": \"jack\", \"desc\": \"caf\u{fffd}\", \"plugins\": {\"key-auth\": {\"key\": \"k\"}}}",
    ] {
        let mut store = self::store();
        let jill = json!({"username": "jill", "plugins": {"key-auth": {"key": "k"}}});
        store
            .apply([put_text(ResourceKind::Consumers, "jack", 1, jack), put(ResourceKind::Consumers, "jill", 2, jill)]);
        assert_eq!(owner(&store), Some(("jack".to_owned(), vec!["unavailable"])), "{jack}");
    }
    store.apply([put(ResourceKind::Consumers, "jack", 1, json!({}))]);
    assert_eq!(owner(&store).map(|(name, _)| name), Some("jill".to_owned()));
}

/// An unusable resource is not reported as missing, in any order.
#[test]
fn a_reference_to_a_rejected_resource_is_reported() {
    let reason =
        |store: &Store| store.rejected().find(|of| of.id == "r").map(|of| of.reason.clone()).unwrap_or_default();
    for (kind, key) in [
        (ResourceKind::Upstreams, "upstream_id"),
        (ResourceKind::Services, "service_id"),
        (ResourceKind::PluginConfigs, "plugin_config_id"),
    ] {
        let mut route = json!({"uri": "/a", "plugins": {}});
        route[key] = "x".into();
        let changes = [put(ResourceKind::Routes, "r", 1, route), put(kind, "x", 2, json!({"nodes": 7, "plugins": 7}))];
        for order in [[0, 1], [1, 0]] {
            let mut store = store();
            order.iter().for_each(|at| store.apply([changes[*at].clone()]));
            let told = reason(&store);
            assert!(told.contains("\"x\" cannot be used; see why it is rejected"), "{kind:?} {order:?}: {told}");
            store.apply([Change::Delete { kind, id: "x".to_owned() }]);
            assert!(reason(&store).contains("with the id \"x\""), "{kind:?}: {}", reason(&store));
        }
    }
}
