//! Operations that functions call in the gateway, each a few lines between bytes and [`Host`].

use crate::bridge::{Buffers, OperationResult};
use crate::host::{HeaderChange, Host, MessageSide, NginxLevel};
use crate::pattern;
use crate::regexes::MatchDetail;
use crate::shared::{self, SharedValue, WriteCondition};
use aws_lc_rs::signature::ParsedPublicKey;
use aws_lc_rs::{digest, hmac};
use base64::engine::DecodePaddingMode;
use base64::engine::general_purpose::{GeneralPurpose, GeneralPurposeConfig, STANDARD, STANDARD_NO_PAD};
use base64::{Engine, alphabet};
use md5::{Digest, Md5};
use std::time::Duration;
use stillgate_jws::{ALGORITHMS, Algorithm, public_key};

/// Longest log message; nginx's limit.
const MESSAGE_BYTES_MAX: usize = 2048;
/// Most header lines that are returned at once.
const LINES_MAX: usize = 1000;

/// The operations, with their names in the prelude.
macro_rules! operations {
    ($($variant:ident $name:literal,)*) => {
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub(crate) enum Operation {
            $($variant,)*
        }

        impl Operation {
            pub(crate) const ALL: &[Operation] = &[$(Operation::$variant,)*];
            pub(crate) const NAMES: &[&str] = &[$($name,)*];
        }
    };
}

operations! {
    Phase "phase",
    Variable "variable",
    SetVariable "set_variable",
    RequestField "request_field",
    ResponseField "response_field",
    RequestFields "request_fields",
    ResponseFields "response_fields",
    SetRequestField "set_request_field",
    AddRequestField "add_request_field",
    RemoveRequestField "remove_request_field",
    SetResponseField "set_response_field",
    AddResponseField "add_response_field",
    RemoveResponseField "remove_response_field",
    Status "status",
    SetStatus "set_status",
    SetMethod "set_method",
    Target "target",
    SetTarget "set_target",
    Body "body",
    SetBody "set_body",
    Piece "piece",
    IsLastPiece "is_last_piece",
    SetPiece "set_piece",
    EndBody "end_body",
    RewrittenPath "rewritten_path",
    StartTimer "start_timer",
    CanWait "can_wait",
    CanAnswer "can_answer",
    IsLogged "is_logged",
    Log "log",
    Now "now",
    MatchedPath "matched_path",
    MetadataVersion "metadata_version",
    EncodeBase64 "encode_base64",
    DecodeBase64 "decode_base64",
    EncodeBase64Url "encode_base64url",
    DecodeBase64Url "decode_base64url",
    Escape "escape",
    Unescape "unescape",
    DecodePath "decode_path",
    Md5Sum "md5",
    Md5Bin "md5_bin",
    Sha1Bin "sha1_bin",
    Sha256Bin "sha256_bin",
    HmacSha1 "hmac_sha1",
    HmacSha256 "hmac_sha256",
    Crc32 "crc32",
    JwsSign "jws_sign",
    JwsVerify "jws_verify",
    Find "find",
    Regex "regex",
    RegexWhole "regex_whole",
    RegexNames "regex_names",
    SharedGet "shared_get",
    SharedSet "shared_set",
    SharedAdd "shared_add",
    SharedReplace "shared_replace",
    SharedIncrease "shared_increase",
    SharedTtl "shared_ttl",
    SharedExpire "shared_expire",
    SharedDelete "shared_delete",
    SharedClear "shared_clear",
}

/// Base64 whose padding is optional.
const LENIENT: GeneralPurposeConfig =
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent);
const ANY_STANDARD: GeneralPurpose = GeneralPurpose::new(&alphabet::STANDARD, LENIENT);
const ANY_URL: GeneralPurpose = GeneralPurpose::new(&alphabet::URL_SAFE, LENIENT.with_encode_padding(false));

