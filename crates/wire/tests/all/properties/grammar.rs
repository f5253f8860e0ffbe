//! A second, slow parser of heads, written line by line from RFC 9112 and RFC 9110, gives the same verdicts as
//! the real one.
//!
//! It works on whole heads only. Comments mark where the gateway is stricter or laxer than the grammar.

use crate::properties::generate::{damaged, nasty_request, nasty_response, request, response};
use proptest::prelude::*;
use stillgate_wire::{
    FieldSet, Fields, Framing, HeadLimits, HeadProgress, Method, RequestHead, ResponseHead, TargetForm, Version,
    leading_empty_lines,
};

/// RFC 9110 section 5.6.2.
pub(crate) fn is_token(text: &[u8]) -> bool {
    !text.is_empty() && text.iter().all(|b| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(b))
}

/// RFC 9110 section 5.5, white space around it included: `HTAB / SP / VCHAR / obs-text`.
pub(crate) fn is_value(text: &[u8]) -> bool {
    text.iter().all(|b| *b == b'\t' || (*b >= b' ' && *b != 0x7f))
}

/// Without optional white space.
pub(crate) fn trim(mut text: &[u8]) -> &[u8] {
    while let [b' ' | b'\t', rest @ ..] | [rest @ .., b' ' | b'\t'] = text {
        text = rest;
    }
    text
}

#[derive(Debug, PartialEq)]
struct Line {
    name: Vec<u8>,
    value: Vec<u8>,
    /// Whether the message ends here.
    ends: bool,
}

#[derive(Debug, PartialEq)]
struct Message {
    fields: Vec<Line>,
    framing: Option<Framing>,
    keep_alive: bool,
}

impl Message {
    fn values(&self, name: &str) -> Vec<&[u8]> {
        let named = self.fields.iter().filter(|line| line.name.eq_ignore_ascii_case(name.as_bytes()));
        named.map(|line| &line.value[..]).collect()
    }

    /// Elements of a list field (RFC 9110 section 5.6.1), in lower case.
    fn list(&self, name: &str) -> Vec<Vec<u8>> {
        let elements = self.values(name).into_iter().flat_map(|value| value.split(|b| *b == b','));
        elements.map(|element| trim(element).to_ascii_lowercase()).filter(|element| !element.is_empty()).collect()
    }
}

enum Head<'b> {
    /// The empty line is missing.
    Incomplete,
    Refused,
    /// Its lines and its length.
    Lines(Vec<&'b [u8]>, usize),
}

/// Splits the head up to the empty line. CR and LF may only occur together.
fn head_lines(bytes: &[u8]) -> Head<'_> {
    let Some(end) = bytes.windows(4).position(|four| four == b"\r\n\r\n") else { return Head::Incomplete };
    let mut lines = Vec::new();
    let mut rest = &bytes[..end + 2];
    while let Some(at) = rest.windows(2).position(|two| two == b"\r\n") {
        if rest[..at].iter().any(|b| matches!(b, b'\r' | b'\n')) {
            return Head::Refused;
        }
        lines.push(&rest[..at]);
        rest = &rest[at + 2..];
    }
    Head::Lines(lines, end + 4)
}

fn read_version(text: &[u8]) -> Option<Version> {
    match text {
        b"HTTP/1.0" => Some(Version::Http10),
        b"HTTP/1.1" => Some(Version::Http11),
        _ => None,
    }
}

