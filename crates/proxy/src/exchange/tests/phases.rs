//! The phases: their order, answers, and edits of heads.

use super::*;
use stillgate_plugin_api::{Answer, Consumer, Consumers, Filter};
use stillgate_route::vars::Expr;
use stillgate_testkit::Message;
use stillgate_wire::{FieldName, FieldValue};

fn name(name: &'static str) -> FieldName<'static> {
    FieldName::constant(name)
}

fn value(value: &'static str) -> FieldValue<'static> {
    FieldValue::constant(value)
}

/// A plugin that records each of its phases.
fn telling(story: &Story, who: &'static str) -> ScriptedPlugin {
    let on_request = |phase: &'static str| -> Option<OnRequest> {
        let story = story.clone();
        Some(Box::new(move |_| {
            story.tell(format!("{who} {phase}"));
            Flow::Continue
        }))
    };
    let on_response = |phase: &'static str| -> Option<OnResponse> {
        let story = story.clone();
        Some(Box::new(move |response| story.tell(format!("{who} {phase} {}", response.status()))))
    };
    ScriptedPlugin {
        rewrite: on_request("rewrite"),
        access: on_request("access"),
        before_proxy: on_request("before_proxy"),
        header_filter: on_response("header_filter"),
        log: on_response("log"),
    }
}

fn told(story: &Story, phases: usize) -> Vec<String> {
    let began = std::time::Instant::now();
    while story.told().len() < phases && began.elapsed() < stillgate_testkit::PATIENCE {
        std::thread::yield_now();
    }
    story.told()
}

#[test]
fn phases_run_in_apisix_order() {
    let (node, story) = (Upstream::echo(), Story::default());
    let bench = Bench::new(&[&node], telling(&story, "global").chain(), telling(&story, "route").chain());
    assert_eq!(bench.client().get("/r").head.status(), 200);
    let expected = [
        "global rewrite",
        "global access",
        "route rewrite",
        "route access",
        "global before_proxy",
        "route before_proxy",
        "global header_filter 200",
        "route header_filter 200",
        "global log 200",
        "route log 200",
    ];
    assert_eq!(told(&story, expected.len()), expected);
}

#[test]
fn without_a_route_global_rules_run() {
    let (node, story) = (Upstream::echo(), Story::default());
    let bench = Bench::new(&[&node], telling(&story, "global").chain(), telling(&story, "route").chain());
    assert_eq!(bench.client().get("/none").head.status(), 404);
    let expected = ["global rewrite", "global access", "global header_filter 404", "global log 404"];
    assert_eq!(told(&story, expected.len()), expected);
}

#[test]
fn a_plugin_answers() {
    let (node, story) = (Upstream::echo(), Story::default());
    let deny = |request: &mut Request<'_>| {
        request.response.add(name("WWW-Authenticate"), value("Basic"));
        Flow::Answer(Answer::text(401, "no entry"))
    };
    let seen = story.clone();
    let scripted = ScriptedPlugin {
        header_filter: Some(Box::new(move |response| {
            seen.tell(format!("{} {}", response.status(), response.is_of_node));
            response.set_header(name("Server"), value("mine"));
        })),
        ..ScriptedPlugin::rewrite(deny)
    };
    let bench = Bench::new(&[&node], None, scripted.chain());
    let mut client = bench.client();
    let answer = client.get("/r");
    let fields = |answer: &Message, name: &str| answer.head.get(name).map(str::to_owned);
    assert_eq!((answer.head.start.as_str(), &answer.body[..]), ("HTTP/1.1 401 Unauthorized", &b"no entry"[..]));
    assert_eq!(fields(&answer, "Content-Type").as_deref(), Some("text/plain; charset=utf-8"));
    assert_eq!(fields(&answer, "WWW-Authenticate").as_deref(), Some("Basic"));
    assert_eq!(answer.head.all("Server"), ["mine"]);
    // The connection is kept.
    let head = client.request("HEAD", "/r", b"");
    assert_eq!((head.head.status(), head.body.len(), fields(&head, "Content-Length").as_deref()), (401, 0, Some("8")));
    assert_eq!((node.requests(), story.told()), (0, vec!["401 false".to_owned(); 2]));
}

#[test]
fn an_error_response_takes_the_place_of_a_plugins_body() {
    let node = Upstream::echo();
    let check = |status: u16, expected: &str| {
        let meta = Meta { error_response: Some(b"custom".as_slice().into()), ..Meta::default() };
        let answer = ScriptedPlugin::rewrite(move |_| Flow::Answer(Answer::text(status, "own")));
        let bench = Bench::new(&[&node], None, chain([answer.entry("answers", meta)]));
        let got = bench.client().get("/r");
        assert_eq!((got.head.status(), got.body), (status, expected.as_bytes().to_vec()));
    };
    check(403, "custom");
    check(200, "own");
    check(599, "custom");
}

#[test]
fn what_plugins_change_is_what_the_node_gets() {
    let node = Upstream::bind();
    let scripted = ScriptedPlugin::rewrite(|request| {
        request.edits.set_method(b"PUT").unwrap();
        request.edits.set_target(b"/other?a=b").unwrap();
        request.set_header(name("Host"), value("node.test"));
        request.set_header(name("A"), value("2"));
        request.remove_header(name("B"));
        request.set_header(name("X-Forwarded-Proto"), value("https"));
        request.set_header(name("X-Real-IP"), value("9.9.9.9"));
        Flow::Continue
    });
    let bench = Bench::new(&[&node], None, scripted.chain());
    let mut client = bench.client();
    client.deliver(b"GET /r HTTP/1.1\r\nHost: h\r\nA: 1\r\nB: 1\r\n\r\n", stillgate_testkit::Delivery::Whole);
    let mut connection = node.accept();
    let request = connection.expect_request();
    assert_eq!(request.head.method_and_target(), ("PUT", "/other?a=b"));
    let fields = |name: &str| request.head.all(name).join("|");
    assert_eq!((fields("Host"), fields("A"), fields("B")), ("node.test".into(), "2".into(), String::new()));
    assert_eq!((fields("X-Forwarded-Proto"), fields("X-Real-IP")), ("https".into(), "127.0.0.1".into()));
    assert_eq!(fields("X-Forwarded-Host"), "h");
}

