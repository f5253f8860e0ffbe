//! A node whose response repeats its request, and a gateway in front of it with plugins.

use crate::shared::STILLGATE;
use std::net::SocketAddr;
use std::process::Command;
use stillgate_testkit::{BufferedSocket, Fields, Gateway, Head, Message, MessageError, Setup, Upstream};

/// A node that answers with the head it was sent, a field a line, an empty line and the body. Fields of its own: `X-Node`,
/// `Vary: Accept-Encoding`, two of `X-Twice`, and what the query says: `status=404`.
pub(crate) fn reflecting() -> Upstream {
    Upstream::serve(|connection| while connection.read_request().is_ok_and(|request| reflect(connection, &request)) {})
}

fn reflect(connection: &mut BufferedSocket, request: &Message) -> bool {
    let (method, target) = request.head.method_and_target();
    let mut body = format!("{}\n", request.head.start);
    for (name, value) in &request.head.fields {
        body.push_str(&format!("{name}: {value}\n"));
    }
    body.push('\n');
    let mut bytes: Vec<u8> = body.chars().map(|c| u8::try_from(c).unwrap_or(b'?')).collect();
    bytes.extend_from_slice(&request.body);
    let status = target.split_once("status=").map_or("200", |(_, after)| &after[..3]);
    let head = format!(
        "HTTP/1.1 {status} Node\r\nContent-Type: text/plain\r\nX-Node: here\r\nVary: Accept-Encoding\r\nX-Twice: a\r\nX-Twice: b\r\n\
         Content-Length: {}\r\n\r\n",
        bytes.len()
    );
    if method == "HEAD" {
        bytes.clear();
    }
    connection.try_send([head.as_bytes(), &bytes].concat()).is_ok()
}

/// The request that a [`reflecting`] node received.
pub(crate) fn asked(response: &Message) -> Head {
    let text: String = response.body.iter().map(|&byte| char::from(byte)).collect();
    let (head, _) = text.split_once("\n\n").unwrap_or_else(|| panic!("not of the node: {response:?}"));
    let mut lines = head.split('\n');
    let start = lines.next().unwrap_or_default().to_owned();
    let fields = lines.map(|line| {
        let (name, value) = line.split_once(": ").expect("as written above");
        (name.to_owned(), value.to_owned())
    });
    Head { start, fields: fields.collect::<Fields>() }
}

/// A gateway with these resources, whose upstream `node` is `node`.
pub(crate) fn gateway(node: SocketAddr, resources: &str) -> Gateway {
    Gateway::start(STILLGATE, &setup(node, resources))
}

/// The setup that [`gateway`] starts.
pub(crate) fn setup(node: SocketAddr, resources: &str) -> Setup {
    let nodes = format!(r#"[{{"host": "{}", "port": {}, "weight": 1}}]"#, node.ip(), node.port());
    Setup::resources(format!(
        "upstreams:\n  - {{\"id\": \"node\", \"type\": \"roundrobin\", \"nodes\": {nodes}}}\n{resources}"
    ))
}

/// A route to the node with these plugins, in JSON.
pub(crate) fn route(uri: &str, plugins: &str) -> String {
    let id: String = uri.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect();
    format!("  - {{\"id\": \"r{id}\", \"uri\": \"{uri}\", \"upstream_id\": \"node\", \"plugins\": {plugins}}}\n")
}

/// Sends a head with these lines and reads the response. `start` is `GET /a`.
#[track_caller]
pub(crate) fn ask(client: &mut BufferedSocket, start: &str, lines: &[&str]) -> Message {
    try_ask(client, start, lines).unwrap_or_else(|broken| panic!("{start} {lines:?}: {broken:?}"))
}

/// Like [`ask`], for a connection that may fail.
pub(crate) fn try_ask(client: &mut BufferedSocket, start: &str, lines: &[&str]) -> Result<Message, MessageError> {
    let mut head = format!("{start} HTTP/1.1\r\nHost: h.example\r\n");
    for line in lines {
        head.push_str(line);
        head.push_str("\r\n");
    }
    head.push_str("\r\n");
    // Each character above ASCII represents one byte.
    let bytes: Vec<u8> = head.chars().map(|c| u8::try_from(c).expect("Latin-1")).collect();
    client.send(bytes);
    client.read_response(start.split(' ').next().unwrap_or_default())
}

/// The result of `check` for a configuration: whether it is valid, and the messages.
pub(crate) fn check(resources: &str) -> (bool, String) {
    check_with("", resources)
}

/// Like [`check`], with keys of `gateway:`.
pub(crate) fn check_with(keys: &str, resources: &str) -> (bool, String) {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let path = dir.path().join("stillgate.yaml");
    let loopback = SocketAddr::from(([127, 0, 0, 1], 1));
    let yaml =
        setup(loopback, resources).gateway(keys).render(loopback, SocketAddr::from(([127, 0, 0, 1], 2)), dir.path());
    std::fs::write(&path, yaml).expect("write the configuration");
    let output = Command::new(STILLGATE).args(["check"]).arg(&path).output().expect("run stillgate");
    let text = [output.stdout, output.stderr].concat();
    (output.status.success(), String::from_utf8_lossy(&text).into_owned())
}
