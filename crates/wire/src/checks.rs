//! Invariants of every input, as functions that panic if one is violated.
//!
//! The fuzz targets and the property tests call these, and `cargo test` replays the corpus through them.

use crate::hpack::STATIC_TEXT;
use crate::hpack::huffman::{self, Decoder};
use crate::{
    BodyDecoder, ChunkError, FieldBlockFacts, FieldWalker, Framing, HeadLimits, HeadProgress, Method, RequestEdits,
    RequestError, RequestHead, ResponseEdits, ResponseError, ResponseHead, leading_empty_lines, proxy_protocol,
    write_request, write_response,
};
use std::net::SocketAddr;

/// A request head parses alike however it is split, and its serialised form parses to an equal head.
pub fn request_head(bytes: &[u8]) {
    let limits = HeadLimits { head_bytes_max: 4096, target_bytes_max: 512, headers_max: 32 };
    let Ok(skip) = leading_empty_lines(bytes) else { return };
    let bytes = &bytes[skip..];
    let (whole, head) = feed_request(bytes, bytes.len().max(1), &limits);
    for step in [1, 2, 7, 64] {
        assert_eq!(feed_request(bytes, step, &limits).0, whole, "split by {step}");
    }
    let Ok(HeadProgress::Complete(len)) = whole else { return };
    assert!(len <= limits.head_bytes_max && bytes[..len].ends_with(b"\r\n\r\n"));
    assert!(!bytes[..len].contains(&0));
    let mut again = Vec::new();
    write_request(&mut again, &bytes[..len], &head, &RequestEdits::default());
    let roomy = HeadLimits { head_bytes_max: limits.head_bytes_max + 16, ..limits };
    if head.method == Method::Connect || head.form == crate::TargetForm::Absolute {
        return;
    }
    if head.version == crate::Version::Http10 && head.fields.get(&bytes[..len], crate::Name::Host).is_none() {
        return;
    }
    let (second, parsed) = feed_request(&again, again.len(), &roomy);
    assert_eq!(second, Ok(HeadProgress::Complete(again.len())));
    assert_eq!((parsed.method, parsed.framing), (head.method, head.framing));
    assert_same_fields(&head.fields, &bytes[..len], &parsed.fields, &again);
}

/// A response head parses alike however it is split, and its serialised form parses to an equal head.
pub fn response_head(bytes: &[u8]) {
    let limits = HeadLimits { head_bytes_max: 4096, target_bytes_max: 0, headers_max: 32 };
    let (whole, head) = feed_response(bytes, bytes.len().max(1), &limits);
    for step in [1, 2, 7, 64] {
        assert_eq!(feed_response(bytes, step, &limits).0, whole, "split by {step}");
    }
    let Ok(HeadProgress::Complete(len)) = whole else { return };
    let mut again = Vec::new();
    write_response(&mut again, &bytes[..len], &head, &ResponseEdits::default(), |_| "");
    if head.version == crate::Version::Http10 || bytes[12] != b' ' {
        return;
    }
    assert_eq!(again, &bytes[..len]);
    let (second, parsed) = feed_response(&again, again.len(), &limits);
    assert_eq!(second, Ok(HeadProgress::Complete(again.len())));
    assert_eq!((parsed.status, parsed.framing), (head.status, head.framing));
    assert_same_fields(&head.fields, &bytes[..len], &parsed.fields, &again);
}

/// A chunked body decodes alike however it is split, and never to more than came.
pub fn chunked_body(bytes: &[u8]) {
    let whole = feed_chunked(bytes, bytes.len().max(1));
    for step in [1, 2, 7, 64] {
        assert_eq!(feed_chunked(bytes, step), whole, "split by {step}");
    }
    if let Ok(body) = whole {
        assert!(body.content.len() <= body.consumed && body.consumed <= bytes.len());
    }
}