/// Performs an operation; texts are left in the buffers.
#[expect(clippy::too_many_lines, reason = "a table")]
pub(crate) fn perform(
    operation: Operation,
    host: &mut dyn Host,
    (a, b, number): (&[u8], &[u8], f64),
    buffers: &mut Buffers,
) -> OperationResult {
    use Operation as O;
    let out = &mut buffers.out;
    match operation {
        O::Phase => text(out, host.phase().as_bytes()),
        O::Variable => match host.variable(&String::from_utf8_lossy(a), out) {
            Ok(true) => OperationResult::Text,
            Ok(false) => OperationResult::Nil,
            Err(why) => error(out, &why),
        },
        O::SetVariable => match host.set_variable(&String::from_utf8_lossy(a), b) {
            Ok(true) => OperationResult::True,
            Ok(false) => OperationResult::Nil,
            Err(why) => error(out, &why),
        },
        O::RequestField => field(host, MessageSide::Request, a, out),
        O::ResponseField => field(host, MessageSide::Response, a, out),
        O::RequestFields => fields(host, MessageSide::Request, out),
        O::ResponseFields => fields(host, MessageSide::Response, out),
        O::SetRequestField => nil_or_error(host.change_field(MessageSide::Request, a, HeaderChange::Set(b)), out),
        O::AddRequestField => nil_or_error(host.change_field(MessageSide::Request, a, HeaderChange::Add(b)), out),
        O::RemoveRequestField => nil_or_error(host.change_field(MessageSide::Request, a, HeaderChange::Remove), out),
        O::SetResponseField => nil_or_error(host.change_field(MessageSide::Response, a, HeaderChange::Set(b)), out),
        O::AddResponseField => nil_or_error(host.change_field(MessageSide::Response, a, HeaderChange::Add(b)), out),
        O::RemoveResponseField => nil_or_error(host.change_field(MessageSide::Response, a, HeaderChange::Remove), out),
        O::Status => match (host.status(), host.no_request_reason()) {
            (Some(status), _) => OperationResult::Number(status.into()),
            (None, Some(why)) => error(out, why),
            (None, None) => OperationResult::Nil,
        },
        O::SetStatus => match (200..=599).contains(&(number as i64)) {
            true => nil_or_error(host.set_status(number as u16), out),
            false => error(out, "a status must be from 200 to 599"),
        },
        O::SetMethod => nil_or_error(host.set_method(a), out),
        O::Target => match host.no_request_reason() {
            None => text(out, host.target()),
            Some(why) => error(out, why),
        },
        O::RewrittenPath => text_or_nil(host.rewritten_path(out)),
        O::SetTarget => nil_or_error(host.set_target(a), out),
        O::Body => match host.body() {
            Ok(Some(body)) => text(out, body),
            Ok(None) => OperationResult::Nil,
            Err(why) => error(out, &why),
        },
        O::SetBody => nil_or_error(host.set_body(a), out),
        O::Piece => match host.piece() {
            Some((piece, _)) => text(out, piece),
            None => error(out, "ngx.arg exists in the phase body_filter only"),
        },
        O::IsLastPiece => truth(host.piece().is_some_and(|(_, is_last)| is_last)),
        O::SetPiece => nil_or_error(host.set_piece(a), out),
        O::EndBody => nil_or_error(host.end_body(), out),
        O::StartTimer => match host.start_timer(Duration::try_from_secs_f64(number).unwrap_or(Duration::MAX)) {
            Ok(Some(timer)) => OperationResult::Number(timer as f64),
            Ok(None) => OperationResult::Nil,
            Err(why) => error(out, &why),
        },
        O::CanWait => truth(host.can_wait()),
        O::CanAnswer => truth(host.can_answer()),
        O::IsLogged => truth(host.is_logged(level(number))),
        O::Log => {
            let message = String::from_utf8_lossy(&a[..a.len().min(MESSAGE_BYTES_MAX)]);
            host.log(level(number), &message);
            OperationResult::Nil
        }
        O::Now => OperationResult::Number(host.now_ms() as f64 / 1000.0),
        O::MatchedPath => host.matched_path().map_or(OperationResult::Nil, |path| text(out, path.as_bytes())),
        O::MetadataVersion => match host.metadata(&String::from_utf8_lossy(a)) {
            Ok(found) => found.map_or(OperationResult::Nil, |(version, _)| OperationResult::Number(version as f64)),
            Err(why) => error(out, &why),
        },
        O::EncodeBase64 => encoded(if number == 0.0 { &STANDARD } else { &STANDARD_NO_PAD }, a, out),
        O::EncodeBase64Url => encoded(&ANY_URL, a, out),
        O::DecodeBase64 => decoded(&ANY_STANDARD, a, out),
        O::DecodeBase64Url => decoded(&ANY_URL, a, out),
        O::Escape => {
            escape(a, number == 0.0, out);
            OperationResult::Text
        }
        O::Unescape => {
            unescape(a, true, out);
            OperationResult::Text
        }
        O::DecodePath => {
            let start = out.len();
            unescape(a, false, out);
            if number == 0.0 {
                let path = resolved(&out[start..]);
                out.truncate(start);
                out.extend(path);
            }
            OperationResult::Text
        }
        O::Md5Sum => {
            out.extend(Md5::digest(a).iter().flat_map(|byte| [hex(byte >> 4), hex(byte & 15)]));
            OperationResult::Text
        }
        O::Md5Bin => text(out, &Md5::digest(a)),
        O::Sha1Bin => text(out, digest::digest(&digest::SHA1_FOR_LEGACY_USE_ONLY, a).as_ref()),
        O::Sha256Bin => text(out, digest::digest(&digest::SHA256, a).as_ref()),
        O::HmacSha1 => signed(hmac::HMAC_SHA1_FOR_LEGACY_USE_ONLY, a, b, out),
        O::HmacSha256 => signed(hmac::HMAC_SHA256, a, b, out),
        O::Crc32 => OperationResult::Number(crc32fast::hash(a).into()),
        O::JwsSign => match sign(number, a, b) {
            Ok(signature) => text(out, &signature),
            Err(why) => error(out, why),
        },
        O::JwsVerify => match buffers.keys.verify(number, a, b) {
            Ok(true) => OperationResult::True,
            Ok(false) => OperationResult::False,
            Err(why) => error(out, why),
        },
        O::Find => find(a, b, number, buffers),
        O::Regex => regex(a, b, (number, MatchDetail::Groups), buffers),
        O::RegexWhole => regex(a, b, (number, MatchDetail::Whole), buffers),
        O::RegexNames => match buffers.regexes.names(a, number as u32, out) {
            Ok(()) => OperationResult::Text,
            Err(why) => error(out, &why),
        },
        _ => dictionary(operation, (a, b, number), host.now_ms(), buffers),
    }
}

