//! `request-id`: a header field that identifies a request, for the node and for the client.
//!
//! A client's own id is kept. Ids are made of a worker's random numbers, and are as unpredictable as their format
//! permits.

use crate::random;
use stillgate_plugin_api::{Compile, Define, Flow, Phase, Phases, Plugin, Request, Response};
use stillgate_schema::kind::text;
use stillgate_schema::{Choice, Fault, Flag, Text, int, map, object};
use stillgate_wire::{FieldName, FieldValue, Fields, OwnedFieldName};

object! {
    /// Gives requests an id.
    pub(crate) struct RequestIdKeys {
        /// The header field of the id. A request that has it already keeps its id.
        header_name: String = HEADER => default("X-Request-Id".to_owned());
        /// Whether the client gets the id, too.
        include_in_response: bool = Flag => default(true);
        /// The format of ids: a random UUID (version 4); 21 letters, digits, `_` and `-`; characters of `range_id`; a
        /// KSUID, which sorts by second; a UUID of version 7, which sorts by millisecond.
        algorithm: Algorithm = ALGORITHM => default(Algorithm::Uuid);
        /// The characters of `range_id`.
        range_id: RangeIdKeys = map() => nested;
    }
}

object! {
    /// The characters of `range_id`.
    pub(crate) struct RangeIdKeys {
        /// The characters, ASCII only, at least six of them.
        char_set: String = CHARACTERS => default(CHARACTERS_DEFAULT.to_owned());
        /// Length of an id.
        length: usize = int(6, ID_BYTES_MAX as i64) => default(16);
    }
}

/// Longest id.
const ID_BYTES_MAX: usize = 1024;

/// APISIX's default, which lacks `z` and has `G` twice.
const CHARACTERS_DEFAULT: &str = "abcdefghijklmnopqrstuvwxyzABCDEFGHIGKLMNOPQRSTUVWXYZ0123456789";

/// How ids are generated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Algorithm {
    Uuid,
    Nanoid,
    RangeId,
    Ksuid,
    UuidV7,
}

const ALGORITHM: Choice<Algorithm> = Choice {
    words: &[
        ("uuid", Algorithm::Uuid),
        ("nanoid", Algorithm::Nanoid),
        ("range_id", Algorithm::RangeId),
        ("ksuid", Algorithm::Ksuid),
        ("uuidv7", Algorithm::UuidV7),
    ],
    unbuilt: &[],
};

const HEADER: Text<String> = text("the name of a header field", |text| match FieldName::new(text.as_bytes()) {
    Ok(_) => Ok(text.to_owned()),
    Err(error) => Err(Fault::new(format!("{text:?}: {error}"))),
})
.shown();

const CHARACTERS: Text<String> =
    text("a set of characters", |text| match text.len() >= 6 && text.bytes().all(|byte| byte.is_ascii_graphic()) {
        true => Ok(text.to_owned()),
        false => Err(Fault::new(format!("{text:?} cannot make ids"))
            .hint("write at least six printable ASCII characters without blanks")),
    })
    .shown();

/// The plugin.
pub(crate) struct RequestId {
    name: OwnedFieldName,
    is_shown: bool,
    algorithm: Algorithm,
    characters: Box<[u8]>,
    length: usize,
}

impl Define for RequestId {
    type Keys = RequestIdKeys;
    const NAME: &'static str = "request-id";
    const PRIORITY: i32 = 12015;
    const PHASES: Phases = Phases::of(&[Phase::Rewrite, Phase::HeaderFilter]);

    fn compile(keys: RequestIdKeys, _: &mut Compile<'_>) -> Option<RequestId> {
        Some(RequestId {
            name: OwnedFieldName::new(keys.header_name.as_bytes()).ok()?,
            is_shown: keys.include_in_response,
            algorithm: keys.algorithm,
            characters: keys.range_id.char_set.into_bytes().into(),
            length: keys.range_id.length,
        })
    }
}

impl Plugin for RequestId {
    fn each_field_read(&self, visit: &mut dyn FnMut(&str, &[u8])) {
        visit("header_name", self.name.name().bytes());
    }

    fn rewrite(&self, request: &mut Request<'_>) -> Flow {
        let worker = request.worker;
        worker.with_buffers(|id, buffer| {
            match request.header(self.name.name(), buffer).filter(|value| !value.is_empty()) {
                Some(own) => id.extend_from_slice(own),
                None => {
                    self.write(worker.now_ms(), id);
                    request.set_header(self.name.name(), FieldValue::new(id).expect("ids are printable"));
                }
            }
            // Also if the client's own id is kept: a node must not read another one.
            let (facts, name) = (request.facts, self.name.name());
            request.edits.fields.remove_lookalikes(&facts.request.fields, facts.head, name);
            request.settled.request_id.clear();
            request.settled.request_id.extend_from_slice(id);
            if self.is_shown {
                // A global rule may have set an id before.
                request.response.set(&Fields::default(), &[], self.name.name(), FieldValue::of_head(id));
            }
        });
        Flow::Continue
    }

