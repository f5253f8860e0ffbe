//! The server to load: the parts of a URL that a connection and a request need.
//!
//! Strict, because a URL that is silently read as another one would measure something else: characters that a browser
//! would fix (spaces, other scripts, `\`) are refused with a suggestion.

use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr, ToSocketAddrs};

/// An HTTP server and a path on it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    /// The URL as it was given.
    pub url: String,
    /// Addresses to connect to, in the order of preference; empty until a name was resolved.
    pub addresses: Vec<SocketAddr>,
    /// Whether the URL requires TLS (`https`).
    pub is_secure: bool,
    /// The host alone, lower case: the name that a certificate must have.
    pub name: String,
    /// The value of the Host field: lower case, without the scheme's default port.
    pub host: String,
    /// The path and query; begins with `/`.
    pub path_and_query: String,
}

impl Target {
    /// Parses a URL without resolving its host: `addresses` is empty if the host is a name.
    pub fn parse(url: &str) -> Result<Target, TargetError> {
        let (target, _) = read(url)?;
        Ok(target)
    }

    /// Parses a URL and resolves its host with the system's resolver.
    pub fn resolve(url: &str) -> Result<Target, TargetError> {
        let (mut target, Authority { host, port }) = read(url)?;
        if target.addresses.is_empty() {
            let found = (host.as_str(), port).to_socket_addrs();
            let found = found.map_err(|error| TargetError::Unresolved { host: host.clone(), error })?;
            for address in found {
                if !target.addresses.contains(&address) {
                    target.addresses.push(address);
                }
            }
            if target.addresses.is_empty() {
                return Err(TargetError::NoAddress { host });
            }
        }
        Ok(target)
    }
}

/// Host and port, as written.
struct Authority {
    host: String,
    port: u16,
}

/// Longest name in the DNS (RFC 1035 section 2.3.4).
const HOST_BYTES_MAX: usize = 255;

