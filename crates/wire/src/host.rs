//! `Host` and the authority of an absolute-form target (RFC 9110 section 7.2, RFC 3986 section 3.2).

/// A host with an optional port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Authority<'a> {
    /// Name or address; IPv6 in its brackets.
    pub host: &'a [u8],
    /// Present only if it was written.
    pub port: Option<u16>,
}

/// Splits `host[:port]`; `None` if it is neither a name, an IPv4 nor a bracketed IPv6 address. User information is not
/// allowed: it only serves phishing (RFC 9110 section 4.2.4). Empty labels, which names do not have (RFC 1035 section
/// 3.1), are not either, as parties differ on what they match. That includes the root's, behind a dot at the end.
pub fn split_authority(text: &[u8]) -> Option<Authority<'_>> {
    let (host, rest) = if text.first() == Some(&b'[') {
        let close = memchr::memchr(b']', text)?;
        let inside = &text[1..close];
        let valid = |b: &u8| b.is_ascii_hexdigit() || matches!(b, b':' | b'.');
        if inside.is_empty() || !inside.iter().all(valid) {
            return None;
        }
        text.split_at(close + 1)
    } else {
        let end = memchr::memchr(b':', text).unwrap_or(text.len());
        // Begins as if another label had just ended. No branch for each byte, since nearly all are valid.
        let (mut before, mut wrong) = (DOT, 0);
        for &byte in &text[..end] {
            let class = CLASS[usize::from(byte)];
            wrong |= class & (before | REFUSED);
            before = class;
        }
        if wrong != 0 {
            return None;
        }
        text.split_at(end)
    };
    let port = match rest {
        [] | [b':'] => None,
        [b':', digits @ ..] => Some(port(digits)?),
        _ => return None,
    };
    Some(Authority { host, port })
}

/// Whether a text can be sent as a `Host`: what a client may send as one, or a name with a dot at its end.
pub fn is_host(text: &[u8]) -> bool {
    let text = text.strip_suffix(b".").unwrap_or(text);
    split_authority(text).is_some_and(|authority| !authority.host.is_empty())
}

fn port(digits: &[u8]) -> Option<u16> {
    if digits.len() > 5 {
        return None;
    }
    let mut port = 0u32;
    for digit in digits {
        if !digit.is_ascii_digit() {
            return None;
        }
        port = port * 10 + u32::from(digit - b'0');
    }
    u16::try_from(port).ok()
}

/// Classes of bytes in a host that is a name; zero: unreserved, `%` or a harmless sub-delimiter. The comma is refused:
/// it appears when two Host fields are joined.
static CLASS: [u8; 256] = {
    let mut table = [REFUSED; 256];
    let mut b = 0;
    while b < 256 {
        let c = b as u8;
        if c.is_ascii_alphanumeric()
            || matches!(
                c,
                b'-' | b'_' | b'~' | b'%' | b'!' | b'$' | b'&' | b'\'' | b'(' | b')' | b'*' | b'+' | b';' | b'='
            )
        {
            table[b] = 0;
        }
        b += 1;
    }
    table[b'.' as usize] = DOT;
    table
};
const DOT: u8 = 1;
const REFUSED: u8 = 2;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn splits_or_refuses() {
        let ok = |text: &str| {
            split_authority(text.as_bytes()).map(|a| (String::from_utf8_lossy(a.host).into_owned(), a.port))
        };
        assert_eq!(ok("a.example"), Some(("a.example".into(), None)));
        assert_eq!(ok("a.example:"), Some(("a.example".into(), None)));
        assert_eq!(ok("a.example:80"), Some(("a.example".into(), Some(80))));
        assert_eq!(ok("[::1]:8080"), Some(("[::1]".into(), Some(8080))));
        assert_eq!(ok(""), Some(("".into(), None)));
        assert_eq!(ok("a.example."), Some(("a.example.".into(), None)));
        assert_eq!(ok("a.example.:80"), Some(("a.example.".into(), Some(80))));
        for bad in [
            "a:b", "a:65536", "a:1:2", "u@h", "a b", "a/b", "a,b", "[::1", "[]", "[::1]x", "[g]", "a\u{e9}",
            "a:000080", ".", "..", ".a", "..a", "a..b", "a..", "a..:80", ".:80",
        ] {
            assert_eq!(ok(bad), None, "{bad}");
        }
    }
}
