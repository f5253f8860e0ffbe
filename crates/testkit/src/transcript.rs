//! Golden wire transcripts: a dialogue of client, gateway and upstream in a text file.
//!
//! The file is a list of `=== step` sections, played strictly in order by one thread, so that a transcript fixes not
//! only the messages but also their order; `upstream closes` is over when the gateway's socket has seen it. There may
//! be two clients: `clients swap` changes to the other one. Text before the first section is its explanation. Message
//! texts are in the notation of [`crate::decode`], with these additions: `{node}` and `{gateway}` are addresses,
//! `{node_port}` in resources is a port, `{len}` is the length of the body that follows, `{any}` as a field's whole
//! value matches all values, `{absent}` asserts that the field is absent, and a line `{forwarded HOST}` represents
//! the fields that a gateway adds for an untrusted client.
//!
//! Heads are compared as start line and ordered fields, bodies decoded: the division of a body into chunks is not
//! guaranteed. Fields that a gateway may add by itself (`Date`, `Server`, `Connection: keep-alive`) count only if the
//! transcript names them.

use crate::connection::BufferedSocket;
use crate::eventually;
use crate::gateway::{Gateway, Setup};
use crate::message::{Head, Message, MessageError, decode, encode, find};
use crate::prometheus::Client;
use crate::upstream::Upstream;
use std::io::Write;
use std::net::{Shutdown, TcpListener, TcpStream};
use std::panic::AssertUnwindSafe;
use stillgate_rig::proc::{self, TcpSocket};

/// One transcript.
#[derive(Debug, Clone)]
pub struct Transcript {
    name: String,
    steps: Vec<ScriptStep>,
}

#[derive(Debug, Clone)]
struct ScriptStep {
    verb: String,
    text: String,
}

impl Transcript {
    /// Splits a file into steps.
    pub fn parse(name: &str, file: &str) -> Self {
        let mut steps: Vec<ScriptStep> = Vec::new();
        for line in file.lines() {
            if let Some(verb) = line.strip_prefix("=== ") {
                steps.push(ScriptStep { verb: verb.trim().to_owned(), text: String::new() });
            } else if let Some(step) = steps.last_mut() {
                step.text.push_str(line);
                step.text.push('\n');
            }
        }
        Self { name: name.to_owned(), steps }
    }

    /// Plays it against its own gateway.
    ///
    /// # Errors
    /// The step that failed, and what was seen instead.
    pub fn play(&self, binary: &str) -> Result<(), String> {
        let fail = |at: usize, why: &str| {
            let verb = self.steps.get(at).map_or("the end", |step| &step.verb);
            format!("{}: step {} ({verb}): {why}", self.name, at + 1)
        };
        let mut player = Player::start(binary, &self.steps);
        for (at, step) in self.steps.iter().enumerate() {
            // A failing step panics; the transcript's name and step must still be reported.
            let result = std::panic::catch_unwind(AssertUnwindSafe(|| player.step(step)));
            let result = result.unwrap_or_else(|panic| Err(panic_text(&*panic)));
            result.map_err(|why| fail(at, &why))?;
        }
        player.end().map_err(|why| fail(self.steps.len(), &why))
    }
}

/// A text with its repetitions written out, `\{a*500}`. Other escapes are YAML's.
fn repeated(text: &str) -> String {
    let Some((before, (repeat, after))) =
        text.split_once("\\{").and_then(|(before, rest)| Some((before, rest.split_once('}')?)))
    else {
        return text.to_owned();
    };
    let unit = String::from_utf8(decode(&format!("\\{{{repeat}}}\\"))).expect("a repetition of text");
    format!("{before}{unit}{}", repeated(after))
}

fn panic_text(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().cloned();
    text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned())).unwrap_or_else(|| "a panic".to_owned())
}

struct Player {
    upstream: Upstream,
    node: Option<BufferedSocket>,
    client: Option<Client>,
    /// The other client, if there are two.
    other: Option<Client>,
    // Last, so that clients and upstreams end before it.
    gateway: Gateway,
}

