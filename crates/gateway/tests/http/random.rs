//! Random dialogues: valid ones must come through exactly, mutilated ones must never reach the upstream as something else.
//!
//! The upstream reads as strictly as possible and reports what breaks a rule. Every dialogue derives from its number, which a
//! failure shows.

use crate::shared::STILLGATE;
use stillgate_testkit::{Client, Gateway, MessageError, Setup, Upstream, encode, payload, seeded, sha256};

/// Dialogues of each kind.
const DIALOGUES: u64 = 300;

/// Where the numbers of the dialogues begin; `SEED=7` explores others than usual.
fn first_dialogue() -> u64 {
    std::env::var("SEED").ok().and_then(|seed| seed.parse::<u64>().ok()).unwrap_or(0) << 32
}

/// One request of a dialogue and what must come back.
struct Ask {
    method: &'static str,
    bytes: Vec<u8>,
    sent: Vec<u8>,
    expected: Vec<u8>,
    line: String,
}

impl Ask {
    fn random(random: &mut impl FnMut() -> u64) -> Self {
        let mut below = |bound: u64| random() % bound;
        let method = ["GET", "POST", "PUT", "HEAD", "DELETE", "OPTIONS"][below(6) as usize];
        let size = |below: &mut dyn FnMut(u64) -> u64| {
            let magnitude = below(19);
            below(1 << magnitude) as usize
        };
        let (sent_len, expected_len) = (size(&mut below), size(&mut below));
        let has_body = matches!(method, "POST" | "PUT");
        let seed = below(1 << 30);
        let sent = payload(seed + 1, if has_body { sent_len } else { 0 });
        let expected = if method == "HEAD" { Vec::new() } else { payload(seed, expected_len) };
        let framing =
            ["", "&chunked", "&chunked&piece=100", "&piece=3000", "&close", "&chunked&close"][below(6) as usize];
        let target = format!("/{seed}?seed={seed}&size={expected_len}{framing}");
        let line = format!("{method} {target} HTTP/1.1");
        let mut bytes = match below(10) {
            0 => format!("\r\n{method} http://other.example{target} HTTP/1.1\r\n"),
            _ => format!("{line}\r\n"),
        };
        bytes.push_str("Host: random.example\r\n");
        for number in 0..below(12) {
            let value = "v".repeat(below(200) as usize);
            bytes.push_str(&format!("X-Noise-{number}: {value}\r\n"));
        }
        if has_body && below(6) == 0 {
            // Not waited for: the body follows at once.
            bytes.push_str("Expect: 100-continue\r\n");
        }
        let mut bytes = bytes.into_bytes();
        if !has_body {
            bytes.extend_from_slice(b"\r\n");
        } else if below(2) == 0 {
            bytes.extend_from_slice(format!("Content-Length: {}\r\n\r\n", sent.len()).as_bytes());
            bytes.extend_from_slice(&sent);
        } else {
            bytes.extend_from_slice(b"Transfer-Encoding: chunked\r\n\r\n");
            let mut rest = &sent[..];
            while !rest.is_empty() {
                let (part, after) = rest.split_at(rest.len().min(1 + below(9000) as usize));
                let extension = ["", ";x", ";x=y;z=\"q\""][below(3) as usize];
                bytes.extend_from_slice(format!("{:X}{extension}\r\n", part.len()).as_bytes());
                bytes.extend_from_slice(part);
                bytes.extend_from_slice(b"\r\n");
                rest = after;
            }
            bytes.extend_from_slice(if below(3) == 0 { b"0\r\nX-Trailer: t\r\n\r\n" } else { b"0\r\n\r\n" });
        }
        Self { method, bytes, sent, expected, line }
    }

