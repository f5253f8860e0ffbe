//! Invariants of every input, as functions that panic if one is violated.
//!
//! The fuzz targets and the property tests call these, and `cargo test` replays the corpus through them.

mod field_blocks;

pub use field_blocks::{FieldEncoder, FieldForm, field_blocks, held};

use crate::{
    BodyDecoder, ChunkError, Framing, HeadLimits, Method, Progress, RequestEdits, RequestError, RequestHead,
    ResponseEdits, ResponseError, ResponseHead, leading_empty_lines, proxy_protocol, write_request, write_response,
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
    let Ok(Progress::Complete(len)) = whole else { return };
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
    assert_eq!(second, Ok(Progress::Complete(again.len())));
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
    let Ok(Progress::Complete(len)) = whole else { return };
    let mut again = Vec::new();
    write_response(&mut again, &bytes[..len], &head, &ResponseEdits::default(), |_| "");
    if head.version == crate::Version::Http10 || bytes[12] != b' ' {
        return;
    }
    assert_eq!(again, &bytes[..len]);
    let (second, parsed) = feed_response(&again, again.len(), &limits);
    assert_eq!(second, Ok(Progress::Complete(again.len())));
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

fn feed_request(bytes: &[u8], step: usize, limits: &HeadLimits) -> (Result<Progress, RequestError>, RequestHead) {
    let mut head = RequestHead::default();
    let mut result = Ok(Progress::Partial);
    let mut end = 0;
    while end < bytes.len() && result == Ok(Progress::Partial) {
        end = (end + step).min(bytes.len());
        result = head.advance(&bytes[..end], limits);
    }
    (result, head)
}

fn feed_response(bytes: &[u8], step: usize, limits: &HeadLimits) -> (Result<Progress, ResponseError>, ResponseHead) {
    let mut head = ResponseHead::default();
    let mut result = Ok(Progress::Partial);
    let mut end = 0;
    while end < bytes.len() && result == Ok(Progress::Partial) {
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
