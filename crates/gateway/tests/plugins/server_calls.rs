//! Plugins that send requests to other servers, through the binary: `forward-auth`, `opa` (a double, and a real agent),
//! `proxy-mirror`. The servers answer, stall, refuse, and come back; what clients and nodes see is APISIX's.

mod breaker;
mod mirror;
mod opa;

use crate::shared::logs;
use crate::shared::reflect::{ask, asked, gateway, reflecting, route};
use std::time::{Duration, Instant};
use stillgate_testkit::{BufferedSocket, Gateway, Message, Upstream, eventually, http2, payload, scrape, sha256};

/// The field of the request that says how the server is to answer; the server gets it.
const WANTED: &str = "X-Wanted";
/// Larger than any reply that is taken.
const HUGE_BYTES: usize = 2 * 1024 * 1024;
const LARGE_BYTES: usize = 200_000;

/// A server that decides as `X-Wanted` says. It answers a body's digest.
fn authority() -> Upstream {
    Upstream::serve(|connection| {
        while let Ok(request) = connection.read_request() {
            if !decide(connection, &request) {
                return;
            }
        }
    })
}

fn decide(connection: &mut BufferedSocket, request: &Message) -> bool {
    let answer = |status: &str, fields: &str, body: &[u8]| {
        let head = format!("HTTP/1.1 {status}\r\n{fields}Content-Length: {}\r\n\r\n", body.len());
        [head.as_bytes(), body].concat()
    };
    let bytes = match request.head.get(WANTED).unwrap_or("allow") {
        "allow" => answer("200 OK", &format!("X-User: jack\r\nX-Digest: {}\r\n", sha256(&request.body)), b"unseen"),
        "deny" => answer("403 Forbidden", "X-Why: rules\r\nX-Hidden: 1\r\n", b"not you"),
        "login" => answer("302 Found", "Location: /login\r\n", b""),
        "large" => answer("401 Unauthorized", "", &payload(1, LARGE_BYTES)),
        "huge" => answer("401 Unauthorized", "", &payload(1, HUGE_BYTES)),
        "broken" => b"HTTP/1.1 2xx Well\r\n\r\n".to_vec(),
        "gone" => return false,
        other => panic!("nobody wants {other:?}"),
    };
    connection.try_send(bytes).is_ok()
}

fn forward_auth(server: &Upstream, keys: &str) -> String {
    format!(
        r#"{{"forward-auth": {{"uri": "http://{}/check", "request_headers": ["{WANTED}"], "client_headers": ["Location", "X-Why"], "upstream_headers": ["X-User", "X-Digest"]{keys}}}}}"#,
        server.addr()
    )
}

fn start(node: &Upstream, of: &[(&str, String)]) -> Gateway {
    let routes: String = of.iter().map(|(uri, plugins)| route(uri, plugins)).collect();
    gateway(node.addr(), &format!("routes:\n{routes}"))
}

