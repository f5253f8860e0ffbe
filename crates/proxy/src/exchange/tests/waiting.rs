//! Requests that wait for what plugins need: time, work, bodies.

use super::*;
use std::future::pending;
use std::thread;
use stillgate_plugin_api::{Answer, Arguments, Filter};
use stillgate_route::vars::Expr;
use stillgate_route::{Lookup, Variable};
use stillgate_testkit::eventually;
use stillgate_wire::{FieldName, FieldValue};

const WAITED: FieldName<'static> = FieldName::constant("Waited");
const A_WHILE: Duration = Duration::from_millis(5);

fn waited(request: &mut Request<'_>) -> Flow {
    request.add_header(WAITED, FieldValue::constant("yes"));
    Flow::Continue
}

/// Records when it is dropped.
struct Guard(Story, &'static str);

impl Drop for Guard {
    fn drop(&mut self) {
        self.0.tell(self.1);
    }
}

fn telling(story: &Story, what: &'static str) -> OnRequest {
    let story = story.clone();
    Box::new(move |_| {
        story.tell(what);
        Flow::Continue
    })
}

#[test]
fn a_request_waits_and_goes_on() {
    let (node, story) = (Upstream::bind(), Story::default());
    let waits = |story: &Story, after: &'static str| -> OnRequest {
        let story = story.clone();
        Box::new(move |request| {
            let (sleep, story) = (request.worker.io().sleep(A_WHILE), story.clone());
            Flow::wait(sleep, move |(), request| {
                story.tell(after);
                waited(request)
            })
        })
    };
    let last = Meta { priority: Some(-1), ..Meta::default() };
    let first = ScriptedPlugin {
        rewrite: Some(waits(&story, "first rewrite")),
        access: Some(waits(&story, "first access")),
        ..ScriptedPlugin::default()
    };
    let second = ScriptedPlugin {
        rewrite: Some(telling(&story, "second rewrite")),
        access: Some(telling(&story, "second access")),
        before_proxy: Some(telling(&story, "second before_proxy")),
        ..ScriptedPlugin::default()
    };
    let route = chain([first.entry("first", Meta::default()), second.entry("second", last)]);
    let bench = Bench::new(&[&node], None, route);
    let mut client = bench.client().into_connection();
    let mut to_node = None;
    for _ in 0..2 {
        client.send("GET /r HTTP/1.1\r\nHost: h\r\n\r\n");
        let connection = to_node.get_or_insert_with(|| node.accept());
        assert_eq!(connection.expect_request().head.all("Waited"), ["yes", "yes"]);
        connection.send("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
        assert_eq!(client.expect_response("GET").head.status(), 200);
    }
    let expected = ["first rewrite", "second rewrite", "first access", "second access", "second before_proxy"];
    assert_eq!(story.told(), [expected, expected].concat());
}

#[test]
fn what_comes_of_waiting_may_be_an_answer_or_more_waiting() {
    let node = Upstream::echo();
    let check = |then: fn(&mut Request<'_>) -> Flow, status: u16| {
        let waits =
            move |request: &mut Request<'_>| Flow::wait(request.worker.io().sleep(A_WHILE), move |(), rq| then(rq));
        let bench = Bench::new(&[&node], None, ScriptedPlugin::access(waits).chain());
        let mut client = bench.client();
        for _ in 0..2 {
            assert_eq!(client.get("/r").head.status(), status);
        }
    };
    check(|_| Flow::Answer(Answer::empty(418)), 418);
    check(|rq| Flow::wait(rq.worker.io().sleep(A_WHILE), |(), _| Flow::Answer(Answer::empty(419))), 419);
    check(|_| Flow::offload(|| 420, |status, _| Flow::Answer(Answer::empty(status.unwrap()))), 420);
    check(|_| Flow::body(1, |rq| Flow::Answer(Answer::empty(421 + rq.whole_body().unwrap().len() as u16))), 421);
}

#[test]
fn a_client_that_leaves_ends_the_waiting() {
    let (node, story) = (Upstream::echo(), Story::default());
    let (waits, logs) = (story.clone(), story.clone());
    let scripted = ScriptedPlugin {
        access: Some(Box::new(move |request| {
            request.hold(Guard(waits.clone(), "request"));
            let guard = Guard(waits.clone(), "future");
            waits.tell("waits");
            let wait = async move {
                pending::<()>().await;
                drop(guard);
            };
            Flow::wait(wait, |(), _| unreachable!("it waits for ever"))
        })),
        log: Some(Box::new(move |response| logs.tell(response.status().to_string()))),
        ..ScriptedPlugin::default()
    };
    let bench = Bench::new(&[&node], None, scripted.chain());
    for leave in [|client: stillgate_testkit::BufferedSocket| drop(client), stillgate_testkit::BufferedSocket::reset] {
        let before = story.told().len();
        let mut client = bench.client().into_connection();
        client.send("GET /r HTTP/1.1\r\nHost: h\r\n\r\n");
        eventually("it waits", || story.told().len() > before);
        leave(client);
        eventually("it ends", || story.told().len() == before + 4);
        assert_eq!(story.told()[before..], ["waits", "future", "499", "request"]);
    }
    assert_eq!(node.requests(), 0);
}

#[test]
fn what_is_held_goes_with_the_request() {
    let (node, story) = (Upstream::echo(), Story::default());
    let (holds, logs) = (story.clone(), story.clone());
    let scripted = ScriptedPlugin {
        rewrite: Some(Box::new(move |request| {
            request.hold(Guard(holds.clone(), "gone"));
            if request.facts.path_and_query() == b"/r?panic" { panic!("asked to") } else { Flow::Continue }
        })),
        log: Some(Box::new(move |_| logs.tell("log"))),
        ..ScriptedPlugin::default()
    };
    let bench = Bench::new(&[&node], None, scripted.chain());
    let mut client = bench.client();
    for (target, status) in [("/r", 200), ("/r?panic", 500)] {
        assert_eq!(client.get(target).head.status(), status);
    }
    // The connection still exists, without anything of its requests.
    eventually("both are over", || story.told().len() == 4);
    assert_eq!(story.told(), ["log", "gone", "log", "gone"]);
}

#[test]
fn before_proxy_cannot_wait() {
    let node = Upstream::echo();
    let scripted = ScriptedPlugin {
        before_proxy: Some(Box::new(|_| Flow::wait(async {}, |(), _| Flow::Continue))),
        ..ScriptedPlugin::default()
    };
    let bench = Bench::new(&[&node], None, scripted.chain());
    assert_eq!((bench.client().get("/r").head.status(), node.requests()), (500, 0));
}

#[test]
fn global_rules_wait_where_there_is_no_route() {
    let (node, story) = (Upstream::echo(), Story::default());
    let told = story.clone();
    let scripted = ScriptedPlugin::rewrite(move |request| {
        let told = told.clone();
        Flow::wait(request.worker.io().sleep(A_WHILE), move |(), _| {
            told.tell("waited");
            Flow::Continue
        })
    });
    let bench = Bench::new(&[&node], scripted.chain(), None);
    assert_eq!(bench.client().get("/none").head.status(), 404);
    assert_eq!(bench.client().get("/r").head.status(), 200);
    assert_eq!(story.told(), ["waited"; 2]);
}

#[test]
fn work_is_done_elsewhere_and_refused_where_too_much_waits() {
    let node = Upstream::echo();
    let (release, released) = crossbeam_channel::bounded::<()>(0);
    let scripted = ScriptedPlugin::access(move |request| {
        let (released, is_held) = (released.clone(), request.facts.query() == Some(b"hold"));
        let serving = thread::current().id();
        let work = move || {
            if is_held {
                let _ = released.recv();
            }
            thread::current().id()
        };
        Flow::offload(work, move |thread, _| match thread {
            Ok(thread) => Flow::Answer(Answer::empty(if thread == serving { 400 } else { 204 })),
            Err(full) => full.into(),
        })
    });
    let bench = Bench::new(&[&node], None, scripted.chain());
    assert_eq!(bench.client().get("/r").head.status(), 204);
    // As many as are worked on, and as many as may wait; the next is refused.
    let mut holding = Vec::new();
    let mut last = bench.client();
    eventually("the queue is full", || {
        for _ in 0..64 {
            let mut client = bench.client().into_connection();
            client.send("GET /r?hold HTTP/1.1\r\nHost: h\r\n\r\n");
            holding.push(client);
        }
        holding.iter_mut().any(|client| !client.pending().is_empty())
    });
    assert_eq!(last.get("/r").head.status(), 503);
    drop(release);
    drop(holding);
    eventually("there is room again", || last.get("/r").head.status() == 204);
}

/// Waits for a body of up to 300,000 bytes, and reports its length to the node.
fn whole_body() -> Option<Arc<Chain>> {
    let scripted = ScriptedPlugin::access(|_| {
        Flow::body(300_000, |request| {
            let length = request.whole_body().expect("it was waited for").len().to_string();
            request.add_header(WAITED, FieldValue::new(length.as_bytes()).unwrap());
            Flow::Continue
        })
    });
    scripted.chain()
}

fn chunked(body: &[u8]) -> Vec<u8> {
    let mut out = b"POST /r HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n".to_vec();
    for chunk in body.chunks(7_000) {
        out.extend_from_slice(format!("{:x}\r\n", chunk.len()).as_bytes());
        out.extend_from_slice(chunk);
        out.extend_from_slice(b"\r\n");
    }
    out.extend_from_slice(b"0\r\n\r\n");
    out
}

fn with_length(body: &[u8]) -> Vec<u8> {
    let head = format!("POST /r HTTP/1.1\r\nHost: h\r\nContent-Length: {}\r\n\r\n", body.len());
    [head.as_bytes(), body].concat()
}

#[test]
fn a_whole_body_is_waited_for() {
    let node = Upstream::bind();
    let bench = Bench::new(&[&node], None, whole_body());
    let mut client = bench.client().into_connection();
    let mut to_node = None;
    for size in [0, 1, 1_000, 16_384, 70_000, 300_000] {
        let body: Vec<u8> = (0..size).map(|at| (at % 251) as u8).collect();
        for request in [with_length(&body), chunked(&body)] {
            client.send(&request);
            let connection = to_node.get_or_insert_with(|| node.accept());
            let got = connection.expect_request();
            assert_eq!((got.head.get("Waited"), got.body == body), (Some(size.to_string().as_str()), true), "{size}");
            connection.send("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
            assert_eq!(client.expect_response("POST").head.status(), 200);
        }
    }
}

#[test]
fn nothing_is_sent_before_the_body_is_whole() {
    let node = Upstream::bind();
    let bench = Bench::new(&[&node], None, whole_body());
    let mut client = bench.client().into_connection();
    client.send("POST /r HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\nExpect: 100-continue\r\n\r\n");
    assert_eq!(client.read_head().unwrap().status(), 100);
    client.send("ab");
    assert!(node.try_accept().is_none());
    client.send("c");
    let mut connection = node.accept();
    let got = connection.expect_request();
    assert_eq!((got.head.get("Expect"), &got.body[..]), (None, &b"abc"[..]));
    connection.send("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
    assert_eq!(client.expect_response("POST").body, b"ok");
}

#[test]
fn what_was_kept_is_what_a_retry_sends() {
    let first = Upstream::serve(|connection| drop(connection.read_head()));
    let second = Upstream::serve(|connection| drop(connection.read_head()));
    let bench = Bench::new(&[&first, &second], None, whole_body());
    let mut client = bench.client().into_connection();
    let body = vec![b'x'; 200_000];
    client.send(String::from_utf8(with_length(&body)).unwrap().replacen("POST", "PUT", 1));
    assert_eq!(client.expect_response("PUT").head.status(), 502);
    // A body of that size passes once if it is not kept.
    assert_eq!((first.connections(), second.connections()), (1, 1));
}

#[test]
fn a_body_beyond_the_bound_is_refused() {
    let node = Upstream::echo();
    let bench = Bench::new(&[&node], None, whole_body());
    let body = vec![b'x'; 300_001];
    for request in [with_length(&body), chunked(&body)] {
        let mut client = bench.client().into_connection();
        // The request may not be read to its end.
        let _ = client.try_send(&request);
        let refused = client.expect_response("POST");
        assert_eq!((refused.head.status(), refused.head.get("Content-Type")), (413, Some("text/html; charset=utf-8")));
        assert!(refused.head.connection_has("close"));
    }
    let mut client = bench.client().into_connection();
    client.send("POST /r HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\nx\r\n");
    assert_eq!(client.expect_response("POST").head.status(), 400);
    assert_eq!(node.requests(), 0);
}

#[test]
fn a_client_that_leaves_within_its_body_is_not_answered() {
    let (node, story) = (Upstream::echo(), Story::default());
    let logs = story.clone();
    let scripted = ScriptedPlugin {
        log: Some(Box::new(move |response| logs.tell(response.status().to_string()))),
        ..ScriptedPlugin::access(|_| Flow::body(10, |_| Flow::Continue))
    };
    let bench = Bench::new(&[&node], None, scripted.chain());
    let mut client = bench.client().into_connection();
    client.send("POST /r HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\n\r\nab");
    drop(client);
    eventually("it is over", || story.told() == ["499"]);
    assert_eq!(node.requests(), 0);
}

/// With a filter and with a plugin, before and after one that waits for something else; each plugin is called once.
#[test]
fn arguments_are_here_before_a_plugin_is_called() {
    let (node, story) = (Upstream::echo(), Story::default());
    let argument = Variable::parse_with_body("post_arg.a").unwrap();
    let tells = |what: &'static str| -> OnRequest {
        let (story, argument) = (story.clone(), argument.clone());
        Box::new(move |request| {
            let value = request.value(&argument, &mut Vec::new()).map(|value| value.escape_ascii().to_string());
            story.tell(format!("{what} {}", value.as_deref().unwrap_or("nothing")));
            Flow::Continue
        })
    };
    let asked = || Arguments::among(|visit| visit(&argument), 1_000_000, false);
    let with = |mut entry: Arc<ChainEntry>, awaited| {
        Arc::get_mut(&mut entry).unwrap().awaited = awaited;
        entry
    };
    let filtered = |condition: &str| {
        let condition = Expr::parse_with_body(&serde_json::from_str(condition).unwrap()).unwrap();
        Meta { filter: Some(Filter::new(condition).unwrap()), ..Meta::default() }
    };
    let sleeps =
        ScriptedPlugin::rewrite(|request| Flow::wait(request.worker.io().sleep(A_WHILE), |(), _| Flow::Continue));
    let both =
        ScriptedPlugin { rewrite: Some(tells("b")), access: Some(tells("b again")), ..ScriptedPlugin::default() };
    let of_filter = || BodyArguments { by_filter: asked(), by_plugin: None };
    let route = chain([
        ScriptedPlugin::rewrite(tells("a")).entry("a", Meta::default()),
        with(both.entry("b", Meta::default()), BodyArguments { by_filter: None, by_plugin: asked() }),
        sleeps.entry("c", Meta::default()),
        with(ScriptedPlugin::access(tells("d")).entry("d", filtered(r#"[["post_arg.a","==","x"]]"#)), of_filter()),
        with(ScriptedPlugin::access(tells("e")).entry("e", filtered(r#"[["post_arg.a","==","y"]]"#)), of_filter()),
    ]);
    let global = chain([with(
        ScriptedPlugin::access(tells("global")).entry("g", filtered(r#"[["post_arg.a","~=","y"]]"#)),
        of_filter(),
    )]);
    let bench = Bench::new(&[&node], global, route);
    let typed = |request: Vec<u8>| {
        let text = String::from_utf8(request).unwrap();
        text.replacen("Host: h\r\n", "Host: h\r\nContent-Type: application/json\r\n", 1)
    };
    let body = |bytes: usize| format!("{{\"pad\":\"{}\",\"a\":\"x\"}}", "p".repeat(bytes)).into_bytes();
    for request in [with_length(&body(0)), chunked(&body(10)), with_length(&body(100_000)), chunked(&body(500_000))] {
        let mut client = bench.client().into_connection();
        client.send(typed(request));
        assert_eq!(client.expect_response("POST").head.status(), 200);
        assert_eq!(std::mem::take(&mut *story.0.lock().unwrap()), ["global x", "a x", "b x", "b again x", "d x"]);
    }
    let mut client = bench.client().into_connection();
    client.send(with_length(&body(0)));
    assert_eq!(client.expect_response("POST").head.status(), 200);
    let without = ["global nothing", "a nothing", "b nothing", "b again nothing"];
    assert_eq!(std::mem::take(&mut *story.0.lock().unwrap()), without, "a body of no known type");
    for request in [with_length(&body(1_000_000)), chunked(&body(1_000_000))] {
        let mut client = bench.client().into_connection();
        // The request may not be read to its end.
        let _ = client.try_send(typed(request));
        assert_eq!(client.expect_response("POST").head.status(), 413);
    }
    assert_eq!((story.told(), node.requests()), (Vec::new(), 5));
}