impl Player {
    fn start(binary: &str, steps: &[ScriptStep]) -> Self {
        let section = |verb: &str| steps.iter().find(|step| step.verb == verb).map(|step| step.text.as_str());
        let upstream = match section("no upstream") {
            Some(_) => Upstream::refusing(),
            None => Upstream::bind(),
        };
        let node = upstream.addr().to_string();
        let mut setup = Setup::to(upstream.addr());
        setup.gateway = section("gateway config").unwrap_or("").to_owned();
        setup.upstream = section("upstream config").unwrap_or("").to_owned();
        setup.route = section("route config").unwrap_or("").to_owned();
        let port = upstream.addr().port().to_string();
        let filled = |yaml: &str| repeated(yaml).replace("{node}", &node).replace("{node_port}", &port);
        setup.resources = section("resources").map(filled);
        Self { gateway: Gateway::start(binary, &setup), upstream, node: None, client: None, other: None }
    }

    fn step(&mut self, step: &ScriptStep) -> Result<(), String> {
        match step.verb.as_str() {
            "gateway config" | "upstream config" | "route config" | "resources" | "no upstream" => {}
            "clients swap" => std::mem::swap(&mut self.client, &mut self.other),
            "client connects" => self.client = Some(self.gateway.client()),
            "client sends" => {
                let bytes = self.bytes(&step.text);
                self.client().deliver(&bytes, crate::Delivery::Whole);
            }
            "client shuts" => self.client().half_close(),
            "client resets" => {
                let client = self.client.take().ok_or("no client is connected")?;
                client.into_connection().reset();
            }
            "client expects" => self.client_expects(&step.text, "GET")?,
            "client expects bodyless" => self.client_expects(&step.text, "HEAD")?,
            "client expects head" => {
                let expected = Head::parse(&self.bytes(&step.text))?;
                let actual = self.client().read_head().map_err(broken)?;
                compare_heads(&expected, &actual)?;
            }
            "client expects raw" => {
                let expected = self.bytes(&step.text);
                let actual = self.client().read_exactly(expected.len());
                same_bytes(&expected, &actual.map_err(broken)?)?;
            }
            "client sees reset" => match self.client().read_to_end() {
                Err(MessageError::Reset(rest)) if rest.is_empty() => self.client = None,
                other => return Err(format!("no reset but {}", shown(other))),
            },
            "client expects truncated" => {
                let expected = self.bytes(&step.text);
                truncated(self.client(), &expected)?;
            }
            verb if verb.starts_with("client expects error ") => {
                let words: Vec<&str> = verb.split(' ').skip(3).collect();
                let response = self.client().read_response("GET").map_err(broken)?;
                error_response(&response, &words, step.text.trim())?;
            }
            "client sees close" => self.client.take().ok_or("no client is connected")?.expect_close(),
            "upstream accepts" => self.node = Some(self.upstream.accept()),
            "upstream sends" => {
                let bytes = self.bytes(&step.text);
                self.node().send(bytes);
            }
            "upstream shuts" => self.node().half_close(),
            "upstream closes" => self.node.take().into_iter().for_each(close_and_wait),
            "upstream resets" => self.node.take().into_iter().for_each(BufferedSocket::reset),
            "upstream expects" => self.upstream_expects(&step.text)?,
            "upstream expects head" => self.upstream_expects_head(&step.text)?,
            "upstream expects raw" => {
                let expected = self.bytes(&step.text);
                let actual = self.node().read_exactly(expected.len());
                same_bytes(&expected, &actual.map_err(broken)?)?;
            }
            "upstream sees close" => {
                let node = self.node.as_mut().ok_or("no upstream connection is open")?;
                eventually("the upstream connection to be closed", || node.is_closed());
                self.node = None;
            }
            "upstream untouched" => {
                let count = self.upstream.connections() + usize::from(self.upstream.try_accept().is_some());
                if count > 0 {
                    return Err("the upstream was connected to".to_owned());
                }
            }
            other => return Err(format!("unknown step: {other}")),
        }
        Ok(())
    }

