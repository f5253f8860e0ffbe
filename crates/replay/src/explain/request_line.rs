//! The parts that describe a request: its request line, a header field, its client; from a command line or a query.

use std::net::{IpAddr, SocketAddr};

/// `METHOD http://host[:port]/path[?query]`, or `METHOD /path` with the host in a header.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RequestLine {
    /// As written.
    pub method: String,
    /// `http` or `https`.
    pub scheme: String,
    /// With its port if one is written; `None`: not given.
    pub authority: Option<String>,
    /// Path and query; begins with `/`.
    pub target: String,
}

impl std::str::FromStr for RequestLine {
    type Err = String;

    fn from_str(text: &str) -> Result<RequestLine, String> {
        const SHAPE: &str = "write it as \"GET http://host/path\"";
        let mut words = text.split_ascii_whitespace();
        let (Some(method), Some(url), None) = (words.next(), words.next(), words.next()) else {
            return Err(format!("a method and a URL are needed; {SHAPE}"));
        };
        RequestLine::new(method, url).map_err(|what| format!("{what}; {SHAPE}"))
    }
}

impl RequestLine {
    /// Makes a request line from a method and an absolute URL or a path; the error is a sentence for the user.
    pub fn new(method: &str, url: &str) -> Result<RequestLine, String> {
        if method.is_empty() || !method.bytes().all(is_token_byte) {
            return Err(format!("\"{method}\" is not a method"));
        }
        if let Some(wrong) = url.chars().find(|c| c.is_whitespace() || c.is_control()) {
            return Err(format!("\"{}\" holds {wrong:?}, which no request line does", url.escape_debug()));
        }
        if url.starts_with('/') {
            return Ok(RequestLine {
                method: method.to_owned(),
                scheme: "http".to_owned(),
                authority: None,
                target: url.to_owned(),
            });
        }
        let Some((scheme @ ("http" | "https"), rest)) = url.split_once("://") else {
            return Err(format!("\"{url}\" is not an http or https URL"));
        };
        let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
        let (authority, target) = rest.split_at(end);
        if authority.is_empty() {
            return Err(format!("\"{url}\" has no host"));
        }
        // A fragment never reaches a server.
        let target = target.split('#').next().unwrap_or_default();
        Ok(RequestLine {
            method: method.to_owned(),
            scheme: scheme.to_owned(),
            authority: Some(authority.to_owned()),
            target: match target.starts_with('/') {
                true => target.to_owned(),
                false => format!("/{target}"),
            },
        })
    }
}

/// `192.0.2.1`, `2001:db8::1`, `192.0.2.1:5000` or `[2001:db8::1]:5000`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClientAddress {
    /// Where the request comes from.
    pub address: IpAddr,
    /// The client's port, if known.
    pub port: Option<u16>,
}

impl std::str::FromStr for ClientAddress {
    type Err = String;

    fn from_str(text: &str) -> Result<ClientAddress, String> {
        let with_port = |client: SocketAddr| ClientAddress { address: client.ip(), port: Some(client.port()) };
        let alone = text.parse().map(|address| ClientAddress { address, port: None });
        alone.or_else(|_| text.parse().map(with_port)).map_err(|_| {
            format!(
                "{text:?} is not an address; write it as 192.0.2.1 or 2001:db8::1, or with a port as 192.0.2.1:5000 or \
                 [2001:db8::1]:5000"
            )
        })
    }
}

/// One `name: value`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HeaderArgument {
    /// As written.
    pub name: String,
    /// Without surrounding blanks.
    pub value: String,
}

impl std::str::FromStr for HeaderArgument {
    type Err = String;

    fn from_str(text: &str) -> Result<HeaderArgument, String> {
        match text.split_once(':') {
            Some((name, value)) if !name.is_empty() && name.bytes().all(is_token_byte) => {
                Ok(HeaderArgument { name: name.to_owned(), value: value.trim().to_owned() })
            }
            _ => Err(format!("\"{text}\" is not a header field; write it as \"name: value\"")),
        }
    }
}

/// Whether the byte may be part of a token (RFC 9110 section 5.6.2).
pub fn is_token_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn request_lines() {
        fn check(text: &str, expected: Result<(&str, &str, Option<&str>, &str), &str>) {
            let found = text.parse::<RequestLine>();
            match (&found, expected) {
                (Ok(line), Ok((method, scheme, authority, target))) => assert_eq!(
                    (line.method.as_str(), line.scheme.as_str(), line.authority.as_deref(), line.target.as_str()),
                    (method, scheme, authority, target)
                ),
                (Err(message), Err(part)) => assert!(message.contains(part), "{message}"),
                _ => panic!("{text}: {found:?}"),
            }
        }
        check("GET http://a.example:81/p/q?x=1#f", Ok(("GET", "http", Some("a.example:81"), "/p/q?x=1")));
        check("POST https://h", Ok(("POST", "https", Some("h"), "/")));
        check("GET http://h?x", Ok(("GET", "http", Some("h"), "/?x")));
        check("GET http://[::1]:80/", Ok(("GET", "http", Some("[::1]:80"), "/")));
        check("GET /only/path", Ok(("GET", "http", None, "/only/path")));
        check("GET", Err("a method and a URL"));
        check("GET a b", Err("a method and a URL"));
        check("G=T /", Err("not a method"));
        check("GET ftp://h/", Err("not an http"));
        check("GET http:///x", Err("no host"));
    }

    #[test]
    fn headers() {
        let header = "x-a: b:c ".parse::<HeaderArgument>().expect("a header");
        assert_eq!((header.name.as_str(), header.value.as_str()), ("x-a", "b:c"));
        assert!("no colon".parse::<HeaderArgument>().is_err());
        assert!(": value".parse::<HeaderArgument>().is_err());
    }
}
