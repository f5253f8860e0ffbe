//! The header names the gateway itself looks at, recognised once while parsing.

macro_rules! names {
    ($($variant:ident = $text:literal,)*) => {
        /// A header name the gateway reads or rewrites; everything else is [`Name::Other`].
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(u8)]
        pub enum Name {
            $(#[doc = $text] $variant,)*
            /// One of the above with `_` for `-`: servers that map fields to environment variables take it for the real
            /// one, so it is never forwarded to one.
            Lookalike,
            /// Any other name.
            Other,
        }

        impl Name {
            const TABLE: &[(&'static [u8], Name)] = &[$(($text.as_bytes(), Name::$variant),)*];
        }
    };
}

names! {
    Te = "te",
    Age = "age",
    Via = "via",
    Date = "date",
    Host = "host",
    Expect = "expect",
    Server = "server",
    Trailer = "trailer",
    Upgrade = "upgrade",
    Forwarded = "forwarded",
    XRealIp = "x-real-ip",
    Connection = "connection",
    KeepAlive = "keep-alive",
    ContentLength = "content-length",
    XForwardedFor = "x-forwarded-for",
    ProxyConnection = "proxy-connection",
    XForwardedHost = "x-forwarded-host",
    XForwardedPort = "x-forwarded-port",
    XForwardedProto = "x-forwarded-proto",
    TransferEncoding = "transfer-encoding",
}

const LENGTH_MAX: usize = 17;

/// For each length and the low five bits of the first letter: one plus the index in `TABLE` where comparing must
/// begin, or zero. Both together leave at most one candidate for nearly every name.
static FIRST: [[u8; 32]; LENGTH_MAX + 1] = {
    let mut first = [[0u8; 32]; LENGTH_MAX + 1];
    let mut i = Name::TABLE.len();
    while i > 0 {
        i -= 1;
        let text = Name::TABLE[i].0;
        first[text.len()][(text[0] & 31) as usize] = i as u8 + 1;
    }
    first
};

impl Name {
    /// Which of the known names this is, in any case.
    #[inline]
    pub const fn classify(name: &[u8]) -> Name {
        if name.is_empty() || name.len() > LENGTH_MAX {
            return Name::Other;
        }
        let first = FIRST[name.len()][(name[0] & 31) as usize];
        if first == 0 {
            return Name::Other;
        }
        let mut at = first as usize - 1;
        while at < Name::TABLE.len() {
            let (text, id) = Name::TABLE[at];
            at += 1;
            if text.len() != name.len() {
                continue;
            }
            if name.eq_ignore_ascii_case(text) {
                return id;
            }
            if is_lookalike(name, text) {
                return Name::Lookalike;
            }
        }
        Name::Other
    }

    /// Whether it is meant for one connection only and never forwarded (RFC 9110 section 7.6.1).
    pub fn is_hop_by_hop(self) -> bool {
        matches!(
            self,
            Name::Te
                | Name::Upgrade
                | Name::Connection
                | Name::KeepAlive
                | Name::ProxyConnection
                | Name::TransferEncoding
        )
    }

    /// Whether a `Connection` header naming it is obeyed: fields that say where a message ends, whom it is for or whom
    /// it is from stay, whatever is named there.
    pub(crate) fn may_be_named_by_connection(self) -> bool {
        !matches!(
            self,
            Name::Host
                | Name::ContentLength
                | Name::XRealIp
                | Name::Forwarded
                | Name::XForwardedFor
                | Name::XForwardedHost
                | Name::XForwardedPort
                | Name::XForwardedProto
        )
    }
}

/// Whether only the case and `_` in the place of `-` make a difference, and the latter does.
const fn is_lookalike(name: &[u8], text: &[u8]) -> bool {
    if name.len() != text.len() {
        return false;
    }
    let (mut at, mut has_underscore) = (0, false);
    while at < name.len() {
        let is_underscore = name[at] == b'_' && text[at] == b'-';
        if !is_underscore && !name[at].eq_ignore_ascii_case(&text[at]) {
            return false;
        }
        has_underscore |= is_underscore;
        at += 1;
    }
    has_underscore
}

/// Whether a [`Name::Lookalike`] is one of a framing field: `Content_Length`, `Transfer_Encoding`.
pub(crate) fn looks_like_framing(lookalike: &[u8]) -> bool {
    is_lookalike(lookalike, b"content-length") || is_lookalike(lookalike, b"transfer-encoding")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_known_name_is_found_in_any_case() {
        for (text, id) in Name::TABLE {
            assert!(text.len() <= LENGTH_MAX);
            assert_eq!(Name::classify(text), *id);
            assert_eq!(Name::classify(&text.to_ascii_uppercase()), *id);
        }
        for other in [&b"hosu"[..], b"x", b"", b"content-lengtH1", b"x_y", b"\x14e"] {
            assert_eq!(Name::classify(other), Name::Other, "{other:?}");
        }
    }

    #[test]
    fn underscored_framing_names_are_seen() {
        assert!(looks_like_framing(b"Content_Length"));
        assert!(looks_like_framing(b"transfer_encoding"));
        assert!(!looks_like_framing(b"content-length"));
        assert!(!looks_like_framing(b"x_real_ip"));
        for name in [&b"X_Real_IP"[..], b"X_Forwarded-For", b"Transfer_Encoding", b"keep_alive"] {
            assert_eq!(Name::classify(name), Name::Lookalike);
        }
    }
}
