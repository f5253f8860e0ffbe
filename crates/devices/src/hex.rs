//! Ids as hexadecimal text.

use std::fmt;

const DIGITS: &[u8; 16] = b"0123456789abcdef";

/// Writes 32 lowercase digits. Each message writes its id several times, and `{:032x}` takes about ten times the instructions.
pub(crate) fn write(f: &mut fmt::Formatter<'_>, id: u128) -> fmt::Result {
    let mut text = [0; 32];
    for (digits, byte) in text.chunks_exact_mut(2).zip(id.to_be_bytes()) {
        digits[0] = DIGITS[usize::from(byte >> 4)];
        digits[1] = DIGITS[usize::from(byte & 0xf)];
    }
    f.write_str(str::from_utf8(&text).map_err(|_| fmt::Error)?)
}

#[cfg(test)]
mod tests {
    use crate::protocol::MessageId;

    #[test]
    fn ids_are_32_digits() {
        for id in [0, 1, u128::MAX, 0x0123_4567_89ab_cdef_u128 << 64] {
            assert_eq!(MessageId(id).to_string(), format!("{id:032x}"));
        }
    }
}
