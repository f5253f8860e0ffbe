//! Percent-encoding of what stands in a path, as nginx does it.

/// What becomes of `%`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Percent {
    /// The text is not encoded.
    Encoded,
    /// The text is encoded: `%XX` stays.
    Kept,
}

/// Encodes what cannot stand in a path, as nginx does.
pub(crate) fn encode(text: &[u8], percent: Percent, out: &mut Vec<u8>) {
    const DIGITS: &[u8; 16] = b"0123456789ABCDEF";
    // Of most texts nothing is encoded.
    let plain = text.iter().take_while(|byte| !NEEDS_ENCODING[usize::from(**byte)]).count();
    out.extend_from_slice(&text[..plain]);
    for (at, byte) in text.iter().enumerate().skip(plain) {
        let is_encoded = || {
            let digits = text.get(at + 1..at + 3);
            percent == Percent::Kept && digits.is_some_and(|digits| digits.iter().all(u8::is_ascii_hexdigit))
        };
        if !NEEDS_ENCODING[usize::from(*byte)] || (*byte == b'%' && is_encoded()) {
            out.push(*byte);
        } else {
            out.extend([b'%', DIGITS[usize::from(byte >> 4)], DIGITS[usize::from(byte & 15)]]);
        }
    }
}

static NEEDS_ENCODING: [bool; 256] = {
    let mut needs = [false; 256];
    let mut byte = 0;
    while byte < needs.len() {
        needs[byte] = needs_encoding(byte as u8);
        byte += 1;
    }
    needs
};

const fn needs_encoding(byte: u8) -> bool {
    matches!(byte, 0..=b' ' | b'"' | b'#' | b'%' | b'<' | b'>' | b'?' | b'\\' | b'^' | b'`' | b'{' | b'|' | b'}' | 0x7f..)
}
