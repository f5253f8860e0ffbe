//! Transformations of values before they are compared: queries are decoded, `lower()` converts to lower case.

/// Appends a text in lower case: like [`str::to_lowercase`], or by ASCII alone if it is not UTF-8.
pub(crate) fn lower_case(text: &[u8], out: &mut Vec<u8>) {
    const FINAL_SIGMA: char = 'Σ';
    let start = out.len();
    match std::str::from_utf8(text) {
        Ok(text) if !text.is_ascii() => {
            // The lower case of a sigma depends on its neighbours; that is left to the library, which allocates.
            if text.contains(FINAL_SIGMA) {
                return out.extend_from_slice(text.to_lowercase().as_bytes());
            }
            for lower in text.chars().flat_map(char::to_lowercase) {
                out.extend_from_slice(lower.encode_utf8(&mut [0; 4]).as_bytes());
            }
        }
        _ => {
            out.extend_from_slice(text);
            out[start..].make_ascii_lowercase();
        }
    }
}

pub(crate) fn is_plain(text: &[u8]) -> bool {
    memchr::memchr2(b'%', b'+', text).is_none()
}

/// Decodes a name or value of a query: `+` is a blank, `%XX` a byte; a `%` without two digits is kept.
pub(crate) fn decode(text: &[u8], out: &mut Vec<u8>) {
    let digit = |byte: Option<&u8>| byte.and_then(|byte| (*byte as char).to_digit(16));
    let mut rest = text;
    while let Some((&byte, after)) = rest.split_first() {
        rest = after;
        let decoded = match (byte, digit(after.first()), digit(after.get(1))) {
            (b'%', Some(high), Some(low)) => {
                rest = &after[2..];
                (high << 4 | low) as u8
            }
            (b'+', ..) => b' ',
            _ => byte,
        };
        out.push(decoded);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn queries_are_decoded() {
        let check = |text: &str, expected: &[u8]| {
            let mut out = Vec::new();
            decode(text.as_bytes(), &mut out);
            assert_eq!(out, expected, "{text}");
        };
        check("a+b%20c", b"a b c");
        check("%C3%a4", "ä".as_bytes());
        check("100%", b"100%");
        check("%zz%4", b"%zz%4");
        check("%00", b"\0");
    }

    proptest! {
        #[test]
        fn lower_case_is_that_of_the_library(text in "[a-zA-ZÄÖİΣẞ \u{1F600}]{0,12}") {
            let mut out = Vec::new();
            lower_case(text.as_bytes(), &mut out);
            prop_assert_eq!(out, text.to_lowercase().into_bytes());
        }
    }
}
