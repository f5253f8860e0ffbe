//! A node that sends the messages of a test, and plugins that change its bodies.

use crate::shared::reflect::{gateway, route};
use std::io::Write as _;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use stillgate_testkit::{BufferedSocket, Gateway, Message, Upstream};

/// Words are marked; what follows the colon goes.
pub(crate) const FILTERED: &str = r#"{"response-rewrite": {"filters": [{"regex": "secret: ([a-z]+)[0-9]*", "scope": "global", "replace": "public: $1!"}, {"regex": "$", "replace": "end"}]}}"#;
pub(crate) const REPLACED: &str = r#"{"response-rewrite": {"body": "in place of it"}}"#;
pub(crate) const BEFORE: &str = "a secret: word42, another secret: thing7 and no more secrets";
pub(crate) const AFTER: &str = "a public: word!, another public: thing! and no more secretsend";

/// The bytes that a node sends, in pieces, and whether the connection ends behind them.
#[derive(Debug, Clone, Default)]
struct Script {
    pieces: Vec<Vec<u8>>,
    closes: bool,
}

/// A node that sends the script of the moment, whatever the request is.
pub(crate) struct Node {
    pub(crate) upstream: Upstream,
    script: Arc<Mutex<Script>>,
}

impl Node {
    pub(crate) fn new() -> Node {
        let script = Arc::new(Mutex::new(Script::default()));
        let scripted = Arc::clone(&script);
        let upstream = Upstream::serve(move |connection| {
            while connection.read_request().is_ok() {
                let script = scripted.lock().expect("no test panics with it").clone();
                if !script.pieces.iter().all(|piece| send(connection, piece)) || script.closes {
                    return;
                }
            }
        });
        Node { upstream, script }
    }

    pub(crate) fn sends(&self, pieces: &[&[u8]], closes: bool) {
        let pieces = pieces.iter().map(|piece| piece.to_vec()).collect();
        *self.script.lock().expect("no test panics with it") = Script { pieces, closes };
    }

    pub(crate) fn sends_whole(&self, response: &[u8], closes: bool) {
        self.sends(&[response], closes);
    }

    pub(crate) fn gateway(&self, routes: &[(&str, &str)]) -> Gateway {
        gateway(self.upstream.addr(), &resources(routes))
    }
}

pub(crate) fn send(connection: &mut BufferedSocket, piece: &[u8]) -> bool {
    std::thread::yield_now();
    connection.try_send(piece).is_ok()
}

pub(crate) fn resources(of: &[(&str, &str)]) -> String {
    let routes: String = of.iter().map(|(uri, plugins)| route(uri, plugins)).collect();
    format!("routes:\n{routes}")
}

pub(crate) fn with_length(head: &str, body: &[u8]) -> Vec<u8> {
    [format!("HTTP/1.1 200 OK\r\n{head}Content-Length: {}\r\n\r\n", body.len()).as_bytes(), body].concat()
}

pub(crate) fn chunked(head: &str, body: &[u8], chunk: usize, trailers: &str) -> Vec<u8> {
    let mut bytes = format!("HTTP/1.1 200 OK\r\n{head}Transfer-Encoding: chunked\r\n\r\n").into_bytes();
    for part in body.chunks(chunk) {
        bytes.extend_from_slice(format!("{:x}\r\n", part.len()).as_bytes());
        bytes.extend_from_slice(part);
        bytes.extend_from_slice(b"\r\n");
    }
    bytes.extend_from_slice(format!("0\r\n{trailers}\r\n").as_bytes());
    bytes
}

/// Compresses with the machine's gzip, not the gateway's.
pub(crate) fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut child = Command::new("gzip").arg("-c").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("gzip");
    let mut stdin = child.stdin.take().expect("piped");
    let bytes = bytes.to_vec();
    let writer = std::thread::spawn(move || stdin.write_all(&bytes));
    let output = child.wait_with_output().expect("gzip ends");
    writer.join().expect("no panic").expect("gzip reads all");
    output.stdout
}

#[track_caller]
pub(crate) fn check(response: &Message, status: u16, body: &[u8], what: &str) {
    assert_eq!(response.head.status(), status, "{what}: {response:?}");
    assert!(response.body == body, "{what}: {:?}", String::from_utf8_lossy(&response.body));
}