/// The appended text, if the value exists.
fn text_or_nil(is_there: bool) -> OperationResult {
    if is_there { OperationResult::Text } else { OperationResult::Nil }
}

fn text(out: &mut Vec<u8>, bytes: &[u8]) -> OperationResult {
    out.extend_from_slice(bytes);
    OperationResult::Text
}

#[cold]
fn error(out: &mut Vec<u8>, why: &str) -> OperationResult {
    out.clear();
    out.extend_from_slice(why.as_bytes());
    OperationResult::Error
}

fn nil_or_error(result: Result<(), String>, out: &mut Vec<u8>) -> OperationResult {
    match result {
        Ok(()) => OperationResult::Nil,
        Err(why) => error(out, &why),
    }
}

fn truth(holds: bool) -> OperationResult {
    if holds { OperationResult::True } else { OperationResult::Nil }
}

/// The level with nginx's number.
fn level(number: f64) -> NginxLevel {
    match number as i64 {
        ..=4 => NginxLevel::Error,
        5 => NginxLevel::Warn,
        6 => NginxLevel::Notice,
        7 => NginxLevel::Info,
        _ => NginxLevel::Debug,
    }
}

/// The values of a field, each followed by a zero byte, which no value contains.
fn field(host: &dyn Host, side: MessageSide, name: &[u8], out: &mut Vec<u8>) -> OperationResult {
    if let Some(why) = host.no_request_reason() {
        return error(out, why);
    }
    host.field(side, name, &mut |value| {
        out.extend_from_slice(value);
        out.push(0);
    });
    if out.is_empty() { OperationResult::Nil } else { OperationResult::Text }
}

