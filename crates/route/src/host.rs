//! Hosts: the patterns of routes, and the form in which a request's host is compared.
//!
//! Both sides are lower-case names without port and without a trailing dot, or IPv6 addresses in the one form that RFC 5952
//! gives each of them. Names are not resolved and IDNs are not translated: a configuration writes the punycode form, which is what
//! clients send.

use std::fmt;
use std::io::Write;
use std::net::Ipv6Addr;

/// Longest host pattern in bytes: the longest DNS name (RFC 1035 section 2.3.4). It also bounds the part of a request's
/// host that is searched for suffixes.
pub const HOST_BYTES_MAX: usize = 253;

/// `example.com`, `*.example.com` or `*`, in lower case.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct HostPattern {
    /// A name, or a suffix that begins with a dot (names do not, so one table holds both). Empty: any host.
    text: Box<str>,
}

/// Why a text is not a host pattern.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HostError {
    /// The text is empty.
    Empty,
    /// More than [`HOST_BYTES_MAX`] bytes.
    TooLong,
    /// A `*` that is neither alone nor in a leading `*.`.
    Wildcard {
        /// The text as written.
        text: String,
        /// The probable intention.
        write: String,
    },
    /// `example.com:8080`.
    Port {
        /// The text as written.
        text: String,
        /// The host alone.
        write: String,
    },
    /// A trailing dot, or an empty label.
    EmptyLabel {
        /// The text as written.
        text: String,
        /// The name without it.
        write: String,
    },
    /// A character that hosts cannot have.
    Character {
        /// The text as written.
        text: String,
        /// The first such character.
        character: char,
    },
}

impl HostPattern {
    /// Parses a host of a route; upper case is folded.
    pub fn parse(text: &str) -> Result<HostPattern, HostError> {
        if text.is_empty() {
            return Err(HostError::Empty);
        }
        if text == "*" {
            return Ok(HostPattern { text: "".into() });
        }
        if text.len() > HOST_BYTES_MAX + 1 {
            return Err(HostError::TooLong);
        }
        let lower = text.to_ascii_lowercase();
        if let Some(address) = lower.strip_prefix('[') {
            return ipv6_literal(text, address);
        }
        let (suffix, name) = match lower.strip_prefix("*.") {
            Some(name) => (true, name),
            None => (false, lower.as_str()),
        };
        check_name(text, name)?;
        let text = if suffix { &lower[1..] } else { name };
        Ok(HostPattern { text: text.into() })
    }

    /// Whether it is a `*.` pattern, or `*`.
    pub fn is_suffix(&self) -> bool {
        self.text.is_empty() || self.text.starts_with('.')
    }

    /// Whether it is `*`, which matches any host, and requests without host. It is tried after all others, and before
    /// routes without a host.
    pub fn is_any(&self) -> bool {
        self.text.is_empty()
    }

    /// Whether a host in canonical form (see [`canonical_host`]) matches.
    pub fn matches(&self, host: &[u8]) -> bool {
        let text = self.text.as_bytes();
        if self.is_suffix() { self.is_any() || host.len() > text.len() && host.ends_with(text) } else { host == text }
    }

    /// Among patterns that match the same host, the one with the greatest precedence is tried first: an exact one, or
    /// the longest.
    pub fn precedence(&self) -> (bool, usize) {
        (!self.is_suffix(), self.text.len())
    }

    /// The name, or the suffix with its leading dot.
    pub(crate) fn key(&self) -> &[u8] {
        self.text.as_bytes()
    }
}

fn ipv6_literal(text: &str, address: &str) -> Result<HostPattern, HostError> {
    let Some((address, after)) = address.split_once(']') else {
        return Err(HostError::Character { text: text.to_owned(), character: '[' });
    };
    if !after.is_empty() {
        let write = format!("[{address}]");
        return Err(HostError::Port { text: text.to_owned(), write });
    }
    match address.parse::<Ipv6Addr>() {
        Ok(address) => Ok(HostPattern { text: format!("[{address}]").into() }),
        Err(_) => Err(HostError::Character { text: text.to_owned(), character: '[' }),
    }
}