#[test]
fn the_server_decides() {
    let (node, server) = (reflecting(), authority());
    let mut gateway = start(
        &node,
        &[("/a", forward_auth(&server, "")), ("/degraded", forward_auth(&server, r#", "allow_degradation": true"#))],
    );
    let mut client = gateway.client();
    let mut wanting = |uri: &str, wanted: &str| {
        ask(&mut client, &format!("GET {uri}"), &[&format!("{WANTED}: {wanted}"), "X-User: root"])
    };
    let head = asked(&wanting("/a", "allow"));
    assert_eq!(head.all("x-user"), ["jack"]);
    let denied = wanting("/a", "deny");
    assert_eq!(
        (denied.head.status(), &denied.body[..], denied.head.get("x-why")),
        (403, &b"not you"[..], Some("rules"))
    );
    assert_eq!((denied.head.get("x-hidden"), denied.head.get("x-node")), (None, None));
    let login = wanting("/a", "login");
    assert_eq!((login.head.status(), login.head.get("location")), (302, Some("/login")));
    let large = wanting("/a", "large");
    assert!(large.head.status() == 401 && large.body == payload(1, LARGE_BYTES), "{} bytes", large.body.len());
    // The server cannot decide: one reply is too large, one is invalid, and one does not come.
    for wanted in ["huge", "broken", "gone"] {
        let refused = wanting("/a", wanted);
        assert_eq!((refused.head.status(), refused.head.get("x-why")), (403, None), "{wanted}");
        assert!(refused.body.starts_with(b"<html>"), "{wanted}");
        let degraded = wanting("/degraded", wanted);
        if wanted == "gone" {
            assert_eq!(asked(&degraded).get("x-user"), None, "{wanted}: the client says it");
        } else {
            // It has answered: a client that can make replies large must not pass by that.
            assert_eq!(degraded.head.status(), 403, "{wanted}");
        }
        // A good answer in between: no server is left alone for single mistakes.
        assert_eq!(wanting("/a", "allow").head.status(), 200);
    }
    assert_eq!(node.faults(), [""; 0]);
    gateway.assert_healthy();
}

/// A value of the request that would split a message is not left out: server and node would decide without it.
#[test]
fn a_value_with_a_control_character_is_refused() {
    let (node, server) = (reflecting(), authority());
    let agent = Upstream::serve(|connection| {
        while connection.read_request().is_ok() {
            let decision = r#"{"result":{"allow":true,"headers":{"X-User":"a\nb"}}}"#;
            connection.send(format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{decision}", decision.len()));
        }
    });
    let opa = format!(
        r#"{{"opa": {{"host": "http://{}", "policy": "p", "send_headers_upstream": ["X-User"]}}}}"#,
        agent.addr()
    );
    let keys = r#", "extra_headers": {"X-Doc": "$uri_param_id"}"#;
    let mut gateway = start(&node, &[("/doc/:id", forward_auth(&server, keys)), ("/opa", opa)]);
    assert_eq!(["/doc/a%0ab", "/doc/%7f", "/opa"].map(|target| gateway.get(target).head.status()), [500; 3]);
    assert_eq!((server.connections(), agent.connections(), node.connections()), (0, 1, 0));
    assert_eq!(gateway.get("/doc/a").head.status(), 200);
    gateway.assert_healthy();
}

#[test]
fn connections_to_the_server_are_kept() {
    let (node, server) = (reflecting(), authority());
    let mut gateway = start(
        &node,
        &[("/kept", forward_auth(&server, "")), ("/new", forward_auth(&server, r#", "keepalive": false"#))],
    );
    for _ in 0..20 {
        assert_eq!(gateway.get("/kept").head.status(), 200);
    }
    assert_eq!(server.connections(), 1);
    for _ in 0..5 {
        assert_eq!(gateway.get("/new").head.status(), 200);
    }
    assert!((5..=6).contains(&server.connections()), "{}", server.connections());
    gateway.assert_healthy();
}

/// With `POST` server and node get the same body, whatever its framing was.
#[test]
fn a_body_is_passed_on_to_both() {
    let (node, server) = (reflecting(), authority());
    let posting = |keys: &str| forward_auth(&server, &format!(r#", "request_method": "POST"{keys}"#));
    let mut gateway = start(&node, &[("/a", posting("")), ("/small", posting(r#", "max_req_body_size": 10"#))]);
    let body = payload(2, 300_000);
    let whole = [format!("Content-Length: {}\r\n\r\n", body.len()).as_bytes(), &body].concat();
    let chunks =
        body.chunks(7_777).flat_map(|part| [format!("{:x}\r\n", part.len()).as_bytes(), part, b"\r\n"].concat());
    let chunked = [b"Transfer-Encoding: chunked\r\n\r\n".to_vec(), chunks.collect(), b"0\r\n\r\n".to_vec()].concat();
    let mut client = gateway.client();
    for framed in [&whole, &chunked] {
        client.send([format!("POST /a HTTP/1.1\r\nHost: h\r\n{WANTED}: allow\r\n").as_bytes(), framed].concat());
        let response = client.expect_response("POST");
        assert_eq!(asked(&response).get("x-digest"), Some(&*sha256(&body)));
        assert!(response.body.ends_with(&body));
    }
    assert_eq!(client.request("POST", "/small", b"0123456789").head.status(), 200);
    let too_large = gateway.client().request("POST", "/small", b"0123456789a");
    assert_eq!(too_large.head.status(), 413, "{too_large:?}");
    assert_eq!(client.request("POST", "/a", b"").head.status(), 200);
    gateway.assert_healthy();
}

#[test]
fn a_server_that_stalls_is_waited_for_no_longer_than_its_time() {
    let (node, server) = (reflecting(), logs::stalled());
    let timed = |keys: &str| forward_auth(&server, &format!(r#", "timeout": 100{keys}"#));
    let opa = format!(r#"{{"opa": {{"host": "http://{}", "policy": "p", "timeout": 100}}}}"#, server.addr());
    let mut gateway = start(
        &node,
        &[
            ("/a", timed(r#", "status_on_error": 504"#)),
            ("/degraded", timed(r#", "allow_degradation": true"#)),
            ("/opa", opa),
        ],
    );
    for (uri, status) in [("/a", 504), ("/degraded", 200), ("/opa", 403)] {
        let begin = Instant::now();
        assert_eq!(gateway.get(uri).head.status(), status, "{uri}");
        assert!(begin.elapsed() >= Duration::from_millis(100), "{uri} did not wait");
    }
    gateway.assert_healthy();
}

/// After five failures in a row it gets no requests for a while; then it is tried again, and goes on.
#[test]
fn a_server_that_is_gone_is_left_alone_and_found_again() {
    let (node, mut server) = (reflecting(), Upstream::refusing());
    let mut gateway = start(&node, &[("/a", forward_auth(&server, r#", "status_on_error": 503"#))]);
    let mut client = gateway.client();
    for _ in 0..5 {
        assert_eq!(client.get("/a").head.status(), 503);
    }
    let broken = Instant::now();
    server.start(|connection| while connection.read_request().is_ok_and(|request| decide(connection, &request)) {});
    // It is there, but gets no requests before the time is over, which it may be at once where the test stood still.
    let mut refused = 0;
    let asked = broken.elapsed();
    eventually("the server to be asked again", || {
        let status = client.get("/a").head.status();
        refused += usize::from(status == 503);
        status == 200
    });
    let least = Duration::from_secs(4);
    assert!((refused > 0 || asked >= least / 2) && broken.elapsed() >= least, "{refused} in {:?}", broken.elapsed());
    assert!((0..20).all(|_| client.get("/a").head.status() == 200));
    assert_eq!(server.connections(), 1);
    // Both changes are logged once, and each refused call is counted.
    for change in ["calls of plugins to this server are paused", "calls of plugins to this server are made again"] {
        eventually(change, || gateway.log().contains(change));
        assert_eq!(gateway.log().matches(change).count(), 1, "{change}");
    }
    let counted = || {
        let text =
            String::from_utf8(scrape(gateway.admin_addr(), "/metrics", "text/plain", false).body).expect("UTF-8");
        let line = text.lines().find_map(|line| line.strip_prefix("stillgate_plugin_calls_refused_total "));
        line.and_then(|count| count.parse::<usize>().ok())
    };
    eventually("the refused calls to be counted", || counted() == Some(refused));
    gateway.assert_healthy();
}

/// The server gets the whole call at once, whatever the client waits for.
#[test]
fn what_a_client_expects_is_not_passed_on() {
    let node = reflecting();
    let server = Upstream::serve(|connection| {
        while let Ok(request) = connection.read_request() {
            let lines = request.head.all("expect").len() + request.head.all("x-other").len() * 10;
            connection.send(format!("HTTP/1.1 200 OK\r\nX-User: {lines}\r\nContent-Length: 0\r\n\r\n"));
        }
    });
    let plugins = format!(
        r#"{{"forward-auth": {{"uri": "http://{}/check", "request_method": "METHOD", "request_headers": ["Expect", "X-Other"], "upstream_headers": ["X-User"]}}}}"#,
        server.addr()
    );
    let of = |method: &str| plugins.replace("METHOD", method);
    let mut gateway = start(&node, &[("/get", of("GET")), ("/post", of("POST"))]);
    let mut client = gateway.client();
    for path in ["/get", "/post"] {
        client.send(format!(
            "POST {path} HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\nX-Other: 1\r\nContent-Length: 3\r\n\r\nabc"
        ));
        let mut response = client.expect_response("POST");
        if response.head.status() == 100 {
            response = client.expect_response("POST");
        }
        assert_eq!(asked(&response).get("x-user"), Some("10"), "{path}");
    }
    gateway.assert_healthy();
}

#[test]
fn a_client_that_leaves_takes_its_question_with_it() {
    let (node, server) = (reflecting(), Upstream::bind());
    let patient = forward_auth(&server, r#", "timeout": 60000, "request_method": "POST""#);
    let mut gateway = start(&node, &[("/a", patient)]);
    let mut http1 = gateway.client();
    http1.send("POST /a HTTP/1.1\r\nHost: h\r\nContent-Length: 4\r\n\r\nbody");
    let mut waits = server.accept();
    assert_eq!(waits.expect_request().body, b"body");
    http1.into_connection().reset();
    eventually("the question to be taken back", || waits.is_closed());
    let mut http2 = http2::Http2::connect(gateway.addr());
    http2.get(1, "/a");
    let mut waits = server.accept();
    waits.expect_request();
    http2.send(http2::kind::RST_STREAM, 0, 1, &http2::code::CANCEL.to_be_bytes());
    eventually("the question to be taken back", || waits.is_closed());
    // The connection of the client goes on.
    http2.get(3, "/a");
    let mut waits = server.accept();
    waits.expect_request();
    waits.send("HTTP/1.1 204 No Content\r\n\r\n");
    assert_eq!(http2.finish(3).0[0].status(), 200);
    assert_eq!(node.connections(), 1, "only the last one was let through");
    gateway.assert_healthy();
}

#[test]
fn http2_clients_are_asked_for_as_well() {
    let (node, server) = (reflecting(), authority());
    let mut gateway = start(&node, &[("/a", forward_auth(&server, ""))]);
    let mut client = http2::Http2::connect_with(gateway.addr(), &[http2::NO_DYNAMIC_TABLE]);
    let wanted = WANTED.to_ascii_lowercase();
    let wants = ["allow", "deny", "login", "allow"];
    // All at once on one connection.
    for (at, want) in wants.iter().enumerate() {
        let mut fields = http2::get_fields("/a").to_vec();
        fields.push((&wanted, want));
        client.send_head(2 * at as u32 + 1, &fields, http2::END_STREAM);
    }
    let mut statuses = Vec::new();
    for _ in wants {
        let head = client.until(|frame| frame.kind == http2::kind::HEADERS);
        statuses.push((head.stream, head.status()));
    }
    statuses.sort_unstable();
    assert_eq!(statuses, [(1, 200), (3, 403), (5, 302), (7, 200)]);
    gateway.assert_healthy();
}
