//! An operator's options for etcd: endpoints, credentials, TLS.
//!
//! `Debug` shows neither passwords nor keys, and no message repeats an endpoint that could contain one.

use hyper::Uri;
use hyper::header::HeaderValue;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;
use stillgate_tls::rustls::pki_types::ServerName;

/// Endpoints of one cluster. Clusters have 3 to 7 members.
pub(crate) const ENDPOINTS_MAX: usize = 64;

/// How to reach etcd.
#[derive(Clone)]
pub struct EtcdOptions {
    /// `http://host:port` or `https://host:port`; at least one. Several are members of one cluster.
    pub endpoints: Vec<String>,
    /// The beginning of all keys, such as `/apisix`.
    pub prefix: String,
    /// For etcd's authentication; together with `password`.
    pub user: Option<String>,
    /// The user's password.
    pub password: Option<String>,
    /// TLS for `https` endpoints. `None`: servers are verified with the roots that the system trusts.
    pub tls: Option<EtcdTls>,
    /// Reads the TLS settings again, before each new connection: certificates are renewed in their files. The error is one line.
    pub renew_tls: Option<RenewTls>,
    /// Timeout of one request to one endpoint, from sending it to the last byte of the response. Connecting may take as
    /// long again.
    pub request_timeout: Duration,
}

/// Reads TLS settings.
pub type RenewTls = Arc<dyn Fn() -> Result<EtcdTls, String> + Send + Sync>;

/// TLS towards etcd.
#[derive(Clone, PartialEq, Eq)]
pub struct EtcdTls {
    /// Roots of etcd's certificate in PEM. `None`: those that the system trusts.
    pub ca: Option<Vec<u8>>,
    /// Our certificate with its chain and its key in PEM, if etcd requires one (`--client-cert-auth`).
    pub client: Option<(Vec<u8>, Vec<u8>)>,
    /// Whether etcd's certificate is verified.
    pub verify: bool,
}

/// An option that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OptionsError {
    /// The option's name, such as `endpoints[1]`.
    pub option: String,
    /// The error, and a suggestion.
    pub message: String,
}

impl OptionsError {
    pub(crate) fn new(option: impl Into<String>, message: impl Into<String>) -> OptionsError {
        OptionsError { option: option.into(), message: message.into() }
    }
}

impl fmt::Display for OptionsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.option, self.message)
    }
}

impl std::error::Error for OptionsError {}

impl fmt::Debug for EtcdOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // An endpoint may contain a password until `Etcd::new` has refused it.
        f.debug_struct("EtcdOptions")
            .field("endpoints", &self.endpoints.len())
            .field("prefix", &self.prefix)
            .field("user", &self.user)
            .field("tls", &self.tls)
            .field("request_timeout", &self.request_timeout)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for EtcdTls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EtcdTls")
            .field("ca", &self.ca.is_some())
            .field("client", &self.client.is_some())
            .field("verify", &self.verify)
            .finish()
    }
}

// One endpoint of etcd, read from its URL.

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
    fn debug_output_has_no_secret() {
        let options = EtcdOptions {
            endpoints: vec!["http://me:SECRET@127.0.0.1:1".to_owned()],
            prefix: "/apisix".to_owned(),
            user: Some("me".to_owned()),
            password: Some("SECRET".to_owned()),
            tls: Some(EtcdTls { ca: None, client: Some((Vec::new(), b"SECRET".to_vec())), verify: true }),
            renew_tls: None,
            request_timeout: Duration::from_secs(1),
        };
        let shown = format!("{options:?}");
        assert!(!shown.contains("SECRET") && !shown.contains("83, 69") && shown.contains("/apisix"), "{shown}");
    }
}

#[cfg(test)]
mod endpoint_tests {
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
