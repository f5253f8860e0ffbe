//! Strategies for messages: valid ones with every freedom of the grammar, damaged ones, and heaps of trouble.

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;

/// A request head that must be accepted.
#[derive(Debug, Clone)]
pub(crate) struct Request {
    pub(crate) method: &'static str,
    /// `http://authority` in front of the path; empty in origin form.
    pub(crate) origin: &'static str,
    pub(crate) path: String,
    pub(crate) version: &'static str,
    /// Lines without their CRLF.
    pub(crate) fields: Vec<Vec<u8>>,
}

impl Request {
    pub(crate) fn bytes(&self) -> Vec<u8> {
        let start = format!("{} {}{} {}", self.method, self.origin, self.path, self.version);
        lines(start.as_bytes(), &self.fields)
    }
}

/// A response head that must be accepted.
#[derive(Debug, Clone)]
pub(crate) struct Response {
    pub(crate) version: &'static str,
    pub(crate) status: u16,
    /// Begins with the space in front of it, which some servers leave out if there is no reason.
    pub(crate) reason: Vec<u8>,
    pub(crate) fields: Vec<Vec<u8>>,
}

impl Response {
    pub(crate) fn bytes(&self) -> Vec<u8> {
        let mut start = format!("{} {}", self.version, self.status).into_bytes();
        start.extend_from_slice(&self.reason);
        lines(&start, &self.fields)
    }
}

/// A start line and fields as sent over the wire.
pub(crate) fn lines(start: &[u8], fields: &[Vec<u8>]) -> Vec<u8> {
    let mut out = start.to_vec();
    for field in fields {
        out.extend_from_slice(b"\r\n");
        out.extend_from_slice(field);
    }
    out.extend_from_slice(b"\r\n\r\n");
    out
}

/// A chunked body that must be accepted.
#[derive(Debug, Clone)]
pub(crate) struct ChunkedBody {
    pub(crate) chunks: Vec<Chunk>,
    /// Size line of the last chunk.
    pub(crate) last: &'static str,
    /// Names and values, and whether they may be forwarded.
    pub(crate) trailers: Vec<(&'static str, &'static str, bool)>,
}

#[derive(Debug, Clone)]
pub(crate) struct Chunk {
    pub(crate) content: Vec<u8>,
    pub(crate) leading_zeros: usize,
    pub(crate) upper_case: bool,
    pub(crate) extension: &'static str,
}

impl ChunkedBody {
    pub(crate) fn bytes(&self) -> Vec<u8> {
        let mut out = Vec::new();
        for chunk in &self.chunks {
            let size = chunk.content.len();
            out.extend_from_slice("0".repeat(chunk.leading_zeros).as_bytes());
            let digits = if chunk.upper_case { format!("{size:X}") } else { format!("{size:x}") };
            out.extend_from_slice(format!("{digits}{}\r\n", chunk.extension).as_bytes());
            out.extend_from_slice(&chunk.content);
            out.extend_from_slice(b"\r\n");
        }
        out.extend_from_slice(format!("{}\r\n", self.last).as_bytes());
        for (name, value, _) in &self.trailers {
            out.extend_from_slice(format!("{name}: {value}\r\n").as_bytes());
        }
        out.extend_from_slice(b"\r\n");
        out
    }
}

const NAMES: &[&str] = &[
    "A",
    "b",
    "Accept",
    "Connection",
    "connection",
    "X-Forwarded-For",
    "X-Real-IP",
    "X_Real_IP",
    "Via",
    "TE",
    "Upgrade",
    "Keep-Alive",
    "Proxy-Connection",
    "Cookie",
    "Date",
    "Trailer",
    "Content-Type",
    "Content-Lengt",
    "Transfer-Encodings",
    "!#$%&'*+-.^_`|~",
    "Expect",
];

fn value() -> impl Strategy<Value = Vec<u8>> {
    let byte = prop_oneof![6 => 0x21..=0x7eu8, 1 => Just(b' '), 1 => Just(b'\t'), 1 => 0x80..=0xffu8];
    let tokens = vec(select(NAMES), 0..4).prop_map(|names| names.join(", ").into_bytes());
    let known = select(&["", "close", "keep-alive", "Keep-Alive, a", "100-continue", "trailers"][..]);
    prop_oneof![4 => vec(byte, 0..20), 1 => tokens, 1 => known.prop_map(|text| text.as_bytes().to_vec())]
}

/// Name, colon, white space and value, in every allowed way.
fn line(name: &str, value: &[u8], space: &str) -> Vec<u8> {
    [name.as_bytes(), b":", space.as_bytes(), value, space.as_bytes()].concat()
}

fn field() -> impl Strategy<Value = Vec<u8>> {
    let name = prop_oneof![3 => select(NAMES).prop_map(str::to_owned), 1 => "x-[a-z0-9_-]{0,30}"];
    (name, value(), select(&["", " ", "\t", " \t "][..])).prop_map(|(name, value, space)| line(&name, &value, space))
}

