//! Percent-encoding of paths, like nginx, and escaping of text for XML.

/// How `%` is handled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Percent {
    /// The text is not encoded yet.
    Encoded,
    /// The text is encoded: `%XX` is kept.
    Kept,
}

/// Encodes characters that are not allowed in a path, like nginx.
pub(crate) fn encode(text: &[u8], percent: Percent, out: &mut Vec<u8>) {
    const DIGITS: &[u8; 16] = b"0123456789ABCDEF";
    // Most texts need no encoding.
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

/// Appends a text, escaped for the content of an element or the value of an attribute.
pub(crate) fn escape_xml(text: &[u8], out: &mut Vec<u8>) {
    for byte in text {
        match byte {
            b'&' => out.extend_from_slice(b"&amp;"),
            b'<' => out.extend_from_slice(b"&lt;"),
            b'>' => out.extend_from_slice(b"&gt;"),
            b'\'' => out.extend_from_slice(b"&apos;"),
            b'"' => out.extend_from_slice(b"&quot;"),
            other => out.push(*other),
        }
    }
}
