//! An operator's options for etcd: endpoints, credentials, TLS.
//!
//! `Debug` shows neither passwords nor keys, and no message repeats an endpoint that could contain one.

use std::fmt;
use std::time::Duration;

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
    /// Timeout of one request to one endpoint, from sending it to the last byte of the response. Connecting may take as
    /// long again.
    pub request_timeout: Duration,
}

/// TLS towards etcd.
#[derive(Clone)]
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
            request_timeout: Duration::from_secs(1),
        };
        let shown = format!("{options:?}");
        assert!(!shown.contains("SECRET") && !shown.contains("83, 69") && shown.contains("/apisix"), "{shown}");
    }
}
