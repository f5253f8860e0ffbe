//! The growth of a short body is bounded: values of JSON and XML, filled templates. And slow work for one plugin does not delay
//! another.

use crate::scripted::resources;
use crate::shared::reflect::{gateway, reflecting};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use stillgate_testkit::{Client, Upstream, eventually};

const MIB: usize = 1024 * 1024;
/// Maximum memory of concurrent work on other threads, with the process's own.
const WORK_BYTES_MAX: usize = 256 * MIB;

fn post(client: &mut Client, target: &str, content_type: &str, body: &[u8]) -> u16 {
    let head = format!(
        "POST {target} HTTP/1.1\r\nHost: h\r\nContent-Type: {content_type}\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    client.send([head.as_bytes(), body].concat());
    client.read_response("POST").map_or(0, |got| got.head.status())
}

/// A plugin that makes the request's body with a template.
fn transformer(template: &str) -> String {
    format!(r#"{{"body-transformer": {{"request": {{"template": {}}}}}}}"#, serde_json::Value::from(template))
}

/// The gateway's answer to a body that `body-transformer` cannot transform.
fn complaint(client: &mut Client, target: &str, content_type: &str, body: &[u8]) -> String {
    let head = format!(
        "POST {target} HTTP/1.1\r\nHost: h\r\nContent-Type: {content_type}\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    client.send([head.as_bytes(), body].concat());
    let answer = client.expect_response("POST");
    format!("{} {}", answer.head.status(), String::from_utf8_lossy(&answer.body))
}

/// Each bound is exceeded by a document that is within all others, and a document within all of them is read.
#[test]
fn documents_are_read_within_a_budget() {
    let node = reflecting();
    let long = format!(
        r#"{{"body-transformer": {{"request": {{"template": "read it"}}, "max_req_body_size": {}}}}}"#,
        4 * MIB
    );
    let gateway = gateway(node.addr(), &resources(&[("/t", &transformer("read it")), ("/long", &long)]));
    let attributes = |count: usize| (0..count).map(|n| format!(" a{n}=''")).collect::<String>();
    let nested = |depth: usize| format!("{}x{}", "<a>".repeat(depth), "</a>".repeat(depth));
    let documents = [
        ("/t", format!("<r{}/>", attributes(80_000)), "400 ", "attributes"),
        ("/t", format!("<r{}/>", attributes(1_025)), "400 ", "attributes"),
        ("/t", nested(129), "400 ", "elements inside one another"),
        ("/t", format!("<r>{}</r>", "<a>".repeat(300_000)), "400 ", "elements inside one another"),
        ("/t", format!("<r>{}</r>", "<a/>".repeat(230_000)), "400 ", "more memory than allowed"),
        ("/t", format!("<r>{}</r>", "<a b=''/>".repeat(100_000)), "400 ", "more memory than allowed"),
        ("/t", format!("<r>{}</r>", "<a><b/></a>".repeat(90_000)), "400 ", "more memory than allowed"),
        ("/long", format!("<r>{}</r>", "&lt;".repeat(600_000)), "400 ", "parts"),
        ("/long", format!("<r>{}</r>", "<!---->".repeat(550_000)), "400 ", "parts"),
        ("/t", format!("<r{}/>", attributes(1_000)), "200 ", "read it"),
        ("/t", nested(100), "200 ", "read it"),
        ("/t", format!("<r>{}</r>", "<a/>".repeat(50_000)), "200 ", "read it"),
        ("/t", format!("<r>{}</r>", "&lt;".repeat(250_000)), "200 ", "read it"),
    ];
    let before = gateway.rss_peak();
    for (target, document, status, message) in &documents {
        let got = complaint(&mut gateway.client(), target, "text/xml", document.as_bytes());
        assert!(got.starts_with(status) && got.contains(message), "{}: {got}", &document[..20]);
    }
    let grown = gateway.rss_peak() - before;
    assert!(grown < WORK_BYTES_MAX, "{grown} bytes more");
}

/// A loop puts the body in as often as it has items; nested functions double it each time.
#[test]
fn templates_make_no_more_than_they_may() {
    let node = reflecting();
    let doubled = "_escape_json(".repeat(16) + "_body" + &")".repeat(16);
    let routes = [
        ("/loop", transformer("{% for i, item in ipairs(context) do %}{* _body *}{% end %}")),
        ("/doubled", transformer(&format!("{{* {doubled} *}}"))),
        (
            "/joined",
            transformer(
                "{% for i, item in ipairs(context) do %}{% if _body .. _body == item then %}x{% end %}{% end %}",
            ),
        ),
        ("/items", transformer("{% for i, item in ipairs(context) do %}x{% end %}")),
        ("/good", transformer("{\"n\": {* #_body *}}")),
    ];
    let routes: Vec<(&str, &str)> = routes.iter().map(|(uri, plugins)| (*uri, &**plugins)).collect();
    let gateway = gateway(node.addr(), &resources(&routes));
    let numbers = |count: usize| format!("[{}]", vec!["\"\\\"\""; count].join(","));
    let long = numbers(140_000);
    assert!(long.len() < MIB, "{}", long.len());
    let few = numbers(90_000);
    let before = gateway.rss_peak();
    for (target, body, status, message) in [
        ("/loop", &few, "503 ", "the template makes more than"),
        ("/doubled", &long, "503 ", "the template makes more than"),
        ("/joined", &few, "503 ", "the template takes too much work"),
        ("/items", &long, "503 ", "items"),
        ("/items", &few, "200 ", "xxxx"),
        ("/good", &long, "200 ", "\"n\": "),
    ] {
        let got = complaint(&mut gateway.client(), target, "application/json", body.as_bytes());
        assert!(got.starts_with(status) && got.contains(message), "{target}: {:.200}", got);
    }
    let grown = gateway.rss_peak() - before;
    assert!(grown < WORK_BYTES_MAX, "{grown} bytes more");
}

/// Bodies that plugins have made count as long as their requests are under way: 3 MiB each, up to 64 MiB in a worker, and 8 MiB of
/// one client where half of that is in use.
#[test]
fn held_requests_count_with_what_was_made_of_them() {
    const HELD_MAX: usize = 32 / 3 + 1;
    static REACHED: AtomicUsize = AtomicUsize::new(0);
    static GATE: Mutex<()> = Mutex::new(());
    let closed = GATE.lock().expect("no panic");
    let node = Upstream::serve(|connection| {
        while connection.read_request().is_ok() {
            REACHED.fetch_add(1, Ordering::SeqCst);
            drop(GATE.lock().expect("no panic"));
            connection.send("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
        }
    });
    let gateway = gateway(node.addr(), &resources(&[("/t", &transformer("{* _body *}{* _body *}{* _body *}"))]));
    let body = format!("[\"{}\"]", "x".repeat(MIB - 100));
    let head = format!(
        "POST /t HTTP/1.1\r\nHost: h\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    let mut held: Vec<Client> = Vec::new();
    let refused = loop {
        let mut client = gateway.client();
        client.send([head.as_bytes(), body.as_bytes()].concat());
        let mut answer = Vec::new();
        eventually("it is held or refused", || {
            answer.extend(client.pending());
            REACHED.load(Ordering::SeqCst) > held.len() || !answer.is_empty()
        });
        if !answer.is_empty() {
            break answer;
        }
        held.push(client);
        assert!(held.len() <= HELD_MAX, "nothing bounds them");
    };
    assert!(refused.starts_with(b"HTTP/1.1 413 "), "{}", String::from_utf8_lossy(&refused));
    drop(closed);
    for client in &mut held {
        assert_eq!(client.read_response("POST").map_or(0, |got| got.head.status()), 200);
    }
    assert_eq!(post(&mut gateway.client(), "/t", "application/json", body.as_bytes()), 200, "there is room again");
}

/// A request with work on another route waited for the threads of `body-transformer`: each plugin has its own.
#[test]
fn work_of_one_plugin_does_not_wait_for_that_of_another() {
    const THREADS_OF_A_PLUGIN: usize = 2;
    let node = reflecting();
    let template = transformer("{% for i, item in ipairs(context) do %}{% if item == i then %}x{% end %}{% end %}");
    let routes = [("/t", &*template), ("/v", r#"{"request-validation": {"body_schema": {"type": "object"}}}"#)];
    let gateway = gateway(node.addr(), &resources(&routes));
    assert_eq!(gateway.threads("plugin-work-"), 0);
    assert_eq!(post(&mut gateway.client(), "/t", "application/json", b"[1, 2]"), 200);
    let threads = || gateway.threads("plugin-work-");
    // They give themselves their names.
    eventually("threads of one plugin", || threads() == THREADS_OF_A_PLUGIN);
    // Long enough for a thread.
    let object = format!("{{\"a\": \"{}\"}}", "x".repeat(20_000));
    assert_eq!(post(&mut gateway.client(), "/v", "application/json", object.as_bytes()), 200);
    eventually("threads of two plugins", || threads() == 2 * THREADS_OF_A_PLUGIN);
    for (target, body) in [("/t", "[1, 2]"), ("/v", &*object)] {
        assert_eq!(post(&mut gateway.client(), target, "application/json", body.as_bytes()), 200);
    }
    assert_eq!(threads(), 2 * THREADS_OF_A_PLUGIN);
}

/// An answer of a plugin was compressed by the worker, however long that took.
#[test]
fn answers_of_plugins_are_worked_on_by_other_threads_as_well() {
    let node = reflecting();
    let plugins = format!(
        r#"{{"mocking": {{"response_example": "{}", "content_type": "text/plain"}}, "brotli": {{"types": "*"}}}}"#,
        "word ".repeat(12_000)
    );
    let gateway = gateway(node.addr(), &resources(&[("/m", &*plugins)]));
    assert_eq!(gateway.threads("plugin-work-"), 0);
    let mut client = gateway.client();
    client.send("GET /m HTTP/1.1\r\nHost: h\r\nAccept-Encoding: br\r\n\r\n");
    let answer = client.expect_response("GET");
    assert_eq!((answer.head.status(), answer.head.get("content-encoding")), (200, Some("br")));
    assert!(!answer.body.is_empty() && answer.body.len() < 10_000, "{}", answer.body.len());
    eventually("the plugin's threads", || gateway.threads("plugin-work-") == 2);
}
