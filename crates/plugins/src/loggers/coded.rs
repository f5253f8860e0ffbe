//! Coded bodies of responses: an entry has them as text, as in APISIX.
//!
//! A worker only appends the coded bytes to the entry; the sending thread decodes them, up to the limit for bodies in
//! entries. A body that cannot be decoded is logged as it was sent.
//!
//! ```text
//!  entry as the encoder knows it, "" in place of the body | coded bytes | how many | where "" is | bytes_max | coding | 0
//! ```
//!
//! Any other entry ends in a letter, a brace or a line end, so the last byte shows which entries have a coded body.

use crate::decoding::BodyCoding;
use flate2::read::{DeflateDecoder, MultiGzDecoder, ZlibDecoder};
use std::borrow::Cow;
use std::cell::Cell;
use std::io::Read;
use stillgate_plugin_api::Response;
use stillgate_plugin_api::outbox::{Encode, Entries};
use stillgate_plugin_api::record::written::push_json_string;
use stillgate_wire::FieldName;

const CONTENT_ENCODING: FieldName<'static> = FieldName::constant("Content-Encoding");

/// Codings, as numbers in an entry.
const GZIP: u8 = 1;
const DEFLATE: u8 = 2;
const BROTLI: u8 = 3;
/// The last byte of an entry with a coded body.
const MARK: u8 = 0;
/// Bytes of the footer after the coded bytes.
const FOOTER_BYTES: usize = 3 * size_of::<u32>() + 2;
/// The placeholder for the body.
const EMPTY: &[u8] = b"\"\"";

/// A body that is decoded later.
pub(super) struct CodedBody<'a> {
    bytes: &'a [u8],
    bytes_max: usize,
    coding: u8,
    /// The position of its placeholder in the buffer, once that is known.
    place: Cell<Option<usize>>,
}

impl<'a> CodedBody<'a> {
    /// The body of a response whose coding can be decoded.
    pub(super) fn of(response: &Response<'_>, bytes: &'a [u8], bytes_max: usize) -> Option<CodedBody<'a>> {
        let mut buffer = Vec::new();
        let coding = match BodyCoding::of(response.sent_header(CONTENT_ENCODING, &mut buffer)) {
            BodyCoding::Gzip => GZIP,
            BodyCoding::Deflate => DEFLATE,
            BodyCoding::Brotli => BROTLI,
            BodyCoding::Identity | BodyCoding::Unknown => return None,
        };
        Some(CodedBody { bytes, bytes_max, coding, place: Cell::new(None) })
    }

    /// Writes the placeholder of the body, for the first caller.
    pub(super) fn leave(&self, out: &mut Vec<u8>) -> bool {
        if self.place.get().is_some() {
            return false;
        }
        self.place.set(Some(out.len()));
        out.extend_from_slice(EMPTY);
        true
    }

    /// Appends the coded bytes to the entry that begins at `start`.
    pub(super) fn append(&self, start: usize, out: &mut Vec<u8>) {
        let Some(place) = self.place.get() else { return };
        out.extend_from_slice(self.bytes);
        // An entry is far below 4 GiB.
        for number in [self.bytes.len(), place - start, self.bytes_max] {
            out.extend_from_slice(&(number as u32).to_le_bytes());
        }
        out.extend([self.coding, MARK]);
    }
}

/// Decodes bodies when entries arrive at the sending thread, so that their decoded size is counted.
pub(super) struct BodyDecoding<E>(pub(super) E);

impl<E: Encode> Encode for BodyDecoding<E> {
    fn unpack<'e>(&self, entry: &'e [u8]) -> Cow<'e, [u8]> {
        match entry.last() {
            Some(&MARK) => whole(entry).map_or(Cow::Borrowed(entry), Cow::Owned),
            _ => Cow::Borrowed(entry),
        }
    }

    fn sent_bytes(&self, entry: &[u8]) -> usize {
        self.0.sent_bytes(entry)
    }

    fn encode(&self, entries: &Entries, out: &mut Vec<u8>) {
        self.0.encode(entries, out);
    }
}