    fn check(&self, client: &mut Client) -> Result<(), String> {
        let response = client.read_response(self.method).map_err(|broken| match broken {
            MessageError::Malformed(why) => why,
            other => format!("{other:?}").chars().take(200).collect(),
        })?;
        let got = |name| response.head.get(name).unwrap_or_default().to_owned();
        match () {
            () if response.head.status() != 200 => Err(format!("{:?}", response.head)),
            () if got("x-got") != self.line => Err(format!("the answer to {:?}", got("x-got"))),
            () if got("x-body-sha256") != sha256(&self.sent) => Err("another body reached the upstream".to_owned()),
            () if response.body != self.expected => Err(format!("a body of {} bytes", response.body.len())),
            () => Ok(()),
        }
    }
}

/// Sends `bytes` in pieces of random sizes while another thread reads.
fn deliver(client: &mut Client, bytes: &[u8], random: &mut impl FnMut() -> u64) {
    let mut rest = bytes;
    let scale = [1, 10, 100, 10_000, 1_000_000][random() as usize % 5];
    while !rest.is_empty() {
        // Tiny pieces of long messages would only take time.
        let least = rest.len() / 2000;
        let (piece, after) = rest.split_at(rest.len().min(1 + least + random() as usize % scale));
        if client.try_send(piece).is_err() {
            return;
        }
        rest = after;
    }
}

/// Overwrites, removes, doubles or inserts bytes, one to three times.
fn mutilate(bytes: &mut Vec<u8>, random: &mut impl FnMut() -> u64) {
    const INSERTS: [&[u8]; 12] = [
        b"\r",
        b"\n",
        b"\r\n",
        b"\0",
        b" ",
        b"\t",
        b":",
        b",",
        b"Content-Length: 3\r\n",
        b"Transfer-Encoding: chunked\r\n",
        b"\r\n\r\n",
        b"0\r\n\r\n",
    ];
    for _ in 0..1 + random() % 3 {
        let at = random() as usize % bytes.len();
        match random() % 4 {
            0 => bytes[at] = random() as u8,
            1 => drop(bytes.remove(at)),
            2 => {
                let end = (at + 1 + random() as usize % 30).min(bytes.len());
                let copy = bytes[at..end].to_vec();
                bytes.splice(at..at, copy);
            }
            _ => {
                let insert = INSERTS[random() as usize % INSERTS.len()];
                bytes.splice(at..at, insert.iter().copied());
            }
        }
    }
}

#[test]
fn valid_dialogues_come_through_exactly() {
    let upstream = Upstream::echo();
    let mut gateway = Gateway::start(STILLGATE, &Setup::to(upstream.addr()));
    for dialogue in (0..DIALOGUES).map(|number| number + first_dialogue()) {
        let mut random = seeded(dialogue);
        let asks: Vec<Ask> = (0..1 + random() % 8).map(|_| Ask::random(&mut random)).collect();
        let mut client = gateway.client();
        let twin = client.stream().try_clone().expect("duplicate a socket");
        let bytes: Vec<u8> = asks.iter().flat_map(|ask| ask.bytes.iter().copied()).collect();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut sending = Client::from_connection(stillgate_testkit::BufferedSocket::new(twin));
                deliver(&mut sending, &bytes, &mut random);
            });
            for (number, ask) in asks.iter().enumerate() {
                if let Err(why) = ask.check(&mut client) {
                    // Ends the sender too.
                    client.half_close();
                    panic!("dialogue {dialogue}, request {number} ({}): {why}", ask.line);
                }
            }
        });
        client.half_close();
        client.expect_close();
    }
    assert_eq!(upstream.faults(), [""; 0]);
    gateway.assert_healthy();
}

