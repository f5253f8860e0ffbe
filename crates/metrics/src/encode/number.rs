//! Formats numbers for the exposition formats.
//!
//! Values are printed as short as possible without loss; bounds as `client_golang` prints them, since dashboards select
//! buckets by that text. Only forms that the parsers of Prometheus and OpenMetrics understand: no `_`, no hexadecimal.
//!
//! An integer is written over another one of the same width, eight digits at a time. A scrape does this for each changed
//! value. Making digits one after the other in a separate buffer and copying them
//! takes three times as long.

use crate::value::Value;
use std::ops::Range;

/// From here on not every integer can be represented as a float.
const WHOLE_MAX: u64 = 1 << f64::MANTISSA_DIGITS;
/// The smallest number of nine digits.
const EIGHT_DIGITS_END: u64 = 100_000_000;

/// Appends the value of a series that has a single one.
#[inline]
pub(super) fn push_value(out: &mut Vec<u8>, value: Value<'_>) {
    match value {
        Value::Unsigned(value) => push_u64(out, value),
        Value::Float(value) => push_f64(out, value),
        Value::Histogram(_) => unreachable!("only a histogram's series has a histogram's value"),
    }
}

/// Writes the value into `bytes` if it has exactly that width.
#[inline]
pub(super) fn patch_value(bytes: &mut [u8], value: Value<'_>) -> bool {
    match value {
        Value::Unsigned(value) if value < EIGHT_DIGITS_END => {
            let (digits, width) = eight_digits(value);
            replace(bytes, &digits[..width])
        }
        Value::Unsigned(value) => replace(bytes, itoa::Buffer::new().format(value).as_bytes()),
        Value::Float(value) => with_float(value, |digits| replace(bytes, digits)),
        Value::Histogram(_) => false,
    }
}

#[inline]
pub(super) fn push_u64(out: &mut Vec<u8>, value: u64) {
    if value >= EIGHT_DIGITS_END {
        out.extend_from_slice(itoa::Buffer::new().format(value).as_bytes());
        return;
    }
    let (digits, width) = eight_digits(value);
    let start = out.len();
    out.extend_from_slice(&digits);
    out.truncate(start + width);
}

#[inline]
pub(super) fn push_f64(out: &mut Vec<u8>, value: f64) {
    with_float(value, |digits| out.extend_from_slice(digits));
}

/// Appends a time in milliseconds since the epoch as seconds: `1700000000.123`.
pub(super) fn push_seconds(out: &mut Vec<u8>, unix_ms: u64) {
    push_u64(out, unix_ms / 1000);
    let millis = (unix_ms % 1000) as u16;
    let digit = |unit: u16| b'0' + (millis / unit % 10) as u8;
    out.extend_from_slice(&[b'.', digit(100), digit(10), digit(1)]);
}

/// A bound for the text format: like Go's `%g`, so `1`, `0.005`, `1e+06`.
pub(super) fn bound_text(value: f64) -> String {
    if value == f64::INFINITY {
        return "+Inf".into();
    }
    let scientific = format!("{value:e}");
    let (mantissa, exponent) = scientific.split_once('e').expect("that is the format");
    let exponent: i32 = exponent.parse().expect("Rust wrote it");
    match exponent {
        -4..6 => format!("{value}"),
        _ => format!("{mantissa}e{}{:02}", if exponent < 0 { '-' } else { '+' }, exponent.abs()),
    }
}

/// A bound for OpenMetrics, always recognisable as a float: `1.0`, `0.005`, `1e+06`.
pub(super) fn bound_with_point(value: f64) -> String {
    let mut text = bound_text(value);
    if !text.contains(['.', 'e', 'I']) {
        text.push_str(".0");
    }
    text
}

#[inline]
fn with_float<R>(value: f64, print: impl FnOnce(&[u8]) -> R) -> R {
    // The cast saturates, and gives 0 for NaN: neither compares equal below the bound. The sign of -0 is dropped, as `0
    // == -0`.
    let whole = value as i64;
    if whole as f64 == value && whole.unsigned_abs() < WHOLE_MAX {
        print(itoa::Buffer::new().format(whole).as_bytes())
    } else if value.is_finite() {
        print(zmij::Buffer::new().format_finite(value).as_bytes())
    } else if value.is_nan() {
        print(b"NaN")
    } else {
        print(if value > 0.0 { b"+Inf" } else { b"-Inf" })
    }
}

