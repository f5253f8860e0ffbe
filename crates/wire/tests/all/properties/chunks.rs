//! The chunked coding read in pieces gives the content that was put in, and agrees with a reader of whole bodies.
//!
//! The reference reader follows RFC 9112 section 7.1 line by line and knows nothing of pieces.

use crate::properties::generate::{chunked, damaged};
use crate::properties::grammar::{is_token, is_value, trim};
use proptest::collection::vec;
use proptest::prelude::*;
use stillgate_wire::{
    BodyDecoder, CHUNK_HEAD_BYTES_MAX, CHUNK_LINE_BYTES_MAX, ChunkError, Framing, HEADERS_MAX, TRAILER_BYTES_MAX,
    chunk_head,
};

#[derive(Debug, PartialEq)]
struct Body {
    content: Vec<u8>,
    trailers: Vec<u8>,
    consumed: usize,
}

#[derive(Debug, PartialEq)]
enum Outcome {
    Done(Body),
    /// It may be valid or not: the deciding line is not complete.
    Incomplete,
    Refused,
}

/// Decodes pieces of these sizes, over and over; bytes of the next message must be unchanged.
fn decode(framing: Framing, bytes: &[u8], sizes: &[usize]) -> Result<Outcome, ChunkError> {
    let mut decoder = BodyDecoder::new(framing);
    let mut content = Vec::new();
    let mut consumed = 0;
    for size in sizes.iter().cycle() {
        if consumed == bytes.len() || decoder.is_done() {
            break;
        }
        assert!(decoder.trailers().is_empty(), "trailers are shown once they are judged");
        let came = &bytes[consumed..(consumed + size).min(bytes.len())];
        let mut piece = came.to_vec();
        let got = decoder.decode(&mut piece)?;
        assert!(got.data <= got.consumed && got.consumed <= piece.len());
        assert!(got.consumed == piece.len() || decoder.is_done(), "it takes as much as it can");
        assert_eq!(piece[got.consumed..], came[got.consumed..], "what follows the body is untouched");
        content.extend_from_slice(&piece[..got.data]);
        consumed += got.consumed;
    }
    let trailers = decoder.trailers().to_vec();
    Ok(if decoder.is_done() { Outcome::Done(Body { content, trailers, consumed }) } else { Outcome::Incomplete })
}

/// One line without its CRLF, and the bytes behind it.
fn take_line(bytes: &[u8]) -> Result<(&[u8], &[u8]), Outcome> {
    let end = bytes.iter().position(|b| *b == b'\n').ok_or(Outcome::Incomplete)?;
    let line = bytes[..end].strip_suffix(b"\r").ok_or(Outcome::Refused)?;
    Ok((line, &bytes[end + 1..]))
}

fn refuse_unless(good: bool) -> Result<(), Outcome> {
    if good { Ok(()) } else { Err(Outcome::Refused) }
}

/// `1*15HEXDIG [ ";" anything printable ]`
fn chunk_size(line: &[u8]) -> Result<u64, Outcome> {
    refuse_unless(line.len() + 2 <= CHUNK_LINE_BYTES_MAX)?;
    let digits = line.split(|b| *b == b';').next().unwrap_or_default();
    refuse_unless((1..=15).contains(&digits.len()) && digits.iter().all(u8::is_ascii_hexdigit))?;
    refuse_unless(is_value(&line[digits.len()..]))?;
    let digits = std::str::from_utf8(digits).map_err(|_| Outcome::Refused)?;
    u64::from_str_radix(digits, 16).map_err(|_| Outcome::Refused)
}

const NOT_IN_TRAILERS: &[&str] = &[
    "te",
    "age",
    "via",
    "date",
    "host",
    "expect",
    "server",
    "trailer",
    "upgrade",
    "forwarded",
    "x-real-ip",
    "connection",
    "keep-alive",
    "content-length",
    "x-forwarded-for",
    "proxy-connection",
    "x-forwarded-host",
    "x-forwarded-port",
    "x-forwarded-proto",
    "transfer-encoding",
];
const NOT_IN_TRAILERS_AS_SPELT: &[&str] = &[
    "authorization",
    "proxy-authorization",
    "cookie",
    "set-cookie",
    "content-encoding",
    "content-type",
    "content-range",
    "cache-control",
    "max-forwards",
];

fn trailer_lines(lines: &[&[u8]]) -> Result<Vec<u8>, Outcome> {
    let mut kept = Vec::new();
    refuse_unless(lines.len() <= HEADERS_MAX)?;
    for line in lines {
        let colon = line.iter().position(|b| *b == b':').ok_or(Outcome::Refused)?;
        let (name, value) = (&line[..colon], &line[colon + 1..]);
        refuse_unless(is_token(name) && is_value(value))?;
        let name_text = String::from_utf8_lossy(name).to_ascii_lowercase();
        let dropped = NOT_IN_TRAILERS.contains(&name_text.replace('_', "-").as_str())
            || NOT_IN_TRAILERS_AS_SPELT.contains(&name_text.as_str());
        if !dropped {
            kept.extend_from_slice(&[name, b": ", trim(value), b"\r\n"].concat());
        }
    }
    Ok(kept)
}

