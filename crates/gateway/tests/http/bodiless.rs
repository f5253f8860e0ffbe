//! Responses whose status determines their framing more than their fields do: 426 names a protocol, 204 has no body.

use crate::shared::STILLGATE;
use stillgate_testkit::{Gateway, Setup, Upstream, run_tool};

/// A node that answers each path with what is listed, and keeps the connection.
fn node(answers: &'static [(&'static str, &'static str)]) -> Upstream {
    Upstream::serve(|connection| {
        while let Ok(head) = connection.read_head() {
            let target = head.method_and_target().1.to_owned();
            let answer = answers.iter().find(|(path, _)| *path == target).map(|(_, answer)| *answer);
            let answer = answer.unwrap_or("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
            if connection.try_send(answer).is_err() {
                return;
            }
        }
    })
}

const BODILESS: &[(&str, &str)] = &[
    ("/chunked", "HTTP/1.1 204 No Content\r\nTransfer-Encoding: chunked\r\n\r\n"),
    ("/ended", "HTTP/1.1 204 No Content\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"),
    ("/length", "HTTP/1.1 204 No Content\r\nContent-Length: 3\r\n\r\nabc"),
    (
        "/forged",
        "HTTP/1.1 204 No Content\r\nContent-Length: 45\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nforged",
    ),
    ("/empty", "HTTP/1.1 204 No Content\r\nContent-Length: 0\r\n\r\n"),
];

#[test]
fn what_a_204_says_of_a_body_is_dropped() {
    let node = node(BODILESS);
    let gateway = Gateway::start(STILLGATE, &Setup::to(node.addr()));
    for method in ["GET", "DELETE"] {
        let mut client = gateway.client();
        for (path, _) in BODILESS {
            client.send(format!("{method} {path} HTTP/1.1\r\nHost: h\r\n\r\n"));
            let answer = client.expect_response(method);
            assert_eq!(answer.head.status(), 204, "{method} {path}: {answer:?}");
            for name in ["transfer-encoding", "content-length"] {
                assert_eq!(answer.head.get(name), None, "{method} {path}");
            }
            // The bytes that the node sent as a body belong to no response.
            let next = client.request("GET", "/next", b"");
            assert_eq!((next.head.status(), &next.body[..]), (200, &b"ok"[..]), "after {method} {path}");
        }
    }
}

const OUTDATED: &[(&str, &str)] = &[
    (
        "/websocket",
        "HTTP/1.1 426 Upgrade Required\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nContent-Length: 0\r\n\r\n",
    ),
    ("/tls", "HTTP/1.1 426 No\r\nUpgrade: TLS/1.2, HTTP/1.1\r\nConnection: upgrade\r\nContent-Length: 1\r\n\r\nx"),
    ("/none", "HTTP/1.1 426 Upgrade Required\r\nContent-Length: 0\r\n\r\n"),
    ("/other", "HTTP/1.1 400 No\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nContent-Length: 0\r\n\r\n"),
];

#[test]
fn a_426_says_what_to_speak() {
    let node = node(OUTDATED);
    for websocket in ["enable_websocket: true", "enable_websocket: false"] {
        let gateway = Gateway::start(STILLGATE, &Setup::to(node.addr()).route(websocket));
        let mut client = gateway.client();
        for (path, expected) in
            [("/websocket", Some("websocket")), ("/tls", Some("TLS/1.2, HTTP/1.1")), ("/none", None), ("/other", None)]
        {
            let answer = client.request("GET", path, b"");
            assert_eq!(answer.head.get("upgrade"), expected, "{path}: {answer:?}");
            assert_eq!(answer.head.connection_has("upgrade"), expected.is_some(), "{path}: {answer:?}");
        }
        // HTTP/2 has no such fields (RFC 9113 section 8.2.2).
        let url = format!("http://{}/websocket", gateway.addr());
        let output = run_tool("curl", "curl", &["--silent", "--include", "--http2-prior-knowledge", &url]);
        let head = String::from_utf8_lossy(&output.stdout).to_lowercase();
        assert!(head.starts_with("http/2 426") && !head.contains("upgrade:"), "{head}");
        // Nor has HTTP/1.0.
        let mut client = gateway.client();
        client.send("GET /websocket HTTP/1.0\r\nHost: h\r\n\r\n");
        assert_eq!(client.expect_response("GET").head.get("upgrade"), None);
    }
}
