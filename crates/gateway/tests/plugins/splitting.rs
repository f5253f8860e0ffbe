//! No value that a client or a configuration can put into a head splits a message. h11 reads the output strictly.
//!
//! `cargo xtask test` runs this with the debug binary, and once more with one that has no debug assertions.

use crate::shared::STILLGATE;
use crate::shared::reflect::{check, route, setup};
use crate::smuggling::configured::{self, EVIL};
use crate::smuggling::plugged::{CONSUMERS, METADATA, PLUGGED, VALUES, WITHOUT_HEADS, requests};
use crate::smuggling::{Caught, Node, Peer, assert_none, fields, has_evil, is_broken, judged};
use stillgate_testkit::{Gateway, MessageError, Upstream, encode, http2};

fn routes(of: &[(&str, &str)]) -> String {
    let routes: String = of.iter().map(|(uri, plugins)| route(uri, plugins)).collect();
    format!("routes:\n{routes}")
}

fn plugged(node: &Node, peer: &Peer) -> Gateway {
    let resources = format!("{CONSUMERS}{METADATA}{}", routes(PLUGGED));
    let resources = resources.replace("PEER", &peer.upstream.addr().to_string());
    Gateway::start(STILLGATE, &setup(node.upstream.addr(), &resources))
}

/// Checks everything that `peer` has received: whole messages. Copies have the fields of their requests.
fn judge_peer(peer: &Peer) {
    let seen: Vec<Caught> = peer.take().into_iter().map(|bytes| ("request", "GET".to_owned(), bytes)).collect();
    let wrong: Vec<String> = judged(&seen)
        .iter()
        .zip(&seen)
        .filter(|(said, (_, _, bytes))| is_broken(said) || has_evil(said) && !bytes.starts_with(b"GET /copy"))
        .map(|(said, (_, _, bytes))| format!("{said}\n  as {}", encode(bytes)))
        .collect();
    assert!(seen.len() > 100, "{}", seen.len());
    assert_none(&wrong, seen.len());
}

#[test]
fn every_plugin_is_tried_or_writes_no_head() {
    let configured = configured::PLUGINS.iter().chain(configured::RESOURCES.iter().map(|(_, plugins)| plugins));
    let tried: Vec<&str> = PLUGGED.iter().map(|(_, plugins)| plugins).chain(configured).copied().collect();
    for name in stillgate_plugins::TABLE.names() {
        let is_tried = tried.iter().any(|plugins| plugins.contains(&format!("\"{name}\": {{")));
        assert!(is_tried != WITHOUT_HEADS.contains(&name), "{name}: try what it writes into heads");
    }
}

#[test]
fn no_value_of_a_client_splits_a_message() {
    let (node, peer) = (Node::new(), Peer::new());
    let mut gateway = plugged(&node, &peer);
    let (mut messages, mut sources) = (Vec::new(), Vec::new());
    for (path, _) in PLUGGED {
        for value in VALUES {
            for (method, request) in requests(path, value) {
                let mut client = gateway.client();
                // It may be refused half-way.
                let _ = client.try_send(&request);
                let response = match client.read_to_end() {
                    Ok(bytes) | Err(MessageError::Reset(bytes)) => bytes,
                    Err(broken) => panic!("no end of {}: {broken:?}", encode(&request)),
                };
                let told = node.take();
                assert!(told.len() <= 1, "{} requests of {}", told.len(), encode(&request));
                for bytes in told {
                    messages.push(("request", "GET".to_owned(), bytes));
                    sources.push(request.clone());
                }
                assert!(!response.is_empty(), "no answer to {}", encode(&request));
                messages.push(("response", method, response));
                sources.push(request);
            }
        }
    }
    let mut wrong = Vec::new();
    for (((kind, _, bytes), source), said) in messages.iter().zip(&sources).zip(judged(&messages)) {
        // A client may name a field as it likes, in a line of its own.
        let asked_for = source.windows(9).any(|window| window == b"\nX-Evil: ");
        if !asked_for && (is_broken(&said) || has_evil(&said)) {
            wrong.push(format!("{kind}: {said}\n  of {}\n  as {}", encode(source), encode(bytes)));
        }
    }
    assert!(messages.len() > 3000, "{}", messages.len());
    assert_none(&wrong, messages.len());
    judge_peer(&peer);
    gateway.assert_healthy();
}