    /// Input that no step has consumed is an error.
    fn end(mut self) -> Result<(), String> {
        for mut client in [self.client.take(), self.other.take()].into_iter().flatten() {
            client.half_close();
            match client.read_to_end() {
                Ok(rest) if rest.is_empty() => {}
                other => return Err(format!("the client saw more or no end: {}", shown(other))),
            }
        }
        if let Some(mut extra) = self.upstream.try_accept() {
            return Err(format!("one more upstream connection: {}", encode(&extra.pending())));
        }
        let pending = self.node.as_mut().map(BufferedSocket::pending).unwrap_or_default();
        if !pending.is_empty() {
            return Err(format!("the upstream got more:\n{}", encode(&pending)));
        }
        self.gateway.assert_healthy();
        Ok(())
    }

    fn client_expects(&mut self, text: &str, method: &str) -> Result<(), String> {
        let expected = expected_message(&self.bytes(text), |connection| connection.read_response(method))?;
        let actual = self.client().read_response(method).map_err(broken)?;
        compare(&expected, &actual)
    }

    fn upstream_expects(&mut self, text: &str) -> Result<(), String> {
        let expected = expected_message(&self.bytes(text), BufferedSocket::read_request)?;
        let actual = self.node().read_request().map_err(broken)?;
        compare(&expected, &actual)
    }

    fn upstream_expects_head(&mut self, text: &str) -> Result<(), String> {
        let expected = Head::parse(&self.bytes(text))?;
        let actual = self.node().read_head().map_err(broken)?;
        compare_heads(&expected, &actual)
    }

    fn client(&mut self) -> &mut Client {
        self.client.get_or_insert_with(|| self.gateway.client())
    }

    fn node(&mut self) -> &mut BufferedSocket {
        self.node.get_or_insert_with(|| self.upstream.accept())
    }

    fn bytes(&self, text: &str) -> Vec<u8> {
        let mut lines = String::new();
        for line in text.lines() {
            match line.strip_prefix("{forwarded ").and_then(|rest| rest.strip_suffix('}')) {
                None => lines.push_str(line),
                Some(host) => {
                    let named = host.rsplit_once(':').and_then(|(_, port)| port.parse().ok());
                    lines.push_str(&format!(
                        "X-Real-IP: 127.0.0.1\nX-Forwarded-For: 127.0.0.1\nX-Forwarded-Proto: http\n\
                         X-Forwarded-Port: {}\nX-Forwarded-Host: {host}",
                        named.unwrap_or(self.gateway.addr().port())
                    ));
                }
            }
            lines.push('\n');
        }
        let node = self.upstream.addr().to_string();
        let text = lines.replace("{node}", &node).replace("{gateway}", &self.gateway.addr().to_string());
        let bytes = decode(&text);
        let body = find(&bytes, b"\r\n\r\n").map_or(0, |at| bytes.len() - at - 4);
        match find(&bytes, b"{len}") {
            None => bytes,
            Some(at) => [&bytes[..at], body.to_string().as_bytes(), &bytes[at + 5..]].concat(),
        }
    }
}

fn broken(broken: MessageError) -> String {
    match broken {
        MessageError::Truncated(bytes) => format!("truncated after:\n{}", encode(&bytes)),
        MessageError::Reset(bytes) => format!("reset after:\n{}", encode(&bytes)),
        MessageError::Timeout(bytes) => format!("nothing more came after:\n{}", encode(&bytes)),
        other => format!("{other:?}"),
    }
}

fn shown(result: Result<Vec<u8>, MessageError>) -> String {
    result.map_or_else(broken, |bytes| encode(&bytes))
}

