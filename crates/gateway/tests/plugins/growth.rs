//! What a short body can become is bounded: values of JSON and XML, templates that are filled. And what takes long for one
//! plugin holds up no other.

use crate::scripted::resources;
use crate::shared::reflect::{gateway, reflecting};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use stillgate_testkit::{Client, Upstream, eventually};

const MIB: usize = 1024 * 1024;
/// What work on other threads may take at once, with what the process takes for its own.
const WORK_BYTES_MAX: usize = 256 * MIB;

fn post(client: &mut Client, target: &str, content_type: &str, body: &[u8]) -> u16 {
    let head = format!(
        "POST {target} HTTP/1.1\r\nHost: h\r\nContent-Type: {content_type}\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    client.send([head.as_bytes(), body].concat());
    client.read_response("POST").map_or(0, |got| got.head.status())
}

/// A plugin that makes the request's body by a template.
fn transformer(template: &str) -> String {
    format!(r#"{{"body-transformer": {{"request": {{"template": {}}}}}}}"#, serde_json::Value::from(template))
}

/// An element with many attributes was read in time that grew with their square; texts, elements and depth are bounded, too.
#[test]
fn documents_are_read_within_a_budget() {
    let node = reflecting();
    let gateway = gateway(node.addr(), &resources(&[("/t", &transformer("{{r}}"))]));
    let attributes: String = (0..80_000).map(|n| format!(" a{n}=''")).collect();
    let documents = [
        format!("<r{attributes}/>"),
        format!("<r>{}</r>", "<a b=''/>".repeat(100_000)),
        format!("<r>{}</r>", "<a><b/></a>".repeat(90_000)),
        format!("<r>{}</r>", "<a>".repeat(300_000)),
        format!("<r>{}</r>", "&lt;".repeat(250_000)),
    ];
    let before = gateway.rss_peak();
    for document in &documents {
        assert!(document.len() < MIB, "within the bound of its length");
        let status = post(&mut gateway.client(), "/t", "text/xml", document.as_bytes());
        assert!(matches!(status, 200 | 400 | 413 | 503), "{}: {status}", &document[..20]);
    }
    assert_eq!(post(&mut gateway.client(), "/t", "text/xml", documents[0].as_bytes()), 400);
    assert_eq!(post(&mut gateway.client(), "/t", "text/xml", b"<r>a</r>"), 200);
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
        ("/good", transformer("{\"n\": {* #_body *}}")),
    ];
    let routes: Vec<(&str, &str)> = routes.iter().map(|(uri, plugins)| (*uri, &**plugins)).collect();
    let gateway = gateway(node.addr(), &resources(&routes));
    let numbers = format!("[{}]", vec!["\"\\\\\""; 140_000].join(","));
    assert!(numbers.len() < MIB, "{}", numbers.len());
    let before = gateway.rss_peak();
    for target in ["/loop", "/doubled", "/joined"] {
        let status = post(&mut gateway.client(), target, "application/json", numbers.as_bytes());
        assert_eq!(status, 503, "{target}: a template that cannot be filled");
    }
    assert_eq!(post(&mut gateway.client(), "/good", "application/json", numbers.as_bytes()), 200);
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

/// A request with work on another route waited for the threads of `body-transformer`.
#[test]
fn work_of_one_plugin_does_not_wait_for_that_of_another() {
    let node = reflecting();
    let template = transformer("{% for i, item in ipairs(context) do %}{% if item == i then %}x{% end %}{% end %}");
    let routes = [("/t", &*template), ("/v", r#"{"request-validation": {"body_schema": {"type": "object"}}}"#)];
    let gateway = gateway(node.addr(), &resources(&routes));
    let body = format!("[{}]", vec!["1"; 100_000].join(","));
    let mut busy: Vec<Client> = (0..64).map(|_| gateway.client()).collect();
    for client in &mut busy {
        let head = format!(
            "POST /t HTTP/1.1\r\nHost: h\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n",
            body.len()
        );
        client.send([head.as_bytes(), body.as_bytes()].concat());
    }
    // Long enough for a thread.
    let object = format!("{{\"a\": \"{}\"}}", "x".repeat(20_000));
    assert_eq!(post(&mut gateway.client(), "/v", "application/json", object.as_bytes()), 200);
    let left = busy.iter_mut().map(|client| client.pending()).filter(Vec::is_empty).count();
    assert!(left > 0, "all of the work was done before the one request that has nothing to do with it");
}
