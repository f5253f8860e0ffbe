//! Accepted host names of a server on loopback: protects against DNS rebinding.
//!
//! A server that trusts loopback trusts every browser there, and so every page that such a browser shows. Pages of
//! other origins cannot read its answers, unless their own host name is made to resolve to 127.0.0.1; but then the
//! request's `Host` is that name. So only names are accepted that an attacker cannot own. Other programs can send any
//! name and are not the target.

use hyper::header::{HOST, HeaderMap};
use hyper::http::uri::Authority;
use hyper::{Method, Request};
use std::fmt;
use std::net::{IpAddr, SocketAddrV4};

/// Longest host shown in a refusal.
const SHOWN_CHARS_MAX: usize = 100;

/// Names that a server knows as its own, besides `localhost` and all addresses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hosts {
    /// The key of the configuration for further names.
    key: &'static str,
    /// In lower case, without a dot at their end.
    names: Vec<String>,
}

/// Why a request is not answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Stranger {
    /// The requested host is not one of the server's.
    Host {
        /// As sent; cut if it is long.
        host: String,
        /// The key of the configuration for the server's names.
        key: &'static str,
    },
    /// A page of another site made a browser send it.
    CrossSite,
}

impl Hosts {
    /// A server with these names; `key` is the key of the configuration that adds one.
    pub fn new(key: &'static str, names: impl IntoIterator<Item = String>) -> Hosts {
        Hosts { key, names: names.into_iter().map(|name| canonical(&name)).collect() }
    }

    /// Returns why a request over loopback must be refused. A request without a host, as in HTTP/1.0, does not come
    /// from a browser.
    pub fn check<B>(&self, request: &Request<B>) -> Result<(), Stranger> {
        let of_target = request.uri().authority().map(Authority::as_str).map(str::as_bytes);
        let of_field = request.headers().get_all(HOST).into_iter().map(|host| host.as_bytes());
        for host in of_target.into_iter().chain(of_field) {
            if !self.is_own(host) {
                let host = String::from_utf8_lossy(host).chars().take(SHOWN_CHARS_MAX).collect();
                return Err(Stranger::Host { host, key: self.key });
            }
        }
        match is_cross_site(request.method(), request.headers()) {
            true => Err(Stranger::CrossSite),
            false => Ok(()),
        }
    }

    fn is_own(&self, host: &[u8]) -> bool {
        // A shortcut for the usual host, an IPv4 address and a port. `SocketAddr` would take zone ids, which are refused below.
        let is_ipv4 = || str::from_utf8(host).is_ok_and(|host| host.parse::<SocketAddrV4>().is_ok());
        if host.is_empty() || is_ipv4() {
            return true;
        }
        let Ok(authority) = Authority::try_from(host) else { return false };
        if authority.as_str().contains('@') {
            return false;
        }
        let host = authority.host();
        let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
        let name = canonical(host);
        bare.parse::<IpAddr>().is_ok() || name == "localhost" || self.names.contains(&name)
    }
}

fn canonical(name: &str) -> String {
    name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase()
}

/// Checks `Sec-Fetch-*`, which browsers add and pages cannot change. A link that somebody follows is not an attack. A page
/// cannot read what it loads from here, but could make us work for it.
fn is_cross_site(method: &Method, headers: &HeaderMap) -> bool {
    let is = |name: &str, value: &str| headers.get(name).is_some_and(|found| found == value);
    let is_link = is("sec-fetch-mode", "navigate") && is("sec-fetch-dest", "document") && *method == Method::GET;
    is("sec-fetch-site", "cross-site") && !is_link
}

impl fmt::Display for Stranger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Stranger::Host { host, key } => write!(
                f,
                "the host {host:?} is not accepted, as a protection against DNS rebinding; use 127.0.0.1 or localhost, or \
                 add the name to {key}"
            ),
            Stranger::CrossSite => {
                write!(f, "this request came from a page of another site; open the address directly")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(fields: &[(&str, &str)]) -> Request<()> {
        let mut request = Request::builder().uri("/");
        for (name, value) in fields {
            request = request.header(*name, *value);
        }
        request.body(()).unwrap()
    }

    fn refused(host: &str) -> Result<(), Stranger> {
        Err(Stranger::Host { host: host.to_owned(), key: "KEY" })
    }

    #[test]
    fn hosts_that_a_stranger_can_own_are_refused() {
        let hosts = Hosts::new("KEY", ["Gateway".to_owned(), "metrics.example.".to_owned()]);
        for own in [
            "localhost",
            "localhost:9180",
            "LocalHost.",
            "127.0.0.1",
            "127.0.0.1:9180",
            "[::1]:9180",
            "10.1.2.3",
            "gateway:9091",
            "GATEWAY",
            "metrics.example",
            "metrics.example.:80",
        ] {
            assert_eq!(hosts.check(&request(&[("host", own)])), Ok(()), "{own}");
        }
        for other in [
            "evil.example",
            "localhost.evil.example",
            "127.0.0.1.evil.example:9180",
            "x.localhost.example",
            "gateway.evil",
            "a.metrics.example",
            "evil.example@localhost",
            "::1",
            "[::1%1]:9180",
            "0x7f.1",
            "a b",
            "xlocalhost",
        ] {
            assert_eq!(hosts.check(&request(&[("host", other)])), refused(other), "{other}");
        }
        assert_eq!(hosts.check(&request(&[])), Ok(()), "HTTP/1.0");
        assert_eq!(hosts.check(&request(&[("host", "")])), Ok(()));
        let twice = request(&[("host", "localhost"), ("host", "evil.example")]);
        assert_eq!(hosts.check(&twice), refused("evil.example"));
        let absolute = Request::builder().uri("http://evil.example/").header("host", "localhost").body(()).unwrap();
        assert_eq!(hosts.check(&absolute), refused("evil.example"));
    }

    #[test]
    fn what_pages_of_other_sites_load_is_refused() {
        let check = |site: &str, mode: &str, dest: &str, expected| {
            let fields = [("sec-fetch-site", site), ("sec-fetch-mode", mode), ("sec-fetch-dest", dest)];
            let found = Hosts::new("KEY", []).check(&request(&[&fields[..], &[("host", "127.0.0.1")]].concat()));
            assert_eq!(found, expected, "{site} {mode} {dest}");
        };
        check("cross-site", "no-cors", "image", Err(Stranger::CrossSite));
        check("cross-site", "cors", "empty", Err(Stranger::CrossSite));
        check("cross-site", "navigate", "iframe", Err(Stranger::CrossSite));
        check("cross-site", "navigate", "document", Ok(()));
        check("same-site", "no-cors", "image", Ok(()));
        check("same-origin", "cors", "empty", Ok(()));
        check("none", "navigate", "document", Ok(()));
    }
}
