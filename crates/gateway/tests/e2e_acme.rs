//! Certificates ordered from Let's Encrypt's test server: issued, renewed, kept over restarts, and what is told when
//! that fails.

mod authority;

use authority::Authority;
use serde_json::Value;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::time::Duration;
use stillgate_testkit::{
    ACCEPT_TEXT, Client, Gateway, Pebble, PebbleSetup, ReservedPort, Setup, Upstream, eventually, eventually_within,
    run_tool, scrape,
};
use tempfile::TempDir;

const STILLGATE: &str = env!("CARGO_BIN_EXE_stillgate");
const NAME: &str = "shop.example.com";
/// A server issues within seconds, where nothing else is to be done.
const ISSUED_WITHIN: Duration = Duration::from_secs(40);

/// A gateway with one listener with TLS and one without, and what it is given certificates by.
struct Stage {
    gateway: Gateway,
    pebble: Pebble,
    authority: Authority,
    http: ReservedPort,
    storage: TempDir,
    upstream: Upstream,
}

impl Stage {
    /// Nothing is ordered yet. `change`: of what pebble is started with.
    fn new(change: impl FnOnce(&mut PebbleSetup)) -> Stage {
        let (authority, http, upstream) = (Authority::new(), ReservedPort::new(), Upstream::echo());
        authority.issue("pebble", &["127.0.0.1"]);
        authority.issue("own", &["own.example.com"]);
        let storage = tempfile::tempdir().expect("a folder");
        let setup = setup(&authority, &upstream, &http, "", "");
        let gateway = Gateway::start(STILLGATE, &setup);
        let mut with = PebbleSetup {
            certificate: authority.file("pebble.pem"),
            key: authority.file("pebble.key"),
            http_port: http.addr().port(),
            tls_port: gateway.addr().port(),
            ..PebbleSetup::default()
        };
        change(&mut with);
        Stage { gateway, pebble: Pebble::start(with), authority, http, storage, upstream }
    }

    /// With these keys of `gateway.acme` beside those that are needed, and this entry.
    fn setup(&self, acme: &str, entry: &str) -> Setup {
        self.setup_at(&self.pebble, acme, entry)
    }

    /// The same with this server.
    fn setup_at(&self, pebble: &Pebble, acme: &str, entry: &str) -> Setup {
        let (directory, storage) = (pebble.directory(), self.storage().display().to_string());
        let ca = self.authority.path("ca.pem");
        let acme =
            format!("acme: {{directory: \"{directory}\", storage: {storage}, ca: {ca}, agree_terms: true, {acme}}}");
        setup(&self.authority, &self.upstream, &self.http, &acme, entry)
    }

    /// It is made by the gateway.
    fn storage(&self) -> PathBuf {
        self.storage.path().join("acme")
    }

    /// What is kept of the server, where there was but one.
    fn folder(&self) -> PathBuf {
        let folders: Vec<_> = fs::read_dir(self.storage()).expect("a folder").collect();
        assert_eq!(folders.len(), 1, "{folders:?}");
        folders[0].as_ref().expect("an entry").path()
    }

    fn certificate(&self) -> Value {
        let status = self.gateway.status();
        let all = status["certificates"].as_array().expect("a list");
        all.iter().find(|of| of["id"] == "shop").cloned().unwrap_or_default()
    }

    #[track_caller]
    fn await_certificate(&self) {
        eventually_within(ISSUED_WITHIN, "the certificate", || !self.certificate()["not_after"].is_null());
        assert!(self.certificate()["acme"]["last_error"].is_null());
    }

    #[track_caller]
    fn await_failure(&self, error: &str) {
        eventually_within(ISSUED_WITHIN, "the failure to be told", || {
            self.certificate()["acme"]["last_error"].as_str().is_some_and(|told| told.contains(error))
        });
        eventually("the log", || {
            let log = self.gateway.log();
            log.lines().any(|line| line.contains("ACME: no certificate: ") && line.contains(error))
        });
    }

