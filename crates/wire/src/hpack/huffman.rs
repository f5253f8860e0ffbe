//! The Huffman code of HPACK (RFC 7541 appendix B), decoded a byte of input at a time.
//!
//! The code is canonical: by length, then by symbol. So the lengths define it.

/// Bits of the longest code, which is that of the end of a string and must not occur in one.
const CODE_BITS_MAX: usize = 30;
/// Bits that are looked up at once; the code of every letter, digit and common sign is that short.
const LOOKED_UP_BITS: u32 = 8;

/// Bits of the code of each byte. That of the end of a string, with 30, comes behind all of them.
#[rustfmt::skip]
const CODE_BITS: [u8; 256] = [
    13, 23, 28, 28, 28, 28, 28, 28, 28, 24, 30, 28, 28, 30, 28, 28, 28, 28, 28, 28, 28, 28, 30, 28, 28, 28, 28, 28, 28, 28, 28, 28,
    6, 10, 10, 12, 13, 6, 8, 11, 10, 10, 8, 11, 8, 6, 6, 6, 5, 5, 5, 6, 6, 6, 6, 6, 6, 6, 7, 8, 15, 6, 12, 10,
    13, 6, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 8, 7, 8, 13, 19, 13, 14, 6,
    15, 5, 6, 5, 6, 5, 6, 6, 6, 5, 7, 7, 6, 6, 6, 5, 6, 7, 6, 5, 5, 6, 7, 7, 7, 7, 7, 15, 11, 14, 13, 28,
    20, 22, 20, 20, 22, 22, 22, 23, 22, 23, 23, 23, 23, 23, 24, 23, 24, 24, 22, 23, 24, 23, 23, 23, 23, 21, 22, 23, 22, 23, 23, 24,
    22, 21, 20, 22, 22, 23, 23, 21, 23, 22, 22, 24, 21, 22, 23, 23, 21, 21, 22, 21, 23, 22, 23, 23, 20, 22, 22, 22, 23, 22, 22, 23,
    26, 26, 20, 19, 22, 23, 22, 25, 26, 26, 26, 27, 27, 26, 24, 25, 19, 21, 26, 27, 27, 26, 27, 24, 21, 21, 26, 26, 28, 27, 27, 27,
    20, 24, 20, 21, 22, 21, 21, 23, 22, 22, 25, 25, 24, 24, 26, 23, 26, 27, 26, 26, 27, 27, 27, 27, 27, 28, 27, 27, 27, 27, 27, 26,
];

/// Bytes that a text takes when it is coded.
pub fn huffman_bytes(text: &[u8]) -> usize {
    text.iter().map(|byte| usize::from(CODE_BITS[usize::from(*byte)])).sum::<usize>().div_ceil(8)
}

/// The codes of one length: they follow each other, as do their symbols in [`SYMBOLS`].
#[derive(Clone, Copy)]
struct Length {
    first_code: u32,
    first_symbol: u16,
    count: u16,
}

/// The bytes in the order of their codes.
const SYMBOLS: [u8; 256] = TABLES.0;
/// By length in bits.
const LENGTHS: [Length; CODE_BITS_MAX + 1] = TABLES.1;

const TABLES: ([u8; 256], [Length; CODE_BITS_MAX + 1]) = {
    let mut symbols = [0; 256];
    let mut lengths = [Length { first_code: 0, first_symbol: 0, count: 0 }; CODE_BITS_MAX + 1];
    let (mut bits, mut code, mut placed) = (1, 0, 0);
    while bits <= CODE_BITS_MAX {
        code <<= 1;
        let mut count = 0;
        let mut byte = 0;
        while byte < 256 {
            if CODE_BITS[byte] as usize == bits {
                symbols[placed + count] = byte as u8;
                count += 1;
            }
            byte += 1;
        }
        lengths[bits] = Length { first_code: code, first_symbol: placed as u16, count: count as u16 };
        code += count as u32;
        placed += count;
        bits += 1;
    }
    (symbols, lengths)
};

/// By the next bits: a byte and the length of its code; length zero if the code is longer than the lookup.
const SHORT: [(u8, u8); 1 << LOOKED_UP_BITS] = {
    let mut table = [(0, 0); 1 << LOOKED_UP_BITS];
    let mut bits = 1;
    while bits <= LOOKED_UP_BITS {
        let Length { first_code, first_symbol, count } = LENGTHS[bits as usize];
        let spare = LOOKED_UP_BITS - bits;
        let mut at = first_code << spare;
        while at < (first_code + count as u32) << spare {
            let symbol = first_symbol as u32 + (at >> spare) - first_code;
            table[at as usize] = (SYMBOLS[symbol as usize], bits as u8);
            at += 1;
        }
        bits += 1;
    }
    table
};

/// The string is not valid Huffman code.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Invalid;

/// A partially decoded string. Between two bytes of input it holds less than a code.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Decoder {
    /// Undecoded bits, the last of them in the lowest place; above them bits that were decoded before.
    bits: u64,
    count: u32,
}

