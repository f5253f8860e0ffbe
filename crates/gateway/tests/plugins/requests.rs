//! Bodies of requests that plugins read as a whole: in every framing the node gets the same body; one that is cut never reaches it.

use crate::scripted::gzip;
use crate::shared::reflect::{gateway, reflecting, route};
use stillgate_testkit::{Client, Gateway, Message, MessageError, Upstream, payload, run_tool};

const MIB: usize = 1024 * 1024;

const BODY: &str = r#"{"name": "b", "list": [1, 2, 3]}"#;

/// Paths, their plugins, and the body that the node gets for [`BODY`].
const ROUTES: &[(&str, &str, &str)] = &[
    (
        "/transformed",
        r#"{"body-transformer": {"request": {"input_format": "json", "template": "<n>{{name}}</n>"}}}"#,
        "<n>b</n>",
    ),
    (
        "/validated",
        r#"{"request-validation": {"body_schema": {"type": "object", "required": ["name"], "properties": {"name": {"type": "string", "maxLength": 1}, "count": {"default": 3}}}}}"#,
        r#"{"name":"b","list":[1,2,3],"count":3}"#,
    ),
    (
        "/signed",
        r#"{"hmac-auth": {"clock_skew": 4000000000, "validate_request_body": true, "signed_headers": ["date", "digest"], "hide_credentials": true}}"#,
        BODY,
    ),
];

const CONSUMERS: &str = "consumers: [{\"username\": \"jack\", \"plugins\": {\"hmac-auth\": {\"key_id\": \"k\", \"secret_key\": \"the secret\"}}}]\nroutes:\n";

fn started(node: &Upstream) -> Gateway {
    let routes: String = ROUTES.iter().map(|(path, plugins, _)| route(path, plugins)).collect();
    gateway(node.addr(), &format!("{CONSUMERS}{routes}"))
}

