//! Escapes text for XML.

/// Appends a text, escaped for the content of an element or the value of an attribute.
pub(crate) fn escape(text: &[u8], out: &mut Vec<u8>) {
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