/// RFC 9112 sections 5 and 6, RFC 9110 section 7.6.1.
fn read_fields(lines: &[&[u8]], version: Version) -> Option<Message> {
    let mut message = Message { fields: Vec::new(), framing: None, keep_alive: false };
    for line in lines {
        let colon = line.iter().position(|b| *b == b':')?;
        let (name, value) = (&line[..colon], &line[colon + 1..]);
        if !is_token(name) || !is_value(value) {
            return None;
        }
        // Stricter: servers that map fields to variables read these as framing fields.
        let lower = name.to_ascii_lowercase();
        if lower.contains(&b'_') {
            let dashed: Vec<u8> = lower.iter().map(|b| if *b == b'_' { b'-' } else { *b }).collect();
            if dashed == b"content-length" || dashed == b"transfer-encoding" {
                return None;
            }
        }
        message.fields.push(Line { name: name.to_vec(), value: trim(value).to_vec(), ends: false });
    }
    // Stricter: one field with one value of either kind, where the RFC lets some repetitions pass.
    message.framing = match (&message.values("content-length")[..], &message.values("transfer-encoding")[..]) {
        ([], []) => None,
        ([], [coding]) if version == Version::Http11 && coding.eq_ignore_ascii_case(b"chunked") => {
            Some(Framing::Chunked)
        }
        ([length], []) if length.len() <= 19 && length.iter().all(u8::is_ascii_digit) => {
            let length: i64 = std::str::from_utf8(length).ok()?.parse().ok()?;
            Some(Framing::Length(length as u64))
        }
        _ => return None,
    };
    let options = message.list("connection");
    let has = |option: &str| options.iter().any(|o| o == option.as_bytes());
    message.keep_alive = !has("close") && (version == Version::Http11 || has("keep-alive"));
    const ALWAYS: [&str; 6] = ["connection", "keep-alive", "proxy-connection", "te", "transfer-encoding", "upgrade"];
    const NEVER: [&str; 8] = [
        "host",
        "content-length",
        "forwarded",
        "x-real-ip",
        "x-forwarded-for",
        "x-forwarded-host",
        "x-forwarded-port",
        "x-forwarded-proto",
    ];
    for line in &mut message.fields {
        let name = String::from_utf8_lossy(&line.name).to_ascii_lowercase();
        line.ends = ALWAYS.contains(&name.as_str())
            || (!NEVER.contains(&name.as_str()) && options.contains(&name.into_bytes()));
    }
    Some(message)
}

/// RFC 3986 section 3.2 without user information; a comma is refused too.
fn is_authority(text: &[u8]) -> bool {
    let Ok(text) = std::str::from_utf8(text) else { return false };
    let (host_is_good, port) = match text.strip_prefix('[').map(|rest| rest.split_once(']')) {
        Some(None) => return false,
        Some(Some((ip, port))) => {
            (!ip.is_empty() && ip.chars().all(|c| c.is_ascii_hexdigit() || ".:".contains(c)), port)
        }
        None => {
            let host = text.split(':').next().unwrap_or_default();
            let is_good = |c: char| c.is_ascii_alphanumeric() || "-._~%!$&'()*+;=".contains(c);
            let labels = host.strip_suffix('.').unwrap_or(host);
            let has_empty_label = !host.is_empty() && labels.split('.').any(str::is_empty);
            (host.chars().all(is_good) && !has_empty_label, &text[host.len()..])
        }
    };
    let digits = port.strip_prefix(':').unwrap_or_default();
    let port_is_good = digits.len() <= 5 && digits.chars().all(|c| c.is_ascii_digit());
    host_is_good
        && (port.is_empty() || port.starts_with(':'))
        && port_is_good
        && (digits.is_empty() || digits.parse::<u16>().is_ok())
}

#[derive(Debug, PartialEq)]
struct Read {
    method: Vec<u8>,
    target: Vec<u8>,
    version: Version,
    form: TargetForm,
    authority: Vec<u8>,
    path: Vec<u8>,
    expects_continue: bool,
    message: Message,
    len: usize,
}

/// RFC 9112 section 3.2: form, authority and path of a target.
fn read_target(method: &[u8], target: &[u8], host: &[u8]) -> Option<(TargetForm, Vec<u8>, Vec<u8>)> {
    // Laxer: any visible character, and anything beyond ASCII that is UTF-8.
    let text = std::str::from_utf8(target).ok()?;
    if text.is_empty() || text.bytes().any(|b| b <= b' ' || b == 0x7f || b == b'#') {
        return None;
    }
    if method == b"CONNECT" {
        return Some((TargetForm::Authority, host.to_vec(), target.to_vec()));
    }
    if text.starts_with('/') {
        return Some((TargetForm::Origin, host.to_vec(), target.to_vec()));
    }
    if text == "*" {
        return (method == b"OPTIONS").then(|| (TargetForm::Asterisk, host.to_vec(), target.to_vec()));
    }
    let (scheme, rest) = text.split_once("://")?;
    let end = rest.find(['/', '?']).unwrap_or(rest.len());
    let (authority, path) = rest.split_at(end);
    let is_http = ["http", "https"].iter().any(|known| scheme.eq_ignore_ascii_case(known));
    let has_host = !authority.is_empty() && !authority.starts_with(':');
    (is_http && has_host && is_authority(authority.as_bytes()))
        .then(|| (TargetForm::Absolute, authority.as_bytes().to_vec(), path.as_bytes().to_vec()))
}