fn read(url: &str) -> Result<(Target, Authority), TargetError> {
    if url.trim().is_empty() {
        return Err(TargetError::Empty);
    }
    if let Some((at, character)) = url.char_indices().find(|(_, c)| !in_url(*c)) {
        return Err(TargetError::BadCharacter { character, column: url[..at].chars().count() + 1 });
    }
    let (scheme, rest) = split_scheme(url)?;
    if rest.contains('#') {
        return Err(TargetError::Fragment);
    }
    let (authority, path) = rest.split_at(rest.find(['/', '?']).unwrap_or(rest.len()));
    if authority.contains('@') {
        return Err(TargetError::UserInformation);
    }
    let (host, port) = split(authority, scheme.port())?;
    let address = address(host)?;
    let (name, host) = match address {
        Some(IpAddr::V6(address)) => (address.to_string(), format!("[{address}]")),
        _ => (host.to_ascii_lowercase(), host.to_ascii_lowercase()),
    };
    let target = Target {
        url: url.to_owned(),
        addresses: address.into_iter().map(|address| SocketAddr::new(address, port)).collect(),
        is_secure: scheme == Scheme::Https,
        name,
        host: if port == scheme.port() { host.clone() } else { format!("{host}:{port}") },
        path_and_query: if path.starts_with('/') { path.to_owned() } else { format!("/{path}") },
    };
    Ok((target, Authority { host, port }))
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Scheme {
    Http,
    Https,
}

impl Scheme {
    /// The scheme's default port.
    fn port(self) -> u16 {
        match self {
            Scheme::Http => 80,
            Scheme::Https => 443,
        }
    }
}

/// The scheme, and the rest after its `://`.
fn split_scheme(url: &str) -> Result<(Scheme, &str), TargetError> {
    let Some((scheme, rest)) = url.split_once("://").filter(|(scheme, _)| !scheme.contains(['/', '?', '#', '@']))
    else {
        let bare = url.trim_start_matches("http:").trim_start_matches('/');
        let bare = if bare.is_empty() { "127.0.0.1:8080/" } else { bare };
        return Err(TargetError::NoScheme { meant: format!("http://{}", shown(bare)) });
    };
    match scheme.to_ascii_lowercase().as_str() {
        "http" => Ok((Scheme::Http, rest)),
        "https" => Ok((Scheme::Https, rest)),
        "" => Err(TargetError::NoScheme { meant: format!("http://{}", shown(rest)) }),
        _ => Err(TargetError::OtherScheme { scheme: scheme.to_owned() }),
    }
}

/// Characters that RFC 3986 allows, and `[ ] { } | ^`, which browsers send unchanged.
fn in_url(character: char) -> bool {
    character.is_ascii_graphic() && !matches!(character, '"' | '<' | '>' | '\\' | '`')
}

fn split(authority: &str, port_default: u16) -> Result<(&str, u16), TargetError> {
    let bad_host = || TargetError::BadHost { host: authority.to_owned() };
    if authority.parse::<Ipv6Addr>().is_ok() {
        return Err(bad_host());
    }
    let end = match authority.starts_with('[') {
        true => authority.find(']').map(|close| close + 1),
        false => authority.find(':'),
    };
    let end = end.unwrap_or(authority.len());
    let (host, rest) = authority.split_at(end);
    if host.is_empty() {
        return Err(TargetError::NoHost);
    }
    let port = match rest.strip_prefix(':') {
        Some("") => port_default,
        Some(port) if port.bytes().all(|b| b.is_ascii_digit()) => match port.parse() {
            Ok(number) if number > 0 => number,
            _ => return Err(TargetError::BadPort { port: port.to_owned() }),
        },
        Some(port) => return Err(TargetError::BadPort { port: port.to_owned() }),
        None if rest.is_empty() => port_default,
        None => return Err(bad_host()),
    };
    Ok((host, port))
}

/// The address that the host is; `None` if it is a name.
fn address(host: &str) -> Result<Option<IpAddr>, TargetError> {
    let bad = || TargetError::BadHost { host: host.to_owned() };
    if let Some(inside) = host.strip_prefix('[') {
        let inside = inside.strip_suffix(']').ok_or_else(bad)?;
        let address: Ipv6Addr = inside.parse().map_err(|_| bad())?;
        return Ok(Some(IpAddr::V6(address)));
    }
    if let Ok(address) = host.parse() {
        return Ok(Some(IpAddr::V4(address)));
    }
    let named = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'.' | b'_');
    if host.len() > HOST_BYTES_MAX || host.starts_with('.') || host.contains("..") || !host.bytes().all(named) {
        return Err(bad());
    }
    Ok(None)
}

// Why a URL cannot be used, with a suggestion.

/// Why a URL cannot be used. `Display` has a suggestion.
#[derive(Debug)]
pub enum TargetError {
    /// Nothing was given.
    Empty,
    /// No scheme in front.
    NoScheme {
        /// The URL with a scheme.
        meant: String,
    },
    /// A scheme that is not HTTP.
    OtherScheme {
        /// The text as written.
        scheme: String,
    },
    /// A name or password before the host.
    UserInformation,
    /// Nothing between `http://` and the path.
    NoHost,
    /// A host that is neither a name nor an address.
    BadHost {
        /// The text as written.
        host: String,
    },
    /// An invalid port.
    BadPort {
        /// The text as written.
        port: String,
    },
    /// A character that cannot be in a URL.
    BadCharacter {
        /// The character.
        character: char,
        /// Its position, counted from one.
        column: usize,
    },
    /// A part after a `#`.
    Fragment,
    /// The resolver does not know the name, or could not be reached.
    Unresolved {
        /// The name.
        host: String,
        /// The resolver's error.
        error: io::Error,
    },
    /// The resolver knows the name, without an address.
    NoAddress {
        /// The name.
        host: String,
    },
}

