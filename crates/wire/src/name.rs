//! The header names that the gateway itself reads, recognised once while parsing.

use crate::framing::{ConnectionTokens, Declaration, named_by_connection, tokens};
use crate::request::RequestHead;
use crate::response::{Field, Fields, ResponseHead, Span};
use crate::{CONNECTION_OPTIONS_MAX, EDITED_HEADERS_MAX, FieldSet, RequestError};
use std::mem::MaybeUninit;

macro_rules! names {
    ($($variant:ident = $text:literal,)*) => {
        /// A header name the gateway reads or rewrites; everything else is [`Name::Other`].
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(u8)]
        pub enum Name {
            $(#[doc = $text] $variant,)*
            /// One of the above with another character for `-`, such as `_` or `.`: servers that map fields to
            /// variables confuse it with the real one, so it is never forwarded to them.
            Lookalike,
            /// Any other name.
            Other,
        }

        impl Name {
            const TABLE: &[(&'static [u8], Name)] = &[$(($text.as_bytes(), Name::$variant),)*];
        }
    };
}

names! {
    Te = "te",
    Age = "age",
    Via = "via",
    Date = "date",
    Host = "host",
    Expect = "expect",
    Server = "server",
    Trailer = "trailer",
    Upgrade = "upgrade",
    Forwarded = "forwarded",
    XRealIp = "x-real-ip",
    Connection = "connection",
    KeepAlive = "keep-alive",
    ContentLength = "content-length",
    XForwardedFor = "x-forwarded-for",
    ProxyConnection = "proxy-connection",
    XForwardedHost = "x-forwarded-host",
    XForwardedPort = "x-forwarded-port",
    XForwardedProto = "x-forwarded-proto",
    TransferEncoding = "transfer-encoding",
}

const LENGTH_MAX: usize = 17;

/// For each length and the low five bits of the first letter: one plus the index in `TABLE` where comparing must
/// begin, or zero. Both together leave at most one candidate for nearly every name.
static FIRST: [[u8; 32]; LENGTH_MAX + 1] = {
    let mut first = [[0u8; 32]; LENGTH_MAX + 1];
    let mut i = Name::TABLE.len();
    while i > 0 {
        i -= 1;
        let text = Name::TABLE[i].0;
        first[text.len()][(text[0] & 31) as usize] = i as u8 + 1;
    }
    first
};

/// The texts of `TABLE`, each in the form in which names are compared.
static FOLDED: [FoldedName; Name::TABLE.len()] = {
    let mut folded = [FoldedName([0; 3]); Name::TABLE.len()];
    let mut i = 0;
    while i < folded.len() {
        folded[i] = FoldedName::new(Name::TABLE[i].0);
        i += 1;
    }
    folded
};

/// A name in lower case, eight bytes at once. Two names of one length are equal if this is.
#[derive(Clone, Copy)]
struct FoldedName([u64; 3]);

impl FoldedName {
    /// Folds a name of at most [`LENGTH_MAX`] bytes. Words may overlap: between them they have each byte.
    #[inline]
    const fn new(name: &[u8]) -> FoldedName {
        if let (Some(first), Some(last)) = (name.first_chunk::<8>(), name.last_chunk::<8>()) {
            let middle = match name.split_at(8).1.first_chunk::<8>() {
                Some(middle) if name.len() > 16 => to_lowercase(u64::from_le_bytes(*middle)),
                _ => 0,
            };
            return FoldedName([
                to_lowercase(u64::from_le_bytes(*first)),
                to_lowercase(u64::from_le_bytes(*last)),
                middle,
            ]);
        }
        FoldedName([to_lowercase(short_word(name)), 0, 0])
    }

    #[inline]
    const fn is(&self, other: &FoldedName) -> bool {
        (self.0[0] ^ other.0[0]) | (self.0[1] ^ other.0[1]) | (self.0[2] ^ other.0[2]) == 0
    }
}

/// Whether two names are equal apart from the case of letters.
#[inline]
pub(crate) fn is_same(one: &[u8], other: &[u8]) -> bool {
    // Many names begin alike: most that differ also differ at their ends.
    let is_another = match (one.last(), other.last()) {
        (Some(one), Some(other)) => (one ^ other) & !0x20 != 0,
        _ => false,
    };
    one.len() == other.len() && !is_another && is_same_throughout(one, other)
}

/// Like [`is_same`], for names of one length.
fn is_same_throughout(one: &[u8], other: &[u8]) -> bool {
    let (Some(end), Some(other_end)) = (one.last_chunk::<8>(), other.last_chunk::<8>()) else {
        return is_same_word(short_word(one), short_word(other));
    };
    let is_same_at =
        |(one, other): (&[u8; 8], &[u8; 8])| is_same_word(u64::from_le_bytes(*one), u64::from_le_bytes(*other));
    // The ends may overlap the bytes before them: between them they have each byte.
    is_same_at((end, other_end)) && one.as_chunks().0.iter().zip(other.as_chunks().0).all(is_same_at)
}

#[inline]
fn is_same_word(one: u64, other: u64) -> bool {
    const CASE: u64 = 0x20 * (u64::MAX / 255);
    one == other || ((one ^ other) & !CASE == 0 && to_lowercase(one) == to_lowercase(other))
}

/// All bytes of a name of less than eight. For two names of one length it is equal only if they are.
#[inline]
const fn short_word(name: &[u8]) -> u64 {
    if let (Some(first), Some(last)) = (name.first_chunk::<4>(), name.last_chunk::<4>()) {
        return u32::from_le_bytes(*first) as u64 | (u32::from_le_bytes(*last) as u64) << 32;
    }
    match *name {
        [] => 0,
        [a] => a as u64,
        [a, b] => a as u64 | (b as u64) << 8,
        [a, b, c, ..] => a as u64 | (b as u64) << 8 | (c as u64) << 16,
    }
}

/// Eight bytes, the ASCII letters of them in lower case.
#[inline]
const fn to_lowercase(word: u64) -> u64 {
    const ONES: u64 = u64::MAX / 255;
    // The top bit of a byte is the result of the comparison. No byte carries into the next, since each has seven bits.
    let low_bits = word & (0x7f * ONES);
    let is_from_a = low_bits + (0x80 - b'A' as u64) * ONES;
    let is_beyond_z = low_bits + (0x7f - b'Z' as u64) * ONES;
    let is_upper = !word & (is_from_a ^ is_beyond_z) & (0x80 * ONES);
    word | is_upper >> 2
}

impl Name {
    /// The known name that this is, in any case.
    #[inline]
    pub const fn classify(name: &[u8]) -> Name {
        if name.is_empty() || name.len() > LENGTH_MAX {
            return Name::Other;
        }
        let first = FIRST[name.len()][(name[0] & 31) as usize];
        if first == 0 {
            return Name::Other;
        }
        Name::compare(name, first as usize - 1)
    }

    /// Compares with the names of `TABLE`, from this index on.
    const fn compare(name: &[u8], mut at: usize) -> Name {
        let folded = FoldedName::new(name);
        // The table is sorted by length.
        while at < Name::TABLE.len() && Name::TABLE[at].0.len() == name.len() {
            let (text, id) = Name::TABLE[at];
            if folded.is(&FOLDED[at]) {
                return id;
            }
            if is_lookalike(name, text) {
                return Name::Lookalike;
            }
            at += 1;
        }
        Name::Other
    }

    /// Whether it is meant for one connection only and so never forwarded (RFC 9110 section 7.6.1).
    pub fn is_hop_by_hop(self) -> bool {
        matches!(
            self,
            Name::Te
                | Name::Upgrade
                | Name::Connection
                | Name::KeepAlive
                | Name::ProxyConnection
                | Name::TransferEncoding
        )
    }

    /// Whether a `Connection` header that names it is obeyed: fields that define the end of the message, its recipient
    /// or its sender stay, even if they are named there.
    pub(crate) fn may_be_named_by_connection(self) -> bool {
        !matches!(
            self,
            Name::Host
                | Name::ContentLength
                | Name::XRealIp
                | Name::Forwarded
                | Name::XForwardedFor
                | Name::XForwardedHost
                | Name::XForwardedPort
                | Name::XForwardedProto
        )
    }
}

/// Whether servers that map fields to variables confuse two different names: apart from case, they only differ in
/// characters that are neither letters nor digits.
///
/// CGI and WSGI write `-` as `_`, PHP also `.`, and lighttpd every character that is neither a letter nor a digit.
pub(crate) const fn is_lookalike(name: &[u8], text: &[u8]) -> bool {
    if name.len() != text.len() {
        return false;
    }
    let (mut at, mut differs) = (0, false);
    while at < name.len() {
        let is_fold = !name[at].is_ascii_alphanumeric() && !text[at].is_ascii_alphanumeric() && name[at] != text[at];
        if !is_fold && !name[at].eq_ignore_ascii_case(&text[at]) {
            return false;
        }
        differs |= is_fold;
        at += 1;
    }
    differs
}

/// Whether a [`Name::Lookalike`] is one of a framing field with `_`, as many servers read it: `Content_Length`,
/// `Transfer_Encoding`.
pub(crate) fn looks_like_framing(lookalike: &[u8]) -> bool {
    let is_underscored = lookalike.iter().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_'));
    is_underscored && (is_lookalike(lookalike, b"content-length") || is_lookalike(lookalike, b"transfer-encoding"))
}

// Upgrades of a connection to another protocol (RFC 9110 section 7.8): the requested protocols, and whether the answer
// agrees.
//
// Protocols that carry HTTP requests are always left out: requests behind their 101 would bypass the routes and every
// rule (`h2c` was removed by RFC 9113 section 3.1; `TLS` is RFC 2817).

/// Names of protocols, of the form `name/version`, in any case.
const CARRY_HTTP: [&[u8]; 4] = [b"h2c", b"h2", b"http", b"tls"];

/// The protocols that the `Upgrade` fields of a head name, in order, without those that carry HTTP.
pub fn upgrade_protocols<'h>(fields: &'h Fields, head: &'h [u8]) -> impl Iterator<Item = &'h [u8]> {
    let values = fields.iter().filter(|field| field.id == Name::Upgrade);
    values.flat_map(|field| tokens(field.value.of(head))).filter(|protocol| !carries_http(protocol))
}

fn carries_http(protocol: &[u8]) -> bool {
    let name = protocol.split(|b| *b == b'/').next().unwrap_or_default();
    CARRY_HTTP.iter().any(|other| name.eq_ignore_ascii_case(other))
}

/// Whether a 101 switches to a requested protocol: it names at least one, and each of them was requested.
pub fn switches_as_asked(request: &RequestHead, asked: &[u8], response: &ResponseHead, answered: &[u8]) -> bool {
    let was_asked =
        |protocol: &[u8]| upgrade_protocols(&request.fields, asked).any(|other| other.eq_ignore_ascii_case(protocol));
    let upgrades = response.fields.iter().filter(|field| field.id == Name::Upgrade);
    let mut named = upgrades.flat_map(|field| tokens(field.value.of(answered))).peekable();
    request.asks_upgrade && named.peek().is_some() && named.all(was_asked)
}

/// Appends the two lines that request these protocols, or agree to them.
pub fn write_upgrade_lines<'h>(out: &mut Vec<u8>, protocols: impl Iterator<Item = &'h [u8]>) {
    out.extend_from_slice(b"Connection: Upgrade\r\nUpgrade: ");
    for (index, protocol) in protocols.enumerate() {
        if index > 0 {
            out.extend_from_slice(b", ");
        }
        out.extend_from_slice(protocol);
    }
    out.extend_from_slice(b"\r\n");
}

// Shared by request and response heads: incremental arrival, line ends, field lists.

/// Whether a head is complete.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Progress {
    /// More bytes are needed.
    Partial,
    /// The head has this many bytes, the empty line included.
    Complete(usize),
}