#[test]
fn what_plugins_change_is_what_the_client_gets() {
    let node = Upstream::serve(|connection| {
        while connection.read_request().is_ok() {
            connection.send("HTTP/1.1 200 OK\r\nContent-Length: 2\r\nA: node\r\nB: node\r\nServer: node\r\n\r\nok");
        }
    });
    let scripted = ScriptedPlugin {
        header_filter: Some(Box::new(|response| {
            assert!(response.is_of_node && response.came_with == 200);
            response.edits.set_status(418).unwrap();
            response.remove_header(name("B"));
            response.add_header(name("C"), value("plugin"));
        })),
        ..ScriptedPlugin::rewrite(|request| {
            request.response.add(name("a"), value("preset"));
            Flow::Continue
        })
    };
    let bench = Bench::new(&[&node], None, scripted.chain());
    let mut client = bench.client();
    for _ in 0..2 {
        let got = client.get("/r");
        assert_eq!((got.head.status(), &got.body[..]), (418, &b"ok"[..]));
        let fields = |name: &str| got.head.all(name).join("|");
        assert_eq!((fields("A"), fields("B"), fields("C")), ("preset".into(), String::new(), "plugin".into()));
        assert_eq!(fields("Server"), "stillgate");
    }
}

#[test]
fn a_status_that_has_no_body_gets_none() {
    let node = Upstream::echo();
    let check = |status: u16, method: &'static str| {
        let scripted = ScriptedPlugin {
            header_filter: Some(Box::new(move |response| response.edits.set_status(status).unwrap())),
            ..ScriptedPlugin::rewrite(move |request| {
                request.edits.set_method(method.as_bytes()).unwrap();
                Flow::Continue
            })
        };
        let bench = Bench::new(&[&node], None, scripted.chain());
        let mut client = bench.client();
        for _ in 0..2 {
            let got = client.get("/r?size=5");
            assert_eq!((got.head.status(), got.body.is_empty()), (status, status == 204 || method == "HEAD"));
        }
    };
    check(204, "GET");
    check(200, "HEAD");
    check(200, "GET");
}

#[test]
fn a_consumer_brings_its_plugins() {
    let (node, story) = (Upstream::echo(), Story::default());
    let attach = ScriptedPlugin::rewrite(|request| {
        *request.consumer = request.consumers.find_by_name("jack");
        Flow::Continue
    });
    let first = Meta { priority: Some(9), ..Meta::default() };
    let route = chain([
        attach.entry("attach", first),
        telling(&story, "route's a").entry("a", Meta::default()),
        telling(&story, "route's b").entry("b", Meta::default()),
    ]);
    let plugins: Vec<_> = [("b", "jack's b"), ("c", "jack's c")]
        .into_iter()
        .map(|(name, who)| telling(&story, who).entry(name, Meta::default()))
        .collect();
    let jack = Consumer {
        name: "jack".into(),
        group: None,
        labels: Box::default(),
        plugins: plugins.into(),
        credentials: Box::default(),
    };
    let mut consumers = Consumers::default();
    consumers.insert(jack, Vec::new()).unwrap();
    let bench = Bench::with(&[&node], |plan| {
        plan.consumers = Arc::new(consumers);
        plan.routes.set_chain(0, route);
    });
    assert_eq!(bench.client().get("/r").head.status(), 200);
    let expected = [
        "route's a rewrite",
        "route's b rewrite",
        "jack's c rewrite",
        "route's a access",
        "jack's b access",
        "jack's c access",
    ];
    assert_eq!(told(&story, 15)[..expected.len()], expected);
}

#[test]
fn a_tunnels_plugins_see_its_end() {
    let (node, story) = (Upstream::bind(), Story::default());
    let bench = Bench::new(&[&node], telling(&story, "global").chain(), telling(&story, "route").chain());
    let mut client = bench.client().into_connection();
    client.send("GET /r HTTP/1.1\r\nHost: h\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n");
    let mut connection = node.accept();
    connection.expect_request();
    connection.send("HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n");
    assert_eq!(client.read_head().unwrap().status(), 101);
    let expected = ["global header_filter 101", "route header_filter 101", "global log 101", "route log 101"];
    assert_eq!(story.told()[6..], expected[..2]);
    drop((client, connection));
    assert_eq!(told(&story, 10)[6..], expected);
}

#[test]
fn a_filter_is_asked_once() {
    let (node, story) = (Upstream::echo(), Story::default());
    let condition = |text: &str| -> Meta {
        let json: serde_json::Value = serde_json::from_str(text).unwrap();
        let expr = Expr::parse(&json).unwrap();
        Meta { filter: Some(Filter::new(expr).unwrap()), ..Meta::default() }
    };
    let entries = [
        telling(&story, "get").entry("get", condition(r#"[["request_method", "==", "GET"]]"#)),
        telling(&story, "post").entry("post", condition(r#"[["request_method", "==", "POST"]]"#)),
    ];
    let bench = Bench::new(&[&node], None, chain(entries));
    bench.client().get("/r");
    assert!(told(&story, 5).iter().all(|line| line.starts_with("get ")), "{:?}", story.told());
}