/// What nginx accepts of the tokens.
fn is_method(text: &[u8]) -> bool {
    !text.is_empty() && text.iter().all(|b| b.is_ascii_uppercase() || b"-_".contains(b))
}

fn read_request(lines: &[&[u8]], len: usize) -> Option<Read> {
    let (start, fields) = lines.split_first()?;
    let [method, target, version] = start.split(|b| *b == b' ').collect::<Vec<_>>()[..] else { return None };
    let version = read_version(version)?;
    let message = read_fields(fields, version)?;
    let host = match &message.values("host")[..] {
        [] if version == Version::Http10 => Vec::new(),
        [host] if is_authority(host) => host.to_vec(),
        _ => return None,
    };
    let (form, authority, path) = read_target(method, target, &host)?;
    let has_body = !matches!(message.framing, None | Some(Framing::Length(0)));
    let asked = message.values("expect").iter().any(|value| value.eq_ignore_ascii_case(b"100-continue"));
    is_method(method).then(|| Read {
        method: method.to_vec(),
        target: target.to_vec(),
        version,
        form,
        authority,
        path,
        expects_continue: asked && has_body && version == Version::Http11,
        message,
        len,
    })
}

fn found_fields(fields: &Fields, ended: FieldSet, bytes: &[u8]) -> Vec<Line> {
    let line = |(index, field): (usize, &stillgate_wire::Field)| Line {
        name: field.name.of(bytes).to_vec(),
        value: field.value.of(bytes).to_vec(),
        ends: ended.contains(index),
    };
    fields.iter().enumerate().map(line).collect()
}

/// `None` where it is incomplete, `Some(None)` where it is refused.
fn request_as_parsed(bytes: &[u8]) -> Option<Option<Read>> {
    let mut head = RequestHead::default();
    match head.advance(bytes, &HeadLimits::default()) {
        Ok(HeadProgress::Partial) => None,
        Err(_) => Some(None),
        Ok(HeadProgress::Complete(len)) => Some(Some(Read {
            method: head.method_bytes(bytes).to_vec(),
            target: head.target.of(bytes).to_vec(),
            version: head.version,
            form: head.form,
            authority: head.authority.of(bytes).to_vec(),
            path: head.path_and_query.of(bytes).to_vec(),
            expects_continue: head.expects_continue,
            message: Message {
                fields: found_fields(&head.fields, head.hop_by_hop, bytes),
                framing: (head.framing != Framing::None).then_some(head.framing),
                keep_alive: head.keep_alive,
            },
            len,
        })),
    }
}

/// Returns whether it was accepted.
fn agree_on_request(bytes: &[u8]) -> bool {
    let Ok(skip) = leading_empty_lines(bytes) else { return false };
    let bytes = &bytes[skip..];
    let parsed = request_as_parsed(bytes);
    match head_lines(bytes) {
        Head::Incomplete => assert!(!matches!(parsed, Some(Some(_))), "taken without an end: {}", bytes.escape_ascii()),
        Head::Refused => assert_eq!(parsed, Some(None), "{}", bytes.escape_ascii()),
        Head::Lines(lines, len) => assert_eq!(parsed, Some(read_request(&lines, len)), "{}", bytes.escape_ascii()),
    }
    matches!(parsed, Some(Some(_)))
}

/// Status, reason, fields and framing, read from RFC 9112 sections 4 and 6.3.
fn read_response(lines: &[&[u8]], method: Method) -> Option<(u16, Vec<u8>, Message, Framing)> {
    let (start, fields) = lines.split_first()?;
    let version = read_version(start.get(..8)?)?;
    let status = start.get(9..12)?;
    // Laxer: the space before an empty reason may be missing.
    let reason = match start.get(12..)? {
        [] => &[],
        [b' ', reason @ ..] => reason,
        _ => return None,
    };
    if start[8] != b' ' || !status.iter().all(u8::is_ascii_digit) || status[0] == b'0' || !is_value(reason) {
        return None;
    }
    let status: u16 = std::str::from_utf8(status).ok()?.parse().ok()?;
    let mut message = read_fields(fields, version)?;
    let framing = match (status, message.framing) {
        (100..=199, None | Some(Framing::Length(0))) => Framing::None,
        // Stricter: these have no body, so one that announces it is refused.
        (100..=199, _) => return None,
        (204 | 304, _) => Framing::None,
        _ if method == Method::Head => Framing::None,
        (_, declared) => declared.unwrap_or(Framing::UntilClose),
    };
    let announces = !matches!(message.framing, None | Some(Framing::Length(0)));
    message.keep_alive &= framing != Framing::UntilClose && !(status == 204 && announces);
    message.framing = None;
    Some((status, reason.to_vec(), message, framing))
}

