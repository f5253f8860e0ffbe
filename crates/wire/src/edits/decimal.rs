//! Numbers as values of header fields: digits by construction, so that they need no check.

use super::names::FieldValue;
use itoa::Buffer;

/// Room for the digits of all numbers, a point and hundredths.
const BYTES_MAX: usize = u64::MAX.ilog10() as usize + 1 + 3;

/// The text of a number.
#[derive(Debug)]
pub struct Decimal {
    text: [u8; BYTES_MAX],
    len: usize,
}

impl Decimal {
    /// A whole number.
    pub fn whole(number: u64) -> Decimal {
        let mut digits = Buffer::new();
        let digits = digits.format(number).as_bytes();
        let mut text = [0; BYTES_MAX];
        text[..digits.len()].copy_from_slice(digits);
        Decimal { text, len: digits.len() }
    }

    /// Seconds, rounded down to hundredths, without trailing zeros, as Lua writes them.
    pub fn seconds(ms: u64) -> Decimal {
        let mut seconds = Decimal::whole(ms / 1000);
        let hundredths = (ms % 1000 / 10) as u8;
        if hundredths != 0 {
            let at = seconds.len;
            seconds.text[at..at + 3].copy_from_slice(&[b'.', b'0' + hundredths / 10, b'0' + hundredths % 10]);
            seconds.len += if hundredths.is_multiple_of(10) { 2 } else { 3 };
        }
        seconds
    }

    /// The value, for edits.
    #[inline]
    pub fn value(&self) -> FieldValue<'_> {
        FieldValue(&self.text[..self.len])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_numbers() {
        for number in [0, 9, 10, 1_000_000, u64::MAX] {
            assert_eq!(Decimal::whole(number).value().bytes(), number.to_string().as_bytes());
        }
    }

    #[test]
    fn seconds_as_lua_writes_them() {
        let check = |ms: u64, expected: &str| {
            assert_eq!(Decimal::seconds(ms).value().bytes(), expected.as_bytes(), "{ms}");
        };
        check(60_000, "60");
        check(59_999, "59.99");
        check(59_900, "59.9");
        check(1_050, "1.05");
        check(9, "0");
        check(u64::MAX, "18446744073709551.61");
    }
}
