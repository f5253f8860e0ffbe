//! The effects of failures and of configuration changes.

use super::super::order_progress::{OrderProgress, forget_mended};
use super::*;
use bytes::Bytes;
use hyper::Request;
use instant_acme::{Account, BodyWrapper, BytesResponse, Error, HttpClient, NewAccount};
use std::fs;
use std::pin::Pin;
use stillgate_config::{AcmeChallenge, AcmeEab, HmacKey};
use stillgate_proxy::Plan;
use stillgate_tls::rustls::crypto::aws_lc_rs::default_provider;
use stillgate_tls::rustls::{ClientConfig, RootCertStore};

/// A node without a server.
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
    let ordered = run_guarded(async {
        let new = NewAccount { contact: &[], terms_of_service_agreed: true, only_return_existing: false };
        // `instant-acme` expects every server to list URLs.
        let url = "https://<your-id>.example/dir".to_owned();
        let made = Account::builder_with_http(Box::new(Nobody)).create(&new, url, None).await;
        made.map(|_| String::new()).map_err(|error| OrderFailure::new("making an account", error, ""))
    });
    let told = ordered.await.unwrap_err().to_string();
    assert!(told.starts_with("ordering: the server's answer led to a bug: ") && told.contains("panic"), "{told}");
    assert_eq!(run_guarded(async { Ok::<_, OrderFailure>("text".to_owned()) }).await.unwrap(), "text");
    assert_eq!(
        run_guarded(async { Err::<String, _>(OrderFailure::new("a", "b", "")) }).await.unwrap_err().to_string(),
        "a: b"
    );
}

fn certificate(id: &str, names: &[&str]) -> Certificate {
    Certificate { id: id.to_owned(), names: names.iter().map(ToString::to_string).collect() }
}

pub(crate) fn tls() -> Arc<ClientConfig> {
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
    let before = CertificateOrders { acme: Arc::new(acme.clone()), tls: tls(), certificates };
    let (own, servers) = (Instant::now() + Duration::from_secs(120), Instant::now() + Duration::from_secs(60));
    // The remaining pause for "a", which only we require, and for "b", which the server requires too.
    let check = |after: Option<&CertificateOrders>, expected: [Option<Option<Instant>>; 2]| {
        let unsaved = Some("text".to_owned());
        let waits = |server_not_before| OrderProgress {
            not_before: Some(own),
            server_not_before,
            unsaved: unsaved.clone(),
            ..OrderProgress::default()
        };
        let mut progress = HashMap::from([("a".to_owned(), waits(None)), ("b".to_owned(), waits(Some(servers)))]);
        forget_mended(&mut progress, Some(&before), after);
        assert_eq!(["a", "b"].map(|id| progress.get(id).map(|progress| progress.not_before)), expected);
        assert!(progress.values().all(|progress| progress.unsaved == unsaved));
    };
    let with = |change: fn(&mut Acme)| {
        let mut acme = acme.clone();
        change(&mut acme);
        CertificateOrders { acme: Arc::new(acme), ..before.clone() }
    };
    let of = |certificates: &[Certificate]| CertificateOrders { certificates: certificates.to_vec(), ..before.clone() };
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
    check(Some(&CertificateOrders { tls: tls(), ..before.clone() }), [Some(None), Some(Some(servers))]);
    check(Some(&with(|acme| acme.directory.push('2'))), [None, None]);
}

/// A plan without routes.
pub(crate) fn plans() -> Arc<PlanCell> {
    let text = "routes: []\n";
    let config = &stillgate_config::load(text.as_bytes(), &|_| None).unwrap().config;
    let plan = Plan::build(1, config, &HashMap::new(), None, None, None).unwrap();
    Arc::new(PlanCell::new(Arc::new(plan)))
}

/// A task that orders nothing by itself.
fn renewing(stored: &Arc<Notify>) -> CertificateRenewal {
    CertificateRenewal::new(plans(), watch::channel(BTreeMap::new()).0, stored.clone(), Arc::default())
}

#[tokio::test]
async fn what_fails_here_at_the_start_does_not_make_a_note_void() {
    let (_folder, mut acme) = storage::tests::storage();
    // Nothing listens on this port.
    acme.directory = "https://127.0.0.1:1/dir".to_owned();
    storage::prepare(&acme).unwrap();
    let (lock, shop) = (acme.folder().join("lock"), certificate("shop", &["shop.example"]));
    let waits = (Duration::from_secs(60), Duration::ZERO);
    let note = Note::failed(3, &order_progress::digest(&acme, &shop), "no", waits, now().as_secs());
    storage::store_note(&acme, "shop", &note.text()).unwrap();
    let wanted = CertificateOrders { acme: Arc::new(acme), tls: tls(), certificates: vec![shop.clone()] };
    let mut renewing = renewing(&Arc::default());
    fs::create_dir(&lock).unwrap();
    renewing.attempt(&wanted, &shop, OrderReason::Suggested).await;
    let state = renewing.progress["shop"].state.clone();
    assert!(state.failures == 1 && state.last_error.as_ref().unwrap().contains("lock"), "{state:?}");
    fs::remove_dir(&lock).unwrap();
    renewing.attempt(&wanted, &shop, OrderReason::Suggested).await;
    let state = renewing.progress["shop"].state.clone();
    assert_eq!((state.failures, state.last_error.as_deref()), (3, Some("no")));
    // The server was asked once; now a retry is forced.
    renewing.attempt(&wanted, &shop, OrderReason::Suggested).await;
    let state = renewing.progress["shop"].state.clone();
    let error = state.last_error.unwrap();
    assert!(
        state.failures == 4 && error.ends_with("Connection refused (os error 111); can the gateway reach it?"),
        "{error}"
    );
}

#[tokio::test]
async fn every_other_certificate_is_reported_and_the_first_look_too() {
    let stored = Arc::<Notify>::default();
    let mut renewing = renewing(&stored);
    let of = |end: i64, serial: u8| {
        let key = Some((vec![1], vec![serial]));
        Some(OrderedCertificateInfo {
            names: Vec::new(),
            not_before_seconds: 0,
            not_after_seconds: end,
            ari_identifier: key,
        })
    };
    let looks = [(None, true), (None, false), (of(9, 1), true), (of(9, 1), false), (of(9, 2), true), (of(8, 2), true)];
    for (found, is_told) in looks {
        renewing.report_change("shop", found.as_ref());
        let told = tokio::time::timeout(Duration::ZERO, stored.notified()).await;
        assert_eq!(told.is_ok(), is_told, "{found:?}");
    }
}