/// The digits of a number below [`EIGHT_DIGITS_END`], followed by zero bytes, and the number of digits.
///
/// All eight are made in one register and without a branch on the width, which no processor can predict: halves of four
/// digits, two digits and one are split off by multiplying with reciprocals.
#[inline]
fn eight_digits(value: u64) -> ([u8; 8], usize) {
    debug_assert!(value < EIGHT_DIGITS_END);
    let fours = (value / 10_000) | ((value % 10_000) << 32);
    let hundreds = ((fours * 10_486) >> 20) & 0x0000_007f_0000_007f;
    let twos = hundreds | ((fours - hundreds * 100) << 16);
    let tens = ((twos * 103) >> 10) & 0x000f_000f_000f_000f;
    let ones = tens | ((twos - tens * 10) << 8);
    // The first digit is in the lowest byte. The last digit is kept even if it is 0.
    let zeros = (ones | 1 << 56).trailing_zeros() / 8;
    let digits = (ones | 0x3030_3030_3030_3030) >> (zeros * 8);
    (digits.to_le_bytes(), 8 - zeros as usize)
}

#[inline]
fn replace(bytes: &mut [u8], digits: &[u8]) -> bool {
    let fits = bytes.len() == digits.len();
    if fits {
        bytes.copy_from_slice(digits);
    }
    fits
}

/// Digits that are made at once.
const STEP: usize = 8;

/// The smallest numbers with one digit more than their index: `10`, `100`, …
const POWERS: [u64; 16] = {
    let mut powers = [10; 16];
    let mut index = 1;
    while index < powers.len() {
        powers[index] = powers[index - 1] * 10;
        index += 1;
    }
    powers
};

/// Writes the number there if it has exactly that width; returns whether it did. `None`: the width is not supported, or
/// the position is too near to the beginning.
#[inline]
pub(super) fn patch_digits(bytes: &mut [u8], at: &Range<usize>, value: u64) -> Option<bool> {
    let width = at.end - at.start;
    if width == 0 || width > POWERS.len() || at.end < POWERS.len() {
        return None;
    }
    let is_as_wide = value < POWERS[width - 1] && (width == 1 || value >= POWERS[width - 2]);
    if is_as_wide {
        let low = bytes.get_mut(at.end - STEP..at.end)?;
        put_last_digits(low, value % POWERS[STEP - 1], width.min(STEP));
        if width > STEP {
            let high = bytes.get_mut(at.end - 2 * STEP..at.end - STEP)?;
            put_last_digits(high, value / POWERS[STEP - 1], width - STEP);
        }
    }
    Some(is_as_wide)
}

/// Writes the last digits of a number below 10^8 into the last of eight bytes; the other bytes keep their values.
#[inline]
fn put_last_digits(bytes: &mut [u8], value: u64, digits: usize) {
    let Ok(eight) = <&mut [u8; STEP]>::try_from(bytes) else { return };
    let kept = u64::MAX.checked_shr(8 * digits as u32).unwrap_or(0);
    let new = (spell(value) & !kept) | (u64::from_le_bytes(*eight) & kept);
    *eight = new.to_le_bytes();
}

