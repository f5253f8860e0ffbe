//! Bodies that plugins change, in both directions.

use super::*;
use stillgate_testkit::{Delivery, MessageError};

/// Answers every request with these bytes.
fn node(response: &'static str) -> Upstream {
    Upstream::serve(move |connection| {
        while connection.read_request().is_ok() {
            connection.send(response);
        }
    })
}

fn on_response(change: impl Fn(&mut Response<'_>) + Send + Sync + 'static) -> Option<Arc<Chain>> {
    ScriptedPlugin::header_filter(change).chain()
}

fn on_request(change: impl Fn(&mut Request<'_>) + Send + Sync + 'static) -> Option<Arc<Chain>> {
    ScriptedPlugin::rewrite(move |request| {
        change(request);
        Flow::Continue
    })
    .chain()
}

/// Checks what a client of this version gets, twice on one connection if that is kept.
#[track_caller]
fn check(response: &'static str, change: Option<Arc<Chain>>, request: &str, expected: &[&str]) {
    let node = node(response);
    let bench = Bench::new(&[&node], None, change);
    let is_kept = expected.iter().all(|line| *line != "close");
    let mut connection = bench.client().into_connection();
    let method = request.split(' ').next().unwrap();
    for _ in 0..if is_kept { 2 } else { 1 } {
        connection.send(request);
        let got = connection.read_response(method).unwrap();
        let field = |name: &str| got.head.get(name).map(|value| format!("{name}={value}"));
        let mut seen = vec![got.head.status().to_string()];
        seen.extend(["Content-Length", "Transfer-Encoding"].into_iter().filter_map(field));
        seen.extend(got.head.connection_has("close").then(|| "close".to_owned()));
        seen.push(String::from_utf8(got.body).unwrap());
        assert_eq!(seen, expected, "{request}");
    }
}

const WITH_LENGTH: &str = "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello";
const CHUNKED: &str = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhe\r\n3\r\nllo\r\n0\r\nT: r\r\n\r\n";
const GET: &str = "GET /r HTTP/1.1\r\nHost: h\r\n\r\n";

#[test]
fn a_response_is_filtered() {
    let loud = || on_response(|response| response.body.filter(Loud::passing(2)));
    for response in [WITH_LENGTH, CHUNKED] {
        check(response, loud(), GET, &["200", "Transfer-Encoding=chunked", "HHEELLLLOO."]);
        check(response, loud(), "GET /r HTTP/1.0\r\nHost: h\r\n\r\n", &["200", "close", "HHEELLLLOO."]);
    }
    check("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n", loud(), "HEAD /r HTTP/1.1\r\nHost: h\r\n\r\n", &["200", ""]);
    check("HTTP/1.1 204 No Content\r\n\r\n", loud(), GET, &["204", ""]);
    check("HTTP/1.1 304 Not Modified\r\nContent-Length: 5\r\n\r\n", loud(), GET, &["304", ""]);
    let both = on_response(|response| {
        response.body.filter(Loud::holding(10));
        response.body.filter(Loud::passing(1));
    });
    check(CHUNKED, both, GET, &["200", "Transfer-Encoding=chunked", "HELLO.."]);
}

/// Appends a dot to a body, and announces it before.
struct DottedBody;

impl BodyFilter for DottedBody {
    fn piece(&mut self, piece: &[u8], out: &mut Vec<u8>) -> Result<(), BodyError> {
        out.extend_from_slice(piece);
        Ok(())
    }

    fn end(&mut self, out: &mut Vec<u8>) -> Result<(), BodyError> {
        out.push(b'.');
        Ok(())
    }

    fn length_of(&self, length: u64) -> Option<u64> {
        Some(length + 1)
    }

    fn held_bytes(&self) -> usize {
        0
    }
}

#[test]
fn the_length_of_a_filtered_response_is_said_where_it_is_known() {
    let dotted = || {
        on_response(|response| {
            response.body.filter(Box::new(DottedBody));
            response.body.filter(Box::new(DottedBody));
        })
    };
    check(WITH_LENGTH, dotted(), GET, &["200", "Content-Length=7", "hello.."]);
    check("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", dotted(), GET, &["200", "Content-Length=2", ".."]);
    check(CHUNKED, dotted(), GET, &["200", "Transfer-Encoding=chunked", "hello.."]);
    let kept = "GET /r HTTP/1.0\r\nConnection: keep-alive\r\n\r\n";
    check(WITH_LENGTH, dotted(), kept, &["200", "Content-Length=7", "hello.."]);
    let head = "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n";
    check(head, dotted(), "HEAD /r HTTP/1.1\r\nHost: h\r\n\r\n", &["200", ""]);
    let replaced = on_response(|response| {
        response.body.replace(b"other");
        response.body.filter(Box::new(DottedBody));
    });
    check(CHUNKED, replaced, GET, &["200", "Content-Length=6", "other."]);
    let others_too = on_response(|response| {
        response.body.filter(Box::new(DottedBody));
        response.body.filter(Loud::passing(1));
    });
    check(WITH_LENGTH, others_too, GET, &["200", "Transfer-Encoding=chunked", "HELLO.."]);
}

#[test]
fn a_response_is_replaced() {
    let replaced = || on_response(|response| response.body.replace(b"other"));
    for response in [WITH_LENGTH, CHUNKED, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"] {
        check(response, replaced(), GET, &["200", "Content-Length=5", "other"]);
        check(
            response,
            replaced(),
            "GET /r HTTP/1.0\r\nConnection: keep-alive\r\n\r\n",
            &["200", "Content-Length=5", "other"],
        );
    }
    check(
        "HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n",
        replaced(),
        "HEAD /r HTTP/1.1\r\nHost: h\r\n\r\n",
        &["200", "Content-Length=5", ""],
    );
    let filtered = on_response(|response| {
        response.body.replace(b"other");
        response.body.filter(Loud::passing(1));
    });
    check(WITH_LENGTH, filtered, GET, &["200", "Transfer-Encoding=chunked", "OTHER."]);
}

#[test]
fn an_answer_of_our_own_is_filtered() {
    let node = Upstream::refusing();
    let bench = Bench::new(&[&node], None, on_response(|response| response.body.filter(Loud::passing(1))));
    let got = bench.client().get("/r");
    assert_eq!(got.head.status(), 502);
    assert!(got.body.starts_with(b"{\"ERROR_MSG\":\"502 BAD GATEWAY"));
    assert_eq!(got.head.get("Content-Length"), Some(got.body.len().to_string().as_str()));
}

#[test]
fn a_response_that_cannot_be_filtered_is_502_or_cut() {
    let holding = || on_response(|response| response.body.filter(Loud::holding(3)));
    let status = |change, response: &'static str| {
        let node = node(response);
        let bench = Bench::new(&[&node], None, change);
        let mut connection = bench.client().into_connection();
        connection.send(GET);
        connection.read_response("GET").map(|got| got.head.status())
    };
    assert_eq!(status(holding(), WITH_LENGTH), Ok(502));
    assert_eq!(status(holding(), CHUNKED), Ok(502));
    let passing = || on_response(|response| response.body.filter(Loud::passing(1)));
    assert_eq!(status(passing(), "HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n!"), Ok(502));
    assert_eq!(status(passing(), "HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n?"), Ok(502));
    // The node breaks off what a filter holds back: the client has seen nothing of it.
    let holding = on_response(|response| response.body.filter(Loud::holding(100)));
    let broken = Upstream::serve(|connection| {
        if connection.read_request().is_ok() {
            connection.send("HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhello");
        }
    });
    let bench = Bench::new(&[&broken], None, holding);
    assert_eq!(bench.client().get("/r").head.status(), 502);
}

#[test]
fn a_response_that_has_begun_is_cut() {
    let (go, wait) = std::sync::mpsc::sync_channel::<()>(1);
    let wait = Mutex::new(wait);
    let node = Upstream::serve(move |connection| {
        if connection.read_request().is_ok() {
            connection.send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n");
            wait.lock().unwrap().recv().unwrap();
            connection.send("1\r\n!\r\n0\r\n\r\n");
        }
    });
    let bench = Bench::new(&[&node], None, on_response(|response| response.body.filter(Loud::passing(1))));
    let mut connection = bench.client().into_connection();
    connection.send(GET);
    let head = connection.read_head().unwrap();
    assert_eq!(connection.read_exactly(7).unwrap(), b"2\r\nOK\r\n");
    go.send(()).unwrap();
    assert!(matches!(
        connection.read_response_body(head, "GET"),
        Err(MessageError::Truncated(_) | MessageError::Reset(_) | MessageError::Closed)
    ));
}

#[test]
fn what_becomes_large_is_written_as_it_comes() {
    let node = Upstream::serve(|connection| {
        if connection.read_request().is_ok() {
            let body = "x".repeat(100_000);
            connection.send(format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len()));
        }
    });
    let bench = Bench::new(&[&node], None, on_response(|response| response.body.filter(Loud::passing(200))));
    let got = bench.client().get("/r");
    assert!(got.body.len() == 20_000_001 && got.body[..20_000_000].iter().all(|byte| *byte == b'X'));
}

