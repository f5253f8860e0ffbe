//! One endpoint of etcd, read from its URL.

use super::options::OptionsError;
use hyper::Uri;
use hyper::header::HeaderValue;
use stillgate_tls::rustls::pki_types::ServerName;

/// etcd's default port.
const PORT: u16 = 2379;

/// The address of one member.
#[derive(Debug, Clone)]
pub(crate) struct EtcdEndpoint {
    /// For messages: `http://127.0.0.1:2379`.
    pub(crate) url: String,
    /// The host name or address, without brackets.
    pub(crate) host: String,
    pub(crate) port: u16,
    /// `Host`
    pub(crate) authority: HeaderValue,
    /// Present if it uses TLS: the name that its certificate must have.
    pub(crate) tls_name: Option<ServerName<'static>>,
}

impl EtcdEndpoint {
    /// `option` is the URL's name in messages, which do not repeat the URL: it may contain a password.
    pub(crate) fn parse(url: &str, option: &str) -> Result<EtcdEndpoint, OptionsError> {
        const WRITE: &str = "write http://host:port or https://host:port";
        let refused = |what: &str| OptionsError::new(option, format!("{what}; {WRITE}"));
        let uri: Uri = url.parse().map_err(|_| refused("not a URL"))?;
        let is_tls = match uri.scheme_str() {
            Some("http") => false,
            Some("https") => true,
            _ => return Err(refused("neither http nor https")),
        };
        let authority = uri.authority().ok_or_else(|| refused("it has no host"))?.as_str();
        if authority.contains('@') {
            let message = "it contains a user name; write it and the password as `user` and `password`";
            return Err(OptionsError::new(option, message));
        }
        if !matches!(uri.path(), "" | "/") || uri.query().is_some() {
            return Err(refused("it has a path"));
        }
        let host = uri.host().unwrap_or_default().trim_start_matches('[').trim_end_matches(']').to_owned();
        let name = ServerName::try_from(host.clone()).map_err(|_| refused("its host is not a host name"))?;
        Ok(EtcdEndpoint {
            url: format!("{}://{authority}", if is_tls { "https" } else { "http" }),
            host,
            port: uri.port_u16().unwrap_or(PORT),
            authority: HeaderValue::from_str(authority).map_err(|_| refused("not a URL"))?,
            tls_name: is_tls.then_some(name),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_is_an_endpoint() {
        let check = |url: &str, expected: (&str, u16, bool)| {
            let endpoint = EtcdEndpoint::parse(url, "endpoints[0]").unwrap();
            assert_eq!((&*endpoint.host, endpoint.port, endpoint.tls_name.is_some()), expected, "{url}");
        };
        check("http://127.0.0.1:2380", ("127.0.0.1", 2380, false));
        check("http://etcd", ("etcd", 2379, false));
        check("https://[::1]:1/", ("::1", 1, true));
    }

    #[test]
    fn what_is_none_is_refused_without_being_repeated() {
        let check = |url: &str, expected: &str| {
            let error = EtcdEndpoint::parse(url, "endpoints[0]").unwrap_err().to_string();
            assert!(error.contains(expected) && !error.contains("SECRET"), "{url}: {error}");
        };
        check("127.0.0.1:2379", "neither http nor https");
        check("ftp://SECRET", "neither http nor https");
        check("http://a:SECRET@b", "`user` and `password`");
        check("http://a/SECRET", "it has a path");
        check("http://a/?SECRET", "it has a path");
        check("http://", "not a URL");
    }
}