/// Eight digits with leading zeros, the first one in the lowest byte: split into halves three times, all parts at once.
#[inline]
fn spell(value: u64) -> u64 {
    let fours = (value / 10_000) | ((value % 10_000) << 32);
    // Division by 100, exact below 10,000.
    let hundreds = ((fours * 10_486) >> 20) & 0x0000_007f_0000_007f;
    let twos = hundreds | ((fours - hundreds * 100) << 16);
    // Division by 10, exact below 100.
    let tens = ((twos * 103) >> 10) & 0x000f_000f_000f_000f;
    (tens | ((twos - tens * 10) << 8)) | 0x3030_3030_3030_3030
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn float(value: f64) -> String {
        let mut out = Vec::new();
        push_f64(&mut out, value);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn floats() {
        let check = |value: f64, expected: &str| assert_eq!(float(value), expected);
        check(0.0, "0");
        check(-0.0, "0");
        check(1.0, "1");
        check(-17.0, "-17");
        check(0.1, "0.1");
        check(-2.5, "-2.5");
        check(9_007_199_254_740_991.0, "9007199254740991");
        check(9_007_199_254_740_992.0, "9007199254740992.0");
        check(1e300, "1e+300");
        check(1.5e-7, "1.5e-7");
        check(f64::NAN, "NaN");
        check(f64::INFINITY, "+Inf");
        check(f64::NEG_INFINITY, "-Inf");
    }

    #[test]
    fn bounds() {
        let check = |value: f64, text: &str, openmetrics: &str| {
            assert_eq!((bound_text(value).as_str(), bound_with_point(value).as_str()), (text, openmetrics));
        };
        check(0.0, "0", "0.0");
        check(1.0, "1", "1.0");
        check(-5.0, "-5", "-5.0");
        check(0.005, "0.005", "0.005");
        check(0.0001, "0.0001", "0.0001");
        check(0.00001, "1e-05", "1e-05");
        check(100_000.0, "100000", "100000.0");
        check(1_000_000.0, "1e+06", "1e+06");
        check(1_234_567.0, "1.234567e+06", "1.234567e+06");
        check(1e100, "1e+100", "1e+100");
        check(f64::INFINITY, "+Inf", "+Inf");
    }

    #[test]
    fn whole_numbers() {
        let around_powers = (0..20).map(|power| 10_u64.pow(power)).flat_map(|power| [power - 1, power, power + 1]);
        let halves = (0..10_000).flat_map(|half| [half, half * 10_000, half * 10_001]);
        for value in around_powers.chain(halves) {
            let mut out = b"x".to_vec();
            push_u64(&mut out, value);
            assert_eq!(out, format!("x{value}").into_bytes());
        }
    }

    #[test]
    fn seconds() {
        let check = |unix_ms: u64, expected: &str| {
            let mut out = Vec::new();
            push_seconds(&mut out, unix_ms);
            assert_eq!(String::from_utf8(out).unwrap(), expected);
        };
        check(1_700_000_000_123, "1700000000.123");
        check(7, "0.007");
        check(60_000, "60.000");
    }

    proptest! {
        #[test]
        fn floats_are_read_back_exactly(bits in any::<u64>()) {
            let value = f64::from_bits(bits);
            let text = float(value);
            let read: f64 = text.parse().unwrap();
            prop_assert!(read == value || (read.is_nan() && value.is_nan()), "{value:e} {text}");
            // OpenMetrics' grammar of numbers, which is narrower than Go's.
            prop_assert!(!value.is_finite() || text.bytes().all(|byte| b"0123456789+-.e".contains(&byte)), "{text}");
        }

        #[test]
        fn patching_equals_printing(old in any::<u64>(), new in any::<u64>(), shift in 0_u32..64) {
            let mut bytes = Vec::new();
            push_u64(&mut bytes, old >> shift);
            let (before, fresh) = (bytes.clone(), (new >> shift).to_string().into_bytes());
            let patched = patch_value(&mut bytes, Value::Unsigned(new >> shift));
            prop_assert_eq!(patched, before.len() == fresh.len());
            prop_assert_eq!(bytes, if patched { fresh } else { before });
        }
    }

    #[test]
    fn all_of_four_digits_are_spelt() {
        for value in 0..10_000 {
            assert_eq!(&spell(value).to_le_bytes(), format!("{value:08}").as_bytes());
            assert_eq!(&spell(value * 10_000).to_le_bytes(), format!("{:08}", value * 10_000).as_bytes());
        }
    }

    proptest! {
        #[test]
        fn only_as_wide_as_before(old in any::<u64>(), new in any::<u64>(), shifts in (0u32..64, 0u32..64)) {
            let (old, new) = (old >> shifts.0, new >> shifts.1);
            for name in ["name{a=\"bcdefghijk\"} ", "a "] {
                let before = format!("{name}{old}\nnext 5\n");
                let at = name.len()..name.len() + old.to_string().len();
                let mut bytes = before.clone().into_bytes();
                let same = old.to_string().len() == new.to_string().len();
                let expected = if same { format!("{name}{new}\nnext 5\n") } else { before };
                if let Some(done) = patch_digits(&mut bytes, &at, new) {
                    prop_assert_eq!((done, std::str::from_utf8(&bytes).unwrap()), (same, expected.as_str()));
                }
            }
        }
    }
}
