//! A request as plain data: random, small, and with the values that Kong reads.

use super::random::{Random, without_one};
use std::net::IpAddr;
use stillgate_route::path::{NormalisedPath, normalise};
use stillgate_route::{Lookup, MatchRequest, Method, Variable};

/// Texts that values and literals are drawn from, so that they meet: separators, blanks, cases that change their length.
pub(crate) const TEXTS: &[&str] = &[
    "",
    "a",
    "A",
    "b",
    "ab",
    "Ab",
    "AB",
    "abc",
    "a|b",
    "a,b",
    "a, b",
    "a=b",
    "a&b",
    "b&a=c",
    "1",
    "42",
    "v1",
    "x/y",
    "/a",
    "Ä",
    "ä",
    "straße",
    "STRASSE",
    "İ",
    "ΑΣ",
    "ας",
    "ασ",
    "日本",
    "a\tb",
    "a\\b",
    "\"",
    "a\"b",
    "#",
    "100%",
    "%41",
    "+",
    " ",
    "null",
    "long-value-that-goes-on-and-on-and-on-for-more-than-sixty-four-bytes-in-all",
];
/// Texts that are drawn half of the time, so that many meet.
const FEW: &[&str] = &["a", "b", "A", "ab", "a b", "a|b", "", "1"];
pub(crate) const HOSTS: &[&str] =
    &["a.com", "b.a.com", "c.b.a.com", "d.c.b.a.com", "com", "x.com", "other", "127.0.0.1"];
pub(crate) const SEGMENTS: &[&str] =
    &["a", "b", "ab", "abc", "v1", "users", "42", "A", "%C3%A4", "a|b", "a,b", "a=b", "~x"];
pub(crate) const ADDRESSES: &[&str] = &[
    "10.0.0.0",
    "10.1.2.3",
    "10.2.0.1",
    "10.255.255.255",
    "192.168.1.7",
    "1.1.1.1",
    "fd00::1",
    "fd00:1::",
    "2001:db8::42",
    "::1",
];
pub(crate) const PORTS: &[u16] = &[0, 1, 8, 80, 443, 511, 512, 8080, 65535];
pub(crate) const NAMES: &[&str] = &["a", "b", "x-a", "x-b", "x-long-name", "host"];
pub(crate) const ARGUMENTS: &[&str] = &["a", "A", "b", "v", "x_a", "page"];
const METHODS: &[&str] = &["GET", "GET", "POST", "PUT", "DELETE", "BREW", "get"];

#[derive(Debug, Clone)]
pub(crate) struct RequestFacts {
    pub(crate) method: String,
    /// Empty if there is none.
    pub(crate) host: String,
    /// The path as received, without query.
    pub(crate) path: String,
    /// The query as received, without the question mark.
    pub(crate) query: Option<Vec<u8>>,
    /// Names as on the wire.
    pub(crate) headers: Vec<(String, Vec<u8>)>,
    pub(crate) scheme: &'static str,
    /// Canonical.
    pub(crate) client: IpAddr,
    pub(crate) source_port: Option<u16>,
    pub(crate) destination: Option<(IpAddr, u16)>,
    pub(crate) sni: Option<String>,
}

/// A value of a field, as Kong hands it to its router.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Value {
    Text(Vec<u8>),
    Int(i64),
    Ip(IpAddr),
}

impl RequestFacts {
    pub(crate) fn random(random: &mut Random) -> RequestFacts {
        let queries = match random.below(4) {
            0 => None,
            1 => Some(random.below(2)),
            _ => Some(random.below(6)),
        };
        let query = queries.map(|count| {
            let mut query = Vec::new();
            for _ in 0..count {
                argument(random, &mut query);
            }
            query
        });
        let header = |random: &mut Random| {
            let name = random.pick(NAMES);
            let name = match random.below(6) {
                0 => name.to_uppercase(),
                // Another name.
                1 if random.one_in(2) => name.replace('-', "_"),
                2 => format!("{}{}", name[..1].to_uppercase(), &name[1..]),
                _ => name.to_owned(),
            };
            (name, text(random).as_bytes().to_vec())
        };
        let headers = if random.one_in(4) { 0 } else { random.below(6) };
        let address = |random: &mut Random| random.pick(ADDRESSES).parse::<IpAddr>().unwrap();
        RequestFacts {
            method: random.pick(METHODS).to_owned(),
            host: if random.one_in(8) { String::new() } else { random.pick(HOSTS).to_owned() },
            path: path(random),
            query,
            headers: (0..headers).map(|_| header(random)).collect(),
            scheme: random.pick(&["http", "https"]),
            client: address(random),
            source_port: (!random.one_in(5)).then(|| random.pick(PORTS)),
            destination: (!random.one_in(5)).then(|| (address(random), random.pick(PORTS))),
            sni: (!random.one_in(3)).then(|| random.pick(HOSTS).to_owned()),
        }
    }