/// The number of bytes of empty lines before a request line; they are skipped (RFC 9112 section 2.2). A lone CR or LF
/// there is an error.
pub fn leading_empty_lines(bytes: &[u8]) -> Result<usize, RequestError> {
    let mut skip = 0;
    loop {
        match bytes[skip..] {
            [b'\r', b'\n', ..] => skip += 2,
            [b'\r'] => return Ok(skip),
            [b'\r', ..] | [b'\n', ..] => return Err(RequestError::LineEnd),
            _ => return Ok(skip),
        }
    }
}

pub(crate) type HeaderSlots<'b> = [MaybeUninit<httparse::Header<'b>>; EDITED_HEADERS_MAX];

pub(crate) fn header_slots<'b>() -> HeaderSlots<'b> {
    [const { MaybeUninit::uninit() }; EDITED_HEADERS_MAX]
}

/// Decides when it is worth parsing again, so that a head arriving byte by byte costs the length of its lines and not
/// the square of its length.
///
/// Only whole lines are handed to the parser (and the request line while it is the only one): the verdict is then a
/// function of the lines, not of how they were split.
#[derive(Debug, Default)]
pub(crate) struct Arrival {
    /// Bytes already searched for line ends.
    seen: usize,
    /// The end of the last whole line found.
    lines_end: usize,
}