fn agree_on_response(bytes: &[u8], method: Method) -> bool {
    let mut head = ResponseHead::default();
    let result = head.advance(bytes, method, &HeadLimits::default());
    let taken = matches!(result, Ok(HeadProgress::Complete(_)));
    let Head::Lines(lines, len) = head_lines(bytes) else {
        assert!(!taken, "{}", bytes.escape_ascii());
        return false;
    };
    let parsed = taken.then(|| {
        let fields = found_fields(&head.fields, head.hop_by_hop, bytes);
        let message = Message { fields, framing: None, keep_alive: head.keep_alive };
        (head.status, head.reason.of(bytes).to_vec(), message, head.framing)
    });
    assert_eq!(parsed, read_response(&lines, method), "{}", bytes.escape_ascii());
    assert!(
        if taken { result == Ok(HeadProgress::Complete(len)) } else { result.is_err() },
        "{}",
        bytes.escape_ascii()
    );
    taken
}

/// Calls `check` with every byte inserted at, and in the place of, every byte of `head`.
fn every_byte_everywhere(head: &str, mut check: impl FnMut(&[u8])) {
    for at in 0..=head.len() {
        for byte in 0..=255 {
            let mut changed = head.as_bytes().to_vec();
            changed.insert(at, byte);
            check(&changed);
            if at < head.len() {
                changed.remove(at + 1);
                check(&changed);
            }
        }
    }
}

#[test]
fn every_byte_everywhere_in_requests() {
    for head in [
        "PUT /a?b HTTP/1.1\r\nHost: a:80\r\nContent-Length: 10\r\nConnection: a\r\nA:\r\n\r\n",
        "GET http://[::1]:8/ HTTP/1.0\r\nA_B: c d\r\nConnection: close\r\n\r\n",
        "OPTIONS * HTTP/1.1\r\nTransfer-Encoding:chunked \r\nExpect: 100-continue\r\nHost:[::1]\r\n\r\n",
    ] {
        assert!(agree_on_request(head.as_bytes()), "{head}");
        every_byte_everywhere(head, |changed| {
            agree_on_request(changed);
        });
    }
}

#[test]
fn every_byte_everywhere_in_responses() {
    for head in [
        "HTTP/1.1 200 OK\r\nContent-Length: 10\r\nA: b\r\nConnection: a\r\n\r\n",
        "HTTP/1.0 304\r\nA:\r\n\r\n",
        "HTTP/1.1 500 \r\nTransfer-Encoding: chunked\r\n\r\n",
    ] {
        assert!(agree_on_response(head.as_bytes(), Method::Get), "{head}");
        every_byte_everywhere(head, |changed| {
            agree_on_response(changed, Method::Get);
        });
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn good_requests(bytes in request().prop_map(|r| r.bytes())) {
        prop_assert!(agree_on_request(&bytes));
    }

    #[test]
    fn damaged_requests(bytes in damaged(request().prop_map(|r| r.bytes()))) {
        agree_on_request(&bytes);
    }

    #[test]
    fn nasty_requests(bytes in nasty_request()) {
        agree_on_request(&bytes);
    }

    #[test]
    fn nasty_requests_with_damage(bytes in damaged(nasty_request())) {
        agree_on_request(&bytes);
    }

    #[test]
    fn good_responses(bytes in response().prop_map(|r| r.bytes())) {
        prop_assert!(agree_on_response(&bytes, Method::Get));
        prop_assert!(agree_on_response(&bytes, Method::Head));
    }

    #[test]
    fn damaged_responses(bytes in damaged(response().prop_map(|r| r.bytes()))) {
        agree_on_response(&bytes, Method::Get);
    }

    #[test]
    fn nasty_responses(bytes in damaged(nasty_response())) {
        agree_on_response(&bytes, Method::Get);
    }
}