fn check_name(text: &str, name: &str) -> Result<(), HostError> {
    if name.contains('*') {
        let rest = name.rsplit('*').find(|part| !part.is_empty()).unwrap_or("example.com");
        let write = format!("*.{}", rest.trim_matches('.'));
        return Err(HostError::Wildcard { text: text.to_owned(), write });
    }
    if let Some((host, port)) = name.split_once(':')
        && port.bytes().all(|b| b.is_ascii_digit())
    {
        let star = if text.starts_with("*.") { "*." } else { "" };
        return Err(HostError::Port { text: text.to_owned(), write: format!("{star}{host}") });
    }
    if let Some(character) = name.chars().find(|c| !c.is_ascii_alphanumeric() && !"-._".contains(*c)) {
        return Err(HostError::Character { text: text.to_owned(), character });
    }
    if name.split('.').any(str::is_empty) {
        let labels: Vec<&str> = name.split('.').filter(|label| !label.is_empty()).collect();
        let star = if text.starts_with('*') || text.starts_with('.') { "*." } else { "" };
        return Err(HostError::EmptyLabel { text: text.to_owned(), write: format!("{star}{}", labels.join(".")) });
    }
    Ok(())
}

impl fmt::Display for HostPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let star = if self.is_suffix() { "*" } else { "" };
        write!(f, "{star}{}", self.text)
    }
}

impl fmt::Display for HostError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            HostError::Empty => write!(f, "an empty host; leave the key out to match any host"),
            HostError::TooLong => write!(f, "a host has at most {HOST_BYTES_MAX} bytes"),
            HostError::Wildcard { text, write } => {
                write!(f, "\"{text}\": '*' only as the whole first label; write \"{write}\"")
            }
            HostError::Port { text, write } => {
                write!(f, "\"{text}\": hosts are compared without port; write \"{write}\"")
            }
            HostError::EmptyLabel { text, write } => write!(f, "\"{text}\": empty label; write \"{write}\""),
            HostError::Character { text, character } => {
                write!(f, "\"{text}\": {character:?} cannot be in a host")?;
                if !character.is_ascii() {
                    write!(f, "; write the punycode form (xn--…)")?;
                }
                Ok(())
            }
        }
    }
}

impl std::error::Error for HostError {}

/// The form in which hosts are compared: a `Host` field or an authority without port and trailing dot, in lower case;
/// an IPv6 address as RFC 5952 writes it.
///
/// Borrows `host` where it is in that form already; otherwise the result lives in `scratch`, whose content is replaced.
pub fn canonical_host<'a>(host: &'a [u8], scratch: &'a mut Vec<u8>) -> &'a [u8] {
    let host = split_port(host).map_or(host, |(host, _)| host);
    let host = host.strip_suffix(b".").unwrap_or(host);
    if let Some(address) = ipv6_of(host) {
        scratch.clear();
        write!(scratch, "[{address}]").expect("writing to a vector does not fail");
        return scratch;
    }
    if !host.iter().any(u8::is_ascii_uppercase) {
        return host;
    }
    scratch.clear();
    scratch.extend(host.iter().map(u8::to_ascii_lowercase));
    scratch
}

/// Parses a host in brackets.
fn ipv6_of(host: &[u8]) -> Option<Ipv6Addr> {
    let inside = host.strip_prefix(b"[")?.strip_suffix(b"]")?;
    std::str::from_utf8(inside).ok()?.parse().ok()
}