#[test]
fn a_request_is_changed() {
    let check = |change: Option<Arc<Chain>>, request: &str, framing: &str, body: &str| {
        let node = Upstream::bind();
        let bench = Bench::new(&[&node], None, change);
        let mut client = bench.client();
        client.deliver(request.as_bytes(), Delivery::Whole);
        let got = node.accept().expect_request();
        let field = |name: &str| got.head.get(name).unwrap_or_default().to_owned();
        assert_eq!(field("Content-Length") + &field("Transfer-Encoding"), framing, "{request}");
        assert_eq!(String::from_utf8(got.body).unwrap(), body);
    };
    let loud = || on_request(|request| request.body.filter(Loud::passing(1)));
    let other = || on_request(|request| request.body.replace(b"other"));
    let with_length = "POST /r HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\n\r\nhi";
    let chunked = "POST /r HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\nT: r\r\n\r\n";
    for request in [with_length, chunked] {
        check(loud(), request, "chunked", "HI.");
        check(other(), request, "5", "other");
    }
    check(loud(), GET, "", "");
    check(other(), GET, "5", "other");
    check(on_request(|request| request.body.replace(b"")), with_length, "0", "");
}

#[test]
fn a_request_that_cannot_be_filtered_is_refused() {
    let check = |change: Option<Arc<Chain>>, body: &str, status: u16| {
        let node = Upstream::echo();
        let bench = Bench::new(&[&node], None, change);
        assert_eq!(bench.client().request("POST", "/r", body.as_bytes()).head.status(), status);
    };
    let holding = |bytes_max: usize| on_request(move |request| request.body.filter(Loud::holding(bytes_max)));
    check(holding(1000), &"x".repeat(1000), 200);
    check(holding(1000), &"x".repeat(1001), 413);
    check(holding(1000), "!", 400);
    check(holding(1000), "?", 500);
}