/// Names and values, each followed by a zero byte.
fn fields(host: &dyn Host, side: MessageSide, out: &mut Vec<u8>) -> OperationResult {
    if let Some(why) = host.no_request_reason() {
        return error(out, why);
    }
    let mut lines = 0;
    host.each_field(side, &mut |name, value| {
        lines += 1;
        if lines <= LINES_MAX {
            for part in [name, value] {
                out.extend_from_slice(part);
                out.push(0);
            }
        }
    });
    OperationResult::Text
}

fn encoded(engine: &GeneralPurpose, bytes: &[u8], out: &mut Vec<u8>) -> OperationResult {
    out.extend_from_slice(engine.encode(bytes).as_bytes());
    OperationResult::Text
}

fn decoded(engine: &GeneralPurpose, text: &[u8], out: &mut Vec<u8>) -> OperationResult {
    match engine.decode_vec(text, out) {
        Ok(()) => OperationResult::Text,
        Err(_) => OperationResult::Nil,
    }
}

fn signed(algorithm: hmac::Algorithm, key: &[u8], message: &[u8], out: &mut Vec<u8>) -> OperationResult {
    text(out, hmac::sign(&hmac::Key::new(algorithm, key), message).as_ref())
}

fn hex(digit: u8) -> u8 {
    char::from_digit(digit.into(), 16).map_or(b'0', |digit| digit as u8)
}

/// `ngx.escape_uri`, as in nginx: of a component, everything but unreserved characters and `!'()*`; with `whole` false,
/// of a path, blanks, control characters, `#`, `%`, `?` and non-ASCII bytes.
fn escape(text: &[u8], whole: bool, out: &mut Vec<u8>) {
    for byte in text {
        let stays = match whole {
            true => byte.is_ascii_alphanumeric() || b"-._~!'()*".contains(byte),
            false => byte.is_ascii_graphic() && !b"#%?".contains(byte),
        };
        match stays {
            true => out.push(*byte),
            false => {
                out.push(b'%');
                out.extend([byte >> 4, byte & 15].map(|digit| hex(digit).to_ascii_uppercase()));
            }
        }
    }
}

/// A decoded path with merged slashes and without dot segments: an encoded slash or dot counts like a plain one, as in nginx.
fn resolved(path: &[u8]) -> Vec<u8> {
    let (mut out, mut ends_open) = (Vec::with_capacity(path.len()), true);
    for segment in path.split(|byte| *byte == b'/') {
        ends_open = matches!(segment, b"" | b"." | b"..");
        match segment {
            b"" | b"." => {}
            b".." => out.truncate(memchr::memrchr(b'/', &out).unwrap_or(0)),
            name => {
                out.push(b'/');
                out.extend_from_slice(name);
            }
        }
    }
    if ends_open {
        out.push(b'/');
    }
    out
}

/// `ngx.unescape_uri`: with `is_form`, `+` is a blank. Invalid escapes are kept.
fn unescape(text: &[u8], is_form: bool, out: &mut Vec<u8>) {
    let digit = |byte: &u8| char::from(*byte).to_digit(16);
    let mut rest = text;
    while let Some((first, behind)) = rest.split_first() {
        rest = behind;
        match (first, behind) {
            (b'+', _) if is_form => out.push(b' '),
            (b'%', [high, low, behind @ ..]) => match (digit(high), digit(low)) {
                (Some(high), Some(low)) => {
                    out.push((high * 16 + low) as u8);
                    rest = behind;
                }
                _ => out.push(b'%'),
            },
            (plain, _) => out.push(*plain),
        }
    }
}