/// An entry with its decoded body; `None`: it has no coded one.
fn whole(entry: &[u8]) -> Option<Vec<u8>> {
    let (rest, footer) = entry.split_at_checked(entry.len().checked_sub(FOOTER_BYTES)?)?;
    let [numbers @ .., coding, MARK] = footer else { return None };
    let number = |at: usize| -> Option<usize> {
        let bytes = numbers.get(4 * at..4 * at + 4)?;
        Some(u32::from_le_bytes(bytes.try_into().ok()?) as usize)
    };
    let (entry, coded) = rest.split_at_checked(rest.len().checked_sub(number(0)?)?)?;
    let (before, after) = entry.split_at_checked(number(1)?)?;
    let bytes_max = number(2)?;
    let body = decode(*coding, coded, bytes_max);
    let mut out = Vec::with_capacity(entry.len() + body.as_ref().map_or(coded.len(), Vec::len));
    out.extend_from_slice(before);
    push_json_string(body.as_deref().unwrap_or(coded), usize::MAX, &mut out);
    out.extend_from_slice(after.strip_prefix(EMPTY)?);
    Some(out)
}

/// Decodes the beginning of a body. A truncated one yields a truncated text; `None`: nothing could be decoded.
fn decode(coding: u8, coded: &[u8], bytes_max: usize) -> Option<Vec<u8>> {
    let read = |reader: &mut dyn Read| {
        let mut out = Vec::new();
        // The output before an error counts.
        let _ = reader.take(bytes_max as u64).read_to_end(&mut out);
        (!out.is_empty()).then_some(out)
    };
    match coding {
        GZIP => read(&mut MultiGzDecoder::new(coded)),
        // With the zlib frame of the standard, or without.
        DEFLATE => read(&mut ZlibDecoder::new(coded)).or_else(|| read(&mut DeflateDecoder::new(coded))),
        BROTLI => read(&mut brotli_decompressor::Decompressor::new(coded, BUFFER_BYTES)),
        _ => None,
    }
}

/// Buffer size of a decoder.
const BUFFER_BYTES: usize = 4096;

#[cfg(test)]
mod tests {
    use super::*;
    use flate2::Compression;
    use flate2::write::{DeflateEncoder, GzEncoder, ZlibEncoder};
    use std::io::Write;

    struct Concatenation;

    impl Encode for Concatenation {
        fn encode(&self, entries: &Entries, out: &mut Vec<u8>) {
            entries.iter().for_each(|entry| out.extend_from_slice(entry));
        }
    }

    fn sent(coding: u8, bytes: &[u8], bytes_max: usize) -> String {
        let mut out = b"earlier".to_vec();
        let start = out.len();
        let coded = CodedBody { bytes, bytes_max, coding, place: Cell::new(None) };
        out.extend_from_slice(b"{\"body\":");
        assert!(coded.leave(&mut out) && !coded.leave(&mut out));
        out.extend_from_slice(b",\"a\":1}\n");
        coded.append(start, &mut out);
        let mut entries = Entries::default();
        let encode = BodyDecoding(Concatenation);
        entries.push(&encode.unpack(b"{}\n"));
        entries.push(&encode.unpack(&out[start..]));
        let mut sent = Vec::new();
        encode.encode(&entries, &mut sent);
        String::from_utf8(sent).unwrap().strip_prefix("{}\n").unwrap().to_owned()
    }

    #[test]
    fn bodies_are_decoded_up_to_their_bound() {
        let text = "hello \"world\" ".repeat(1000);
        let mut gzip = GzEncoder::new(Vec::new(), Compression::fast());
        gzip.write_all(text.as_bytes()).unwrap();
        let mut zlib = ZlibEncoder::new(Vec::new(), Compression::fast());
        zlib.write_all(text.as_bytes()).unwrap();
        let mut raw = DeflateEncoder::new(Vec::new(), Compression::fast());
        raw.write_all(text.as_bytes()).unwrap();
        let expected = |bytes: usize| {
            format!("{{\"body\":{},\"a\":1}}\n", serde_json::Value::from(&text[..bytes.min(text.len())]))
        };
        let gzip = gzip.finish().unwrap();
        assert_eq!(sent(GZIP, &gzip, 1 << 20), expected(1 << 20));
        assert_eq!(sent(GZIP, &gzip, 100), expected(100), "a small body may become a large one");
        assert_eq!(sent(DEFLATE, &zlib.finish().unwrap(), 1 << 20), expected(1 << 20));
        assert_eq!(sent(DEFLATE, &raw.finish().unwrap(), 1 << 20), expected(1 << 20));
        let cut = sent(GZIP, &gzip[..gzip.len() - 10], 1 << 20);
        assert!(cut.starts_with("{\"body\":\"hello \\\"world\\\" hello"), "{cut}");
        assert_eq!(sent(GZIP, b"no gzip", 100), "{\"body\":\"no gzip\",\"a\":1}\n");
        assert_eq!(sent(BROTLI, b"", 100), "{\"body\":\"\",\"a\":1}\n");
    }
}