impl Arrival {
    /// The prefix of `bytes` to parse now, or `None` if nothing changed since the last time.
    pub(crate) fn prefix<'b>(&mut self, bytes: &'b [u8]) -> Option<&'b [u8]> {
        let fresh = &bytes[self.seen..];
        let line = memchr::memrchr(b'\n', fresh).map(|at| self.seen + at + 1);
        self.seen = bytes.len();
        match line {
            Some(end) => {
                self.lines_end = end;
                Some(&bytes[..end])
            }
            None if self.lines_end == 0 => Some(bytes),
            None => None,
        }
    }

    pub(crate) fn reset(&mut self) {
        *self = Arrival::default();
    }
}

/// The results of one walk over a head's fields.
#[derive(Default)]
pub(crate) struct Walk {
    pub(crate) declaration: Declaration,
    pub(crate) connection: ConnectionTokens,
    pub(crate) hop_by_hop: FieldSet,
}

pub(crate) enum WalkError {
    LineEnd,
    FramingLookalike,
    ConnectionOptions,
}

/// Fills `fields` from the parser's headers, checking that each line ends in CRLF: `httparse` also takes a bare LF.
/// `each` sees every field. With `drops_underscores`, names with a `_` are left out.
pub(crate) fn walk(
    fields: &mut Fields,
    head: &[u8],
    headers: &[httparse::Header<'_>],
    drops_underscores: bool,
    mut each: impl FnMut(&Field),
) -> Result<Walk, WalkError> {
    let mut walk = Walk::default();
    fields.clear();
    // One search for all names: most heads have none in their values either.
    let drops_underscores = drops_underscores && memchr::memchr(b'_', head).is_some();
    fields.end = (head.len() - 2) as u16;
    for header in headers {
        let name = header.name.as_bytes();
        let span = Span::locate(head, name);
        if head[span.start as usize - 2] != b'\r' {
            return Err(WalkError::LineEnd);
        }
        let id = Name::classify(name);
        let value = if header.value.is_empty() {
            Span { start: span.end() as u16, len: 0 }
        } else {
            Span::locate(head, header.value)
        };
        let field = Field { name: span, value, id };
        match id {
            Name::Other => {}
            Name::Lookalike if looks_like_framing(name) => return Err(WalkError::FramingLookalike),
            Name::Connection => walk.connection.see(header.value),
            _ => walk.declaration.see(&field),
        }
        // After the checks of framing: a name that resembles a framing field is refused rather than dropped.
        if drops_underscores && memchr::memchr(b'_', name).is_some() {
            fields.dropped += 1;
            continue;
        }
        if id.is_hop_by_hop() {
            walk.hop_by_hop.insert(fields.list.len());
        }
        each(&field);
        fields.list.push(field);
    }
    if !head.ends_with(b"\r\n\r\n") {
        return Err(WalkError::LineEnd);
    }
    if walk.connection.others > CONNECTION_OPTIONS_MAX {
        return Err(WalkError::ConnectionOptions);
    }
    if walk.connection.others > 0 {
        add_named(fields, head, &mut walk.hop_by_hop);
    }
    Ok(walk)
}

/// Adds the fields that `Connection` names (RFC 9110 section 7.6.1).
fn add_named(fields: &Fields, head: &[u8], hop_by_hop: &mut FieldSet) {
    for (index, field) in fields.iter().enumerate() {
        if field.id.may_be_named_by_connection() && named_by_connection(fields, head, field.name.of(head)) {
            hop_by_hop.insert(index);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_known_name_is_found_in_any_case() {
        for (text, id) in Name::TABLE {
            assert!(text.len() <= LENGTH_MAX);
            assert_eq!(Name::classify(text), *id);
            assert_eq!(Name::classify(&text.to_ascii_uppercase()), *id);
        }
        assert!(Name::TABLE.is_sorted_by_key(|(text, _)| text.len()));
        for other in [&b"hosu"[..], b"x", b"", b"content-lengtH1", b"x_y", b"\x14e", b"hos\xf4", b"\xc8ost", b"hos\0"] {
            assert_eq!(Name::classify(other), Name::Other, "{other:?}");
        }
    }

    #[test]
    fn no_byte_of_a_name_is_left_out() {
        for (text, id) in Name::TABLE {
            for at in 0..text.len() {
                for wrong in [b'_', b'~', 0, text[at] ^ 0x80, text[at] ^ 0x10] {
                    let mut name = text.to_vec();
                    name[at] = wrong;
                    assert_ne!(Name::classify(&name), *id, "{name:?}");
                }
            }
        }
    }

    #[test]
    fn each_byte_is_folded_as_ascii_and_by_itself() {
        for byte in 0..=u8::MAX {
            for place in 0..8 {
                for around in [0, b'a', b'Z', 0x7f, 0x80, 0xff] {
                    let mut bytes = [around; 8];
                    bytes[place] = byte;
                    let folded = to_lowercase(u64::from_le_bytes(bytes)).to_le_bytes();
                    assert_eq!(folded, bytes.map(|byte| byte.to_ascii_lowercase()), "{bytes:?}");
                }
            }
        }
    }

    #[test]
    fn names_are_compared_as_ascii() {
        let text: Vec<u8> = (0..40).map(|at| b"Ab-Z0@[`{_z"[at % 11]).collect();
        for len in 0..=text.len() {
            let name = &text[..len];
            assert!(is_same(name, &name.to_ascii_uppercase()) && !is_same(name, &[name, b"x"].concat()));
            for at in 0..len {
                for other in [0x20, 0x80, 0x01, 0x60].map(|bits| text[at] ^ bits) {
                    let mut changed = name.to_vec();
                    changed[at] = other;
                    assert_eq!(is_same(name, &changed), name.eq_ignore_ascii_case(&changed), "{changed:?}");
                }
            }
        }
    }

    #[test]
    fn underscored_framing_names_are_seen() {
        assert!(looks_like_framing(b"Content_Length"));
        assert!(looks_like_framing(b"transfer_encoding"));
        assert!(!looks_like_framing(b"content-length"));
        assert!(!looks_like_framing(b"x_real_ip"));
        assert!(!looks_like_framing(b"Content.Length") && Name::classify(b"Content.Length") == Name::Lookalike);
        for name in [
            &b"X_Real_IP"[..],
            b"X_Forwarded-For",
            b"Transfer_Encoding",
            b"keep_alive",
            b"X.Forwarded.For",
            b"x!real|ip",
            b"X-Forwarded_Host",
        ] {
            assert_eq!(Name::classify(name), Name::Lookalike);
        }
        for name in [&b"XaReal-IP"[..], b"X0Forwarded0For", b"xreal-ip", b"X-Real-I_"] {
            assert_eq!(Name::classify(name), Name::Other);
        }
    }
}

#[cfg(test)]
mod upgrade_tests {
    use super::*;
    use crate::{HeadLimits, Method, Progress};

    fn request(line: &str, fields: &str) -> (RequestHead, Vec<u8>) {
        let text = format!("{line}\r\nHost: h\r\n{fields}\r\n").into_bytes();
        let mut head = RequestHead::default();
        assert_eq!(head.advance(&text, &HeadLimits::default()), Ok(Progress::Complete(text.len())), "{fields}");
        (head, text)
    }

    #[test]
    fn who_asks_for_what() {
        let check = |fields: &str, expected: &str| {
            let (head, text) = request("GET / HTTP/1.1", fields);
            let mut lines = Vec::new();
            if head.asks_upgrade {
                write_upgrade_lines(&mut lines, upgrade_protocols(&head.fields, &text));
            }
            let expected = match expected {
                "" => String::new(),
                protocols => format!("Connection: Upgrade\r\nUpgrade: {protocols}\r\n"),
            };
            assert_eq!(String::from_utf8(lines).unwrap(), expected, "{fields}");
        };
        check("Connection: Upgrade\r\nUpgrade: websocket\r\n", "websocket");
        check("connection: keep-alive, uPGRADE\r\nupgrade: WebSocket\r\n", "WebSocket");
        check("Connection: keep-alive\r\nConnection: upgrade\r\nUpgrade: a/1, b ,,\r\nUpgrade: c\r\n", "a/1, b, c");
        check("Connection: Upgrade\r\nUpgrade: h2c, websocket\r\n", "websocket");
        // Neither field alone is a request.
        check("Upgrade: websocket\r\n", "");
        check("Connection: Upgrade\r\n", "");
        check("Connection: Upgrade\r\nUpgrade: ,\r\n", "");
        check("Connection: Upgrades\r\nUpgrade: websocket\r\n", "");
        // Protocols that carry HTTP.
        for protocol in ["h2c", "H2C", "h2", "HTTP/2.0", "http/1.1", "TLS/1.0", "h2c/2"] {
            check(
                &format!("Connection: Upgrade, HTTP2-Settings\r\nHTTP2-Settings: AAMA\r\nUpgrade: {protocol}\r\n"),
                "",
            );
        }
        let (head, _) = request("GET / HTTP/1.0", "Connection: Upgrade\r\nUpgrade: websocket\r\n");
        assert!(!head.asks_upgrade, "HTTP/1.0 has no Upgrade");
        let (head, _) = request("POST / HTTP/1.1", "Connection: Upgrade\r\nUpgrade: tcp\r\nContent-Length: 2\r\n");
        assert!(head.asks_upgrade, "with a body too");
    }

    #[test]
    fn an_answer_names_what_was_asked_for() {
        let check = |asked: &str, answered: &str, expected: bool| {
            let (request, request_text) = request("GET / HTTP/1.1", asked);
            let text = format!("HTTP/1.1 101 Switching Protocols\r\n{answered}\r\n").into_bytes();
            let mut response = ResponseHead::default();
            let done = response.advance(&text, Method::Get, &HeadLimits::default());
            assert_eq!(done, Ok(Progress::Complete(text.len())));
            assert_eq!(switches_as_asked(&request, &request_text, &response, &text), expected, "{asked} {answered}");
        };
        let websocket = "Connection: Upgrade\r\nUpgrade: websocket\r\n";
        check(websocket, websocket, true);
        check(websocket, "Connection: upgrade\r\nUpgrade: WebSocket\r\n", true);
        check("Connection: Upgrade\r\nUpgrade: a, b\r\n", "Upgrade: b\r\n", true);
        check("Connection: Upgrade\r\nUpgrade: a, b\r\n", "Upgrade: b, a\r\n", true);
        check(websocket, "", false);
        check(websocket, "Upgrade:\r\n", false);
        check(websocket, "Upgrade: other\r\n", false);
        check(websocket, "Upgrade: websocket, other\r\n", false);
        check("Upgrade: websocket\r\n", websocket, false);
        check("", websocket, false);
        check("Connection: Upgrade\r\nUpgrade: websocket, h2c\r\n", "Upgrade: h2c\r\n", false);
    }
}
