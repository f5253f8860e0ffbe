//! Responses to an ACME server that validates whether a name is ours: live challenges, put in by the control thread, answered by
//! workers.
//!
//! While there is none, which is nearly always, a request or handshake costs one load of a flag that is not written.

use arc_swap::ArcSwap;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use stillgate_tls::ACME_TLS_ALPN;
use stillgate_tls::rustls::ServerConfig;
use stillgate_tls::rustls::server::ClientHello;
use stillgate_wire::Method;

/// Where an ACME server looks for a token (RFC 8555 section 8.3).
const HTTP_PATH: &[u8] = b"/.well-known/acme-challenge/";

/// The live challenges.
#[derive(Debug, Default)]
pub struct Challenges {
    any: AtomicBool,
    live: ArcSwap<LiveChallenges>,
}

/// Answers to live challenges.
#[derive(Debug, Default)]
pub struct LiveChallenges {
    /// By token, the key authorization (RFC 8555 section 8.3).
    pub http: HashMap<String, String>,
    /// By server name in lower case, the configuration for a handshake for `acme-tls/1` (RFC 8737).
    pub tls: HashMap<String, Arc<ServerConfig>>,
}

impl Challenges {
    /// Replaces all challenges that were live before.
    pub fn set(&self, live: LiveChallenges) {
        let any = !live.http.is_empty() || !live.tls.is_empty();
        self.live.store(Arc::new(live));
        // A thread that sees this flag sees the live challenges.
        self.any.store(any, Ordering::Release);
    }

    /// The key authorization for this request; `None`: it is an ordinary request.
    #[inline]
    pub(crate) fn http(&self, method: Method, path: &[u8]) -> Option<String> {
        if !self.any.load(Ordering::Acquire) {
            return None;
        }
        let token = path.strip_prefix(HTTP_PATH).filter(|_| matches!(method, Method::Get | Method::Head))?;
        self.live.load().http.get(std::str::from_utf8(token).ok()?).cloned()
    }

    /// The configuration that answers a handshake for a challenge; `None`: it is an ordinary handshake.
    #[inline]
    pub(crate) fn tls(&self, hello: &ClientHello<'_>) -> Option<Arc<ServerConfig>> {
        if !self.any.load(Ordering::Acquire) {
            return None;
        }
        // Exactly this one protocol: others together with it come from a client that only tries (RFC 8737 section 4).
        let mut protocols = hello.alpn()?;
        if protocols.next() != Some(ACME_TLS_ALPN) || protocols.next().is_some() {
            return None;
        }
        self.live.load().tls.get(&hello.server_name()?.to_ascii_lowercase()).cloned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use stillgate_tls::rustls::crypto::aws_lc_rs::default_provider;
    use stillgate_tls::rustls::pki_types::ServerName;
    use stillgate_tls::rustls::server::Acceptor;
    use stillgate_tls::rustls::{ClientConfig, ClientConnection, RootCertStore};

    /// Whether a client that requests `name` and offers these protocols gets a challenge.
    fn is_challenge(challenges: &Challenges, name: &str, protocols: &[&str]) -> bool {
        let builder = ClientConfig::builder_with_provider(default_provider().into());
        let builder = builder.with_safe_default_protocol_versions().unwrap();
        let mut config = builder.with_root_certificates(RootCertStore::empty()).with_no_client_auth();
        config.alpn_protocols = protocols.iter().map(|protocol| protocol.as_bytes().to_vec()).collect();
        let name = ServerName::try_from(name.to_owned()).unwrap();
        let (mut client, mut acceptor) = (ClientConnection::new(config.into(), name).unwrap(), Acceptor::default());
        let mut hello = Vec::new();
        client.write_tls(&mut hello).unwrap();
        acceptor.read_tls(&mut &hello[..]).unwrap();
        let accepted = acceptor.accept().map_err(|(error, _)| error).unwrap().expect("it is whole");
        challenges.tls(&accepted.client_hello()).is_some()
    }

    #[test]
    fn only_handshakes_for_a_live_challenge_are_one() {
        let challenges = Challenges::default();
        assert!(!is_challenge(&challenges, "a.example", &["acme-tls/1"]));
        let config = stillgate_tls::acme_challenge("a.example", &[0; 32]).unwrap();
        challenges
            .set(LiveChallenges { tls: HashMap::from([("a.example".into(), config)]), ..LiveChallenges::default() });
        assert!(is_challenge(&challenges, "a.example", &["acme-tls/1"]));
        assert!(is_challenge(&challenges, "A.Example", &["acme-tls/1"]));
        for (name, protocols) in [
            ("a.example", &[][..]),
            ("a.example", &["h2", "http/1.1"]),
            ("a.example", &["acme-tls/1", "h2"]),
            ("a.example", &["h2", "acme-tls/1"]),
            ("a.example", &["acme-tls/11"]),
            ("b.example", &["acme-tls/1"]),
            // An address sends no server name.
            ("127.0.0.1", &["acme-tls/1"]),
        ] {
            assert!(!is_challenge(&challenges, name, protocols), "{name} {protocols:?}");
        }
        challenges.set(LiveChallenges::default());
        assert!(!is_challenge(&challenges, "a.example", &["acme-tls/1"]));
    }

    #[test]
    fn only_live_tokens_are_answered() {
        let challenges = Challenges::default();
        let check = |method, path: &str, expected: Option<&str>| {
            assert_eq!(challenges.http(method, path.as_bytes()).as_deref(), expected, "{method:?} {path}");
        };
        check(Method::Get, "/.well-known/acme-challenge/a", None);
        challenges
            .set(LiveChallenges { http: HashMap::from([("a".into(), "a.thumb".into())]), ..LiveChallenges::default() });
        check(Method::Get, "/.well-known/acme-challenge/a", Some("a.thumb"));
        check(Method::Head, "/.well-known/acme-challenge/a", Some("a.thumb"));
        for (method, path) in [
            (Method::Post, "/.well-known/acme-challenge/a"),
            (Method::Get, "/.well-known/acme-challenge/"),
            (Method::Get, "/.well-known/acme-challenge/b"),
            (Method::Get, "/.well-known/acme-challenge/a/"),
            (Method::Get, "/.well-known/acme-challenge/%61"),
            (Method::Get, "//.well-known/acme-challenge/a"),
            (Method::Get, "/x"),
        ] {
            check(method, path, None);
        }
        challenges.set(LiveChallenges::default());
        check(Method::Get, "/.well-known/acme-challenge/a", None);
    }
}
