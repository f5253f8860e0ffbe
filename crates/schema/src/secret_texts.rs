//! Secrets in texts: private keys in PEM (RFC 7468), and the masks that replace a secret in what is shown.

use std::ops::Range;

/// What begins each block.
pub const PEM_BEGIN: &str = "-----BEGIN ";

/// The words that end the first line of a private key, of any algorithm.
const PRIVATE_KEY: &str = "PRIVATE KEY-----";

/// Whether a text has a private key in it.
pub fn has_private_key(text: &str) -> bool {
    text.contains(PRIVATE_KEY)
}

/// The first private key in a text, with its line ends. A key without an end reaches to the end of the text.
pub fn private_key(text: &str) -> Option<Range<usize>> {
    let words = text.find(PRIVATE_KEY)?;
    let begin = text[..words].rfind(PEM_BEGIN).unwrap_or(0);
    let rest = &text[words + PRIVATE_KEY.len()..];
    let length = rest.find(PRIVATE_KEY).map_or(rest.len(), |end| end + PRIVATE_KEY.len());
    let end = words + PRIVATE_KEY.len() + length;
    let line_ends = text[end..].len() - text[end..].trim_start_matches(['\r', '\n']).len();
    Some(begin..end + line_ends)
}

/// Removes all private keys from a text.
pub fn remove_private_keys(text: &mut String) {
    while let Some(key) = private_key(text) {
        text.replace_range(key, "");
    }
}

/// The text that an export and the Admin API show in place of a secret.
pub const MASK: &str = "********";

/// Whether a text is a mask, or has a mask in place of its secret part: an address, an expression or a certificate.
pub fn is_masked(text: &str) -> bool {
    const AROUND: [&str; 6] = ["://", "?********", "********@", "-----BEGIN ", "http.headers.", "http.queries."];
    text == MASK || text.contains(MASK) && AROUND.iter().any(|known| text.contains(known))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn private_keys_are_removed() {
        let cert = "-----BEGIN CERTIFICATE-----\nc\n-----END CERTIFICATE-----\n";
        let key = |algorithm: &str| {
            format!("-----BEGIN {algorithm}PRIVATE KEY-----\nk\n-----END {algorithm}PRIVATE KEY-----\n")
        };
        for (text, expected) in [
            (cert.to_owned(), cert.to_owned()),
            (key("") + cert, cert.to_owned()),
            (cert.to_owned() + &key("RSA ") + cert + &key("ENCRYPTED "), cert.repeat(2)),
            (format!("{cert}-----BEGIN EC PRIVATE KEY-----\nk"), cert.to_owned()),
            ("k\n-----END PRIVATE KEY-----\n".to_owned(), String::new()),
        ] {
            let mut left = text.clone();
            remove_private_keys(&mut left);
            assert_eq!(left, expected, "{text}");
        }
    }
}