    /// Whether curl gets an answer by this name, trusting `root` only.
    fn is_served(&self, name: &str, root: &str) -> bool {
        fetch(&self.gateway, name, root).starts_with("200")
    }

    /// The serial number of the certificate that clients are shown.
    fn serial(&self) -> String {
        let at = self.gateway.addr().to_string();
        let command = format!(
            "openssl s_client -connect {at} -servername {NAME} </dev/null 2>/dev/null | openssl x509 -noout -serial"
        );
        let output = run_tool("sh", "dash", &["-c", &command]);
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    }
}

/// curl's status, verifying with `root` only.
fn fetch(gateway: &Gateway, name: &str, root: &str) -> String {
    let file = tempfile::NamedTempFile::new().expect("a file");
    fs::write(file.path(), root).expect("write");
    let port = gateway.addr().port();
    let (to, url) = (format!("{name}:{port}:127.0.0.1"), format!("https://{name}:{port}/"));
    let root = file.path().display().to_string();
    let arguments =
        ["--silent", "--output", "/dev/null", "--write-out", "%{http_code}", "--cacert", &root, "--resolve", &to, &url];
    String::from_utf8_lossy(&run_tool("curl", "curl", &arguments).stdout).into_owned()
}

fn setup(authority: &Authority, upstream: &Upstream, http: &ReservedPort, acme: &str, entry: &str) -> Setup {
    let (cert, key) = (authority.path("own.pem"), authority.path("own.key"));
    let node = upstream.addr();
    Setup::resources(format!(
        "ssls: [{{id: own, cert: {cert}, key: {key}, sni: own.example.com}}{entry}]\n\
         upstreams: [{{id: main, nodes: {{\"{node}\": 1}}}}]\nroutes: [{{id: all, uri: /*, upstream_id: main}}]\n"
    ))
    .listener("tls: true")
    .with_listener(http.addr())
    .gateway(acme)
}

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
        said.contains(": good (")
    };
    let (authority, at) = (Authority::new(), |name: &str| folder.path().join(name).display().to_string());
    let ca = authority.path("ca.pem");
    let none_yet =
        "ssls[\"shop\"].acme: DIR/acme/127.0.0.1-1-1f384493cc9b271b/certificates/shop.pem: there is no certificate yet";
    assert!(check(&at("acme"), &ca, none_yet));
    assert!(!folder.path().join("acme").exists(), "looking changes nothing");
    assert!(!check(&at("acme"), &at("missing.pem"), "gateway.acme.ca: DIR/missing.pem: cannot be read"));
    fs::write(folder.path().join("file"), "").expect("write");
    assert!(!check(&at("file"), &ca, "gateway.acme.storage: DIR/file is no folder"));
}

const SHOP: &str = ", {id: shop, acme: true, sni: shop.example.com}";
const TWO_NAMES: &str = ", {id: shop, acme: true, snis: [shop.example.com, www.example.com]}";

#[test]
fn tls_alpn_01_gives_a_certificate_that_is_renewed_while_requests_are_served() {
    // Due after two thirds of it; what is left must do for an order, however busy the machine is.
    let mut stage = Stage::new(|pebble| pebble.validity_seconds = Some(48));
    let root = stage.pebble.root();
    stage.gateway.reload(&stage.setup("challenge: tls-alpn-01", SHOP));
    // Until then the names of the other entry are served as ever.
    let own = fs::read_to_string(stage.authority.file("ca.pem")).expect("read");
    assert!(stage.is_served("own.example.com", &own));
    stage.await_certificate();
    assert!(stage.is_served(NAME, &root));
    let first = stage.serial();
    eventually_within(2 * ISSUED_WITHIN, "the renewal", || {
        assert!(stage.is_served(NAME, &root), "{}", stage.gateway.log());
        stage.serial() != first
    });
    assert!(stage.is_served("own.example.com", &own));
    assert!(!stage.is_served(NAME, &own));
    let log = stage.pebble.log();
    assert!(log.contains("There are now 1 accounts") && !log.contains("There are now 2 accounts"), "{log}");
    stage.gateway.assert_healthy();
}