impl fmt::Display for TargetError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TargetError::Empty => f.write_str("the URL is empty; write one like http://127.0.0.1:8080/"),
            TargetError::NoScheme { meant } => write!(f, "the URL has no scheme; write {meant}"),
            TargetError::OtherScheme { scheme } => {
                write!(f, "unsupported scheme {:?}; use a URL that begins with http:// or https://", shown(scheme))
            }
            TargetError::UserInformation => f.write_str(
                "the URL has a user name before its host; remove it up to the @, and send an Authorization header",
            ),
            TargetError::NoHost => f.write_str("the URL has no host; write one like http://127.0.0.1:8080/"),
            TargetError::BadHost { host } => write!(
                f,
                "{:?} is not a host; write a name of letters, digits, dots and hyphens (xn--… for others), an IPv4 address, \
                 or an IPv6 address in [ ]",
                shown(host)
            ),
            TargetError::BadPort { port } => {
                write!(f, "{:?} is not a port; write a number of 1 to 65535 after the host", shown(port))
            }
            TargetError::BadCharacter { character, column } => {
                write!(f, "{character:?} in column {column} cannot be in a URL; write {}", percent_encoded(*character))
            }
            TargetError::Fragment => f.write_str("the part after # is never sent to a server; remove it, or write %23"),
            TargetError::Unresolved { host, error } => write!(
                f,
                "the name {host:?} was not resolved ({error}); check its spelling and the name server, or write its address"
            ),
            TargetError::NoAddress { host } => write!(f, "the name {host:?} has no address; write the address instead"),
        }
    }
}

impl std::error::Error for TargetError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            TargetError::Unresolved { error, .. } => Some(error),
            _ => None,
        }
    }
}

