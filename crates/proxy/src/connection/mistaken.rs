//! What a node seems to speak if it does not answer in the expected protocol, and which key to change; no IO.
//!
//! It is a guess for the log, made when the request has failed anyway.

/// A protocol other than the one configured for the upstream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mistaken {
    Tls,
    Http1,
    Http2,
}

impl Mistaken {
    /// Guesses by the first bytes from a node that was contacted in HTTP/2 or HTTP/1.1.
    pub(crate) fn of(first: &[u8], is_http2: bool) -> Option<Mistaken> {
        /// A TLS record (RFC 8446 section 5.1) with an alert, of any version since SSL 3.
        const TLS_ALERT: &[u8] = &[21, 3];
        match first {
            _ if first.starts_with(TLS_ALERT) => Some(Mistaken::Tls),
            _ if is_http2 => first.starts_with(b"HTTP/1.").then_some(Mistaken::Http1),
            // SETTINGS, with which each side begins (RFC 9113 section 3.4): less than 64 KiB long, not an ACK, for the connection.
            [0, _, _, 4, 0, 0, 0, 0, 0, ..] => Some(Mistaken::Http2),
            _ => None,
        }
    }

    /// What to do about it.
    pub(crate) fn hint(self) -> &'static str {
        match self {
            Mistaken::Tls => "it seems to speak TLS: write `scheme: https`, or `grpcs` for `grpc`",
            Mistaken::Http1 => {
                "it seems to speak HTTP/1.1 only: remove `http2`, or write `http` or `https` as `scheme`"
            }
            Mistaken::Http2 => "it seems to speak HTTP/2 only: write `http2: true`, or `scheme: grpc`",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_bytes() {
        let check = |first: &[u8], is_http2, expected| {
            assert_eq!(Mistaken::of(first, is_http2), expected, "{first:?} {is_http2}");
        };
        for is_http2 in [false, true] {
            check(&[21, 3, 1, 0, 2, 2, 70], is_http2, Some(Mistaken::Tls));
            check(&[22, 3, 1], is_http2, None);
            check(b"", is_http2, None);
        }
        check(b"HTTP/1.1 400 Bad Request", true, Some(Mistaken::Http1));
        check(b"HTTP/1.1 400 Bad Request", false, None);
        check(&[0, 0, 18, 4, 0, 0, 0, 0, 0, 0, 3], false, Some(Mistaken::Http2));
        check(&[0, 0, 18, 4, 0, 0, 0, 0, 0, 0, 3], true, None);
        check(&[0, 0, 0, 4, 1, 0, 0, 0, 0], false, None);
    }
}
