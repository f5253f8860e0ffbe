//! Certificates ordered from Let's Encrypt's test server: issued, renewed, kept over restarts.

use crate::acme::{ISSUED_WITHIN, NAME, SHOP, Stage, TWO_NAMES, fetch};
use crate::shared::STILLGATE;
use crate::shared::authority::Authority;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::time::{Duration, Instant};
use stillgate_testkit::{
    ACCEPT_TEXT, Client, END_PATIENCE, Gateway, Nginx, Pebble, PebbleSetup, ReservedPort, Setup, eventually,
    eventually_within, run_tool, scrape, with_longer_times,
};

#[test]
fn check_says_what_it_can_without_asking_anybody() {
    let folder = tempfile::tempdir().expect("a folder");
    let check = |storage: &str, ca: &str, expected: &str| {
        let file = folder.path().join("stillgate.yaml");
        let yaml = format!(
            "gateway:\n  listeners: [{{address: \"127.0.0.1:9080\"}}, {{address: \"127.0.0.1:9443\", tls: true}}]\n  \
             acme: {{directory: \"https://127.0.0.1:1/dir\", storage: {storage}, ca: {ca}, agree_terms: true}}\n\
             ssls: [{{id: shop, acme: true, sni: {NAME}}}]\nroutes: []\n"
        );
        fs::write(&file, yaml).expect("write");
        let output = run_tool(STILLGATE, "none", &["check", &file.display().to_string()]);
        let said = String::from_utf8_lossy(&output.stdout).replace(&folder.path().display().to_string(), "DIR");
        assert!(said.contains(expected), "{said}");
        said.contains(": ok (")
    };
    let (authority, at) = (Authority::new(), |name: &str| folder.path().join(name).display().to_string());
    let ca = authority.path("ca.pem");
    let none_yet =
        "ssls[\"shop\"].acme: DIR/acme/127.0.0.1-1-1f384493cc9b271b/certificates/shop.pem: there is no certificate yet";
    assert!(check(&at("acme"), &ca, none_yet));
    assert!(!folder.path().join("acme").exists(), "looking changes nothing");
    assert!(!check(&at("acme"), &at("missing.pem"), "gateway.acme.ca: DIR/missing.pem: cannot be read"));
    fs::write(folder.path().join("file"), "").expect("write");
    assert!(!check(&at("file"), &ca, "gateway.acme.storage: DIR/file is not a directory"));
}

#[test]
fn tls_alpn_01_gives_a_certificate_that_is_renewed_while_requests_are_served() {
    // It is due after a third of it; the rest must suffice for an order.
    with_longer_times(Duration::from_secs(60), "a renewal before the end", |validity| {
        is_renewed(Stage::new(|pebble| pebble.validity_seconds = Some(validity.as_secs())), validity)
    });
}

/// False: the first certificate has ended before the machine was done with the second.
fn is_renewed(mut stage: Stage, validity: Duration) -> bool {
    let root = stage.pebble.root();
    stage.gateway.reload(&stage.setup("challenge: tls-alpn-01, renew_before: 1h", SHOP));
    // Until then the names of the other entry are served as before.
    let own = fs::read_to_string(stage.authority.file("ca.pem")).expect("read");
    assert!(stage.is_served("own.example.com", &own));
    let ordered = Instant::now();
    stage.await_certificate();
    let first = stage.serial();
    let mut is_served = true;
    eventually_within(2 * ISSUED_WITHIN, "the renewal", || {
        is_served = is_served && stage.is_served(NAME, &root);
        assert!(is_served || ordered.elapsed() >= validity * 8 / 10, "{}", stage.gateway.log());
        !is_served || stage.serial() != first
    });
    if !is_served {
        return false;
    }
    assert!(stage.is_served("own.example.com", &own));
    assert!(!stage.is_served(NAME, &own));
    let log = stage.pebble.log();
    assert!(log.contains("There are now 1 accounts") && !log.contains("There are now 2 accounts"), "{log}");
    stage.gateway.assert_healthy();
    true
}