/// `number`: twice the start position, plus one if the pattern is a plain text.
fn find(subject: &[u8], pattern: &[u8], number: f64, buffers: &mut Buffers) -> OperationResult {
    let packed = number as usize;
    let (from, is_plain) = (packed / 2, packed % 2 == 1);
    if from > subject.len() {
        return OperationResult::Nil;
    }
    let Buffers { out, positions, spans, .. } = buffers;
    if is_plain || pattern::is_plain(pattern) {
        let Some(at) = memchr::memmem::find(&subject[from..], pattern) else { return OperationResult::Nil };
        spans.clear();
        spans.push((from + at, Some(from + at + pattern.len())));
    } else {
        match pattern::find(subject, pattern, from, spans) {
            Ok(true) => {}
            Ok(false) => return OperationResult::Nil,
            Err(fault) => return error(out, fault.0),
        }
    }
    positions.clear();
    positions.extend(spans.iter().flat_map(|span| pair(Some(*span))));
    OperationResult::Spans
}

/// `number`: 64 times the start position, plus the options.
fn regex(
    subject: &[u8],
    pattern: &[u8],
    (number, wanted): (f64, MatchDetail),
    buffers: &mut Buffers,
) -> OperationResult {
    let packed = number as usize;
    let Buffers { out, positions, groups, regexes, .. } = buffers;
    match regexes.find(subject, pattern, ((packed % 64) as u32, wanted), packed / 64, groups) {
        Ok(true) => {
            positions.clear();
            positions.extend(groups.iter().flat_map(|group| pair(*group)));
            OperationResult::Spans
        }
        Ok(false) => OperationResult::Nil,
        Err(why) => error(out, &why),
    }
}

/// In Lua's counting: the first byte and the last; a position has -2 as its end, and a group without a match is -1.
fn pair(span: Option<pattern::Span>) -> [i32; 2] {
    let place = |at: usize| i32::try_from(at).unwrap_or(i32::MAX);
    match span {
        None => [-1, -1],
        Some((from, None)) => [place(from + 1), -2],
        Some((from, Some(to))) => [place(from + 1), place(to)],
    }
}

/// `a` is the dictionary's name, a zero byte and the key; `b` a value after a letter for its type; `number` seconds, or
/// zero.
fn dictionary(
    operation: Operation,
    (a, b, number): (&[u8], &[u8], f64),
    now_ms: u64,
    Buffers { out, flags, .. }: &mut Buffers,
) -> OperationResult {
    use Operation as O;
    let end = memchr::memchr(0, a).unwrap_or(a.len());
    let (name, key) = (&a[..end], a.get(end + 1..).unwrap_or_default());
    let ends_ms = |seconds: f64| (seconds > 0.0).then(|| now_ms.saturating_add((seconds * 1000.0) as u64));
    let write = |write: WriteCondition| match value(b) {
        Some(value) => shared::set(name, key, value, ends_ms(number), write, now_ms),
        None => Err("bad value type"),
    };
    let result = match operation {
        O::SharedSet => write(WriteCondition::Always),
        O::SharedAdd => write(WriteCondition::IfAbsent),
        O::SharedReplace => write(WriteCondition::IfPresent),
        O::SharedIncrease => {
            // `BY START`, or `BY`
            let mut parts = b.split(|byte| *byte == b' ').map(|part| {
                std::str::from_utf8(part).ok().and_then(|text| text.parse::<f64>().ok()).unwrap_or_default()
            });
            let by = parts.next().unwrap_or_default();
            let start = parts.next().map(|start| (start, ends_ms(number)));
            match shared::increase(name, key, by, start, now_ms) {
                Ok(number) => return OperationResult::Number(number),
                Err(why) => Err(why),
            }
        }
        O::SharedExpire => return truth(shared::expire(name, key, ends_ms(number), now_ms)),
        O::SharedTtl => {
            let left = shared::get(name, key, now_ms).map(|found| found.left_ms as f64 / 1000.0);
            return left.map_or(OperationResult::Nil, OperationResult::Number);
        }
        O::SharedDelete => {
            shared::delete(name, key);
            Ok(())
        }
        O::SharedClear => {
            shared::clear(name);
            Ok(())
        }
        _ => {
            let Some(found) = shared::get(name, key, now_ms) else { return OperationResult::Nil };
            *flags = found.flags;
            return match found.value {
                SharedValue::Text(value) => text(out, &value),
                SharedValue::Number(number) => OperationResult::Number(number),
                SharedValue::Bool(true) => OperationResult::True,
                SharedValue::Bool(false) => OperationResult::False,
            };
        }
    };
    match result {
        Ok(()) => OperationResult::True,
        Err(why) => text(out, why.as_bytes()),
    }
}