    /// Hands the request as the matcher takes it to `then`.
    pub(crate) fn with_request<R>(&self, then: impl FnOnce(&MatchRequest<'_>) -> R) -> R {
        let mut buffer = Vec::new();
        let path = normalise(self.path.as_bytes(), &mut buffer).expect("generated paths are normal or can be made so");
        then(&self.request(path))
    }

    pub(crate) fn request<'a>(&'a self, path: NormalisedPath<'a>) -> MatchRequest<'a> {
        let method = Method::from_bytes(self.method.as_bytes());
        MatchRequest { method, host: self.host.as_bytes(), path, client: self.client, vars: self }
    }

    /// The values of one of Kong's fields by its name in an expression, where `path` is the normalised path.
    pub(crate) fn values(&self, field: &str, path: &str) -> Vec<Value> {
        let text = |text: &str| vec![Value::Text(text.as_bytes().to_vec())];
        let some_text = |value: Option<&str>| value.map(text).unwrap_or_default();
        let int = |number: Option<u16>| number.map(|number| Value::Int(number.into())).into_iter().collect();
        let segments: Vec<&str> = path.split('/').filter(|segment| !segment.is_empty()).collect();
        match field {
            "http.method" => text(&self.method),
            "http.host" => some_text(Some(&*self.host).filter(|host| !host.is_empty())),
            "http.path" => text(path),
            "net.protocol" => text(self.scheme),
            "net.src.ip" => vec![Value::Ip(self.client)],
            "net.src.port" => int(self.source_port),
            "net.dst.ip" => self.destination.map(|(address, _)| Value::Ip(address)).into_iter().collect(),
            "net.dst.port" => int(self.destination.map(|(_, port)| port)),
            "tls.sni" => some_text(self.sni.as_deref()),
            "http.path.segments.len" => vec![Value::Int(segments.len() as i64)],
            _ => {
                if let Some(range) = field.strip_prefix("http.path.segments.") {
                    let (first, last) = range.split_once('_').unwrap_or((range, range));
                    let bounds = first.parse::<usize>().unwrap()..=last.parse::<usize>().unwrap();
                    return some_text(segments.get(bounds).map(|part| part.join("/")).as_deref());
                }
                if let Some(name) = field.strip_prefix("http.headers.") {
                    let name = name.to_lowercase().replace('_', "-");
                    let lines = self.headers.iter().filter(|(line, _)| line.to_lowercase() == name);
                    return lines.map(|(_, value)| Value::Text(value.clone())).collect();
                }
                let name = field.strip_prefix("http.queries.").expect("a field of Kong's").as_bytes();
                let values = self.arguments().into_iter().filter(|(argument, _)| argument == name);
                values.map(|(_, value)| Value::Text(value)).collect()
            }
        }
    }

    /// Names and values of the query, decoded.
    fn arguments(&self) -> Vec<(Vec<u8>, Vec<u8>)> {
        let query = self.query.as_deref().unwrap_or_default();
        let pairs = query.split(|byte| *byte == b'&').filter(|pair| !pair.is_empty());
        pairs
            .map(|pair| {
                let mut parts = pair.splitn(2, |byte| *byte == b'=');
                let mut part = || decoded(parts.next().unwrap_or_default());
                (part(), part())
            })
            .collect()
    }

    /// Requests that lack something of this one.
    pub(crate) fn smaller(&self) -> Vec<RequestFacts> {
        let mut smaller = Vec::new();
        smaller.extend(without_one(&self.headers).into_iter().map(|headers| RequestFacts { headers, ..self.clone() }));
        if let Some(query) = &self.query {
            let pairs: Vec<&[u8]> = query.split(|byte| *byte == b'&').collect();
            let fewer = without_one(&pairs).into_iter().map(|pairs| Some(pairs.join(&b"&"[..])));
            let fewer = if pairs.len() > 1 { fewer.collect() } else { vec![None] };
            smaller.extend(fewer.into_iter().map(|query| RequestFacts { query, ..self.clone() }));
        }
        if let Some((rest, _)) = self.path.rsplit_once('/').filter(|_| self.path != "/") {
            let path = if rest.is_empty() { "/" } else { rest }.to_owned();
            smaller.push(RequestFacts { path, ..self.clone() });
        }
        let gone = |present: bool, without: RequestFacts| present.then_some(without);
        smaller.extend(gone(self.sni.is_some(), RequestFacts { sni: None, ..self.clone() }));
        smaller.extend(gone(self.destination.is_some(), RequestFacts { destination: None, ..self.clone() }));
        smaller.extend(gone(self.source_port.is_some(), RequestFacts { source_port: None, ..self.clone() }));
        smaller.extend(gone(!self.host.is_empty(), RequestFacts { host: String::new(), ..self.clone() }));
        smaller
    }
}

impl Lookup for RequestFacts {
    fn value<'a>(&'a self, variable: &Variable, buffer: &'a mut Vec<u8>) -> Option<&'a [u8]> {
        let mut written = |text: String| {
            buffer.clear();
            buffer.extend_from_slice(text.as_bytes());
        };
        match variable {
            Variable::RequestMethod => return Some(self.method.as_bytes()),
            Variable::Host => return Some(self.host.as_bytes()).filter(|host| !host.is_empty()),
            Variable::Args => return self.query.as_deref(),
            Variable::Scheme => return Some(self.scheme.as_bytes()),
            Variable::SslServerName => return self.sni.as_deref().map(str::as_bytes),
            Variable::Arg(name) => {
                let query = self.query.as_deref()?;
                return query.split(|byte| *byte == b'&').find_map(|pair| {
                    let rest = pair.strip_prefix(name.as_bytes())?;
                    if rest.is_empty() { Some(rest) } else { rest.strip_prefix(b"=") }
                });
            }
            Variable::RemoteAddr => written(self.client.to_string()),
            Variable::RemotePort => written(self.source_port?.to_string()),
            Variable::ServerAddr => written(self.destination?.0.to_string()),
            Variable::ServerPort => written(self.destination?.1.to_string()),
            Variable::Header(name) => {
                let lines = self.headers.iter().filter(|(line, _)| name.matches(line.as_bytes()));
                let lines: Vec<&[u8]> = lines.map(|(_, value)| &**value).collect();
                if lines.is_empty() {
                    return None;
                }
                buffer.clear();
                buffer.extend_from_slice(&lines.join(&b", "[..]));
            }
            _ => return None,
        }
        Some(buffer)
    }

