//! Who may use the admin API: loopback, and everybody else who has the key.
//!
//! Loopback is trusted without one, so there the host that is asked for counts (DNS rebinding); a key is proof enough.

use super::refusal::Refusal;
use crate::metering::process_stats;
use hyper::Request;
use hyper::header::HeaderValue;
use std::net::IpAddr;
use stillgate_config::Gateway;
use stillgate_exporter::Hosts;

const API_KEY: &str = "x-api-key";

/// What of the configuration decides who is admitted.
#[derive(Debug, Clone)]
pub(crate) struct Access {
    key: Option<String>,
    hosts: Hosts,
}

impl Access {
    /// As the `gateway:` section has it.
    pub(crate) fn of(gateway: &Gateway) -> Access {
        let admin = gateway.admin.as_ref();
        let names = admin.map_or(&[][..], |admin| &admin.hosts).iter().cloned();
        let hosts = Hosts::new("gateway.admin.hosts", names.chain([process_stats::hostname()]));
        Access { key: admin.and_then(|admin| admin.key.clone()), hosts }
    }

    /// Whether a request of this peer is answered.
    pub(super) fn admit<B>(&self, peer: IpAddr, request: &Request<B>) -> Result<(), Refusal> {
        let given = request.headers().get(API_KEY).map(HeaderValue::as_bytes);
        match (given, self.key.as_deref()) {
            (Some(given), Some(key)) if equal_in_constant_time(given, key.as_bytes()) => Ok(()),
            _ if peer.to_canonical().is_loopback() => self.hosts.check(request).map_err(Refusal::Stranger),
            (_, None) => Err(Refusal::LoopbackOnly),
            (None, Some(_)) => Err(Refusal::KeyMissing),
            (Some(_), Some(_)) => Err(Refusal::KeyWrong),
        }
    }
}

/// Takes the same time wherever the first difference is, so that a key cannot be guessed byte by byte. Its length shows.
fn equal_in_constant_time(a: &[u8], b: &[u8]) -> bool {
    let difference = a.iter().zip(b).fold(0, |difference, (a, b)| std::hint::black_box(difference | (a ^ b)));
    a.len() == b.len() && difference == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn admit(peer: &str, given: Option<&str>, key: Option<&str>, host: &str) -> Result<(), Refusal> {
        let hosts = Hosts::new("gateway.admin.hosts", ["admin.example".to_owned()]);
        let access = Access { key: key.map(str::to_owned), hosts };
        let request = Request::builder().uri("/").header("host", host);
        let request = given.into_iter().fold(request, |request, key| request.header(API_KEY, key));
        access.admit(peer.parse().expect("an address"), &request.body(()).expect("a request"))
    }

    #[test]
    fn who_is_admitted() {
        let check = |peer: &str, given: Option<&str>, key: Option<&str>, expected| {
            assert_eq!(admit(peer, given, key, "localhost"), expected, "{peer} {given:?} {key:?}");
        };
        check("127.0.0.1", None, Some("k"), Ok(()));
        check("127.9.9.9", Some("wrong"), Some("k"), Ok(()));
        check("::1", None, None, Ok(()));
        check("::ffff:127.0.0.1", None, None, Ok(()));
        check("192.0.2.1", Some("k"), None, Err(Refusal::LoopbackOnly));
        check("::ffff:192.0.2.1", None, None, Err(Refusal::LoopbackOnly));
        check("192.0.2.1", None, Some("k"), Err(Refusal::KeyMissing));
        check("192.0.2.1", Some(""), Some("k"), Err(Refusal::KeyWrong));
        check("192.0.2.1", Some("kk"), Some("k"), Err(Refusal::KeyWrong));
        check("192.0.2.1", Some("l"), Some("k"), Err(Refusal::KeyWrong));
        check("192.0.2.1", Some("k"), Some("k"), Ok(()));
    }

    #[test]
    fn without_the_key_the_host_counts() {
        let is_admitted = |peer: &str, given: Option<&str>, host: &str| admit(peer, given, Some("k"), host).is_ok();
        assert!(is_admitted("127.0.0.1", None, "admin.example:9180"));
        assert!(!is_admitted("127.0.0.1", None, "evil.example:9180"));
        assert!(!is_admitted("::1", Some("wrong"), "evil.example"));
        assert!(is_admitted("127.0.0.1", Some("k"), "evil.example"));
        assert!(is_admitted("192.0.2.1", Some("k"), "whatever.example"));
    }
}
