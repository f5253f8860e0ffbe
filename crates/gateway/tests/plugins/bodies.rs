//! Bodies that plugins change, end to end: in every framing of the node and of the client.

use crate::scripted::{AFTER, BEFORE, FILTERED, Node, REPLACED, check, chunked, gzip, resources, with_length};
use crate::shared::STILLGATE;
use crate::shared::reflect::{ask, gateway, setup, try_ask};
use stillgate_testkit::{Framing, Gateway, MessageError, Setup, Upstream, eventually, http2, payload, run_tool};

/// Split at each byte, and sent byte by byte, in each framing.
#[test]
fn every_split_of_a_response_filters_alike() {
    let node = Node::new();
    let mut gateway = node.gateway(&[("/f", FILTERED), ("/r", REPLACED)]);
    let mut client = gateway.client();
    let body = BEFORE.as_bytes();
    let responses = [
        (with_length("ETag: \"1\"\r\n", body), false),
        (chunked("ETag: \"1\"\r\n", body, 7, ""), false),
        (chunked("", body, 1, "X-Trailer: 1\r\n"), false),
        ([b"HTTP/1.1 200 OK\r\n\r\n", body].concat(), true),
    ];
    for (response, closes) in &responses {
        for at in 0..=response.len() {
            node.sends(&[&response[..at], &response[at..]], *closes);
            check(&ask(&mut client, "GET /f", &[]), 200, AFTER.as_bytes(), &format!("split at {at}"));
            check(&ask(&mut client, "GET /r", &[]), 200, b"in place of it", &format!("split at {at}"));
        }
        let bytes: Vec<&[u8]> = response.chunks(1).collect();
        node.sends(&bytes, *closes);
        let filtered = ask(&mut client, "GET /f", &[]);
        check(&filtered, 200, AFTER.as_bytes(), "byte by byte");
        assert_eq!(filtered.head.get("etag"), None, "it is another body");
        check(&ask(&mut client, "GET /r", &[]), 200, b"in place of it", "byte by byte");
    }
    gateway.assert_healthy();
}