#[test]
fn http_01_gives_a_certificate_for_several_names_whatever_becomes_of_nonces() {
    let mut stage = Stage::new(|pebble| pebble.environment = vec![("PEBBLE_WFE_NONCEREJECT", "40")]);
    let root = stage.pebble.root();
    stage.gateway.reload(&stage.setup("email: admin@example.com", TWO_NAMES));
    // So many that even three tries of one request may not do, which is a failure then, and tried again.
    eventually_within(ISSUED_WITHIN, "the certificate to be served", || {
        let of = stage.certificate();
        if !of["acme"]["last_error"].is_null() {
            stage.gateway.signal("HUP");
            eventually("the next try", || stage.certificate()["acme"] != of["acme"] || stage.is_served(NAME, &root));
        }
        !of["not_after"].is_null()
    });
    assert!(stage.is_served(NAME, &root) && stage.is_served("www.example.com", &root));
    // Others' tokens are routed, now and always.
    let answer = Client::connect(stage.http.addr()).get("/.well-known/acme-challenge/x");
    assert_eq!(answer.head.status(), 200);
    let mode = |file: &str| fs::metadata(stage.folder().join(file)).expect("it is there").permissions().mode() & 0o777;
    assert_eq!((mode("account.json"), mode("certificates/shop.pem")), (0o600, 0o600));

    // A start needs no server where there is a certificate.
    let (serial, log) = (stage.serial(), stage.pebble.log());
    assert!(log.contains("Configured to reject 40% of good nonces"), "{log}");
    stage.pebble.stop();
    stage.gateway.signal("TERM");
    stage.gateway.wait();
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
    let series = "stillgate_tls_certificate_expiry_seconds{ssl=\"shop\"} ";
    eventually("the certificate in the metrics", || exposed().contains(series));
    assert!(exposed().contains("\nstillgate_acme_failures_total 0\n"), "{}", exposed());
    stage.gateway.reload(&measured(stage.setup("", "")));
    eventually("its end", || !exposed().contains(series));
    assert!(exposed().contains("stillgate_tls_certificate_expiry_seconds{ssl=\"own\"} "));
    stage.gateway.assert_healthy();
}

#[test]
fn a_challenge_that_does_not_come_through_is_told_and_tried_again() {
    let nobody = ReservedPort::new();
    let stage = Stage::new(|pebble| pebble.http_port = nobody.addr().port());
    let root = stage.pebble.root();
    stage.gateway.reload(&stage.setup("", SHOP));
    assert!(!stage.gateway.log().contains("cannot be watched"), "{}", stage.gateway.log());
    stage.await_failure("shop.example.com: API error: ");
    let of = stage.certificate();
    assert_eq!(of["acme"]["failures"], 1);
    assert!(of["acme"]["next_try"].is_string() && of["not_after"].is_null(), "{of}");
    let told = of["acme"]["last_error"].as_str().expect("an error");
    assert!(told.starts_with("showing that the names are ours: the challenge http-01 failed: "), "{told}");
    assert!(told.ends_with("whose listener must be reached at port 80"), "{told}");
    // Nobody has to trust what is shown meanwhile.
    assert!(!stage.is_served(NAME, &root));
    // The other challenge goes another way, and a change is tried at once.
    stage.gateway.reload(&stage.setup("challenge: tls-alpn-01", SHOP));
    stage.await_certificate();
    assert!(stage.is_served(NAME, &root));
}