/// Parses the expectation with the parser of the actual message, so that both mean the same.
fn expected_message(
    bytes: &[u8],
    read: impl FnOnce(&mut BufferedSocket) -> Result<Message, MessageError>,
) -> Result<Message, String> {
    let listener = TcpListener::bind("127.0.0.1:0").expect("bind to any loopback port");
    let mut sender = TcpStream::connect(listener.local_addr().unwrap()).expect("connect to ourselves");
    sender.write_all(bytes).expect("a golden message fits the socket buffer");
    sender.shutdown(Shutdown::Write).expect("end a live socket");
    let mut connection = BufferedSocket::new(listener.accept().expect("our own connection").0);
    let message = read(&mut connection).map_err(|why| format!("the expectation itself: {}", broken(why)))?;
    match connection.pending() {
        rest if rest.is_empty() => Ok(message),
        rest => Err(format!("the expectation continues after its end: {}", encode(&rest))),
    }
}

/// The gateway's own refusals: `words` are the status and optionally `close`, `message` is contained in `error_msg`.
fn error_response(response: &Message, words: &[&str], message: &str) -> Result<(), String> {
    let status = words.first().unwrap_or(&"");
    if response.head.status().to_string() != *status {
        return Err(format!("the response is {response:?}"));
    }
    let json = serde_json::from_slice::<serde_json::Value>(&response.body);
    let json = json.map_err(|error| format!("{error}: {}", encode(&response.body)))?;
    let told = json["error_msg"].as_str().unwrap_or_default();
    if told.is_empty() || !told.contains(message) {
        return Err(format!("error_msg is {json}"));
    }
    if response.head.connection_has("close") != words.contains(&"close") {
        return Err(format!("Connection is {:?}", response.head.all("connection")));
    }
    Ok(())
}

fn truncated(client: &mut Client, expected: &[u8]) -> Result<(), String> {
    let at = find(expected, b"\r\n\r\n").ok_or("the expectation has no head")? + 4;
    let actual = client.read_head().map_err(broken)?;
    compare_heads(&Head::parse(&expected[..at])?, &actual)?;
    let rest = match client.read_to_end() {
        Ok(rest) | Err(MessageError::Reset(rest)) => rest,
        Err(other) => return Err(broken(other)),
    };
    same_bytes(&expected[at..], &rest)
}

fn compare(expected: &Message, actual: &Message) -> Result<(), String> {
    if expected.interim.len() != actual.interim.len() {
        return Err(format!("interim responses: {:?}", actual.interim));
    }
    for (expected, actual) in expected.interim.iter().zip(&actual.interim) {
        compare_heads(expected, actual)?;
    }
    compare_heads(&expected.head, &actual.head)?;
    same_bytes(&expected.body, &actual.body)?;
    if expected.trailers != actual.trailers {
        return Err(format!("trailers {:?}, not {:?}", actual.trailers, expected.trailers));
    }
    Ok(())
}

fn compare_heads(expected: &Head, actual: &Head) -> Result<(), String> {
    let named = |name: &str| expected.fields.iter().any(|(field, _)| field.eq_ignore_ascii_case(name));
    let own = |(name, value): &&(String, String)| {
        let may_be_ours = name.eq_ignore_ascii_case("date")
            || name.eq_ignore_ascii_case("server")
            || name.eq_ignore_ascii_case("connection") && value.eq_ignore_ascii_case("keep-alive");
        // Interim responses are relayed, never ours.
        !may_be_ours || named(name) || actual.start.starts_with("HTTP/1.1 1")
    };
    let actual_fields: Vec<&(String, String)> = actual.fields.iter().filter(own).collect();
    let expected_fields: Vec<&(String, String)> =
        expected.fields.iter().filter(|(_, value)| value != "{absent}").collect();
    let same = |(expected, actual): (&&(String, String), &&(String, String))| {
        expected.0.eq_ignore_ascii_case(&actual.0) && (expected.1 == "{any}" || expected.1 == actual.1)
    };
    let fields_agree =
        expected_fields.len() == actual_fields.len() && expected_fields.iter().zip(&actual_fields).all(same);
    if expected.start == actual.start && fields_agree {
        return Ok(());
    }
    let list = |start: &str, fields: &[&(String, String)]| {
        let lines = fields.iter().map(|(name, value)| format!("\n    {name}: {value}"));
        format!("\n    {start}{}", lines.collect::<String>())
    };
    Err(format!(
        "expected head:{}\n  actual:{}",
        list(&expected.start, &expected_fields),
        list(&actual.start, &actual_fields)
    ))
}