#[test]
fn http_01_gives_a_certificate_for_several_names_whatever_becomes_of_nonces() {
    let mut stage = Stage::new(|pebble| pebble.environment = vec![("PEBBLE_WFE_NONCEREJECT", "40")]);
    let root = stage.pebble.root();
    stage.gateway.reload(&stage.setup("email: admin@example.com", TWO_NAMES));
    // So many that even three tries of one request may not do, which is a failure then, and tried again: every second
    // order fails so, and now and then many in a row.
    eventually_within(4 * ISSUED_WITHIN, "the certificate to be served", || {
        let of = stage.certificate();
        if !of["acme"]["last_error"].is_null() {
            stage.gateway.signal("HUP");
            eventually_within(ISSUED_WITHIN, "the next try", || {
                stage.certificate()["acme"] != of["acme"] || stage.is_served(NAME, &root)
            });
        }
        !of["not_after"].is_null()
    });
    assert!(stage.is_served(NAME, &root) && stage.is_served("www.example.com", &root));
    // Tokens of other clients are routed, now and always.
    let answer = Client::connect(stage.http.addr()).get("/.well-known/acme-challenge/x");
    assert_eq!(answer.head.status(), 200);
    let mode = |file: &str| fs::metadata(stage.folder().join(file)).expect("it is there").permissions().mode() & 0o777;
    assert_eq!((mode("account.json"), mode("certificates/shop.pem")), (0o600, 0o600));

    // A start needs no server if a certificate is stored.
    let (serial, log) = (stage.serial(), stage.pebble.log());
    assert!(log.contains("Configured to reject 40% of good nonces"), "{log}");
    stage.pebble.stop();
    stage.gateway.signal("TERM");
    stage.gateway.wait_within(END_PATIENCE);
    let metrics = ReservedPort::new();
    let measured = |setup: Setup| setup.gateway(&format!("metrics: {{address: \"{}\"}}", metrics.addr()));
    stage.gateway.write_config(&measured(stage.setup("email: admin@example.com", TWO_NAMES)));
    stage.gateway.restart(STILLGATE);
    assert_eq!(stage.serial(), serial);
    assert!(stage.is_served(NAME, &root));

    // When it ends is a metric, for as long as there is an entry.
    let exposed = || {
        let scrape = scrape(metrics.addr(), "/metrics", ACCEPT_TEXT, false);
        String::from_utf8(scrape.body).expect("text")
    };
    let series = "stillgate_tls_certificate_expiry_timestamp_seconds{ssl=\"shop\"} ";
    eventually("the certificate in the metrics, and no failure", || {
        let exposed = exposed();
        exposed.contains(series) && exposed.contains("\nstillgate_acme_failures_total 0\n")
    });
    stage.gateway.reload(&measured(stage.setup("", "")));
    eventually("its end", || !exposed().contains(series));
    assert!(exposed().contains("stillgate_tls_certificate_expiry_timestamp_seconds{ssl=\"own\"} "));
    stage.gateway.assert_healthy();
}

#[test]
fn what_one_server_has_issued_does_not_do_for_another() {
    let mut stage = Stage::new(|_| {});
    let production = Pebble::start(PebbleSetup {
        certificate: stage.authority.file("pebble.pem"),
        key: stage.authority.file("pebble.key"),
        http_port: stage.http.addr().port(),
        ..PebbleSetup::default()
    });
    let (tried, real) = (stage.pebble.root(), production.root());
    stage.gateway.reload(&stage.setup("", SHOP));
    eventually_within(ISSUED_WITHIN, "the certificate", || stage.is_served(NAME, &tried));
    stage.gateway.reload(&stage.setup_at(&production, "", SHOP));
    // Until the other certificate has arrived, the earlier one is shown.
    eventually_within(ISSUED_WITHIN, "the other certificate", || {
        let is_served = stage.is_served(NAME, &real);
        assert!(is_served || stage.is_served(NAME, &tried) || stage.is_served(NAME, &real));
        is_served
    });
    // Back again: neither its account nor its certificate is lost.
    stage.gateway.reload(&stage.setup("", SHOP));
    eventually("the first certificate", || stage.is_served(NAME, &tried));
    let log = stage.pebble.log();
    assert_eq!(log.matches("Issued certificate serial").count(), 1, "{log}");
    stage.gateway.assert_healthy();
}