    /// A node's own id takes precedence over ours, which has replaced it in the head.
    fn header_filter(&self, response: &mut Response<'_>) {
        if !self.is_shown {
            return;
        }
        let (fields, head) = (response.fields, response.head);
        let name = self.name.name();
        let own = fields.iter().filter(|field| field.name.of(head).eq_ignore_ascii_case(name.bytes()));
        let mut own = own.map(|field| field.value.of(head)).filter(|value| !value.is_empty()).peekable();
        if own.peek().is_some() {
            response.remove_header(name);
            own.for_each(|value| response.add_header(name, FieldValue::of_head(value)));
        }
    }
}

impl RequestId {
    fn write(&self, now_ms: u64, id: &mut Vec<u8>) {
        match self.algorithm {
            Algorithm::Uuid => write_uuid(uuid(random::bytes(), 4), id),
            Algorithm::UuidV7 => write_uuid(uuid(with_time(now_ms, random::bytes()), 7), id),
            // 64 characters: six bits of each byte, without bias.
            Algorithm::Nanoid => id.extend(random::bytes::<21>().map(|byte| NANOID[usize::from(byte & 63)])),
            Algorithm::Ksuid => write_ksuid(now_ms / 1000, random::bytes(), id),
            Algorithm::RangeId => {
                let count = self.characters.len() as u64;
                id.extend((0..self.length).map(|_| self.characters[random::below(count) as usize]));
            }
        }
    }
}

/// The alphabet of nanoid.
const NANOID: &[u8; 64] = b"_-0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";

/// Sets version and variant (RFC 9562 section 4).
fn uuid(mut bytes: [u8; 16], version: u8) -> [u8; 16] {
    bytes[6] = bytes[6] & 0x0f | version << 4;
    bytes[8] = bytes[8] & 0x3f | 0x80;
    bytes
}

/// Milliseconds in the first 48 bits (RFC 9562 section 5.7).
fn with_time(now_ms: u64, mut bytes: [u8; 16]) -> [u8; 16] {
    bytes[..6].copy_from_slice(&now_ms.to_be_bytes()[2..]);
    bytes
}

/// A random UUID (version 4).
pub(crate) fn random_uuid() -> String {
    let mut id = Vec::new();
    write_uuid(uuid(random::bytes(), 4), &mut id);
    String::from_utf8_lossy(&id).into_owned()
}

fn write_uuid(bytes: [u8; 16], id: &mut Vec<u8>) {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    for (at, byte) in bytes.into_iter().enumerate() {
        if matches!(at, 4 | 6 | 8 | 10) {
            id.push(b'-');
        }
        id.extend([DIGITS[usize::from(byte >> 4)], DIGITS[usize::from(byte & 15)]]);
    }
}

/// 32 bits of seconds since May 2014 and 128 random bits, in base 62 with 27 digits.
fn write_ksuid(now_s: u64, payload: [u8; 16], id: &mut Vec<u8>) {
    const EPOCH_S: u64 = 1_400_000_000;
    const DIGITS: &[u8; 62] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
    let seconds = now_s.saturating_sub(EPOCH_S) as u32;
    let word = |at: usize| u32::from_be_bytes([payload[at], payload[at + 1], payload[at + 2], payload[at + 3]]);
    let mut number = [seconds, word(0), word(4), word(8), word(12)];
    let mut digits = [0; 27];
    for digit in digits.iter_mut().rev() {
        let mut rest = 0;
        for word in &mut number {
            let value = rest << 32 | u64::from(*word);
            *word = (value / 62) as u32;
            rest = value % 62;
        }
        *digit = DIGITS[rest as usize];
    }
    id.extend_from_slice(&digits);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(write: impl FnOnce(&mut Vec<u8>)) -> String {
        let mut id = Vec::new();
        write(&mut id);
        String::from_utf8(id).unwrap()
    }

    #[test]
    fn ids_are_those_of_their_specifications() {
        // The example of the KSUID specification, and its bounds.
        let payload = |text: &str| {
            let digits = |at: usize| u8::from_str_radix(&text[2 * at..2 * at + 2], 16).unwrap();
            std::array::from_fn(digits)
        };
        let ksuid = |seconds: u64, text_of: &str| text(|id| write_ksuid(seconds, payload(text_of), id));
        let example = ksuid(1_400_000_000 + 107_608_047, "b5a1cd34b5f99d1154fb6853345c9735");
        assert_eq!(example, "0ujtsYcgvSTl8PAuAdqWYSMnLOv");
        assert_eq!(ksuid(1_400_000_000, "00000000000000000000000000000000"), "0".repeat(27));
        let last = ksuid(1_400_000_000 + u64::from(u32::MAX), "ffffffffffffffffffffffffffffffff");
        assert_eq!(last, "aWgEPTl1tmebfsQzFP4bxwgy80V");
        // RFC 9562, appendices A.3 and A.6.
        let v4 = payload("919108f752d133205bacf847db4148a8");
        assert_eq!(text(|id| write_uuid(uuid(v4, 4), id)), "919108f7-52d1-4320-9bac-f847db4148a8");
        let v7 = with_time(0x017f_22e2_79b0, payload("0000000000000cc318c4dc0c0c07398f"));
        assert_eq!(text(|id| write_uuid(uuid(v7, 7), id)), "017f22e2-79b0-7cc3-98c4-dc0c0c07398f");
    }
}