    fn each_header(&self, visit: &mut dyn FnMut(&[u8], &[u8])) {
        for (name, value) in &self.headers {
            visit(name.as_bytes(), value);
        }
    }
}

pub(crate) fn text(random: &mut Random) -> &'static str {
    if random.one_in(2) { random.pick(FEW) } else { random.pick(TEXTS) }
}

/// Appends a pair of name and value, in one of the possible encodings.
fn argument(random: &mut Random, query: &mut Vec<u8>) {
    if !query.is_empty() || random.one_in(20) {
        query.push(b'&');
    }
    if random.one_in(20) {
        return;
    }
    let name = if random.one_in(16) { random.pick(&["", "x-a", "aa", "日"]) } else { random.pick(ARGUMENTS) };
    let value = match random.below(8) {
        0 => None,
        1 => Some("a\0b"),
        _ => Some(text(random)),
    };
    let all = random.one_in(6);
    encode(random, name, all, query);
    if let Some(value) = value {
        query.push(b'=');
        let all = random.one_in(4);
        encode(random, value, all, query);
    }
}

fn encode(random: &mut Random, text: &str, all: bool, query: &mut Vec<u8>) {
    for &byte in text.as_bytes() {
        match byte {
            b' ' if !all => query.push(b'+'),
            b'&' | b'+' | b'#' | b'%' | 0..=b' ' => query.extend_from_slice(format!("%{byte:02x}").as_bytes()),
            b'=' if random.one_in(2) => query.push(b'='),
            b'=' => query.extend_from_slice(b"%3D"),
            _ if all => query.extend_from_slice(format!("%{byte:02X}").as_bytes()),
            _ => query.push(byte),
        }
    }
    if random.one_in(40) {
        query.extend_from_slice(random.pick(&[&b"%"[..], b"%4", b"%zz", b"%+"]));
    }
}

fn decoded(text: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    let mut at = 0;
    while at < text.len() {
        let digits = text.get(at + 1..at + 3).filter(|digits| digits.iter().all(u8::is_ascii_hexdigit));
        match (text[at], digits) {
            (b'%', Some(digits)) => {
                out.push(u8::from_str_radix(std::str::from_utf8(digits).unwrap(), 16).unwrap());
                at += 2;
            }
            (b'+', _) => out.push(b' '),
            (byte, _) => out.push(byte),
        }
        at += 1;
    }
    out
}

fn path(random: &mut Random) -> String {
    let mut path = String::new();
    let slash = if random.one_in(12) { "%2F" } else { "/" };
    for at in 0..random.below(5) {
        path.push_str(if at > 0 && random.one_in(3) { slash } else { "/" });
        path.push_str(random.pick(SEGMENTS));
    }
    if path.is_empty() || random.one_in(5) {
        path.push('/');
    }
    path
}