/// Fields without framing, with these lines inserted at any place.
fn fields_around(required: Vec<Vec<u8>>) -> impl Strategy<Value = Vec<Vec<u8>>> {
    (vec(field(), 0..12), vec(any::<usize>(), required.len())).prop_map(move |(mut fields, places)| {
        for (line, place) in required.iter().zip(places) {
            fields.insert(place % (fields.len() + 1), line.clone());
        }
        fields
    })
}

fn framing(is_http10: bool) -> impl Strategy<Value = Option<Vec<u8>>> {
    let length = (any::<u32>(), select(&["Content-Length", "content-length"][..]))
        .prop_map(|(length, name)| Some(line(name, length.to_string().as_bytes(), " ")));
    let coding =
        select(&["Transfer-Encoding", "transfer-ENCODING"][..]).prop_map(|name| Some(line(name, b"Chunked", "")));
    if is_http10 { prop_oneof![Just(None), length].boxed() } else { prop_oneof![Just(None), length, coding].boxed() }
}

pub(crate) fn request() -> impl Strategy<Value = Request> {
    let version = select(&["HTTP/1.0", "HTTP/1.1"][..]);
    (version, any::<bool>(), select(&["h", "a.example:80", "[::1]", "[::1]:8080", ""][..]))
        .prop_flat_map(|(version, has_host, host)| {
            let is_http10 = version == "HTTP/1.0";
            framing(is_http10).prop_flat_map(move |framing| {
                let host = (has_host || !is_http10).then(|| line("Host", host.as_bytes(), " "));
                let required = host.into_iter().chain(framing).collect();
                (Just(version), fields_around(required))
            })
        })
        .prop_flat_map(|(version, fields)| {
            let method = select(&["GET", "HEAD", "POST", "OPTIONS", "PROPFIND", "M-SEARCH", "A_B", "_"][..]);
            let origin = select(&["", "", "", "http://o", "HTTPS://o.example:8443", "http://[::2]:80"][..]);
            (method, origin, "[!$-~]{0,20}").prop_map(move |(method, origin, rest)| {
                // An authority is followed by nothing, a path or a query; without one there is always a path.
                let path = match (origin, rest.as_str()) {
                    ("", _) => format!("/{rest}"),
                    (_, "") => rest,
                    (_, text) if text.starts_with('?') => rest,
                    _ => format!("/{rest}"),
                };
                Request { method, origin, path, version, fields: fields.clone() }
            })
        })
}

pub(crate) fn response() -> impl Strategy<Value = Response> {
    let version = select(&["HTTP/1.0", "HTTP/1.1"][..]);
    let status = prop_oneof![select(&[200u16, 204, 304, 404, 503][..]), 100u16..=999];
    let reason = prop_oneof![
        Just(Vec::new()),
        Just(b" ".to_vec()),
        Just(b" OK".to_vec()),
        value().prop_map(|text| [b" ", &text[..]].concat()),
    ];
    (version, status, reason).prop_flat_map(|(version, status, reason)| {
        let takes_body = !matches!(status, 100..=199);
        framing(version == "HTTP/1.0").prop_flat_map(move |framing| {
            let reason = reason.clone();
            let required = framing.into_iter().filter(|_| takes_body).collect();
            fields_around(required).prop_map(move |fields| Response { version, status, reason: reason.clone(), fields })
        })
    })
}

pub(crate) fn chunked() -> impl Strategy<Value = ChunkedBody> {
    let extensions = select(&["", "", "", ";", ";a", ";a=b;c=\"d \\\" e\"", "; a = b", ";\t\u{e4}"][..]);
    let chunk = (vec(any::<u8>(), 1..300), 0usize..5, any::<bool>(), extensions).prop_map(
        |(content, leading_zeros, upper_case, extension)| Chunk { content, leading_zeros, upper_case, extension },
    );
    let trailers = select(
        &[
            ("X-Sum", "1", true),
            ("x-empty", "", true),
            ("Expires", "never", true),
            ("Content-Length", "5", false),
            ("content_length", "5", false),
            ("Transfer-Encoding", "chunked", false),
            ("HOST", "evil", false),
            ("Cookie", "a=b", false),
            ("Set-Cookie", "a=b", false),
            ("Authorization", "Basic YTpi", false),
            ("Connection", "close", false),
            ("X-Forwarded-For", "127.0.0.1", false),
        ][..],
    );
    (vec(chunk, 0..6), select(&["0", "000", "0;last", "0;"][..]), vec(trailers, 0..4))
        .prop_map(|(chunks, last, trailers)| ChunkedBody { chunks, last, trailers })
}

/// Bytes and pieces on which parsers have been found to differ.
const TROUBLE: &[&str] = &[
    "\r",
    "\n",
    "\r\n",
    "\r\n\r\n",
    "\n\n",
    "\r\r\n",
    "\0",
    " ",
    "\t",
    "  ",
    ":",
    ";",
    ",",
    "_",
    "-",
    "#",
    "?",
    "*",
    "@",
    "[",
    "]",
    "/",
    "\\",
    "\"",
    "\x01",
    "\x0b",
    "\x0c",
    "\x1f",
    "\x7f",
    "\u{80}",
    "\u{a0}",
    "\u{e4}",
    "0",
    "5",
    "a",
    "f",
    "G",
    "x",
    "+",
    "chunked",
    "identity",
    "http://",
    "https://o",
    "HTTP/1.0",
    " HTTP/1.1",
    "HTTP/2.0",
    "GET",
    "OPTIONS",
    "\r\n x",
    "\r\nHost: x",
    "\r\nContent-Length: 5",
    "\r\nContent-Length : 5",
    "\r\nContent_Length: 5",
    "\r\nTransfer-Encoding: chunked",
    "\r\nTransfer-Encoding:\tchunked, gzip",
    "\r\nTransfer_Encoding: chunked",
    "\r\nConnection: close, a",
    "\r\nExpect: 100-continue",
];