/// A PROXY protocol header parses alike however it is split, ends at its stated length, and its addresses survive being
/// written.
pub fn proxy_header(bytes: &[u8]) {
    use proxy_protocol::{ProxyHeader, V2_BYTES_MAX, parse, write_v1, write_v2};
    let whole = parse(bytes);
    let decided = (0..=bytes.len()).find(|&end| parse(&bytes[..end]) != Ok(ProxyHeader::Partial));
    assert_eq!(decided.is_none(), whole == Ok(ProxyHeader::Partial));
    for end in decided.into_iter().flat_map(|first| first..bytes.len()) {
        assert_eq!(parse(&bytes[..end]), whole, "the first {end} bytes");
    }
    let Ok(ProxyHeader::Complete { len, addresses, .. }) = whole else { return };
    assert!(decided == Some(len) && len <= V2_BYTES_MAX);
    let Some((source, destination)) = addresses else { return };
    let canonical = |address: SocketAddr| (address.ip().to_canonical(), address.port());
    for write in [write_v1, write_v2] {
        let mut again = Vec::new();
        write(source, destination, &mut again);
        let Ok(ProxyHeader::Complete { len, addresses: Some((from, to)), .. }) = parse(&again) else {
            panic!("not read back: {again:?}");
        };
        assert_eq!(len, again.len());
        assert_eq!((canonical(from), canonical(to)), (canonical(source), canonical(destination)));
    }
}

fn assert_same_fields(a: &crate::Fields, a_bytes: &[u8], b: &crate::Fields, b_bytes: &[u8]) {
    assert_eq!(a.len(), b.len());
    for (x, y) in a.iter().zip(b.iter()) {
        assert_eq!(x.name.of(a_bytes), y.name.of(b_bytes));
        assert_eq!(x.value.of(a_bytes), y.value.of(b_bytes));
        assert_eq!(x.id, y.id);
    }
}

fn feed_request(bytes: &[u8], step: usize, limits: &HeadLimits) -> (Result<HeadProgress, RequestError>, RequestHead) {
    let mut head = RequestHead::default();
    let mut result = Ok(HeadProgress::Partial);
    let mut end = 0;
    while end < bytes.len() && result == Ok(HeadProgress::Partial) {
        end = (end + step).min(bytes.len());
        result = head.advance(&bytes[..end], limits);
    }
    (result, head)
}

fn feed_response(
    bytes: &[u8],
    step: usize,
    limits: &HeadLimits,
) -> (Result<HeadProgress, ResponseError>, ResponseHead) {
    let mut head = ResponseHead::default();
    let mut result = Ok(HeadProgress::Partial);
    let mut end = 0;
    while end < bytes.len() && result == Ok(HeadProgress::Partial) {
        end = (end + step).min(bytes.len());
        result = head.advance(&bytes[..end], Method::Get, limits);
    }
    (result, head)
}

#[derive(Debug, PartialEq)]
struct ChunkedBody {
    content: Vec<u8>,
    consumed: usize,
    done: bool,
    trailers: Vec<u8>,
}

fn feed_chunked(bytes: &[u8], step: usize) -> Result<ChunkedBody, ChunkError> {
    let mut decoder = BodyDecoder::new(Framing::Chunked);
    let mut content = Vec::new();
    let mut consumed = 0;
    while consumed < bytes.len() && !decoder.is_done() {
        let mut piece = bytes[consumed..(consumed + step).min(bytes.len())].to_vec();
        let got = decoder.decode(&mut piece)?;
        content.extend_from_slice(&piece[..got.data]);
        consumed += got.consumed;
    }
    Ok(ChunkedBody { content, consumed, done: decoder.is_done(), trailers: decoder.trailers().to_vec() })
}

// Checks field blocks of HPACK against a simple decoder of RFC 7541 that keeps every name and value.

/// A name and a value.
type Pair = (Vec<u8>, Vec<u8>);

/// Most bytes of the dynamic table.
const TABLE_BYTES_MAX: usize = 4096;

/// Blocks of one direction, each behind a byte with its length: for each, the walker must report the fields that a
/// decoder finds in it, or that it is invalid, however the blocks are split.
pub fn field_blocks(bytes: &[u8]) {
    let mut blocks = Vec::new();
    let mut rest = bytes;
    while let [length, behind @ ..] = rest {
        let (block, later) = behind.split_at(behind.len().min(usize::from(*length)));
        blocks.push(block);
        rest = later;
    }
    let mut tables = Tables::default();
    let mut expected = Vec::new();
    for block in &blocks {
        let fields = tables.decode(block);
        let is_lost = expected.last().is_some_and(Option::is_none);
        expected.push(fields.filter(|_| !is_lost).map(|fields| expected_block(&fields)));
    }
    for step in [1, 2, 7, usize::MAX] {
        let mut walker = FieldWalker::default();
        for (block, expected) in blocks.iter().zip(&expected) {
            block.chunks(step).for_each(|piece| walker.walk(piece));
            assert_eq!(walker.end(), *expected, "split by {step}");
        }
    }
}