#[test]
fn a_changed_request_is_sent_again() {
    let check = |change: Option<Arc<Chain>>, expected: &str| {
        let dead = Upstream::serve(|connection| drop(connection.read_request()));
        let live = Upstream::echo();
        let bench = Bench::new(&[&dead, &live], None, change);
        let mut client = bench.client();
        for _ in 0..4 {
            let got = client.request("PUT", "/r?echo", b"hello");
            assert_eq!(got.head.status(), 200);
            assert!(String::from_utf8_lossy(&got.body).contains(expected), "{}", String::from_utf8_lossy(&got.body));
        }
        assert!(dead.connections() > 0, "no request was sent twice");
    };
    check(on_request(|request| request.body.filter(Loud::passing(1))), "HELLO.");
    check(on_request(|request| request.body.replace(b"other")), "other");
}

/// Counted under the name of the plugin that owns the filter, in both directions.
#[test]
fn what_filters_refuse_is_counted() {
    let node = Upstream::echo();
    let both = ScriptedPlugin {
        rewrite: Some(Box::new(|request| {
            request.body.filter(Loud::holding(1000));
            Flow::Continue
        })),
        header_filter: Some(Box::new(|response| {
            if response.is_of_node {
                response.body.filter(Loud::holding(10));
            }
        })),
        ..ScriptedPlugin::default()
    };
    let (bench, registry) = Bench::measured(&[&node], both.chain());
    let status = |body: &str| bench.client().request("POST", "/r?echo", body.as_bytes()).head.status();
    assert_eq!([status("?"), status("!"), status(&"x".repeat(1001)), status("0123456789")], [500, 400, 413, 502]);
    let told = exposition(&registry);
    for line in [
        "stillgate_plugin_panics_total{plugin=\"scripted\"} 1",
        "stillgate_plugin_bodies_refused_total{plugin=\"scripted\",reason=\"malformed\"} 1",
        // The echo has one more byte: the dot at its end.
        "stillgate_plugin_bodies_refused_total{plugin=\"scripted\",reason=\"too_large\"} 2",
    ] {
        assert!(told.lines().any(|have| have == line), "{line}\n{told}");
    }
}