/// A value, and the flags before it: `f7;stext`.
fn value(tagged: &[u8]) -> Option<(SharedValue, u32)> {
    let (tag, text) = tagged.split_first()?;
    let value = match tag {
        b'f' => {
            let end = memchr::memchr(b';', text)?;
            let flags = std::str::from_utf8(&text[..end]).ok()?.parse().ok()?;
            return value(&text[end + 1..]).map(|(value, _)| (value, flags));
        }
        b's' => SharedValue::Text(text.into()),
        b'n' => SharedValue::Number(std::str::from_utf8(text).ok()?.parse().ok()?),
        b'b' => SharedValue::Bool(text == b"1"),
        _ => return None,
    };
    Some((value, 0))
}

// Signatures of `resty.jwt`. Functions verify with few keys, and parsing a key takes as long as verifying with it, so
// the last parsed ones are cached.

/// Most public keys that a worker caches.
const KEYS_MAX: usize = 16;
/// Longest text of a public key, with the certificate around it.
const KEY_BYTES_MAX: usize = 64 << 10;

/// Encoding of the algorithm and the signature's length in the prelude: the index into [`ALGORITHMS`], plus this times
/// the length.
const PACKED: usize = 64;

const _: () = assert!(ALGORITHMS.len() <= PACKED);

/// Public keys, most recently used first.
#[derive(Default)]
pub(crate) struct PublicKeys(Vec<(Algorithm, Box<[u8]>, ParsedPublicKey)>);

/// Signs a message; an error gives the reason.
pub(crate) fn sign(number: f64, key: &[u8], message: &[u8]) -> Result<Vec<u8>, &'static str> {
    let (_, algorithm) = ALGORITHMS.get(number as usize).ok_or(UNKNOWN)?;
    stillgate_jws::sign(*algorithm, key, message)
}

const UNKNOWN: &str = "no such algorithm";

impl PublicKeys {
    /// Whether a signature is that of a message. `signed`: the signature, followed by the key. Secrets are compared in
    /// constant time.
    fn verify(&mut self, number: f64, signed: &[u8], message: &[u8]) -> Result<bool, &'static str> {
        let packed = number as usize;
        let (_, algorithm) = *ALGORITHMS.get(packed % PACKED).ok_or(UNKNOWN)?;
        let (signature, key) = signed.split_at_checked(packed / PACKED).ok_or("no signature")?;
        match algorithm.hmac() {
            Some(hash) => Ok(hmac::verify(&hmac::Key::new(hash, key), message, signature).is_ok()),
            None => Ok(self.of(algorithm, key)?.verify_sig(message, signature).is_ok()),
        }
    }

    fn of(&mut self, algorithm: Algorithm, text: &[u8]) -> Result<&ParsedPublicKey, &'static str> {
        if text.len() > KEY_BYTES_MAX {
            return Err("a public key has at most 64 KiB");
        }
        let known = self.0.iter().position(|(of, known, _)| *of == algorithm && **known == *text);
        match known {
            Some(at) => self.0[..=at].rotate_right(1),
            None => {
                let key = public_key(algorithm, text)?;
                self.0.truncate(KEYS_MAX - 1);
                self.0.insert(0, (algorithm, text.into(), key));
            }
        }
        Ok(&self.0[0].2)
    }
}
