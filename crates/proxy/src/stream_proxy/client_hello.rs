//! The server name that a client requests in its TLS ClientHello (RFC 8446 section 4.1.2, RFC 6066 section 3).
//!
//! The handshake itself is the node's, so the only requirement for the hello is that its lengths fit together: what versions and
//! ciphers it offers is between the client and the node. (rustls' `Acceptor` refuses those that rustls could not serve.)

use std::fmt;

/// Maximum size of a hello and the records that contain it.
pub(super) const CLIENT_HELLO_BYTES_MAX: usize = crate::basics::buffer::BUFFER_BYTES;

const RECORD_HEADER_BYTES: usize = 5;
/// RFC 8446 section 5.1.
const RECORD_BYTES_MAX: usize = 1 << 14;
const CONTENT_HANDSHAKE: u8 = 22;
const HANDSHAKE_CLIENT_HELLO: u8 = 1;
const HANDSHAKE_HEADER_BYTES: usize = 4;
const RANDOM_BYTES: usize = 32;
const EXTENSION_SERVER_NAME: u16 = 0;
const NAME_TYPE_HOST: u8 = 0;
/// The longest DNS name.
const NAME_BYTES_MAX: usize = 255;

/// Result of parsing the first bytes of a connection.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum ParsedHello {
    /// All bytes belong to a hello that is incomplete.
    Partial,
    /// The hello is complete; contains the server name in lower case, if there is one.
    Complete(Option<Box<str>>),
}

/// Why the bytes are not a hello.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NoHello {
    /// They begin with something else.
    NotTls,
    /// The lengths do not fit together, or a record is empty.
    Malformed,
    /// The hello has more than [`CLIENT_HELLO_BYTES_MAX`].
    TooLong,
}

impl fmt::Display for NoHello {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NoHello::NotTls => f.write_str("it does not begin with a TLS handshake"),
            NoHello::Malformed => f.write_str("its TLS hello is malformed"),
            NoHello::TooLong => write!(f, "its TLS hello is longer than {CLIENT_HELLO_BYTES_MAX} bytes"),
        }
    }
}

/// State of an incomplete hello. Complete records are looked at once, however many pieces the bytes arrive in.
#[derive(Default)]
pub(super) struct HelloReader {
    /// Beginning of the first incomplete record.
    at: usize,
    /// The first bytes of the content of the records before it, and how long that content is.
    header: Vec<u8>,
    content_bytes: usize,
}

impl HelloReader {
    /// Looks at all bytes that have arrived so far, including those of the last time; whatever comes after the hello may be among
    /// them. A hello that is invalid, or too long, is refused as early as it shows.
    pub(super) fn advance(&mut self, bytes: &[u8]) -> Result<ParsedHello, NoHello> {
        while let Some((content, behind)) = record(&bytes[self.at..])? {
            self.at = bytes.len() - behind.len();
            self.content_bytes += content.len();
            extend_header(&mut self.header, content);
            if let Some(total) = hello_bytes(&self.header)?.filter(|total| self.content_bytes >= *total) {
                return server_name(&collect(bytes, total)?[HANDSHAKE_HEADER_BYTES..]).map(ParsedHello::Complete);
            }
        }
        let mut header = self.header.clone();
        extend_header(&mut header, bytes[self.at..].get(RECORD_HEADER_BYTES..).unwrap_or_default());
        hello_bytes(&header)?;
        if bytes.len() >= CLIENT_HELLO_BYTES_MAX { Err(NoHello::TooLong) } else { Ok(ParsedHello::Partial) }
    }
}

fn extend_header(header: &mut Vec<u8>, content: &[u8]) {
    let missing = HANDSHAKE_HEADER_BYTES - header.len();
    header.extend_from_slice(&content[..content.len().min(missing)]);
}