fn read_whole(bytes: &[u8]) -> Result<Body, Outcome> {
    let mut content = Vec::new();
    let mut rest = bytes;
    loop {
        let (line, after) = take_line(rest)?;
        let size = chunk_size(line)?;
        rest = after;
        if size == 0 {
            break;
        }
        let size = usize::try_from(size).unwrap_or(usize::MAX);
        if rest.len() < size {
            return Err(Outcome::Incomplete);
        }
        content.extend_from_slice(&rest[..size]);
        rest = match &rest[size..] {
            [] | [b'\r'] => return Err(Outcome::Incomplete),
            [b'\r', b'\n', after @ ..] => after,
            _ => return Err(Outcome::Refused),
        };
    }
    let section = rest;
    let mut lines = Vec::new();
    loop {
        let (line, after) = take_line(rest)?;
        rest = after;
        refuse_unless(section.len() - rest.len() <= TRAILER_BYTES_MAX)?;
        if line.is_empty() {
            let trailers = trailer_lines(&lines)?;
            return Ok(Body { content, trailers, consumed: bytes.len() - rest.len() });
        }
        lines.push(line);
    }
}

fn agree(bytes: &[u8], sizes: &[usize]) {
    let got = decode(Framing::Chunked, bytes, sizes);
    match read_whole(bytes) {
        Ok(body) => assert_eq!(got, Ok(Outcome::Done(body)), "{}", bytes.escape_ascii()),
        Err(Outcome::Refused) => assert!(got.is_err(), "taken, to be refused: {}", bytes.escape_ascii()),
        Err(_) => assert!(!matches!(got, Ok(Outcome::Done(_))), "done, but incomplete: {}", bytes.escape_ascii()),
    }
}

/// Each byte in each place where a size line or a trailer could take it or not.
#[test]
fn every_byte_in_every_place() {
    for byte in 0..=255 {
        for place in [
            "?1\r\na",
            "1?\r\na",
            "1;?\r\na",
            "1;?\na",
            "1\r?a",
            "1\r\na?",
            "1\r\na\r?",
            "0\r\n?: b\r\n",
            "0\r\nA?: b\r\n",
            "0\r\nA:?\r\n",
            "0\r\nA: b?\n",
        ] {
            let mut bytes: Vec<u8> = place.bytes().map(|b| if b == b'?' { byte } else { b }).collect();
            bytes.extend_from_slice(if place.starts_with('0') { b"\r\n" } else { b"\r\n0\r\n\r\n" });
            agree(&bytes, &[bytes.len()]);
            agree(&bytes, &[1]);
        }
    }
}

/// Chunk lines and trailer sections just within and just beyond their limits.
#[test]
fn limits_are_exact() {
    for beyond in [0, 1] {
        let line = format!("1;{}\r\na\r\n0\r\n\r\n", "x".repeat(CHUNK_LINE_BYTES_MAX - 4 + beyond));
        let trailers = format!("0\r\nA: {}\r\n\r\n", "x".repeat(TRAILER_BYTES_MAX - 7 + beyond));
        let count = format!("0\r\n{}\r\n", "A: b\r\n".repeat(HEADERS_MAX + beyond));
        let digits = format!("{}1\r\na\r\n0\r\n\r\n", "0".repeat(14 + beyond));
        for bytes in [line, trailers, count, digits] {
            assert_eq!(read_whole(bytes.as_bytes()).is_ok(), beyond == 0, "{bytes:.60}");
            for size in [1, 7, bytes.len()] {
                agree(bytes.as_bytes(), &[size]);
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn content_comes_out_as_it_went_in(
        made in chunked(),
        sizes in vec(1usize..400, 1..8),
        next in vec(any::<u8>(), 0..20),
    ) {
        let body = made.bytes();
        let bytes = [&body[..], &next].concat();
        let content: Vec<u8> = made.chunks.iter().flat_map(|chunk| chunk.content.clone()).collect();
        let trailers: String =
            made.trailers.iter().filter(|t| t.2).map(|(name, value, _)| format!("{name}: {value}\r\n")).collect();
        let expected = Body { content, trailers: trailers.into_bytes(), consumed: body.len() };
        prop_assert_eq!(decode(Framing::Chunked, &bytes, &sizes), Ok(Outcome::Done(expected)));
        agree(&bytes, &sizes);
    }

    #[test]
    fn what_we_frame_we_read(contents in vec(vec(any::<u8>(), 1..5000), 0..4), sizes in vec(1usize..3000, 1..4)) {
        let mut bytes = Vec::new();
        for content in &contents {
            bytes.extend_from_slice(chunk_head(content.len(), &mut [0; CHUNK_HEAD_BYTES_MAX]));
            bytes.extend_from_slice(content);
            bytes.extend_from_slice(b"\r\n");
        }
        bytes.extend_from_slice(b"0\r\n\r\n");
        let expected = Body { content: contents.concat(), trailers: Vec::new(), consumed: bytes.len() };
        prop_assert_eq!(decode(Framing::Chunked, &bytes, &sizes), Ok(Outcome::Done(expected)));
    }

    #[test]
    fn damaged_bodies_are_judged_alike(
        bytes in damaged(chunked().prop_map(|c| c.bytes())),
        sizes in vec(1usize..100, 1..4),
    ) {
        agree(&bytes, &sizes);
    }

    #[test]
    fn other_framings_pass_bytes_on(
        bytes in vec(any::<u8>(), 0..300),
        length in 0usize..300,
        sizes in vec(1usize..100, 1..4),
    ) {
        let take = length.min(bytes.len());
        let expected = Body { content: bytes[..take].to_vec(), trailers: Vec::new(), consumed: take };
        let got = decode(Framing::Length(length as u64), &bytes, &sizes);
        prop_assert_eq!(got, Ok(if take == length { Outcome::Done(expected) } else { Outcome::Incomplete }));
        let nothing = Body { content: Vec::new(), trailers: Vec::new(), consumed: 0 };
        prop_assert_eq!(decode(Framing::None, &bytes, &sizes), Ok(Outcome::Done(nothing)));
        prop_assert_eq!(decode(Framing::UntilClose, &bytes, &sizes), Ok(Outcome::Incomplete));
    }
}