/// The expected report on a block of these fields.
pub fn expected_block(fields: &[Pair]) -> FieldBlockFacts {
    let has = |wanted: &[u8], is: fn(&[u8]) -> bool| fields.iter().any(|(name, value)| name == wanted && is(value));
    FieldBlockFacts {
        size: fields.iter().map(|(name, value)| (name.len() + value.len() + 32) as u32).sum(),
        has_pseudo: fields.iter().any(|(name, _)| name.starts_with(b":")),
        has_request_pseudo: fields.iter().any(|(name, _)| name.starts_with(b":") && name != b":status"),
        has_fragment: has(b":path", |value| value.contains(&b'#')),
        is_interim: has(b":status", |value| value.starts_with(b"1")),
        is_malformed: has(b"te", |value| value != b"trailers") || are_malformed(fields),
    }
}

fn are_malformed(fields: &[Pair]) -> bool {
    const KNOWN: [&[u8]; 6] = [b":authority", b":method", b":path", b":protocol", b":scheme", b":status"];
    const CONNECTION: [&[u8]; 5] =
        [b"connection", b"keep-alive", b"proxy-connection", b"transfer-encoding", b"upgrade"];
    let names = || fields.iter().map(|(name, _)| &name[..]);
    let is_pseudo = |name: &[u8]| name.starts_with(b":");
    names().any(|name| CONNECTION.contains(&name))
        || names().any(|name| is_pseudo(name) && !KNOWN.contains(&name))
        || KNOWN.iter().any(|known| names().filter(|name| name == known).count() > 1)
        || names().skip_while(|name| is_pseudo(name)).any(is_pseudo)
}

/// Both tables, with complete names and values.
#[derive(Debug, Clone)]
struct Tables {
    /// The newest first.
    dynamic: Vec<Pair>,
    size_max: usize,
}

impl Default for Tables {
    fn default() -> Tables {
        Tables { dynamic: Vec::new(), size_max: TABLE_BYTES_MAX }
    }
}

impl Tables {
    fn get(&self, index: usize) -> Option<Pair> {
        let of_static = |(name, value): &(&str, &str)| (name.as_bytes().to_vec(), value.as_bytes().to_vec());
        let at = index.checked_sub(1)?;
        STATIC_TEXT.get(at).map(of_static).or_else(|| self.dynamic.get(at - STATIC_TEXT.len()).cloned())
    }

    /// The index of the first entry for which `is` holds.
    fn position(&self, is: impl Fn(&[u8], &[u8]) -> bool) -> Option<usize> {
        let of_static = STATIC_TEXT.iter().map(|(name, value)| (name.as_bytes(), value.as_bytes()));
        let all = of_static.chain(self.dynamic.iter().map(|(name, value)| (&name[..], &value[..])));
        all.map(|(name, value)| is(name, value)).position(|holds| holds).map(|at| at + 1)
    }

    fn insert(&mut self, field: Pair) {
        self.dynamic.insert(0, field);
        self.evict();
    }

    fn evict(&mut self) {
        let size = |fields: &[Pair]| expected_block(fields).size as usize;
        while size(&self.dynamic) > self.size_max {
            self.dynamic.pop();
        }
    }

    fn decode(&mut self, mut block: &[u8]) -> Option<Vec<Pair>> {
        let mut fields = Vec::new();
        while let Some(first) = block.first() {
            match first {
                0x80.. => fields.push(self.get(integer(&mut block, 7)?)?),
                0x20..0x40 => {
                    self.size_max = Some(integer(&mut block, 5)?).filter(|size| *size <= TABLE_BYTES_MAX)?;
                    self.evict();
                }
                _ => {
                    let is_inserted = first & 0x40 != 0;
                    let name = match integer(&mut block, if is_inserted { 6 } else { 4 })? {
                        0 => text(&mut block)?,
                        index => self.get(index)?.0,
                    };
                    let field = (name, text(&mut block)?);
                    fields.push(field.clone());
                    if is_inserted {
                        self.insert(field);
                    }
                }
            }
        }
        Some(fields)
    }
}