/// Length of the hello, by its first bytes; `None`: there are too few.
fn hello_bytes(header: &[u8]) -> Result<Option<usize>, NoHello> {
    match *header {
        [kind, ..] if kind != HANDSHAKE_CLIENT_HELLO => Err(NoHello::NotTls),
        [_, high, middle, low] => {
            let total = HANDSHAKE_HEADER_BYTES + u32::from_be_bytes([0, high, middle, low]) as usize;
            if total > CLIENT_HELLO_BYTES_MAX { Err(NoHello::TooLong) } else { Ok(Some(total)) }
        }
        _ => Ok(None),
    }
}

/// Collects so many bytes of content, without the records around them.
fn collect(bytes: &[u8], total: usize) -> Result<Vec<u8>, NoHello> {
    let (mut hello, mut rest) = (Vec::with_capacity(total), bytes);
    while hello.len() < total {
        let (content, behind) = record(rest)?.ok_or(NoHello::Malformed)?;
        hello.extend_from_slice(&content[..content.len().min(total - hello.len())]);
        rest = behind;
    }
    Ok(hello)
}

/// A record's content, and the bytes after it.
type Record<'a> = (&'a [u8], &'a [u8]);

/// The first record; `None`: it is incomplete.
fn record(bytes: &[u8]) -> Result<Option<Record<'_>>, NoHello> {
    let is_start = match bytes {
        [] => true,
        [kind] => *kind == CONTENT_HANDSHAKE,
        [kind, major, ..] => (*kind, *major) == (CONTENT_HANDSHAKE, 3),
    };
    if !is_start {
        return Err(NoHello::NotTls);
    }
    let Some(&[_, _, _, high, low]) = bytes.first_chunk::<RECORD_HEADER_BYTES>() else { return Ok(None) };
    let len = usize::from(u16::from_be_bytes([high, low]));
    if len == 0 || len > RECORD_BYTES_MAX {
        return Err(NoHello::Malformed);
    }
    Ok(bytes[RECORD_HEADER_BYTES..].split_at_checked(len))
}

fn server_name(hello: &[u8]) -> Result<Option<Box<str>>, NoHello> {
    let mut hello = ByteReader(hello);
    hello.take(2 + RANDOM_BYTES)?;
    hello.block(1)?;
    hello.block(2)?;
    hello.block(1)?;
    if hello.0.is_empty() {
        // RFC 5246 section 7.4.1.2: extensions are optional.
        return Ok(None);
    }
    let mut extensions = ByteReader(hello.block(2)?);
    if !hello.0.is_empty() {
        return Err(NoHello::Malformed);
    }
    let mut found = None;
    while !extensions.0.is_empty() {
        let kind = extensions.take(2)?;
        let content = extensions.block(2)?;
        if kind == EXTENSION_SERVER_NAME.to_be_bytes() {
            // Two parties could choose different ones.
            if found.is_some() {
                return Err(NoHello::Malformed);
            }
            found = Some(host_name(content)?);
        }
    }
    Ok(found.flatten())
}

/// The host among the names of the extension.
fn host_name(content: &[u8]) -> Result<Option<Box<str>>, NoHello> {
    let mut content = ByteReader(content);
    let mut names = ByteReader(content.block(2)?);
    // RFC 6066 section 3: there is at least one.
    if names.0.is_empty() {
        return Err(NoHello::Malformed);
    }
    let mut found = None;
    while !names.0.is_empty() {
        let kind = names.take(1)?[0];
        let name = names.block(2)?;
        if kind != NAME_TYPE_HOST {
            continue;
        }
        let is_name = name.len() <= NAME_BYTES_MAX && name.iter().all(u8::is_ascii_graphic);
        let name = str::from_utf8(name).map_err(|_| NoHello::Malformed)?;
        let name = name.strip_suffix('.').unwrap_or(name);
        if !is_name || name.is_empty() || found.is_some() {
            return Err(NoHello::Malformed);
        }
        found = Some(name.to_ascii_lowercase().into());
    }
    if content.0.is_empty() { Ok(found) } else { Err(NoHello::Malformed) }
}

