//! The header names that the gateway itself reads, recognised once while parsing.

macro_rules! names {
    ($($variant:ident = $text:literal,)*) => {
        /// A header name the gateway reads or rewrites; everything else is [`Name::Other`].
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(u8)]
        pub enum Name {
            $(#[doc = $text] $variant,)*
            /// One of the above with another character for `-`, such as `_` or `.`: servers that map fields to
            /// variables confuse it with the real one, so it is never forwarded to them.
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

/// The texts of `TABLE`, each in the form in which names are compared.
static FOLDED: [FoldedName; Name::TABLE.len()] = {
    let mut folded = [FoldedName([0; 3]); Name::TABLE.len()];
    let mut i = 0;
    while i < folded.len() {
        folded[i] = FoldedName::new(Name::TABLE[i].0);
        i += 1;
    }
    folded
};

/// A name in lower case, eight bytes at once. Two names of one length are equal if this is.
#[derive(Clone, Copy)]
struct FoldedName([u64; 3]);

impl FoldedName {
    /// Folds a name of at most [`LENGTH_MAX`] bytes. Words may overlap: between them they have each byte.
    #[inline]
    const fn new(name: &[u8]) -> FoldedName {
        if let (Some(first), Some(last)) = (name.first_chunk::<8>(), name.last_chunk::<8>()) {
            let middle = match name.split_at(8).1.first_chunk::<8>() {
                Some(middle) if name.len() > 16 => to_lowercase(u64::from_le_bytes(*middle)),
                _ => 0,
            };
            return FoldedName([
                to_lowercase(u64::from_le_bytes(*first)),
                to_lowercase(u64::from_le_bytes(*last)),
                middle,
            ]);
        }
        FoldedName([to_lowercase(short_word(name)), 0, 0])
    }

    #[inline]
    const fn is(&self, other: &FoldedName) -> bool {
        (self.0[0] ^ other.0[0]) | (self.0[1] ^ other.0[1]) | (self.0[2] ^ other.0[2]) == 0
    }
}

/// Whether two names are equal apart from the case of letters.
#[inline]
pub(crate) fn is_same(one: &[u8], other: &[u8]) -> bool {
    // Many names begin alike: most that differ also differ at their ends.
    let is_another = match (one.last(), other.last()) {
        (Some(one), Some(other)) => (one ^ other) & !0x20 != 0,
        _ => false,
    };
    one.len() == other.len() && !is_another && is_same_throughout(one, other)
}

/// Like [`is_same`], for names of one length.
fn is_same_throughout(one: &[u8], other: &[u8]) -> bool {
    let (Some(end), Some(other_end)) = (one.last_chunk::<8>(), other.last_chunk::<8>()) else {
        return is_same_word(short_word(one), short_word(other));
    };
    let is_same_at =
        |(one, other): (&[u8; 8], &[u8; 8])| is_same_word(u64::from_le_bytes(*one), u64::from_le_bytes(*other));
    // The ends may overlap the bytes before them: between them they have each byte.
    is_same_at((end, other_end)) && one.as_chunks().0.iter().zip(other.as_chunks().0).all(is_same_at)
}

#[inline]
fn is_same_word(one: u64, other: u64) -> bool {
    const CASE: u64 = 0x20 * (u64::MAX / 255);
    one == other || ((one ^ other) & !CASE == 0 && to_lowercase(one) == to_lowercase(other))
}

/// All bytes of a name of less than eight. For two names of one length it is equal only if they are.
#[inline]
const fn short_word(name: &[u8]) -> u64 {
    if let (Some(first), Some(last)) = (name.first_chunk::<4>(), name.last_chunk::<4>()) {
        return u32::from_le_bytes(*first) as u64 | (u32::from_le_bytes(*last) as u64) << 32;
    }
    match *name {
        [] => 0,
        [a] => a as u64,
        [a, b] => a as u64 | (b as u64) << 8,
        [a, b, c, ..] => a as u64 | (b as u64) << 8 | (c as u64) << 16,
    }
}

/// Eight bytes, the ASCII letters of them in lower case.
#[inline]
const fn to_lowercase(word: u64) -> u64 {
    const ONES: u64 = u64::MAX / 255;
    // The top bit of a byte is the result of the comparison. No byte carries into the next, since each has seven bits.
    let low_bits = word & (0x7f * ONES);
    let is_from_a = low_bits + (0x80 - b'A' as u64) * ONES;
    let is_beyond_z = low_bits + (0x7f - b'Z' as u64) * ONES;
    let is_upper = !word & (is_from_a ^ is_beyond_z) & (0x80 * ONES);
    word | is_upper >> 2
}

impl Name {
    /// The known name that this is, in any case.
    #[inline]
    pub const fn classify(name: &[u8]) -> Name {
        if name.is_empty() || name.len() > LENGTH_MAX {
            return Name::Other;
        }
        let first = FIRST[name.len()][(name[0] & 31) as usize];
        if first == 0 {
            return Name::Other;
        }
        Name::compare(name, first as usize - 1)
    }

    /// Compares with the names of `TABLE`, from this index on.
    const fn compare(name: &[u8], mut at: usize) -> Name {
        let folded = FoldedName::new(name);
        // The table is sorted by length.
        while at < Name::TABLE.len() && Name::TABLE[at].0.len() == name.len() {
            let (text, id) = Name::TABLE[at];
            if folded.is(&FOLDED[at]) {
                return id;
            }
            if is_lookalike(name, text) {
                return Name::Lookalike;
            }
            at += 1;
        }
        Name::Other
    }

    /// Whether it is meant for one connection only and so never forwarded (RFC 9110 section 7.6.1).
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

    /// Whether a `Connection` header that names it is obeyed: fields that define the end of the message, its recipient
    /// or its sender stay, even if they are named there.
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

/// Whether servers that map fields to variables confuse two different names: apart from case, they only differ in
/// characters that are neither letters nor digits.
///
/// CGI and WSGI write `-` as `_`, PHP also `.`, and lighttpd every character that is neither a letter nor a digit.
pub(crate) const fn is_lookalike(name: &[u8], text: &[u8]) -> bool {
    if name.len() != text.len() {
        return false;
    }
    let (mut at, mut differs) = (0, false);
    while at < name.len() {
        let is_fold = !name[at].is_ascii_alphanumeric() && !text[at].is_ascii_alphanumeric() && name[at] != text[at];
        if !is_fold && !name[at].eq_ignore_ascii_case(&text[at]) {
            return false;
        }
        differs |= is_fold;
        at += 1;
    }
    differs
}

/// Whether a [`Name::Lookalike`] is one of a framing field with `_`, as many servers read it: `Content_Length`,
/// `Transfer_Encoding`.
pub(crate) fn looks_like_framing(lookalike: &[u8]) -> bool {
    let is_underscored = lookalike.iter().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_'));
    is_underscored && (is_lookalike(lookalike, b"content-length") || is_lookalike(lookalike, b"transfer-encoding"))
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
        assert!(Name::TABLE.is_sorted_by_key(|(text, _)| text.len()));
        for other in [&b"hosu"[..], b"x", b"", b"content-lengtH1", b"x_y", b"\x14e", b"hos\xf4", b"\xc8ost", b"hos\0"] {
            assert_eq!(Name::classify(other), Name::Other, "{other:?}");
        }
    }

    #[test]
    fn no_byte_of_a_name_is_left_out() {
        for (text, id) in Name::TABLE {
            for at in 0..text.len() {
                for wrong in [b'_', b'~', 0, text[at] ^ 0x80, text[at] ^ 0x10] {
                    let mut name = text.to_vec();
                    name[at] = wrong;
                    assert_ne!(Name::classify(&name), *id, "{name:?}");
                }
            }
        }
    }

    #[test]
    fn each_byte_is_folded_as_ascii_and_by_itself() {
        for byte in 0..=u8::MAX {
            for place in 0..8 {
                for around in [0, b'a', b'Z', 0x7f, 0x80, 0xff] {
                    let mut bytes = [around; 8];
                    bytes[place] = byte;
                    let folded = to_lowercase(u64::from_le_bytes(bytes)).to_le_bytes();
                    assert_eq!(folded, bytes.map(|byte| byte.to_ascii_lowercase()), "{bytes:?}");
                }
            }
        }
    }

    #[test]
    fn names_are_compared_as_ascii() {
        let text: Vec<u8> = (0..40).map(|at| b"Ab-Z0@[`{_z"[at % 11]).collect();
        for len in 0..=text.len() {
            let name = &text[..len];
            assert!(is_same(name, &name.to_ascii_uppercase()) && !is_same(name, &[name, b"x"].concat()));
            for at in 0..len {
                for other in [0x20, 0x80, 0x01, 0x60].map(|bits| text[at] ^ bits) {
                    let mut changed = name.to_vec();
                    changed[at] = other;
                    assert_eq!(is_same(name, &changed), name.eq_ignore_ascii_case(&changed), "{changed:?}");
                }
            }
        }
    }

    #[test]
    fn underscored_framing_names_are_seen() {
        assert!(looks_like_framing(b"Content_Length"));
        assert!(looks_like_framing(b"transfer_encoding"));
        assert!(!looks_like_framing(b"content-length"));
        assert!(!looks_like_framing(b"x_real_ip"));
        assert!(!looks_like_framing(b"Content.Length") && Name::classify(b"Content.Length") == Name::Lookalike);
        for name in [
            &b"X_Real_IP"[..],
            b"X_Forwarded-For",
            b"Transfer_Encoding",
            b"keep_alive",
            b"X.Forwarded.For",
            b"x!real|ip",
            b"X-Forwarded_Host",
        ] {
            assert_eq!(Name::classify(name), Name::Lookalike);
        }
        for name in [&b"XaReal-IP"[..], b"X0Forwarded0For", b"xreal-ip", b"X-Real-I_"] {
            assert_eq!(Name::classify(name), Name::Other);
        }
    }
}