fn trouble() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![4 => select(TROUBLE).prop_map(|text| text.as_bytes().to_vec()), 1 => any::<u8>().prop_map(|byte| vec![byte])]
}

/// One to four changes to a message: an insertion, a removal, a replacement, a repetition, or the end cut off.
pub(crate) fn damaged(good: impl Strategy<Value = Vec<u8>>) -> impl Strategy<Value = Vec<u8>> {
    let change = (0u8..16, any::<usize>(), any::<usize>(), trouble());
    (good, vec(change, 1..=4)).prop_map(|(mut bytes, changes)| {
        for (kind, place, length, piece) in changes {
            let start = place % (bytes.len() + 1);
            let end = (start + length % 20).min(bytes.len());
            match kind {
                0..6 => drop(bytes.splice(start..start, piece)),
                6..10 => drop(bytes.splice(start..(start + 1).min(bytes.len()), piece)),
                10..13 => drop(bytes.drain(start..(start + 1 + length % 3).min(bytes.len()))),
                13..15 => {
                    let again = bytes[start..end].to_vec();
                    drop(bytes.splice(start..start, again));
                }
                _ => bytes.truncate(start),
            }
        }
        bytes
    })
}

/// Pieces from `choices`, each a list of alternatives of which the first is right, with an empty line at the
/// end.
fn nasty(choices: &'static [&'static [&'static str]]) -> impl Strategy<Value = Vec<u8>> {
    let start: Vec<_> = choices
        .iter()
        .map(|pieces| prop_oneof![5 => Just(pieces[0]), 1 => select(*pieces)].prop_map(|text| text.as_bytes().to_vec()))
        .collect();
    let names =
        &["Host", "A", "Content-Length", "Transfer-Encoding", "Connection", "Expect", "Content_Length", "", "A ", " A"]
            [..];
    let colons = prop_oneof![8 => Just(": "), 1 => select(&[":", " :", "", ":\t", "::", ": \r\n "][..])];
    let values = &[
        "h",
        "5",
        "chunked",
        "close",
        "keep-alive",
        "a, host",
        "100-continue",
        "",
        "gzip, chunked",
        "0x5",
        "h:80",
        "a b",
    ][..];
    let ends = prop_oneof![20 => Just("\r\n"), 1 => select(&["\n", "\r", "\r\r\n", "\r\n ", "\0\r\n", ""][..])];
    let field = (select(names), colons, select(values), ends)
        .prop_map(|(name, colon, value, end)| [name, colon, value, end].concat());
    let host = prop_oneof![8 => Just("Host: h\r\n"), 1 => Just("")];
    (start, host, vec(field, 0..5)).prop_map(|(start, host, fields)| {
        let mut bytes = start.concat();
        bytes.extend_from_slice(host.as_bytes());
        fields.iter().for_each(|field| bytes.extend_from_slice(field.as_bytes()));
        bytes.extend_from_slice(b"\r\n");
        bytes
    })
}

pub(crate) fn nasty_request() -> impl Strategy<Value = Vec<u8>> {
    nasty(&[
        &["", "\r\n", "\n", "\r", " "],
        &["GET", "POST", "OPTIONS", "CONNECT", "", "G T", "G@T", "get", "\u{e4}"],
        &[" ", "  ", "\t", "", "\r\n"],
        &[
            "/",
            "*",
            "http://o/",
            "http://",
            "http://u@o/",
            "/a#b",
            "/\u{e4}",
            "/\u{7f}",
            "a",
            "",
            "o:80",
            "https://[::1]?q",
            "/\0",
        ],
        &[" ", "  ", "\t", ""],
        &["HTTP/1.1", "HTTP/1.0", "HTTP/2.0", "HTTP/1.10", "http/1.1", ""],
        &["\r\n", "\n", "\r", " \r\n", "\r\n\r\n", "\r\n "],
    ])
}

pub(crate) fn nasty_response() -> impl Strategy<Value = Vec<u8>> {
    nasty(&[
        &["", "\r\n", "\n", " "],
        &["HTTP/1.1", "HTTP/1.0", "HTTP/2.0", "http/1.1", "ICY", ""],
        &[" ", "  ", "\t", ""],
        &["200", "100", "204", "304", "099", "20", "2000", "2x0", "999", ""],
        &[" OK", "", " ", " \u{e4}", "  a", "\tOK", " O\0K", " O\rK", "OK"],
        &["\r\n", "\n", "\r", "\r\r\n", "\r\n\r\n"],
    ])
}
