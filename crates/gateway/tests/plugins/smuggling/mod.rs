//! The peers that a gateway's messages reach, which keep each as it came; and h11, which judges them strictly.

pub(crate) mod configured;
pub(crate) mod fields;
pub(crate) mod plugged;

use serde_json::{Value, json};
use std::io::Write as _;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use stillgate_testkit::{BufferedSocket, Upstream, require_tool};

/// Marks a field that only an attack can make.
const EVIL: &str = "x-evil";

/// Where messages are kept, bytes as they came.
#[derive(Default, Clone)]
struct NodeMessages(Arc<Mutex<Vec<Vec<u8>>>>);

impl NodeMessages {
    fn keep(&self, bytes: Vec<u8>) {
        self.0.lock().expect("no test panics with it").push(bytes);
    }

    fn take(&self) -> Vec<Vec<u8>> {
        std::mem::take(&mut self.0.lock().expect("no test panics with it"))
    }
}

/// A node that keeps each request's bytes as they came, answers with few, and closes. Below `/breaker` it fails.
pub(crate) struct Node {
    pub(crate) upstream: Upstream,
    seen: NodeMessages,
}

impl Node {
    pub(crate) fn new() -> Node {
        let seen = NodeMessages::default();
        let kept = seen.clone();
        let upstream = Upstream::serve(move |connection| {
            let bytes = request_bytes(connection);
            let status = if bytes.starts_with(b"GET /breaker") { "500 Broken" } else { "200 OK" };
            kept.keep(bytes);
            let head = format!("HTTP/1.1 {status}\r\nX-Node: n");
            let rest = b"\xff\tn\r\nContent-Length: 9\r\nConnection: close\r\n\r\nnode body";
            let _ = connection.try_send([head.as_bytes(), rest].concat());
        });
        Node { upstream, seen }
    }

    /// The requests that arrived since the last call.
    pub(crate) fn take(&self) -> Vec<Vec<u8>> {
        self.seen.take()
    }
}

/// The server that plugins use: it decides for forward-auth (`/auth`) and OPA (`/v1/data`), and takes copies, logs and spans. Its
/// answers try to split messages, too.
pub(crate) struct Peer {
    pub(crate) upstream: Upstream,
    seen: NodeMessages,
}

impl Peer {
    pub(crate) fn new() -> Peer {
        let seen = NodeMessages::default();
        let (kept, asked) = (seen.clone(), AtomicUsize::new(0));
        let upstream = Upstream::serve(move |connection| {
            let bytes = request_bytes(connection);
            // A connection that was kept, and is not needed.
            if bytes.is_empty() {
                return;
            }
            let answer = answer(&bytes, asked.fetch_add(1, Ordering::SeqCst));
            kept.keep(bytes);
            let _ = connection.try_send(answer);
        });
        Peer { upstream, seen }
    }

    /// The requests that arrived since the last call.
    pub(crate) fn take(&self) -> Vec<Vec<u8>> {
        self.seen.take()
    }
}