/// The fields that sign a request: its client and the digest of its body.
fn signed(path: &str, body: &str) -> String {
    const SCRIPT: &str = "import base64, hashlib, hmac, sys\n\
        path, body = sys.argv[1:]\n\
        digest = 'SHA-256=' + base64.b64encode(hashlib.sha256(body.encode()).digest()).decode()\n\
        date = 'Tue, 14 Nov 2023 22:13:20 GMT'\n\
        text = f'k\\nPOST {path}\\ndate: {date}\\ndigest: {digest}\\n'\n\
        signature = base64.b64encode(hmac.digest(b'the secret', text.encode(), 'sha256')).decode()\n\
        print(f'Date: {date}\\r\\nDigest: {digest}\\r\\nAuthorization: Signature keyId=\"k\",algorithm=\"hmac-sha256\",'\n\
              f'headers=\"@request-target date digest\",signature=\"{signature}\"', end='\\r\\n')";
    let output = run_tool("python3", "python3", &["-c", SCRIPT, path, body]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("text")
}

/// A request with [`BODY`]: with its length, in chunks, and in chunks with a trailer.
fn requests(path: &str) -> [Vec<u8>; 3] {
    let head = format!("POST {path} HTTP/1.1\r\nHost: h\r\nContent-Type: application/json\r\n{}", signed(path, BODY));
    let mut chunks = String::new();
    for chunk in BODY.as_bytes().chunks(7) {
        chunks.push_str(&format!("{:x}\r\n{}\r\n", chunk.len(), String::from_utf8_lossy(chunk)));
    }
    [
        format!("{head}Content-Length: {}\r\n\r\n{BODY}", BODY.len()),
        format!("{head}Transfer-Encoding: chunked\r\n\r\n{chunks}0\r\n\r\n"),
        format!("{head}Transfer-Encoding: chunked\r\nTrailer: X-End\r\n\r\n{chunks}0\r\nX-End: 1\r\n\r\n"),
    ]
    .map(String::into_bytes)
}

#[track_caller]
fn sent(client: &mut Client, pieces: &[&[u8]], what: &str) -> Message {
    for piece in pieces {
        client.send(piece);
        std::thread::yield_now();
    }
    let response = client.read_response("POST").unwrap_or_else(|broken| panic!("{what}: {broken:?}"));
    assert_eq!(response.head.status(), 200, "{what}: {response:?}");
    response
}

/// Split at each byte, and sent byte by byte, in each framing.
#[test]
fn every_split_of_a_request_is_read_alike() {
    let node = reflecting();
    let mut gateway = started(&node);
    let mut client = gateway.client();
    for (path, _, expected) in ROUTES {
        for request in requests(path) {
            let whole = sent(&mut client, &[&request], path);
            let text = String::from_utf8_lossy(&whole.body);
            assert!(text.ends_with(&format!("\n\n{expected}")), "{path}: {text}");
            for at in 1..request.len() {
                let split = sent(&mut client, &[&request[..at], &request[at..]], &format!("{path} split at {at}"));
                assert!(split.body == whole.body, "{path} split at {at}: {split:?}");
            }
            let bytes: Vec<&[u8]> = request.chunks(1).collect();
            assert!(sent(&mut client, &bytes, path).body == whole.body, "{path} byte by byte");
        }
    }
    gateway.assert_healthy();
}

#[test]
fn a_client_that_cuts_is_never_whole() {
    let node = reflecting();
    let mut gateway = started(&node);
    for (path, ..) in ROUTES {
        for request in requests(path) {
            for end in 0..request.len() {
                let mut client = gateway.client();
                client.send(&request[..end]);
                client.half_close();
                match client.read_response("POST") {
                    Ok(refused) => assert_eq!(refused.head.status(), 400, "{path} cut at {end}: {refused:?}"),
                    Err(MessageError::Malformed(why)) => panic!("{path} cut at {end}: {why}"),
                    Err(_) => {}
                }
            }
        }
    }
    assert_eq!(node.requests(), 0, "{:?}", node.seen());
    gateway.assert_healthy();
}

#[test]
fn another_body_than_the_signed_one_is_refused() {
    let node = reflecting();
    let mut gateway = started(&node);
    let head = format!("POST /signed HTTP/1.1\r\nHost: h\r\n{}", signed("/signed", BODY));
    for body in [BODY.replace('b', "c"), format!("{BODY} "), BODY[1..].to_owned(), String::new()] {
        let mut client = gateway.client();
        client.send(format!("{head}Content-Length: {}\r\n\r\n{body}", body.len()));
        assert_eq!(client.expect_response("POST").head.status(), 401, "{body:?}");
    }
    assert_eq!(node.requests(), 0, "{:?}", node.seen());
    gateway.assert_healthy();
}

/// A small compressed body is not unpacked: it is not JSON.
#[test]
fn a_request_that_would_become_large_is_refused() {
    let node = reflecting();
    let mut gateway = started(&node);
    let bomb = gzip(&vec![b' '; 200 * MIB]);
    assert!(bomb.len() < MIB, "{}", bomb.len());
    let before = gateway.rss();
    for (path, ..) in ROUTES {
        for _ in 0..3 {
            let mut client = gateway.client();
            let head = format!(
                "POST {path} HTTP/1.1\r\nHost: h\r\nContent-Type: application/json\r\nContent-Encoding: gzip\r\nContent-Length: {}\r\n{}\r\n",
                bomb.len(),
                signed(path, BODY)
            );
            // It may not be read to its end.
            let _ = client.try_send([head.as_bytes(), &bomb].concat());
            let refused = client.read_response("POST").unwrap_or_else(|broken| panic!("{path}: {broken:?}"));
            assert!(matches!(refused.head.status(), 400 | 401), "{path}: {refused:?}");
        }
    }
    let grown = gateway.rss().saturating_sub(before);
    assert!(grown < 24 * MIB, "{grown} bytes more");
    assert_eq!(node.requests(), 0, "{:?}", node.seen());
    gateway.assert_healthy();
}

/// 1 MiB without another key, however it comes.
#[test]
fn a_request_beyond_the_bound_is_refused() {
    let node = reflecting();
    let mut gateway = started(&node);
    let body = payload(1, MIB + 1);
    for (path, ..) in ROUTES {
        let head = format!("POST {path} HTTP/1.1\r\nHost: h\r\n{}", signed(path, BODY));
        let length = format!("{head}Content-Length: {}\r\n\r\n", body.len());
        let chunked = format!("{head}Transfer-Encoding: chunked\r\n\r\n{:x}\r\n", body.len());
        for request in [[length.as_bytes(), &body].concat(), [chunked.as_bytes(), &body, b"\r\n0\r\n\r\n"].concat()] {
            let mut client = gateway.client();
            // It may not be read to its end.
            let _ = client.try_send(&request);
            let refused = client.read_response("POST").unwrap_or_else(|broken| panic!("{path}: {broken:?}"));
            // APISIX's request-validation answers a body that it cannot read like an invalid one.
            let expected = if *path == "/validated" { 400 } else { 413 };
            assert_eq!(refused.head.status(), expected, "{path}: {refused:?}");
        }
    }
    assert_eq!(node.requests(), 0, "{:?}", node.seen());
    gateway.assert_healthy();
}