fn same_bytes(expected: &[u8], actual: &[u8]) -> Result<(), String> {
    if expected == actual {
        return Ok(());
    }
    Err(format!("expected bytes:\n{}\nactual:\n{}", encode(expected), encode(actual)))
}

// Finds out when the other end of a loopback connection has seen that ours was closed.
//
// The system delivers a FIN when it gets to it: on a busy machine, bytes that are sent later on another connection may
// arrive before it. If that order is what a test is about, this asks the kernel, whose table also has the peer's
// socket.

/// States of a socket that has not seen its peer's FIN yet: ESTABLISHED, FIN_WAIT1, FIN_WAIT2.
const STATES_BEFORE_FIN: [u8; 3] = [TcpSocket::ESTABLISHED, TcpSocket::FIN_WAIT1, TcpSocket::FIN_WAIT2];

/// Closes a loopback connection and waits until its peer's socket has seen that: it is in CLOSE_WAIT, beyond, or gone.
///
/// # Panics
/// If that takes longer than [`crate::PATIENCE`].
fn close_and_wait(connection: BufferedSocket) {
    let (ours, peer) = (connection.stream().local_addr(), connection.stream().peer_addr());
    drop(connection);
    // A connection without addresses had been reset, by the peer, which therefore knows.
    let (Ok(ours), Ok(peer)) = (ours, peer) else { return };
    let awaited = format!("the FIN from {ours} to reach its peer's socket {peer} (CLOSE_WAIT)");
    eventually(&awaited, || knows_the_end(peer.port(), ours.port()));
}

/// Whether no socket from port `local` to port `remote` still considers its peer open.
fn knows_the_end(local: u16, remote: u16) -> bool {
    let sockets = proc::tcp_sockets().unwrap_or_else(|error| panic!("{error}; it shows when a peer has seen a FIN"));
    let between = |socket: &TcpSocket| socket.local == local && socket.remote == remote;
    !sockets.iter().any(|socket| between(socket) && STATES_BEFORE_FIN.contains(&socket.state))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{TcpListener, TcpStream};

    #[test]
    fn heads_compare_in_order_and_ignore_what_is_ours() {
        let head = |text: &str| Head::parse(&decode(text)).expect(text);
        let expected = head("HTTP/1.1 200 OK\nA: 1\nB: {any}\nServer: {absent}\n\n");
        let same = |text| compare_heads(&expected, &head(text)).is_ok();
        assert!(same("HTTP/1.1 200 OK\na: 1\nDate: x\nB: 2\nConnection: keep-alive\n\n"));
        assert!(!same("HTTP/1.1 200 OK\nB: 2\nA: 1\n\n"), "another order");
        assert!(!same("HTTP/1.1 200 OK\nA: 1\nB: 2\nServer: x\n\n"), "named as absent");
        assert!(!same("HTTP/1.1 200 OK\nA: 1\nB: 2\nConnection: close\n\n"), "one more");
        assert!(!same("HTTP/1.1 201 OK\nA: 1\nB: 2\n\n"), "another start line");
    }

    #[test]
    fn files_become_steps() {
        let transcript = Transcript::parse("t", "Why.\n=== client sends\nGET / HTTP/1.1\n\n=== client shuts\n");
        assert_eq!(transcript.steps.len(), 2);
        assert_eq!(transcript.steps[0].text, "GET / HTTP/1.1\n\n");
    }

    #[test]
    fn an_open_peer_is_distinguished_from_one_that_has_seen_the_end() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let peer = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let ours = BufferedSocket::new(listener.accept().unwrap().0);
        let knows = |peer: u16| knows_the_end(peer, listener.local_addr().unwrap().port());
        let port = peer.local_addr().unwrap().port();
        assert!(!knows(port), "it is open");
        close_and_wait(ours);
        assert!(knows(port), "it is in CLOSE_WAIT");
        drop(peer);
        assert!(knows(port), "it is gone");
    }
}