#[test]
fn a_server_that_is_down_or_has_forgotten_us_takes_nothing_away() {
    let mut stage = Stage::new(|_| {});
    stage.pebble.stop();
    stage.gateway.reload(&stage.setup("", SHOP));
    stage.await_failure("cannot connect");
    stage.pebble.start_again();
    let root = stage.pebble.root();
    stage.gateway.signal("HUP");
    eventually_within(ISSUED_WITHIN, "the certificate", || stage.is_served(NAME, &root));
    assert!(stage.certificate()["acme"]["last_error"].is_null());
    let account = fs::read(stage.folder().join("account.json")).expect("an account");

    // It forgets its accounts, and another name is wanted.
    let serial = stage.serial();
    stage.pebble.stop();
    stage.pebble.start_again();
    stage.gateway.reload(&stage.setup("", TWO_NAMES));
    stage.await_failure("the account's file was set aside");
    assert_eq!(stage.serial(), serial);
    assert!(stage.is_served(NAME, &root));
    assert_eq!(fs::read(stage.folder().join("account.json.unknown")).expect("it is kept"), account);
    let root = stage.pebble.root();
    stage.gateway.signal("HUP");
    eventually_within(ISSUED_WITHIN, "the other certificate", || stage.is_served("www.example.com", &root));
    assert_ne!(fs::read(stage.folder().join("account.json")).expect("an account"), account);

    // Once more, and the account's address has to be told to it first.
    stage.pebble.stop();
    stage.pebble.start_again();
    let three = ", {id: shop, acme: true, snis: [shop.example.com, www.example.com, three.example.com]}";
    stage.gateway.reload(&stage.setup("email: admin@example.com", three));
    stage.await_failure("the account: API error: ");
    assert!(stage.certificate()["acme"]["last_error"].to_string().contains("the account's file was set aside"));
    let root = stage.pebble.root();
    stage.gateway.signal("HUP");
    eventually_within(ISSUED_WITHIN, "the third certificate", || stage.is_served("three.example.com", &root));
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
    // Until the other one is there, the one before is shown.
    eventually_within(ISSUED_WITHIN, "the other certificate", || {
        let is_served = stage.is_served(NAME, &real);
        assert!(is_served || stage.is_served(NAME, &tried) || stage.is_served(NAME, &real));
        is_served
    });
    // And back: neither its account nor its certificate is lost.
    stage.gateway.reload(&stage.setup("", SHOP));
    eventually("the first certificate", || stage.is_served(NAME, &tried));
    let log = stage.pebble.log();
    assert_eq!(log.matches("Issued certificate serial").count(), 1, "{log}");
    stage.gateway.assert_healthy();
}

#[test]
fn a_certificate_is_served_though_the_configuration_is_refused() {
    let mut stage = Stage::new(|_| {});
    let root = stage.pebble.root();
    stage.gateway.reload(&stage.setup("", SHOP));
    eventually_within(ISSUED_WITHIN, "the certificate", || stage.is_served(NAME, &root));
    let status = || stage.gateway.status()["config"].clone();
    let generation = status()["generation"].clone();
    stage.gateway.write_config(&stage.setup("", SHOP).gateway("nonsense: 1"));
    eventually("the refusal", || status()["last_error"].to_string().contains("nonsense"));
    // As another gateway, or this one, stores it.
    stage.authority.issue("renewed", &[NAME]);
    let text = ["renewed.pem", "renewed.key"].map(|file| fs::read(stage.authority.file(file)).expect("read")).concat();
    let (beside, file) = (stage.folder().join("beside"), stage.folder().join("certificates/shop.pem"));
    fs::write(&beside, text).expect("write");
    fs::rename(beside, file).expect("rename");
    let own = fs::read_to_string(stage.authority.file("ca.pem")).expect("read");
    eventually("the renewed one", || stage.is_served(NAME, &own));
    assert!(status()["last_error"].to_string().contains("nonsense"), "{}", status());
    assert_eq!(status()["generation"], generation);
    stage.gateway.reload(&stage.setup("", SHOP));
    assert!(stage.is_served(NAME, &own));
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
    // Either of them may be the one that orders, and only one is asked.
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