/// The answer to a request, after so many others.
fn answer(request: &[u8], asked: usize) -> Vec<u8> {
    let is_let_in = asked.is_multiple_of(2);
    let path = request.split(|byte| *byte == b' ').nth(1).unwrap_or_default();
    let (status, fields, body) = if path.starts_with(b"/auth") {
        let lower = request.to_ascii_lowercase();
        let at = lower.windows(8).position(|window| window == b"\r\nx-in: ");
        let value = at.and_then(|at| request[at + 8..].split(|byte| *byte == b'\r').next()).unwrap_or_default();
        let fields = [b"X-Out: ", value, b"\r\nX-Out: \xff\t\x80\r\n"].concat();
        (if is_let_in { "200 OK" } else { "401 No" }, fields, b"no\r\n\r\nX-Evil: 1".to_vec())
    } else if path.starts_with(b"/v1/data") {
        ("200 OK", Vec::new(), decision(is_let_in, asked).to_string().into_bytes())
    } else {
        // Elasticsearch's version is requested first.
        ("200 OK", Vec::new(), br#"{"version": {"number": "8.1.0"}}"#.to_vec())
    };
    let head = format!("HTTP/1.1 {status}\r\nContent-Length: {}\r\nConnection: close\r\n", body.len());
    [head.as_bytes(), &fields, b"\r\n", &body].concat()
}

fn decision(is_let_in: bool, asked: usize) -> Value {
    let evil =
        ["a\r\nX-Evil: 1", "a\nX-Evil: 1", "a\rX-Evil: 1", "a\0b", "\r\n\r\n", "a\u{7f}b", "\u{560a}\u{560d}X-Evil: 1"];
    let value = evil[asked / 2 % evil.len()];
    let headers = json!({
        "X-Out": value, (format!("X-{value}")): "b", "Content-Length": "3", "Transfer-Encoding": "chunked",
        "Connection": "X-Out", "Set-Cookie": value, "": "b", "X-Good": "1",
    });
    json!({"result": {"allow": is_let_in, "headers": headers, "status_code": 403, "reason": value}})
}

/// A head, the body that it announces, and what came with it.
fn request_bytes(connection: &mut BufferedSocket) -> Vec<u8> {
    let mut bytes = until(connection, b"\r\n\r\n");
    let head = String::from_utf8_lossy(&bytes).to_ascii_lowercase();
    let length = head.split_once("\r\ncontent-length: ").and_then(|(_, after)| after.split_once('\r')?.0.parse().ok());
    if head.contains("\r\ntransfer-encoding:") {
        bytes.extend(until(connection, b"0\r\n\r\n"));
    } else if let Some(length) = length {
        bytes.extend(connection.read_exactly(length).unwrap_or_default());
    }
    bytes.extend(connection.pending());
    bytes
}

fn until(connection: &mut BufferedSocket, end: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    while !bytes.ends_with(end) {
        match connection.read_exactly(1) {
            Ok(byte) => bytes.extend(byte),
            Err(_) => return bytes,
        }
    }
    bytes
}

/// A message, `request` or `response`; the method of the request, and the bytes.
pub(crate) type Caught = (&'static str, String, Vec<u8>);

/// The verdicts of h11 on a list of messages.
pub(crate) fn judged(messages: &[Caught]) -> Vec<Value> {
    require_tool("python3", "python3");
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/python/h11_judge.py");
    // Debian's own, which has python3-h11, whatever else is installed.
    let mut child = Command::new("/usr/bin/python3")
        .arg(script)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("python3");
    let mut stdin = child.stdin.take().expect("piped");
    let lines: String = messages
        .iter()
        .map(|(kind, method, bytes)| {
            let hex: String = ascii_target(kind, bytes).iter().map(|byte| format!("{byte:02x}")).collect();
            format!("{kind} {method} {hex}\n")
        })
        .collect();
    let writer = std::thread::spawn(move || stdin.write_all(lines.as_bytes()));
    let output = child.wait_with_output().expect("the judge ends");
    writer.join().expect("no panic").expect("the judge reads all");
    assert!(output.status.success(), "the judge failed");
    let text = String::from_utf8(output.stdout).expect("JSON");
    text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
}

/// Bytes above ASCII go through in a target, as nginx lets them, though h11 takes none there. They end no line.
fn ascii_target(kind: &str, bytes: &[u8]) -> Vec<u8> {
    let line = if kind == "request" { bytes.iter().position(|&byte| byte == b'\n').unwrap_or(0) } else { 0 };
    let mut bytes = bytes.to_vec();
    bytes[..line].iter_mut().filter(|byte| !byte.is_ascii()).for_each(|byte| *byte = b'~');
    bytes
}

/// Whether a message is malformed, or more than one.
pub(crate) fn is_broken(said: &Value) -> bool {
    said["headers"].as_array().is_none() || said["rest"] != ""
}

/// Whether it has a field that an attack has injected.
pub(crate) fn has_evil(said: &Value) -> bool {
    let evil = |field: &Value| field[0].as_str().is_some_and(|name| name.eq_ignore_ascii_case(EVIL));
    said["headers"].as_array().is_some_and(|fields| fields.iter().any(evil))
}

/// The first malformed one, if any is.
#[track_caller]
pub(crate) fn assert_none(wrong: &[String], messages: usize) {
    let shown = wrong[..wrong.len().min(12)].join("\n");
    assert!(wrong.is_empty(), "{} of {messages} are split or malformed:\n{shown}", wrong.len());
}