/// Quoted for a message, in full up to a length.
fn shown(text: &str) -> String {
    const CHARACTERS_MAX: usize = 100;
    match text.char_indices().nth(CHARACTERS_MAX) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

fn percent_encoded(character: char) -> String {
    let mut bytes = [0; 4];
    character.encode_utf8(&mut bytes).bytes().map(|byte| format!("%{byte:02X}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Checks `Host`, path and address, or the message.
    fn check(url: &str, want: &str) {
        let got = match Target::parse(url) {
            Ok(target) => {
                let addresses: Vec<String> = target.addresses.iter().map(ToString::to_string).collect();
                format!("{} {} {}", target.host, target.path_and_query, addresses.join(","))
            }
            Err(error) => error.to_string(),
        };
        assert!(got.contains(want), "{url:?}: {got}\nwanted: {want}");
    }

    #[test]
    fn reads_what_a_connection_and_a_request_need() {
        for (url, want) in [
            ("http://localhost", "localhost / "),
            ("http://localhost:8080", "localhost:8080 / "),
            ("http://Example.COM:80/A?b=C", "example.com /A?b=C "),
            ("HTTP://example.com:", "example.com / "),
            (
                "http://127.0.0.1:8080/a%20b//c/../d?e=/?#".trim_end_matches('#'),
                "127.0.0.1:8080 /a%20b//c/../d?e=/? 127.0.0.1:8080",
            ),
            ("http://127.0.0.1?a=1", "127.0.0.1 /?a=1 127.0.0.1:80"),
            ("http://[0:0:0:0:0:0:0:1]:81/", "[::1]:81 / [::1]:81"),
            ("http://[::1]", "[::1] / [::1]:80"),
            ("http://a_b.internal./x", "a_b.internal. /x "),
            ("http://h/a:b@c://d", "h /a:b@c://d "),
            ("https://Example.com/x", "example.com /x "),
            ("HTTPS://example.com:443", "example.com / "),
            ("https://example.com:80/", "example.com:80 / "),
            ("https://127.0.0.1", "127.0.0.1 / 127.0.0.1:443"),
        ] {
            check(url, want);
        }
    }

    #[test]
    fn says_what_to_write_instead() {
        for (url, want) in [
            ("", "the URL is empty"),
            (" \t", "the URL is empty"),
            ("localhost:8080/x", "no scheme; write http://localhost:8080/x"),
            ("127.0.0.1", "no scheme; write http://127.0.0.1"),
            ("//host/x", "no scheme; write http://host/x"),
            ("http:/host", "no scheme; write http://host"),
            ("http:", "no scheme; write http://127.0.0.1:8080/"),
            ("://host", "no scheme; write http://host"),
            ("localhost/?next=http://a", "no scheme; write http://localhost/?next=http://a"),
            ("WSS://localhost/", "unsupported scheme \"WSS\""),
            ("ws://localhost/", "unsupported scheme \"ws\"; use a URL that begins with http:// or https://"),
            ("ftp://localhost/", "unsupported scheme \"ftp\""),
            ("unix:///run/a.sock", "unsupported scheme \"unix\""),
            ("http://ann:secret@host/", "remove it up to the @"),
            ("http://@host/", "remove it up to the @"),
            ("http://", "no host"),
            ("http:///path", "no host"),
            ("http://:8080/", "no host"),
            ("http://?x", "no host"),
            ("http://host:0/", "\"0\" is not a port; write a number of 1 to 65535"),
            ("http://host:65536/", "\"65536\" is not a port"),
            ("http://host:http/", "\"http\" is not a port"),
            ("http://host:-1/", "\"-1\" is not a port"),
            ("http://host:+80/", "\"+80\" is not a port"),
            ("http://host:80:80/", "\"80:80\" is not a port"),
            ("http://host:99999999999999999999/", "is not a port"),
            (
                "http://::1/",
                "\"::1\" is not a host; write a name of letters, digits, dots and hyphens (xn--… for others), an IPv4",
            ),
            ("http://fe80::1/", "\"fe80::1\" is not a host"),
            ("http://[::1", "is not a host"),
            ("http://[::1]x", "is not a host"),
            ("http://[::1]]", "is not a host"),
            ("http://[::1:80/", "is not a host"),
            ("http://[::1%25lo]/", "is not a host"),
            ("http://[127.0.0.1]/", "is not a host"),
            ("http://[]/", "is not a host"),
            ("http://a..b/", "\"a..b\" is not a host"),
            ("http://a,b/", "\"a,b\" is not a host"),
            ("http://%61/", "is not a host"),
            ("http://host/a b", "' ' in column 14 cannot be in a URL; write %20"),
            (" http://host/", "' ' in column 1 cannot be in a URL"),
            ("http://host/ü", "'ü' in column 13 cannot be in a URL; write %C3%BC"),
            ("http://bücher.example/", "'ü' in column 9"),
            ("http://host\\path", "'\\\\' in column 12"),
            ("http://host/\r\nX: y", "'\\r' in column 13 cannot be in a URL; write %0D"),
            ("http://host/\0", "write %00"),
            ("http://host/#top", "the part after # is never sent"),
            ("http://host#", "the part after # is never sent"),
        ] {
            check(url, want);
        }
        check(&format!("http://{}/", "a".repeat(10_000)), "is not a host");
    }

    #[test]
    fn resolves_names_and_says_when_there_is_none() {
        let target = Target::resolve("http://localhost:8080/x").unwrap();
        assert!(target.addresses.iter().all(|a| a.ip().is_loopback() && a.port() == 8080), "{target:?}");
        assert!(!target.addresses.is_empty());
        assert_eq!(Target::resolve("http://[::1]:81/").unwrap().addresses, ["[::1]:81".parse().unwrap()]);
        // RFC 6761: never exists.
        let error = Target::resolve("http://nobody.invalid/").unwrap_err().to_string();
        assert!(error.starts_with("the name \"nobody.invalid\" was not resolved ("), "{error}");
        assert!(error.ends_with("check its spelling and the name server, or write its address"), "{error}");
    }

    proptest! {
        #[test]
        fn any_text_is_a_target_or_an_error(text in "\\PC*") {
            prop_assert!(Target::parse(&text).is_ok() || Target::parse(&text).is_err());
        }

        #[test]
        fn what_is_read_can_be_written_into_a_request(rest in "[ -~é\\x00-\\x1f]{0,40}") {
            if let Ok(target) = Target::parse(&format!("http://{rest}")) {
                let sent = format!("{}{}", target.host, target.path_and_query);
                prop_assert!(sent.bytes().all(|b| b.is_ascii_graphic()), "{sent:?}");
                prop_assert!(target.path_and_query.starts_with('/'));
                prop_assert!(!target.path_and_query.contains('#'));
            }
        }
    }
}
