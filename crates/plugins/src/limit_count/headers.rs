//! The three headers in which a response says what a limit has left.

use super::NAME;
use super::keys::LimitCountMetadata;
use itoa::Buffer;
use stillgate_limits::{Limit, Taken};
use stillgate_plugin::Request;
use stillgate_wire::{FieldName, FieldValue, Fields};

const NAMES: [FieldName<'static>; 3] = [
    FieldName::constant("X-RateLimit-Limit"),
    FieldName::constant("X-RateLimit-Remaining"),
    FieldName::constant("X-RateLimit-Reset"),
];
/// The prefix of a rule is put before this part of a name.
const STEM: &[u8] = b"RateLimit-";

/// Sets them, for a rule with its prefix in their names.
pub(super) fn tell(prefix: Option<&str>, limit: Limit, taken: Taken, request: &mut Request<'_>) {
    let names = match request.metadata::<LimitCountMetadata>(NAME) {
        Some(own) => [own.limit_header.name(), own.remaining_header.name(), own.reset_header.name()],
        None => NAMES,
    };
    let (mut count, mut remaining, mut reset) = (Buffer::new(), Buffer::new(), Reset::default());
    let values = [
        count.format(limit.count).as_bytes(),
        // The estimate of a sliding window may be over the limit by a part of a request.
        remaining.format(taken.remaining.max(0)).as_bytes(),
        reset.write(taken.reset_ms),
    ];
    let told = names.into_iter().zip(values.map(FieldValue::number));
    match prefix {
        None => told.for_each(|(name, value)| set(name, value, request)),
        Some(prefix) => request.worker.with_buffers(|prefixed, _| {
            for (name, value) in told {
                // Each of its parts was checked when it was read.
                if let Ok(name) = FieldName::new(with_prefix(name.bytes(), prefix, prefixed)) {
                    set(name, value, request);
                }
            }
        }),
    }
}

fn set(name: FieldName<'_>, value: FieldValue<'_>, request: &mut Request<'_>) {
    request.response.set(&Fields::default(), &[], name, value);
}

/// `X-RateLimit-Limit` becomes `X-PREFIX-RateLimit-Limit`; a name without [`STEM`] stays.
fn with_prefix<'a>(name: &'a [u8], prefix: &str, out: &'a mut Vec<u8>) -> &'a [u8] {
    let Some(at) = name.windows(STEM.len()).position(|part| part == STEM) else { return name };
    out.clear();
    for part in [&name[..at], prefix.as_bytes(), b"-", &name[at..]] {
        out.extend_from_slice(part);
    }
    out
}

/// Room for the digits of all seconds, and hundredths.
#[derive(Default)]
struct Reset([u8; u64::MAX.ilog10() as usize + 1]);

impl Reset {
    /// Rounded down to hundredths of a second, without zeros at the end, as Lua writes it.
    fn write(&mut self, ms: u64) -> &[u8] {
        let (seconds, hundredths) = (ms / 1000, (ms % 1000 / 10) as u8);
        let mut digits = Buffer::new();
        let digits = digits.format(seconds).as_bytes();
        let end = digits.len();
        self.0[..end].copy_from_slice(digits);
        if hundredths == 0 {
            return &self.0[..end];
        }
        self.0[end..end + 3].copy_from_slice(&[b'.', b'0' + hundredths / 10, b'0' + hundredths % 10]);
        &self.0[..end + if hundredths.is_multiple_of(10) { 2 } else { 3 }]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_as_lua_writes_them() {
        let check = |ms: u64, expected: &str| {
            assert_eq!(Reset::default().write(ms), expected.as_bytes(), "{ms}");
        };
        check(60_000, "60");
        check(59_999, "59.99");
        check(59_900, "59.9");
        check(1_050, "1.05");
        check(9, "0");
        check(u64::MAX, "18446744073709551.61");
    }

    #[test]
    fn a_prefix_stands_before_the_stem() {
        let check = |name: &str, expected: &str| {
            assert_eq!(with_prefix(name.as_bytes(), "7", &mut Vec::new()), expected.as_bytes());
        };
        check("X-RateLimit-Limit", "X-7-RateLimit-Limit");
        check("X-AI-RateLimit-Reset", "X-AI-7-RateLimit-Reset");
        check("RateLimit-Limit", "7-RateLimit-Limit");
        check("X-Quota", "X-Quota");
    }
}