/// Bytes are overwritten, removed, doubled and inserted. Whatever the gateway makes of that, what it forwards is valid,
/// and what it answers is a valid sequence of responses.
#[test]
fn mutilated_dialogues_never_become_invalid_requests() {
    let upstream = Upstream::echo();
    let mut gateway = Gateway::start(STILLGATE, &Setup::to(upstream.addr()));
    for dialogue in (0..3 * DIALOGUES).map(|number| number + first_dialogue()) {
        let mut random = seeded(dialogue + 1_000_000);
        let mut bytes = Vec::new();
        for _ in 0..3 {
            let mut ask = Ask::random(&mut random);
            // Long bodies would take all the hits.
            while ask.bytes.len() > 2000 {
                ask = Ask::random(&mut random);
            }
            bytes.extend(ask.bytes);
        }
        mutilate(&mut bytes, &mut random);
        let mut client = gateway.client();
        deliver(&mut client, &bytes, &mut random);
        client.half_close();
        // Responses to mutilated methods cannot be distinguished from those with a body; so only the frame of the conversation is
        // checked: it ends, in order, and does not hang.
        match client.read_to_end() {
            Ok(answers) | Err(MessageError::Reset(answers)) => {
                assert!(answers.is_empty() || answers.starts_with(b"HTTP/1.1 "), "dialogue {dialogue}");
            }
            Err(broken) => panic!("dialogue {dialogue}: {broken:?}, {}", encode(&bytes)),
        }
    }
    assert_eq!(upstream.faults(), [""; 0]);
    gateway.assert_healthy();
}

/// An upstream that sends nonsense: the client's response is valid or cut short, and if it is complete it is what a strict reader
/// of the upstream's bytes would have read.
#[test]
fn mutilated_responses_never_become_other_responses() {
    let upstream = Upstream::bind();
    let mut gateway = Gateway::start(STILLGATE, &Setup::to(upstream.addr()));
    for dialogue in (0..2 * DIALOGUES).map(|number| number + first_dialogue()) {
        let mut random = seeded(dialogue + 2_000_000);
        let body = payload(dialogue, random() as usize % 300);
        let mut bytes = match random() % 3 {
            0 => format!("HTTP/1.1 200 OK\r\nX: y\r\nContent-Length: {}\r\n\r\n", body.len()).into_bytes(),
            1 => b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nX: y\r\n\r\n".to_vec(),
            _ => b"HTTP/1.1 200 OK\r\nConnection: close\r\nX: y\r\n\r\n".to_vec(),
        };
        if bytes.windows(7).any(|window| window == b"chunked") {
            for part in body.chunks(100) {
                bytes.extend_from_slice(format!("{:x}\r\n", part.len()).as_bytes());
                bytes.extend_from_slice(part);
                bytes.extend_from_slice(b"\r\n");
            }
            bytes.extend_from_slice(b"0\r\n\r\n");
        } else {
            bytes.extend_from_slice(&body);
        }
        mutilate(&mut bytes, &mut random);
        let strict = strictly(&bytes);
        let mut client = gateway.client();
        client.send("GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
        let mut node = Client::from_connection(upstream.accept());
        node.expect_request();
        deliver(&mut node, &bytes, &mut random);
        node.half_close();
        let told = || format!("dialogue {dialogue}: {}", encode(&bytes));
        match (client.read_response("GET"), strict) {
            (Err(MessageError::Malformed(why)), _) => panic!("{why}; {}", told()),
            (Err(MessageError::Timeout(_)), _) => panic!("hangs; {}", told()),
            (Ok(response), Ok(strict)) if response.head.status() != 502 => {
                assert!(response.body == strict.body, "another body; {}", told());
            }
            // Taken, and mended: only the space before an absent reason is missing.
            (Ok(_), Err(_)) if bytes.starts_with(b"HTTP/1.1 200\r\n") => {}
            (Ok(response), Err(why)) => assert_eq!(response.head.status(), 502, "{why:?}; {}", told()),
            _ => {}
        }
    }
    gateway.assert_healthy();
}

/// What testkit's own reader makes of these bytes, ended by a close.
fn strictly(bytes: &[u8]) -> Result<stillgate_testkit::Message, MessageError> {
    let bytes = bytes.to_vec();
    let source = Upstream::serve(move |connection| connection.send(&bytes));
    Client::connect(source.addr()).read_response("GET")
}
