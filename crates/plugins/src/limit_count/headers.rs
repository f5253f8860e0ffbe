//! The three headers in which a response says what a limit has left.

use super::NAME;
use super::keys::LimitCountMetadata;
use std::io::Write;
use stillgate_limits::{Limit, Taken};
use stillgate_plugin::Request;
use stillgate_wire::{FieldName, FieldValue, Fields};

/// What the largest number takes to write, with hundredths.
const NUMBER_BYTES_MAX: usize = 24;
const NAMES: [&str; 3] = ["X-RateLimit-Limit", "X-RateLimit-Remaining", "X-RateLimit-Reset"];
/// The prefix of a rule is put before this part of a name.
const STEM: &str = "RateLimit-";

/// Sets them, for a rule with its prefix in their names.
pub(super) fn tell(prefix: Option<&str>, limit: Limit, taken: Taken, request: &mut Request<'_>) {
    let names = match request.metadata::<LimitCountMetadata>(NAME) {
        Some(own) => [own.limit_header.as_str(), own.remaining_header.as_str(), own.reset_header.as_str()],
        None => NAMES,
    };
    let mut texts = [[0; NUMBER_BYTES_MAX]; 3];
    let [count, remaining, reset] = &mut texts;
    let values = [
        written(count, format_args!("{}", limit.count)),
        // The estimate of a sliding window may be over the limit by a part of a request.
        written(remaining, format_args!("{}", taken.remaining.max(0))),
        written_seconds(reset, taken.reset_ms),
    ];
    let worker = request.worker;
    worker.with_buffers(|prefixed, _| {
        for (name, value) in names.into_iter().zip(values) {
            let name = prefix.map_or(name.as_bytes(), |prefix| with_prefix(name, prefix, prefixed));
            // Names were checked when they were read, and digits are a value.
            if let (Ok(name), Ok(value)) = (FieldName::new(name), FieldValue::new(value)) {
                request.response.set(&Fields::default(), &[], name, value);
            }
        }
    });
}

/// `X-RateLimit-Limit` becomes `X-PREFIX-RateLimit-Limit`; a name without [`STEM`] stays.
fn with_prefix<'a>(name: &'a str, prefix: &str, out: &'a mut Vec<u8>) -> &'a [u8] {
    let Some(at) = name.find(STEM) else { return name.as_bytes() };
    out.clear();
    for part in [&name[..at], prefix, "-", &name[at..]] {
        out.extend_from_slice(part.as_bytes());
    }
    out
}

fn written<'a>(space: &'a mut [u8; NUMBER_BYTES_MAX], value: std::fmt::Arguments<'_>) -> &'a [u8] {
    let mut left = &mut space[..];
    let result = left.write_fmt(value);
    debug_assert!(result.is_ok(), "there is room for every number");
    let unused = left.len();
    &space[..NUMBER_BYTES_MAX - unused]
}

/// Rounded down to hundredths of a second, without zeros at the end, as Lua writes it.
fn written_seconds(space: &mut [u8; NUMBER_BYTES_MAX], ms: u64) -> &[u8] {
    let (seconds, hundredths) = (ms / 1000, ms % 1000 / 10);
    match (hundredths % 10, hundredths) {
        (_, 0) => written(space, format_args!("{seconds}")),
        (0, _) => written(space, format_args!("{seconds}.{}", hundredths / 10)),
        _ => written(space, format_args!("{seconds}.{hundredths:02}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_as_lua_writes_them() {
        let check = |ms: u64, expected: &str| {
            assert_eq!(written_seconds(&mut [0; NUMBER_BYTES_MAX], ms), expected.as_bytes(), "{ms}");
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
            assert_eq!(with_prefix(name, "7", &mut Vec::new()), expected.as_bytes());
        };
        check("X-RateLimit-Limit", "X-7-RateLimit-Limit");
        check("X-AI-RateLimit-Reset", "X-AI-7-RateLimit-Reset");
        check("RateLimit-Limit", "7-RateLimit-Limit");
        check("X-Quota", "X-Quota");
    }
}