/// A missing body stays missing, and the next response is not taken for one.
#[test]
fn responses_without_bodies_stay_without() {
    let node = Node::new();
    let statused = |status: u16| format!(r#"{{"response-rewrite": {{"status_code": {status}, "body": "new"}}}}"#);
    let only_status = |status: u16| format!(r#"{{"response-rewrite": {{"status_code": {status}}}}}"#);
    let mut gateway = node.gateway(&[
        ("/f", FILTERED),
        ("/r", REPLACED),
        ("/200", &statused(200)),
        ("/204", &statused(204)),
        ("/304", &statused(304)),
        ("/only-204", &only_status(204)),
        ("/only-304", &only_status(304)),
        ("/only-200", &only_status(200)),
        ("/own-204", r#"{"key-auth": {}, "response-rewrite": {"status_code": 204, "body": "new"}}"#),
        ("/own-304", r#"{"key-auth": {}, "response-rewrite": {"status_code": 304}}"#),
    ]);
    let mut client = gateway.client();
    let full = with_length("", BEFORE.as_bytes());
    let head_only = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", BEFORE.len()).into_bytes();
    let no_content = b"HTTP/1.1 204 No Content\r\n\r\n";
    let not_modified = b"HTTP/1.1 304 Not Modified\r\nETag: \"1\"\r\n\r\n";
    let mut plays = |start: &str, response: &[u8], status: u16, body: &str| {
        node.sends_whole(response, false);
        let got = ask(&mut client, start, &[]);
        check(&got, status, body.as_bytes(), start);
        if matches!(status, 204) {
            assert_eq!((got.head.get("content-length"), got.head.get("transfer-encoding")), (None, None), "{start}");
        }
        if got.head.status() == 304 || start.starts_with("HEAD") {
            let framings = [got.head.get("transfer-encoding"), got.head.get("content-length")];
            assert!(framings.iter().flatten().count() < 2, "{start}: {got:?}");
        }
        // The connection goes on where it should.
        node.sends_whole(&full, false);
        check(&ask(&mut client, "GET /f", &[]), 200, AFTER.as_bytes(), &format!("after {start}"));
        got
    };
    let head = plays("HEAD /f", &head_only, 200, "");
    assert_ne!(head.head.get("content-length"), Some(&*BEFORE.len().to_string()), "the length of the unfiltered body");
    let head = plays("HEAD /r", &head_only, 200, "");
    assert!(matches!(head.head.get("content-length"), None | Some("14")), "{head:?}");
    for path in ["/f", "/r"] {
        let head = plays(&format!("HEAD {path}"), not_modified, 304, "");
        assert_eq!(head.head.get("content-length"), None, "as with GET: {head:?}");
    }
    plays("GET /f", no_content, 204, "");
    plays("GET /r", no_content, 204, "");
    plays("GET /f", not_modified, 304, "");
    plays("GET /r", not_modified, 304, "");
    plays("GET /200", no_content, 200, "new");
    plays("GET /200", not_modified, 200, "new");
    plays("GET /204", &full, 204, "");
    plays("GET /304", &full, 304, "");
    plays("GET /only-204", &full, 204, "");
    plays("GET /only-304", &full, 304, "");
    plays("GET /only-200", no_content, 200, "");
    plays("GET /only-200", not_modified, 200, "");
    plays("HEAD /204", &head_only, 204, "");
    plays("HEAD /only-204", &head_only, 204, "");
    plays("HEAD /only-200", &head_only, 200, "");
    plays("GET /own-204", &full, 204, "");
    plays("HEAD /own-204", &full, 204, "");
    plays("GET /own-304", &full, 304, "");
    gateway.assert_healthy();
}

#[test]
fn partial_and_empty_responses_are_filtered() {
    let node = Node::new();
    let mut gateway = node.gateway(&[("/f", FILTERED), ("/r", REPLACED)]);
    let mut client = gateway.client();
    let partial = |range: &str| {
        let length = BEFORE.len();
        format!("HTTP/1.1 206 Partial Content\r\n{range}Content-Length: {length}\r\n\r\n{BEFORE}")
    };
    node.sends_whole(partial("Content-Range: items 0-9/500\r\n").as_bytes(), false);
    check(&ask(&mut client, "GET /f", &[]), 206, AFTER.as_bytes(), "206 of items");
    // What the filter looks for may be cut in two.
    for range in ["Content-Range: bytes 0-9/500\r\n", "Content-Range: BYTES 0-9/*\r\n", ""] {
        node.sends_whole(partial(range).as_bytes(), false);
        let response = try_ask(&mut gateway.client(), "GET /f", &["Range: bytes=0-9"]);
        assert!(response.as_ref().is_ok_and(|got| got.head.status() == 502), "{range:?}: {response:?}");
    }
    let mut client = gateway.client();
    node.sends_whole(&with_length("", b""), false);
    check(&ask(&mut client, "GET /f", &[]), 200, b"end", "empty");
    node.sends_whole(&chunked("", b"", 1, ""), false);
    check(&ask(&mut client, "GET /f", &[]), 200, b"end", "empty, chunked");
    check(&ask(&mut client, "GET /r", &[]), 200, b"in place of it", "empty, chunked");
    gateway.assert_healthy();
}

#[test]
fn bodies_in_gzip_are_read() {
    let node = Node::new();
    let mut gateway = node.gateway(&[("/f", FILTERED), ("/r", REPLACED)]);
    let mut client = gateway.client();
    let zipped = gzip(BEFORE.as_bytes());
    for response in
        [with_length("Content-Encoding: gzip\r\n", &zipped), chunked("Content-Encoding: GZIP\r\n", &zipped, 3, "")]
    {
        for at in (0..=response.len()).step_by(5) {
            node.sends(&[&response[..at], &response[at..]], false);
            let filtered = ask(&mut client, "GET /f", &["Accept-Encoding: gzip"]);
            check(&filtered, 200, AFTER.as_bytes(), &format!("split at {at}"));
            assert_eq!(filtered.head.get("content-encoding"), None);
            let replaced = ask(&mut client, "GET /r", &["Accept-Encoding: gzip"]);
            check(&replaced, 200, b"in place of it", &format!("split at {at}"));
            assert_eq!(replaced.head.get("content-encoding"), None);
        }
    }
    // Data that is not gzip, or ends too soon, is never passed on as if it were whole.
    for broken in [&zipped[..zipped.len() - 9], b"no gzip at all", &[&zipped[..12], &[0xff; 20][..]].concat()] {
        node.sends_whole(&with_length("Content-Encoding: gzip\r\n", broken), false);
        let got = try_ask(&mut client, "GET /f", &[]);
        if let Ok(got) = got {
            assert_eq!(got.head.status(), 502, "{got:?}");
        }
        client = gateway.client();
    }
    gateway.assert_healthy();
}

/// A body that was cut is never passed on as whole.
#[test]
fn a_node_that_cuts_is_never_whole() {
    let node = Node::new();
    let mut gateway = node.gateway(&[("/f", FILTERED), ("/r", REPLACED)]);
    let body = BEFORE.as_bytes();
    for whole in [with_length("", body), chunked("", body, 7, "X-Trailer: 1\r\n")] {
        for end in 0..whole.len() {
            node.sends(&[&whole[..end]], true);
            match try_ask(&mut gateway.client(), "GET /f", &[]) {
                Ok(got) => assert_eq!(got.head.status(), 502, "cut at {end}: {got:?}"),
                Err(MessageError::Malformed(why)) => panic!("cut at {end}: {why}"),
                Err(_) => {}
            }
            match try_ask(&mut gateway.client(), "GET /r", &[]) {
                Ok(got) if got.head.status() == 200 => assert_eq!(got.body, b"in place of it", "cut at {end}"),
                Ok(got) => assert_eq!(got.head.status(), 502, "cut at {end}: {got:?}"),
                Err(MessageError::Malformed(why)) => panic!("cut at {end}: {why}"),
                Err(_) => {}
            }
        }
    }
    gateway.assert_healthy();
}

#[test]
fn old_clients_get_filtered_bodies_without_chunks() {
    let node = Node::new();
    let mut gateway = node.gateway(&[("/f", FILTERED), ("/r", REPLACED)]);
    let body = BEFORE.as_bytes();
    for (response, closes) in [
        (with_length("", body), false),
        (chunked("", body, 7, "X-Trailer: 1\r\n"), false),
        ([b"HTTP/1.1 200 OK\r\n\r\n", body].concat(), true),
    ] {
        node.sends_whole(&response, closes);
        for (path, expected) in [("/f", AFTER), ("/r", "in place of it")] {
            for line in ["", "Connection: keep-alive\r\n"] {
                let mut client = gateway.client();
                client.send(format!("GET {path} HTTP/1.0\r\nHost: h\r\n{line}\r\n"));
                let got = client.read_response("GET").expect("a response");
                check(&got, 200, expected.as_bytes(), path);
                assert_ne!(got.framing, Framing::Chunked, "{path}");
            }
        }
    }
    gateway.assert_healthy();
}

#[test]
fn http2_clients_get_filtered_bodies() {
    let node = Node::new();
    let mut gateway = node.gateway(&[("/f", FILTERED), ("/r", REPLACED)]);
    let body = BEFORE.as_bytes();
    let url = |path: &str| format!("http://{}{path}", gateway.addr());
    for response in [with_length("", body), chunked("", body, 7, "X-Trailer: 1\r\n")] {
        node.sends_whole(&response, false);
        let mut client = http2::Http2::connect(gateway.addr());
        for (at, (path, expected)) in [("/f", AFTER), ("/r", "in place of it"), ("/f", AFTER)].into_iter().enumerate() {
            let stream = 1 + 2 * u32::try_from(at).expect("small");
            client.get(stream, path);
            let (heads, got, end) = client.finish(stream);
            assert_eq!((end, heads[0].status()), (http2::StreamEnd::Whole, 200), "{path}");
            assert_eq!(String::from_utf8_lossy(&got), expected, "{path}");
        }
        for (path, expected) in [("/f", AFTER), ("/r", "in place of it")] {
            let output = run_tool("curl", "curl", &["-sS", "--http2-prior-knowledge", "--fail", &url(path)]);
            assert_eq!(String::from_utf8_lossy(&output.stdout), expected, "{output:?}");
        }
        let output = run_tool("curl", "curl", &["-sS", "--http2-prior-knowledge", "--head", "--fail", &url("/f")]);
        assert!(output.status.success(), "{output:?}");
    }
    gateway.assert_healthy();
}

#[test]
fn http2_nodes_send_filtered_bodies() {
    let node = Upstream::bind();
    let setup = setup(node.addr(), &resources(&[("/f", FILTERED), ("/r", REPLACED)]));
    let setup = Setup {
        resources: setup.resources.map(|yaml| yaml.replacen("\"type\"", "\"http2\": true, \"type\"", 1)),
        ..setup
    };
    let mut gateway = Gateway::start(STILLGATE, &setup);
    let mut client = gateway.client();
    client.send("GET /f HTTP/1.1\r\nHost: h\r\n\r\n");
    let connection = node.accept();
    let mut peer = http2::Http2::accept(connection.stream().try_clone().expect("a socket"), &[]);
    let mut answer = |with_trailers: bool| {
        let stream = peer.until(|frame| frame.kind == http2::kind::HEADERS).stream;
        peer.send_head(stream, &[(":status", "200"), ("x-of", "node")], 0);
        for piece in BEFORE.as_bytes().chunks(9) {
            peer.send(http2::kind::DATA, 0, stream, piece);
        }
        match with_trailers {
            true => peer.send_head(stream, &[("x-trailer", "1")], http2::END_STREAM),
            false => peer.send(http2::kind::DATA, http2::END_STREAM, stream, b""),
        }
    };
    answer(false);
    check(&client.expect_response("GET"), 200, AFTER.as_bytes(), "from HTTP/2");
    client.send("GET /f HTTP/1.1\r\nHost: h\r\n\r\n");
    answer(true);
    check(&client.expect_response("GET"), 200, AFTER.as_bytes(), "from HTTP/2, with trailers");
    client.send("GET /r HTTP/1.1\r\nHost: h\r\n\r\n");
    answer(true);
    check(&client.expect_response("GET"), 200, b"in place of it", "from HTTP/2");
    gateway.assert_healthy();
}

/// A second try gets the same edited head and the same body as the first.
#[test]
fn a_retry_repeats_what_plugins_made() {
    let (first, second) = (Upstream::bind(), Upstream::bind());
    let plugins = r#"uri: "/*"
plugins: {"proxy-rewrite": {"regex_uri": ["^/(.*)$", "/again/$1"], "headers": {"add": {"X-Add": "one"}}}, "response-rewrite": {"filters": [{"regex": "^", "replace": "filtered "}]}}"#;
    let setup = Setup::to_tiers(&[first.addr(), second.addr()]).route(plugins);
    let mut gateway = Gateway::start(STILLGATE, &setup);
    let mut client = gateway.client();
    let body = payload(5, 3000);
    for framing in ["Content-Length: 3000\r\n\r\n", "Transfer-Encoding: chunked\r\n\r\n"] {
        let mut request = format!("PUT /a?b=c HTTP/1.1\r\nHost: h\r\nX-Add: zero\r\n{framing}").into_bytes();
        match framing.starts_with('C') {
            true => request.extend_from_slice(&body),
            false => request.extend_from_slice(&[b"bb8\r\n", &body[..], b"\r\n0\r\n\r\n"].concat()),
        }
        client.send(&request);
        let mut node = first.accept();
        let tried = node.expect_request();
        drop(node);
        let mut node = second.accept();
        let retried = node.expect_request();
        for (request, which) in [(&tried, "first"), (&retried, "second")] {
            assert_eq!(request.head.start, "PUT /again/a?b=c HTTP/1.1", "{which}");
            assert_eq!(request.head.all("x-add"), ["zero", "one"], "{which}");
            assert!(request.body == body, "{which}");
        }
        node.send("HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok");
        check(&client.expect_response("PUT"), 200, b"filtered ok", framing);
        drop(node);
        // The first node is tried again, regardless of its earlier failures.
        gateway.assert_healthy();
        client = gateway.client();
    }
}

/// This holds though nothing can be sent to it yet, since a filter holds everything received.
#[test]
fn a_client_that_leaves_ends_the_exchange() {
    let node = Upstream::bind();
    let mut gateway = gateway(node.addr(), &resources(&[("/f", FILTERED)]));
    let mut client = gateway.client();
    client.send("GET /f HTTP/1.1\r\nHost: h\r\n\r\n");
    let mut peer = node.accept();
    peer.expect_request();
    peer.send("HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\nsome of it");
    client.into_connection().reset();
    eventually("the node's connection to be closed", || peer.is_closed());
    gateway.assert_healthy();
}