/// Takes bytes from the front.
struct ByteReader<'a>(&'a [u8]);

impl<'a> ByteReader<'a> {
    fn take(&mut self, len: usize) -> Result<&'a [u8], NoHello> {
        let (taken, rest) = self.0.split_at_checked(len).ok_or(NoHello::Malformed)?;
        self.0 = rest;
        Ok(taken)
    }

    /// Takes the block that follows a length of so many bytes.
    fn block(&mut self, length_bytes: usize) -> Result<&'a [u8], NoHello> {
        let len = self.take(length_bytes)?.iter().fold(0, |len, byte| len << 8 | usize::from(*byte));
        self.take(len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(bytes: &[u8]) -> Result<ParsedHello, NoHello> {
        HelloReader::default().advance(bytes)
    }

    fn block(length_bytes: usize, content: &[u8]) -> Vec<u8> {
        let len = (content.len() as u32).to_be_bytes();
        [&len[4 - length_bytes..], content].concat()
    }

    fn server_names(names: &[u8]) -> Vec<u8> {
        [&[0, 0][..], &block(2, &block(2, names))].concat()
    }

    fn host(name: &[u8]) -> Vec<u8> {
        server_names(&[&[0][..], &block(2, name)].concat())
    }

    /// A hello with these extensions; `None`: without any.
    fn hello(extensions: Option<&[u8]>) -> Vec<u8> {
        let mut body =
            [&[3, 3][..], &[7; RANDOM_BYTES], &block(1, &[1; 32]), &block(2, &[0x13, 1]), &block(1, &[0])].concat();
        extensions.into_iter().for_each(|extensions| body.extend(block(2, extensions)));
        [&[HANDSHAKE_CLIENT_HELLO][..], &block(3, &body)].concat()
    }

    fn records(handshake: &[u8], bytes: usize) -> Vec<u8> {
        handshake.chunks(bytes).flat_map(|part| [&[22, 3, 1][..], &block(2, part)].concat()).collect()
    }

    fn complete(name: Option<&str>) -> Result<ParsedHello, NoHello> {
        Ok(ParsedHello::Complete(name.map(Into::into)))
    }

    #[test]
    fn the_name_is_found_in_any_split_of_records_and_bytes() {
        let padding = [&[0, 21][..], &block(2, &[0; 300])].concat();
        let whole = hello(Some(&[padding, host(b"A.Example.TEST.")].concat()));
        for of_record in [1, 2, 3, 5, 100, 16384] {
            let bytes = records(&whole, of_record);
            let mut reader = HelloReader::default();
            for len in 0..bytes.len() {
                assert_eq!(parse(&bytes[..len]), Ok(ParsedHello::Partial), "{of_record} {len}");
                assert_eq!(reader.advance(&bytes[..len]), Ok(ParsedHello::Partial), "{of_record} {len}");
            }
            assert_eq!(reader.advance(&bytes), complete(Some("a.example.test")));
            assert_eq!(parse(&bytes), complete(Some("a.example.test")));
            assert_eq!(parse(&[&bytes[..], b"what follows"].concat()), complete(Some("a.example.test")));
        }
    }

    #[test]
    fn a_hello_without_a_name_is_one() {
        assert_eq!(parse(&records(&hello(None), 999)), complete(None));
        assert_eq!(parse(&records(&hello(Some(&[])), 999)), complete(None));
        let other = server_names(&[&[9][..], &block(2, b"x")].concat());
        assert_eq!(parse(&records(&hello(Some(&other)), 999)), complete(None));
    }

    /// RFC 8701: unknown values are skipped, wherever they occur.
    #[test]
    fn what_is_not_known_is_passed_over() {
        let grease = |kind: u8, content: &[u8]| [&[kind, kind][..], &block(2, content)].concat();
        let extensions = [grease(0x0a, b""), host(b"a.test"), grease(0xfa, b"\0")].concat();
        assert_eq!(parse(&records(&hello(Some(&extensions)), 999)), complete(Some("a.test")));
        // A name of another kind does not count as a second host.
        let names = [&[9][..], &block(2, b"x"), &[0], &block(2, b"a.test"), &[9], &block(2, b"")].concat();
        assert_eq!(parse(&records(&hello(Some(&server_names(&names))), 999)), complete(Some("a.test")));
    }

    #[test]
    fn a_hello_may_be_long_and_not_too_long() {
        let long_one = |bytes: usize| {
            let half = [&[0x7f, 0][..], &block(2, &vec![0; bytes / 2])].concat();
            let other = [&[0x7f, 1][..], &block(2, &vec![0; bytes / 2])].concat();
            hello(Some(&[half, other, host(b"a.test")].concat()))
        };
        let with = |bytes: usize| records(&long_one(bytes), 16384);
        assert_eq!(parse(&with(40_000)), complete(Some("a.test")));
        let long = with(CLIENT_HELLO_BYTES_MAX);
        assert_eq!(parse(&long), Err(NoHello::TooLong));
        assert_eq!(parse(&long[..100]), Err(NoHello::TooLong), "told as early as it is known");
        // Many records of one byte each are as long.
        let small = records(&long_one(20_000), 1);
        assert_eq!(parse(&small[..CLIENT_HELLO_BYTES_MAX - 1]), Ok(ParsedHello::Partial));
        assert_eq!(parse(&small[..CLIENT_HELLO_BYTES_MAX]), Err(NoHello::TooLong));
    }

    #[test]
    fn what_is_not_a_hello_is_refused() {
        let check = |bytes: &[u8], expected: NoHello| assert_eq!(parse(bytes), Err(expected), "{bytes:?}");
        check(b"GET / HTTP/1.1\r\n", NoHello::NotTls);
        check(b"\x16\x02", NoHello::NotTls);
        check(b"\x80\x2e\x01\x03\x01", NoHello::NotTls);
        check(&[22, 3, 1, 0, 0], NoHello::Malformed);
        check(&[22, 3, 1, 0x40, 1], NoHello::Malformed);
        // Another handshake message, and an alert.
        check(&records(&[2, 0, 0, 0], 99), NoHello::NotTls);
        check(&[21, 3, 1, 0, 2, 1, 0], NoHello::NotTls);
        check(&records(&[1, 0xff, 0xff, 0xff], 99), NoHello::TooLong);
        check(&records(&[1, 0, 0, 0], 99), NoHello::Malformed);
        for name in [&b""[..], b".", b"a b", b"\xff", b"a\0b", &[b'a'; 256]] {
            check(&records(&hello(Some(&host(name))), 999), NoHello::Malformed);
        }
        let twice = [host(b"a.test"), host(b"b.test")].concat();
        check(&records(&hello(Some(&twice)), 999), NoHello::Malformed);
        // Without any name, even of another kind.
        check(&records(&hello(Some(&server_names(b""))), 999), NoHello::Malformed);
        check(&records(&hello(Some(&[0, 0, 0, 0])), 999), NoHello::Malformed);
        let two = [&[0][..], &block(2, b"a.test"), &[0], &block(2, b"b.test")].concat();
        check(&records(&hello(Some(&server_names(&two))), 999), NoHello::Malformed);
    }

    /// Lengths are never trusted.
    #[test]
    fn cut_and_changed_hellos_do_no_harm() {
        let whole = hello(Some(&host(b"a.test")));
        for at in 1..whole.len() {
            for change in [1, 0x80, 0xff] {
                let mut bytes = whole.clone();
                bytes[at] ^= change;
                // Whatever the bytes are, it must not panic.
                let _ = parse(&records(&bytes, 999));
            }
            let mut cut = whole[..at.max(4)].to_vec();
            let len = (cut.len() as u32 - 4).to_be_bytes();
            cut[1..4].copy_from_slice(&len[1..]);
            let _ = parse(&records(&cut, 999));
        }
    }
}