/// Splits what precedes a colon and the digits at the end of a host from them; `None`: it has no port, which may be empty.
#[inline]
pub fn split_port(host: &[u8]) -> Option<(&[u8], &[u8])> {
    let digits = host.iter().rev().take_while(|byte| byte.is_ascii_digit()).count();
    let (rest, digits) = host.split_at(host.len() - digits);
    Some((rest.strip_suffix(b":")?, digits))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_is_digits_behind_a_colon_at_the_end() {
        let check = |host: &str, expected: Option<(&str, &str)>| {
            let expected = expected.map(|(host, port)| (host.as_bytes(), port.as_bytes()));
            assert_eq!(split_port(host.as_bytes()), expected, "{host}");
        };
        check("", None);
        check("80", None);
        check("a.example", None);
        check("a1.example2", None);
        check("10.0.0.1", None);
        check("a:b", None);
        check("a:80b", None);
        check(":80", Some(("", "80")));
        check("a:", Some(("a", "")));
        check("a:8080", Some(("a", "8080")));
        check("10.0.0.1:99999", Some(("10.0.0.1", "99999")));
        check("[::1]", None);
        check("[::1]:443", Some(("[::1]", "443")));
        check("a:1:2", Some(("a:1", "2")));
    }

    #[test]
    fn patterns_match_whole_names_or_true_suffixes() {
        let check = |pattern: &str, host: &str, expected: bool| {
            let pattern = HostPattern::parse(pattern).unwrap();
            assert_eq!(pattern.matches(host.as_bytes()), expected, "{pattern} {host}");
        };
        check("example.com", "example.com", true);
        check("Example.COM", "example.com", true);
        check("example.com", "a.example.com", false);
        check("*.example.com", "a.example.com", true);
        check("*.example.com", "a.b.example.com", true);
        check("*.example.com", "example.com", false);
        check("*.example.com", ".example.com", false);
        check("*.example.com", "aexample.com", false);
        check("[::1]", "[::1]", true);
        check("[0:0:0:0:0:0:0:1]", "[::1]", true);
        check("[2001:DB8::0:1]", "[2001:db8::1]", true);
        check("10.0.0.1", "10.0.0.1", true);
        for host in ["a", "a.example.com", "[::1]", ""] {
            check("*", host, true);
        }
        let precedence = |text: &str| HostPattern::parse(text).unwrap().precedence();
        assert!(precedence("a") > precedence("*.a") && precedence("*.a") > precedence("*"));
        assert_eq!(HostPattern::parse("*").unwrap().to_string(), "*");
    }

    #[test]
    fn errors_say_what_to_write() {
        let check = |text: &str, message: &str| {
            assert_eq!(HostPattern::parse(text).unwrap_err().to_string(), message);
        };
        check("", "an empty host; leave the key out to match any host");
        check("*example.com", "\"*example.com\": '*' only as the whole first label; write \"*.example.com\"");
        check("a.*.com", "\"a.*.com\": '*' only as the whole first label; write \"*.com\"");
        check("example.com:80", "\"example.com:80\": hosts are compared without port; write \"example.com\"");
        check("*.a.com:80", "\"*.a.com:80\": hosts are compared without port; write \"*.a.com\"");
        check("[::1]:80", "\"[::1]:80\": hosts are compared without port; write \"[::1]\"");
        check("example.com.", "\"example.com.\": empty label; write \"example.com\"");
        check(".example.com", "\".example.com\": empty label; write \"*.example.com\"");
        check("a b", "\"a b\": ' ' cannot be in a host");
        check("käse.de", "\"käse.de\": 'ä' cannot be in a host; write the punycode form (xn--…)");
        check(&"a".repeat(300), "a host has at most 253 bytes");
    }

    #[test]
    fn hosts_of_requests_lose_port_case_and_final_dot() {
        let check = |host: &str, expected: &str| {
            let mut scratch = Vec::new();
            assert_eq!(canonical_host(host.as_bytes(), &mut scratch), expected.as_bytes());
        };
        check("example.com", "example.com");
        check("Example.com:8080", "example.com");
        check("example.com.", "example.com");
        check("example.com.:80", "example.com");
        check("example.com:", "example.com");
        check("[::1]:80", "[::1]");
        check("[2001:DB8::1]", "[2001:db8::1]");
        check("[0:0:0:0:0:0:0:1]:80", "[::1]");
        check("[2001:0db8:0000::0:1]", "[2001:db8::1]");
        // RFC 5952 section 5; it differs from the IPv4 address, which is another host.
        check("[::FFFF:7f00:1]", "[::ffff:127.0.0.1]");
        check("[::ffff:127.0.0.1]", "[::ffff:127.0.0.1]");
        // An invalid address is left unchanged, and matches no route's host.
        check("[1:2]", "[1:2]");
        check("", "");
    }
}