fn integer(block: &mut &[u8], prefix_bits: u32) -> Option<usize> {
    let (first, mut rest) = block.split_first()?;
    let mask = (1 << prefix_bits) - 1;
    let mut value = usize::from(first & mask);
    if value == usize::from(mask) {
        // Four bytes are more than any integer takes here.
        let end = rest.iter().take(4).position(|byte| byte & 0x80 == 0)?;
        for (at, byte) in rest[..=end].iter().enumerate() {
            value += usize::from(byte & 0x7f) << (7 * at);
        }
        rest = &rest[end + 1..];
    }
    *block = rest;
    Some(value)
}

fn text(block: &mut &[u8]) -> Option<Vec<u8>> {
    let is_coded = block.first()? & 0x80 != 0;
    let length = integer(block, 7)?;
    let (coded, rest) = block.split_at_checked(length)?;
    *block = rest;
    if !is_coded {
        return Some(coded.to_vec());
    }
    let (mut decoder, mut text) = (Decoder::default(), Vec::new());
    for byte in coded {
        decoder.push(*byte, |symbol| text.push(symbol)).ok()?;
    }
    decoder.finish(|symbol| text.push(symbol)).ok()?;
    Some(text)
}

/// The form in which a field is written (RFC 7541 section 6).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HpackRepresentation {
    /// As an index, if it is in a table; else inserted.
    Indexed,
    /// With insertion into the dynamic table.
    Inserted,
    /// Without insertion.
    Literal,
    /// Never to be indexed.
    NeverIndexed,
}

/// Writes field blocks in any form; an encoder for tests.
#[derive(Debug, Clone, Default)]
pub struct FieldEncoder {
    tables: Tables,
}

impl FieldEncoder {
    /// Writes a field; if `is_short`, a name that is in a table by its index, and texts in Huffman's code.
    pub fn field(&mut self, out: &mut Vec<u8>, name: &[u8], value: &[u8], form: HpackRepresentation, is_short: bool) {
        let whole = self.tables.position(|n, v| (n, v) == (name, value));
        if let (HpackRepresentation::Indexed, Some(index)) = (form, whole) {
            return push_integer(out, 0x80, 7, index);
        }
        let index = self.tables.position(|n, _| n == name).filter(|_| is_short);
        let (first, bits) = match form {
            HpackRepresentation::Indexed | HpackRepresentation::Inserted => (0x40, 6),
            HpackRepresentation::Literal => (0, 4),
            HpackRepresentation::NeverIndexed => (0x10, 4),
        };
        push_integer(out, first, bits, index.unwrap_or(0));
        if index.is_none() {
            push_text(out, name, is_short);
        }
        push_text(out, value, is_short);
        if first == 0x40 {
            self.tables.insert((name.to_vec(), value.to_vec()));
        }
    }

    /// Changes the size of the dynamic table; only at the beginning of a block.
    pub fn resize(&mut self, out: &mut Vec<u8>, size_max: usize) {
        push_integer(out, 0x20, 5, size_max);
        self.tables.size_max = size_max;
        self.tables.evict();
    }
}

fn push_integer(out: &mut Vec<u8>, first: u8, prefix_bits: u32, value: usize) {
    let mask = (1 << prefix_bits) - 1;
    let Some(mut rest) = value.checked_sub(mask) else { return out.push(first | value as u8) };
    out.push(first | mask as u8);
    while rest >= 0x80 {
        out.push(rest as u8 | 0x80);
        rest >>= 7;
    }
    out.push(rest as u8);
}

fn push_text(out: &mut Vec<u8>, text: &[u8], is_coded: bool) {
    let mut coded = Vec::new();
    if is_coded {
        huffman::encode(&mut coded, text);
    }
    let (first, bytes) = if is_coded { (0x80, &coded[..]) } else { (0, text) };
    push_integer(out, first, 7, bytes.len());
    out.extend_from_slice(bytes);
}