#[test]
fn an_account_is_bound_to_an_external_one() {
    let key = "zWNDZM6eQGHWpSRTPal5eIUYFTu7EajVIoguysqZ9wG44nMEtx3MUAsUDkMTQ12W";
    let stage = Stage::new(|pebble| pebble.external_account = Some(("kid-1".to_owned(), key.to_owned())));
    stage.gateway.reload(&stage.setup("", SHOP));
    stage.await_failure("write gateway.acme.eab");
    let log = stage.gateway.log();
    stage.gateway.reload(&stage.setup(&format!("eab: {{kid: kid-1, hmac_key: {key}}}"), SHOP));
    stage.await_certificate();
    assert!(stage.is_served(NAME, &stage.pebble.root()));
    assert!(!log.contains(key) && !stage.gateway.log().contains(key), "the key is a secret");
}

#[test]
fn several_gateways_with_one_folder_order_once() {
    // Either process may be the one that orders, and only one does.
    let stage = Stage::new(|pebble| pebble.environment = vec![("PEBBLE_VA_ALWAYS_VALID", "1")]);
    let setup = stage.setup("", SHOP);
    let other = Setup { further_listener: Some(ReservedPort::new().addr()), ..setup.clone() };
    let other = Gateway::start(STILLGATE, &other);
    stage.gateway.reload(&setup);
    let root = stage.pebble.root();
    eventually_within(ISSUED_WITHIN, "both to have it", || {
        stage.is_served(NAME, &root) && fetch(&other, NAME, &root).starts_with("200")
    });
    let issued = stage.pebble.log().matches("Issued certificate serial").count();
    assert_eq!(issued, 1, "{}", stage.pebble.log());
}

#[test]
fn a_certificate_is_renewed_when_the_server_suggests_it() {
    const VALIDITY: Duration = Duration::from_secs(30);
    let stage = Stage::new(|pebble| pebble.validity_seconds = Some(VALIDITY.as_secs()));
    let (root, at) = (stage.pebble.root(), stage.pebble.directory());
    let server = at.trim_end_matches("/dir");
    // Pebble does not support it: a proxy in front of it does (RFC 9773), which has suggested a renewal for years, and does not say
    // when to ask again.
    let (cert, key) = (stage.authority.path("pebble.pem"), stage.authority.path("pebble.key"));
    let info = "{\\\"suggestedWindow\\\": {\\\"start\\\": \\\"2020-01-01T00:00:00Z\\\", \\\"end\\\": \\\"2020-01-02T00:00:00Z\\\"}, \
                \\\"explanationURL\\\": \\\"https://acme.example/why\\\"}";
    let front = Nginx::start(&format!(
        "server {{\n  listen 127.0.0.1:{{port}} ssl; ssl_certificate {cert}; ssl_certificate_key {key};\n  \
         proxy_set_header Host $http_host; proxy_set_header Accept-Encoding identity;\n  \
         location = /dir {{ proxy_pass {server}/dir; sub_filter_types application/json; \
         sub_filter '\"newAccount\"' '\"renewalInfo\": \"https://$http_host/ari\", \"newAccount\"'; }}\n  \
         location /ari/ {{ default_type application/json; return 200 \"{info}\"; }}\n  \
         location / {{ proxy_pass {server}; }}\n}}"
    ));
    let setup = stage.setup("", SHOP);
    let setup = Setup { gateway: setup.gateway.replace(&at, &format!("https://{}/dir", front.addr())), ..setup };
    stage.gateway.reload(&setup);
    let ordered = Instant::now();
    stage.await_certificate();
    // Where the machine was slow it has ended by now.
    assert!(stage.is_served(NAME, &root) || ordered.elapsed() >= VALIDITY * 8 / 10);
    let first = stage.serial();
    eventually_within(ISSUED_WITHIN, "the renewal", || stage.serial() != first);
    let log = stage.gateway.log();
    assert!(log.contains("the server suggests when to renew") && log.contains("https://acme.example/why"), "{log}");
    assert!(log.contains("ACME: ordering a certificate: the server suggests it"), "{log}");
    assert!(!log.contains("ACME: no certificate: "), "{log}");
}