/// A plugin answers before the body has arrived: the rest of the body is not taken for a request.
#[test]
fn an_unread_body_is_not_taken_for_a_request() {
    let upstream = Upstream::echo();
    let routes = routes(&[
        ("/auth", r#"{"key-auth": {}}"#),
        ("/limit", r#"{"limit-count": {"count": 1, "time_window": 600}}"#),
        ("/cors", r#"{"cors": {}}"#),
        ("/other", "{}"),
    ]);
    let mut gateway = Gateway::start(STILLGATE, &setup(upstream.addr(), &routes));
    gateway.client().get("/limit");
    let before = upstream.requests();
    let inner = "GET /other HTTP/1.1\r\nHost: h\r\n\r\n";
    for (line, status) in [("POST /auth", 401), ("POST /limit", 503), ("OPTIONS /cors", 200)] {
        let length = format!("Content-Length: {}\r\n\r\n{inner}", inner.len());
        let chunked = format!("Transfer-Encoding: chunked\r\n\r\n{:x}\r\n{inner}\r\n0\r\n\r\n", inner.len());
        for framed in [length, chunked] {
            for at in [0, framed.find("\r\n\r\n").expect("its head's end") + 4] {
                let mut client = gateway.client();
                client.send(format!("{line} HTTP/1.1\r\nHost: h\r\n{}", &framed[..at]));
                if at == 0 {
                    client.send(&framed);
                } else {
                    // It may be refused before.
                    let _ = client.try_send(&framed[at..]);
                }
                assert_eq!(client.expect_response("POST").head.status(), status, "{line}");
                // Either the connection ends, or the body is read over and a next request is the next.
                let _ = client.try_send("GET /nowhere HTTP/1.1\r\nHost: h\r\n\r\n");
                match client.read_response("GET") {
                    Ok(next) => assert_eq!(next.head.status(), 404, "{line}"),
                    Err(MessageError::Malformed(why)) => panic!("{line}: {why}"),
                    Err(_) => {}
                }
            }
        }
    }
    assert_eq!(upstream.requests(), before, "{:?}", upstream.seen());
    gateway.assert_healthy();
}

/// HTTP/2 has no lines: what would be one in HTTP/1 must be refused, or stay inside its value, in requests and in responses.
#[test]
fn no_value_of_http2_splits_a_message() {
    let (node, peer) = (Node::new(), Peer::new());
    let mut gateway = plugged(&node, &peer);
    let (mut messages, mut blocks) = (Vec::new(), Vec::new());
    for path in PLUGGED.iter().map(|(path, _)| path.replace('*', "p")) {
        for value in VALUES.iter().filter_map(|value| std::str::from_utf8(value).ok()) {
            let in_query = format!("{path}?x={value}");
            for (target, fields) in [
                (&*in_query, vec![]),
                (&*path, vec![("x-in", value), ("apikey", "k"), ("tracestate", value)]),
                (&*path, vec![("cookie", "x=1"), ("cookie", value), ("origin", value)]),
                (&*path, vec![(value, "1")]),
            ] {
                let mut client = http2::Http2::connect_with(gateway.addr(), &[http2::NO_DYNAMIC_TABLE]);
                let mut all = http2::get_fields(target).to_vec();
                all.extend(fields);
                client.send_head(1, &all, http2::END_STREAM);
                let (heads, ..) = client.finish(1);
                blocks.extend(heads.into_iter().map(|head| (format!("{all:?}"), head.payload)));
                messages.extend(node.take().into_iter().map(|bytes| ("request", "GET".to_owned(), bytes)));
            }
        }
    }
    let mut wrong: Vec<String> = judged(&messages)
        .iter()
        .zip(&messages)
        .filter(|(said, _)| is_broken(said) || has_evil(said))
        .map(|(said, (_, _, bytes))| format!("{said}\n  as {}", encode(bytes)))
        .collect();
    for (source, block) in &blocks {
        match fields::fields(block) {
            Ok(fields) if !fields.contains_key("x-evil") => {}
            said => wrong.push(format!("{said:?}\n  of {source}\n  as {}", encode(block))),
        }
    }
    assert!(messages.len() > 500 && blocks.len() > 1000, "{} and {}", messages.len(), blocks.len());
    assert_none(&wrong, messages.len() + blocks.len());
    judge_peer(&peer);
    gateway.assert_healthy();
}

/// The routes of a file that `check` accepts.
fn taken(resources: impl Fn(&[usize]) -> String, count: usize) -> Vec<usize> {
    let mut left: Vec<usize> = (0..count).collect();
    loop {
        let (good, said) = check(&resources(&left));
        if good {
            return left;
        }
        let before = left.len();
        let refused: Vec<bool> = (0..before).map(|at| said.contains(&format!("routes[{at}]."))).collect();
        let mut refused = refused.iter();
        left.retain(|_| !refused.next().expect("one for each"));
        assert!(left.len() < before, "refused for another reason: {said}");
    }
}

/// A configuration that would split a message is refused, whatever the key.
#[test]
fn no_configuration_splits_a_message() {
    let (node, peer) = (Node::new(), Peer::new());
    let peer_addr = peer.upstream.addr().to_string();
    let (mut messages, mut origins) = (Vec::new(), Vec::new());
    let mut try_out = |resources: &str, of: &[(String, String)]| {
        // Accepted values must be harmless.
        let gateway = Gateway::start(STILLGATE, &setup(node.upstream.addr(), resources));
        for (path, origin) in of {
            for lines in ["Origin: https://x.example\r\n", "apikey: k\r\n", ""] {
                let mut client = gateway.client();
                client.send(format!("GET {path} HTTP/1.1\r\nHost: h\r\n{lines}Connection: close\r\n\r\n"));
                let response = client.read_to_end().expect("an answer and its end");
                for bytes in node.take() {
                    messages.push(("request", "GET".to_owned(), bytes));
                    origins.push(origin.clone());
                }
                messages.push(("response", "GET".to_owned(), response));
                origins.push(origin.clone());
            }
        }
    };
    for evil in EVIL {
        let filled = |text: &str| text.replace("EVIL", evil).replace("PEER", &peer_addr);
        let of_routes = |left: &[usize]| {
            let routes: String =
                left.iter().map(|at| route(&format!("/{at}"), &filled(configured::PLUGINS[*at]))).collect();
            format!("{CONSUMERS}routes:\n{routes}")
        };
        let left = taken(of_routes, configured::PLUGINS.len());
        let tried: Vec<_> = left.iter().map(|at| (format!("/{at}"), filled(configured::PLUGINS[*at]))).collect();
        try_out(&of_routes(&left), &tried);
        for (resource, plugins) in configured::RESOURCES {
            let resources = filled(&format!("{resource}\n{}", routes(&[("/a", plugins)])));
            if check(&resources).0 {
                try_out(&resources, &[("/a".to_owned(), resources.clone())]);
            }
        }
    }
    messages.extend(peer.take().into_iter().map(|bytes| ("request", "GET".to_owned(), bytes)));
    origins.resize(messages.len(), "what a plugin asks".to_owned());
    let mut wrong = Vec::new();
    for ((said, (kind, _, bytes)), origin) in judged(&messages).iter().zip(&messages).zip(&origins) {
        if is_broken(said) || has_evil(said) {
            wrong.push(format!("{kind}: {said}\n  of {origin}\n  as {}", encode(bytes)));
        }
    }
    assert_none(&wrong, messages.len());
}

/// Framing is the gateway's: a configuration that names its fields is refused, or does not change how a body ends.
#[test]
#[expect(clippy::too_many_lines, reason = "a table")]
fn no_configuration_changes_framing() {
    let node = Node::new();
    let (mut messages, mut origins) = (Vec::new(), Vec::new());
    for (name, value) in [
        ("Content-Length", "3"),
        ("Content-Length", "300"),
        ("content-length", "$arg_x"),
        ("Transfer-Encoding", "chunked"),
        ("Transfer-Encoding", "gzip"),
        ("Connection", "X-Node, Content-Length"),
        ("Connection", "Upgrade"),
        ("Upgrade", "websocket"),
        ("Host", "evil.example"),
        ("Host", "a b"),
        ("TE", "trailers"),
        ("Trailer", "X"),
        ("Keep-Alive", "x"),
        ("Expect", "100-continue"),
        ("Date", ""),
        ("Server", ""),
    ] {
        for plugins in [
            format!(r#"{{"proxy-rewrite": {{"headers": {{"set": {{"{name}": "{value}"}}}}}}}}"#),
            format!(r#"{{"proxy-rewrite": {{"headers": {{"add": {{"{name}": "{value}"}}}}}}}}"#),
            format!(r#"{{"proxy-rewrite": {{"headers": {{"remove": ["{name}"]}}}}}}"#),
            format!(r#"{{"response-rewrite": {{"headers": {{"set": {{"{name}": "{value}"}}}}}}}}"#),
            format!(r#"{{"response-rewrite": {{"headers": {{"add": ["{name}: {value}"]}}}}}}"#),
            format!(r#"{{"response-rewrite": {{"headers": {{"remove": ["{name}"]}}, "body": "another"}}}}"#),
            format!(
                r#"{{"response-rewrite": {{"headers": {{"set": {{"{name}": "{value}"}}}}, "filters": [{{"regex": "node", "replace": "a longer word than that"}}]}}}}"#
            ),
            format!(r#"{{"echo": {{"body": "another", "headers": {{"{name}": "{value}"}}}}}}"#),
            format!(r#"{{"mocking": {{"response_example": "another", "response_headers": {{"{name}": "{value}"}}}}}}"#),
            format!(
                r#"{{"fault-injection": {{"abort": {{"http_status": 418, "body": "another", "headers": {{"{name}": "{value}"}}}}}}}}"#
            ),
            format!(
                r#"{{"traffic-label": {{"rules": [{{"actions": [{{"set_headers": {{"{name}": "{value}"}}}}]}}]}}}}"#
            ),
        ] {
            let resources = routes(&[("/a", &plugins)]);
            if !check(&resources).0 {
                continue;
            }
            let gateway = Gateway::start(STILLGATE, &setup(node.upstream.addr(), &resources));
            for (method, body) in [("GET", ""), ("POST", "hello"), ("HEAD", "")] {
                let mut client = gateway.client();
                let length =
                    if body.is_empty() { String::new() } else { format!("Content-Length: {}\r\n", body.len()) };
                client.send(format!("{method} /a?x=2 HTTP/1.1\r\nHost: h\r\n{length}Connection: close\r\n\r\n{body}"));
                let response = client.read_to_end().expect("an answer and its end");
                let what = format!("{method} {plugins}");
                for bytes in node.take() {
                    messages.push(("request", method.to_owned(), bytes));
                    origins.push((what.clone(), body.to_owned()));
                }
                let expected = match method {
                    "HEAD" => "",
                    _ if plugins.contains("another") => "another",
                    _ if plugins.contains("longer") => "a longer word than that body",
                    _ => "node body",
                };
                messages.push(("response", method.to_owned(), response));
                origins.push((what, expected.to_owned()));
            }
        }
    }
    let mut wrong = Vec::new();
    for ((said, (kind, _, bytes)), (what, body)) in judged(&messages).iter().zip(&messages).zip(&origins) {
        let hex: String = body.bytes().map(|byte| format!("{byte:02x}")).collect();
        if said["body"].as_str() != Some(&hex) || said["rest"] != "" {
            wrong.push(format!("{kind}: {said}\n  of {what}\n  as {}", encode(bytes)));
        }
    }
    assert!(wrong.is_empty(), "{} of {}:\n{}", wrong.len(), messages.len(), wrong[..wrong.len().min(20)].join("\n"));
}