impl Decoder {
    /// Takes a byte and passes the bytes it completes to `sink`.
    #[inline]
    pub(crate) fn push(&mut self, byte: u8, mut sink: impl FnMut(u8)) -> Result<(), Invalid> {
        self.bits = self.bits << 8 | u64::from(byte);
        self.count += 8;
        while self.count >= LOOKED_UP_BITS {
            let next = (self.bits >> (self.count - LOOKED_UP_BITS)) as u8;
            let (symbol, length) = match SHORT[usize::from(next)] {
                (_, 0) => match self.long()? {
                    Some(found) => found,
                    None => return Ok(()),
                },
                (symbol, length) => (symbol, u32::from(length)),
            };
            self.count -= length;
            sink(symbol);
        }
        Ok(())
    }

    /// Finds a code that is longer than the lookup; `None` if it is incomplete.
    fn long(&self) -> Result<Option<(u8, u32)>, Invalid> {
        let held = self.bits & ((1 << self.count) - 1);
        for length in LOOKED_UP_BITS + 1..=self.count.min(CODE_BITS_MAX as u32) {
            let Length { first_code, first_symbol, count } = LENGTHS[length as usize];
            let code = (held >> (self.count - length)) as u32;
            if code < first_code + u32::from(count) {
                return Ok(Some((SYMBOLS[(u32::from(first_symbol) + code - first_code) as usize], length)));
            }
        }
        if self.count >= CODE_BITS_MAX as u32 { Err(Invalid) } else { Ok(None) }
    }

    /// Ends the string and passes the rest of it to `sink`. The remaining bits must be the beginning of the end's code,
    /// of less than a byte (RFC 7541 section 5.2).
    pub(crate) fn finish(mut self, mut sink: impl FnMut(u8)) -> Result<(), Invalid> {
        while self.count > 0 {
            let held = self.bits & ((1 << self.count) - 1);
            if self.count >= LOOKED_UP_BITS {
                return Err(Invalid);
            }
            let (symbol, length) = SHORT[(held << (LOOKED_UP_BITS - self.count)) as usize];
            if length == 0 || u32::from(length) > self.count {
                return if held + 1 == 1 << self.count { Ok(()) } else { Err(Invalid) };
            }
            self.count -= u32::from(length);
            sink(symbol);
        }
        Ok(())
    }
}

/// Appends the Huffman code of a string; for checks.
pub(crate) fn encode(out: &mut Vec<u8>, text: &[u8]) {
    let (mut bits, mut count) = (0_u64, 0);
    for byte in text {
        let length = CODE_BITS[usize::from(*byte)];
        let Length { first_code, first_symbol, .. } = LENGTHS[usize::from(length)];
        let before = SYMBOLS[usize::from(first_symbol)..].iter().take_while(|symbol| *symbol != byte).count();
        bits = bits << length | u64::from(first_code + before as u32);
        count += length;
        while count >= 8 {
            count -= 8;
            out.push((bits >> count) as u8);
        }
    }
    if count > 0 {
        out.push((bits << (8 - count)) as u8 | (0xff >> count));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decode(bytes: &[u8]) -> Result<Vec<u8>, Invalid> {
        let (mut decoder, mut text) = (Decoder::default(), Vec::new());
        for byte in bytes {
            decoder.push(*byte, |symbol| text.push(symbol))?;
        }
        decoder.finish(|symbol| text.push(symbol))?;
        Ok(text)
    }

    fn check(hex: &str, text: &str) {
        let bytes: Vec<u8> =
            (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap()).collect();
        assert_eq!(decode(&bytes), Ok(text.as_bytes().to_vec()));
        let mut encoded = Vec::new();
        encode(&mut encoded, text.as_bytes());
        assert_eq!(encoded, bytes, "{text}");
    }

    /// RFC 7541 appendices C.4 and C.6.
    #[test]
    fn examples_of_the_standard() {
        check("f1e3c2e5f23a6ba0ab90f4ff", "www.example.com");
        check("a8eb10649cbf", "no-cache");
        check("25a849e95ba97d7f", "custom-key");
        check("25a849e95bb8e8b4bf", "custom-value");
        check("6402", "302");
        check("aec3771a4b", "private");
        check("d07abe941054d444a8200595040b8166e082a62d1bff", "Mon, 21 Oct 2013 20:13:21 GMT");
        check("9d29ad171863c78f0b97c8e9ae82ae43d3", "https://www.example.com");
        check(
            "94e7821dd7f2e6c7b335dfdfcd5b3960d5af27087f3672c1ab270fb5291f9587316065c003ed4ee5b1063d5007",
            "foo=ASDJKHQKBZXOQWEOPIUAXQWEOIU; max-age=3600; version=1",
        );
    }

    #[test]
    fn every_byte_comes_back() {
        let all: Vec<u8> = (0..=255).collect();
        for text in all.chunks(1).chain([&all[..], &all[200..], b""]) {
            let mut encoded = Vec::new();
            encode(&mut encoded, text);
            assert_eq!(decode(&encoded).as_deref(), Ok(text));
        }
    }

    #[test]
    fn what_is_not_the_code_is_invalid() {
        // The end of a string, padding of zeros, padding of a byte, a code cut short.
        for bytes in [&[0xff, 0xff, 0xff, 0xff][..], &[0x00], &[0x1f, 0xff], &[0xfe, 0x10], &[0xff]] {
            assert_eq!(decode(bytes), Err(Invalid), "{bytes:?}");
        }
    }
}
