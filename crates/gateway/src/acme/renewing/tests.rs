//! What failures, changes and unusable certificates come to.

use super::*;
use bytes::Bytes;
use hyper::Request;
use instant_acme::{Account, BodyWrapper, BytesResponse, Error, HttpClient, NewAccount};
use rcgen::{CertificateParams, KeyPair, date_time_ymd};
use std::pin::Pin;
use stillgate_config::{AcmeChallenge, AcmeEab, HmacKey};
use stillgate_tls::rustls::crypto::aws_lc_rs::default_provider;
use stillgate_tls::rustls::{ClientConfig, RootCertStore};

/// Has no server behind it.
struct Nobody;

impl HttpClient for Nobody {
    fn request(
        &self,
        _: Request<BodyWrapper<Bytes>>,
    ) -> Pin<Box<dyn Future<Output = Result<BytesResponse, Error>> + Send>> {
        Box::pin(async { Err(Error::Crypto) })
    }
}

#[tokio::test]
async fn a_panic_is_a_failure_like_any_other() {
    let ordered = guarded(async {
        let new = NewAccount { contact: &[], terms_of_service_agreed: true, only_return_existing: false };
        // `instant-acme` expects every server to name URLs.
        let url = "https://<your-id>.example/dir".to_owned();
        let made = Account::builder_with_http(Box::new(Nobody)).create(&new, url, None).await;
        made.map(|_| String::new()).map_err(|error| Failure::new("making an account", error, ""))
    });
    let told = ordered.await.unwrap_err().to_string();
    assert!(told.starts_with("ordering: the server's answer led to a bug: ") && told.contains("panic"), "{told}");
    assert_eq!(guarded(async { Ok("text".to_owned()) }).await.unwrap(), "text");
    assert_eq!(guarded(async { Err(Failure::new("a", "b", "")) }).await.unwrap_err().to_string(), "a: b");
}

fn certificate(id: &str, names: &[&str]) -> Certificate {
    Certificate { id: id.to_owned(), names: names.iter().map(ToString::to_string).collect() }
}

fn tls() -> Arc<ClientConfig> {
    let builder = ClientConfig::builder_with_provider(default_provider().into());
    let builder = builder.with_safe_default_protocol_versions().unwrap();
    Arc::new(builder.with_root_certificates(RootCertStore::empty()).with_no_client_auth())
}

#[test]
fn a_change_has_that_tried_again_which_it_may_mend() {
    let acme = Acme {
        directory: "https://acme.example/dir".to_owned(),
        email: None,
        storage: "/s".into(),
        agree_terms: true,
        challenge: AcmeChallenge::Http01,
        ca: None,
        eab: None,
        renew_before: None,
    };
    let certificates = vec![certificate("a", &["a.example"]), certificate("b", &["b.example"])];
    let before = Wanted { acme: Arc::new(acme.clone()), tls: tls(), certificates };
    let (own, servers) = (Instant::now() + Duration::from_secs(120), Instant::now() + Duration::from_secs(60));
    // What is left to wait for "a", of which only we say when, and for "b", of which the server does too.
    let check = |after: Option<&Wanted>, expected: [Option<Option<Instant>>; 2]| {
        let unsaved = Some("text".to_owned());
        let waits = |server_not_before| Tries {
            not_before: Some(own),
            server_not_before,
            unsaved: unsaved.clone(),
            ..Tries::default()
        };
        let mut tries = HashMap::from([("a".to_owned(), waits(None)), ("b".to_owned(), waits(Some(servers)))]);
        forget_mended(&mut tries, Some(&before), after);
        assert_eq!(["a", "b"].map(|id| tries.get(id).map(|tries| tries.not_before)), expected);
        assert!(tries.values().all(|tries| tries.unsaved == unsaved));
    };
    let with = |change: fn(&mut Acme)| {
        let mut acme = acme.clone();
        change(&mut acme);
        Wanted { acme: Arc::new(acme), ..before.clone() }
    };
    let of = |certificates: &[Certificate]| Wanted { certificates: certificates.to_vec(), ..before.clone() };
    let (a, b) = (before.certificates[0].clone(), before.certificates[1].clone());
    check(Some(&before), [Some(Some(own)), Some(Some(own))]);
    check(None, [Some(Some(own)), Some(Some(own))]);
    check(Some(&of(&[a.clone(), b.clone(), certificate("c", &["c.example"])])), [Some(Some(own)), Some(Some(own))]);
    check(Some(&of(&[certificate("a", &["other.example"]), b])), [Some(None), Some(Some(own))]);
    check(Some(&of(&[a, certificate("b", &["other.example"])])), [Some(Some(own)), Some(Some(servers))]);
    check(Some(&with(|acme| acme.email = Some("a@b".to_owned()))), [Some(None), Some(Some(servers))]);
    let eab = |acme: &mut Acme| {
        acme.eab = Some(AcmeEab { kid: "k".to_owned(), hmac_key: HmacKey("a".to_owned()) });
    };
    check(Some(&with(eab)), [Some(None), Some(Some(servers))]);
    check(Some(&Wanted { tls: tls(), ..before.clone() }), [Some(None), Some(Some(servers))]);
    check(Some(&with(|acme| acme.directory.push('2'))), [None, None]);
}

#[test]
fn what_was_issued_is_forgotten_only_where_it_is_of_no_use() {
    // It begins in 2026-05-01.
    const BEGIN_SECONDS: u64 = 1_777_593_600;
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::new(["a.example".to_owned()]).unwrap();
    (params.not_before, params.not_after) = (date_time_ymd(2026, 5, 1), date_time_ymd(2026, 8, 1));
    let good = format!("{}\n{}", params.self_signed(&key).unwrap().pem(), key.serialize_pem());
    let check = |text: &str, name: &str, now_seconds: u64, expected: Option<&str>, is_kept: bool| {
        let mut issued = Some(text.to_owned());
        let now = UnixTime::since_unix_epoch(Duration::from_secs(now_seconds));
        let told = inspect(&mut issued, &certificate("a", &[name]), now).map_err(|failure| failure.to_string());
        assert_eq!(told.is_ok(), expected.is_none(), "{told:?}");
        assert!(told.err().unwrap_or_default().contains(expected.unwrap_or_default()));
        assert_eq!(issued.is_some(), is_kept, "{expected:?}");
    };
    check(&good, "a.example", BEGIN_SECONDS, None, true);
    check(&good, "a.example", BEGIN_SECONDS - 60, Some("not valid before"), true);
    check(&good, "a.example", BEGIN_SECONDS - 3601, Some("not valid before"), false);
    check(&good, "a.example", BEGIN_SECONDS + 366 * 24 * 3600, Some("expired"), false);
    check(&good, "b.example", BEGIN_SECONDS, Some("it is not for b.example"), false);
    check("<html>", "a.example", BEGIN_SECONDS, Some("looking at what the server issued"), false);
}
