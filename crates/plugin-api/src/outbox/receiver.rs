//! Receivers of log entries.

use std::time::Duration;

/// The destination of entries.
pub enum Receiver {
    /// A file, to which entries are appended.
    File(FileReceiver),
    /// A server that speaks HTTP.
    Http(Box<HttpReceiver>),
    /// A TCP connection, with or without TLS.
    Tcp(SocketReceiver),
    /// Datagrams.
    Udp(SocketReceiver),
}

/// A file, to which entries are appended; it is opened again if the file at its path is replaced or missing.
pub struct FileReceiver {
    /// Its path.
    pub path: String,
}

/// A port of a host.
pub struct SocketReceiver {
    /// A name or an address.
    pub host: String,
    /// The port.
    pub port: u16,
    /// The requested server name; `None`: without TLS. Certificates are not verified, as in APISIX.
    pub tls_name: Option<String>,
    /// Timeout of connecting, and of writing.
    pub timeout: Duration,
    /// Syslog: each entry is a datagram of its own, or the connection is kept open.
    pub is_syslog: bool,
}

/// HTTP servers, one of which is chosen at random for each batch.
pub struct HttpReceiver {
    /// URLs to post to.
    pub urls: Vec<Url>,
    /// Header fields, validated. Their values may be secret.
    pub headers: Vec<(String, String)>,
    /// Whether certificates are verified.
    pub verifies: bool,
    /// Timeout of one request, from connecting to the end of the response.
    pub timeout: Duration,
    /// How long connections are kept; `None`: each request has its own.
    pub keepalive: Option<Duration>,
    /// A batch is delivered if the status is below this, and at least 200.
    pub status_below: u16,
    /// A GET request before the first batch, whose response determines further header fields.
    pub question: Option<Question>,
    /// Counts the entries of a delivered batch that the server refused, from the body of its response.
    pub refused: Option<Refused>,
}

/// Counts the entries that the body of a response refuses.
pub type Refused = fn(body: &[u8]) -> u64;

/// Returns the header fields that the response to a [`Question`] determines; or the error if it is invalid.
pub type Learn = fn(body: &[u8]) -> Result<Vec<(&'static str, String)>, String>;

/// A request before the first batch.
pub struct Question {
    /// Path and query.
    pub target: String,
    /// Reads header fields from its response.
    pub learn: Learn,
}

/// An HTTP URL.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Url {
    /// Whether it is `https`.
    pub is_tls: bool,
    /// A name or an address, without brackets.
    pub host: String,
    /// The port.
    pub port: u16,
    /// The value of `Host`.
    pub authority: String,
    /// Path and query.
    pub target: String,
}

impl Url {
    /// Parses an absolute URL.
    ///
    /// # Errors
    ///
    /// If it is not an HTTP URL, or has parts that belong into other keys; with a hint.
    pub fn parse(text: &str) -> Result<Url, String> {
        let (is_tls, rest) = match (text.strip_prefix("http://"), text.strip_prefix("https://")) {
            (Some(rest), _) => (false, rest),
            (_, Some(rest)) => (true, rest),
            _ => return Err("it does not begin with http:// or https://".to_owned()),
        };
        if let Some(bad) = rest.bytes().find(|byte| !(b'!'..=b'~').contains(byte) || *byte == b'#') {
            return Err(format!("it has {:?}, which is not allowed there", char::from(bad)));
        }
        let at = rest.find(['/', '?']).unwrap_or(rest.len());
        let (authority, target) = rest.split_at(at);
        if authority.contains('@') {
            return Err("it has a user's name; use the keys for that".to_owned());
        }
        let (host, port) = match authority.rsplit_once(':') {
            Some((host, port)) if !port.contains(']') => (host, Some(port)),
            _ => (authority, None),
        };
        let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
        let port = match port.map(str::parse::<u16>) {
            None => {
                if is_tls {
                    443
                } else {
                    80
                }
            }
            Some(Ok(port)) if port > 0 => port,
            _ => return Err("its port is not a number from 1 to 65535".to_owned()),
        };
        if bare.is_empty() || bare.contains(['[', ']', '\\']) {
            return Err("it has no host".to_owned());
        }
        let target = if target.starts_with('/') { target.to_owned() } else { format!("/{target}") };
        Ok(Url { is_tls, host: bare.to_owned(), port, authority: authority.to_owned(), target })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_http() {
        let url = |text: &str| {
            Url::parse(text)
                .map(|url| format!("{} {} {} {} {}", url.is_tls, url.host, url.port, url.authority, url.target))
        };
        for (text, expected) in [
            ("http://a", "false a 80 a /"),
            ("https://a.b:8443/c?d=e", "true a.b 8443 a.b:8443 /c?d=e"),
            ("https://[::1]/x", "true ::1 443 [::1] /x"),
            ("http://[::1]:9?y", "false ::1 9 [::1]:9 /?y"),
        ] {
            assert_eq!(url(text).as_deref(), Ok(expected), "{text}");
        }
        for text in [
            "",
            "a",
            "ftp://a",
            "http://",
            "http://:80",
            "http://u:p@a",
            "http://a:0",
            "http://a:x",
            "http://a/b c",
            "http://a/\r\nX: y",
            "http://a#b",
            "http://[::1",
        ] {
            assert!(url(text).is_err(), "{text}");
        }
    }
}
