//! Certificates and keys as files: the findings of `check` about them, and changes while the gateway runs.

use crate::shared::STILLGATE;
use crate::shared::folder::Folder;
use expect_test::expect;
use rcgen::{CertificateParams, CertifiedIssuer, KeyPair, date_time_ymd};
use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;
use stillgate_testkit::{END_PATIENCE, Gateway, Process, Setup, Upstream, eventually};
use stillgate_tls::rustls::pki_types::ServerName;
use stillgate_tls::rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

const NAME: &str = "shop.example.com";

/// Issues certificates, each with a number of its own.
struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
}

impl Authority {
    fn new() -> Authority {
        let mut params = CertificateParams::new(Vec::new()).expect("parameters");
        params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        let key = KeyPair::generate().expect("a key");
        Authority { issuer: CertifiedIssuer::self_signed(params, key).expect("a certificate") }
    }

    /// PEM of a certificate and its key.
    fn issue(&self, number: u64, change: impl FnOnce(&mut CertificateParams)) -> (String, String) {
        let mut params = CertificateParams::new([NAME.to_owned()]).expect("parameters");
        params.serial_number = Some(number.into());
        change(&mut params);
        let key = KeyPair::generate().expect("a key");
        (params.signed_by(&key, &self.issuer).expect("a certificate").pem(), key.serialize_pem())
    }

    fn client(&self) -> Arc<ClientConfig> {
        let mut roots = RootCertStore::empty();
        roots.add(self.issuer.der().clone()).expect("a root");
        let provider = stillgate_tls::rustls::crypto::aws_lc_rs::default_provider();
        let builder = ClientConfig::builder_with_provider(provider.into()).with_safe_default_protocol_versions();
        Arc::new(builder.expect("versions").with_root_certificates(roots).with_no_client_auth())
    }
}

fn connect(gateway: &Gateway, client: &Arc<ClientConfig>) -> StreamOwned<ClientConnection, TcpStream> {
    let name = ServerName::try_from(NAME).expect("a name");
    let connection = ClientConnection::new(client.clone(), name).expect("a client");
    let stream = TcpStream::connect(gateway.addr()).expect("connect");
    stream.set_read_timeout(Some(stillgate_testkit::PATIENCE)).expect("a timeout");
    StreamOwned::new(connection, stream)
}

/// One request; the head of the response, whose body is taken too.
fn ask(stream: &mut (impl Read + Write)) -> String {
    write!(stream, "GET / HTTP/1.1\r\nHost: {NAME}\r\n\r\n").expect("a request");
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n") {
        stream.read_exact(&mut byte).expect("a response");
        head.push(byte[0]);
    }
    let head = String::from_utf8_lossy(&head).to_lowercase();
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")).expect("a length");
    stream.read_exact(&mut vec![0; length.parse().expect("a number")]).expect("a body");
    head
}

/// The number of the certificate that a new client is shown.
fn shown(gateway: &Gateway, authority: &Authority) -> u64 {
    let mut stream = connect(gateway, &authority.client());
    assert!(ask(&mut stream).starts_with("http/1.1 200"));
    let chain = stream.conn.peer_certificates().expect("a chain");
    let told = stillgate_tls::client_certificate(chain).expect("a certificate");
    u64::from_str_radix(&told.serial, 16).expect("a number")
}

fn resources(files: &Path, upstream: &Upstream) -> String {
    let files = files.display();
    format!(
        "ssls: [{{id: shop, cert: {files}/shop.pem, key: {files}/shop.key, sni: {NAME}}}]\n\
         upstreams: [{{id: main, nodes: {{\"{}\": 1}}}}]\nroutes: [{{id: all, uri: /*, upstream_id: main}}]\n",
        upstream.addr()
    )
}

fn write(files: &Path, name: &str, text: &str) {
    let beside = files.join("new");
    fs::write(&beside, text).expect("write");
    keep_secret(&beside);
    fs::rename(&beside, files.join(name)).expect("rename over it");
}

/// Sets the mode, whatever the umask is: a key that all users may read causes a warning.
fn keep_secret(file: &Path) {
    fs::set_permissions(file, fs::Permissions::from_mode(0o600)).expect("permissions");
}

fn last_error(gateway: &Gateway) -> String {
    gateway.status()["config"]["last_error"]["errors"].to_string()
}

#[test]
fn a_renewed_certificate_is_taken_on_without_a_restart() {
    let (authority, upstream, files) = (Authority::new(), Upstream::echo(), tempfile::tempdir().expect("a folder"));
    let (cert, key) = authority.issue(1, |_| {});
    write(files.path(), "shop.pem", &cert);
    write(files.path(), "shop.key", &key);
    let setup = Setup::resources(resources(files.path(), &upstream)).listener("tls: true");
    let gateway = Gateway::start(STILLGATE, &setup);
    assert_eq!(shown(&gateway, &authority), 1);
    let mut open = connect(&gateway, &authority.client());
    assert!(ask(&mut open).starts_with("http/1.1 200"));

    // Half of a renewal is refused, and the current one stays in use.
    let (cert, key) = authority.issue(2, |_| {});
    write(files.path(), "shop.pem", &cert);
    eventually("the refusal", || last_error(&gateway).contains("the key does not belong to the certificate"));
    assert!(last_error(&gateway).contains("shop.key"), "{}", last_error(&gateway));
    assert_eq!(shown(&gateway, &authority), 1);

    // The other half ends it.
    write(files.path(), "shop.key", &key);
    eventually("the new certificate", || shown(&gateway, &authority) == 2);
    eventually("no error", || last_error(&gateway) == "null");
    assert_eq!(gateway.status()["config"]["generation"], 2);

    // Written in place instead of renamed, and as it was: nothing to publish.
    fs::write(files.path().join("shop.pem"), &cert).expect("write");
    let (cert, key) = authority.issue(3, |_| {});
    fs::write(files.path().join("shop.key"), key).expect("write");
    fs::write(files.path().join("shop.pem"), cert).expect("write");
    eventually("the third certificate", || shown(&gateway, &authority) == 3);
    assert_eq!(gateway.status()["config"]["generation"], 3);
    // Connections that came with the first one have not noticed.
    assert!(ask(&mut open).starts_with("http/1.1 200"));
}

/// A certificate and its key from one secret change together.
#[test]
fn a_certificate_can_be_a_secret() {
    let (authority, upstream, files) = (Authority::new(), Upstream::echo(), tempfile::tempdir().expect("a folder"));
    let issue = |number: u64| {
        let (cert, key) = authority.issue(number, |_| {});
        serde_json::json!({"cert": cert, "key": key}).to_string()
    };
    write(files.path(), "shop.json", &issue(1));
    let secret = format!("$secret://file{}/shop.json", files.path().display());
    let as_secret = |name: &str| format!("{}/shop.{name}", files.path().display());
    let resources = resources(files.path(), &upstream)
        .replace(&as_secret("pem"), &format!("\"{secret}#cert\""))
        .replace(&as_secret("key"), &format!("\"{secret}#key\""));
    let gateway = Gateway::start(STILLGATE, &Setup::resources(resources).listener("tls: true"));
    assert_eq!(shown(&gateway, &authority), 1);
    write(files.path(), "shop.json", &issue(2));
    eventually("the new certificate", || shown(&gateway, &authority) == 2);
    write(files.path(), "shop.json", r#"{"cert": "planted", "key": "planted"}"#);
    eventually("the refusal", || last_error(&gateway).contains("ssls[0].cert: the secret is not PEM text"));
    assert!(!last_error(&gateway).contains("planted"), "{}", last_error(&gateway));
    assert_eq!(shown(&gateway, &authority), 2);
    write(files.path(), "shop.json", &issue(3));
    eventually("the third certificate", || shown(&gateway, &authority) == 3);
}

#[test]
fn a_file_that_was_missing_is_taken_when_it_comes() {
    let (authority, upstream, files) = (Authority::new(), Upstream::echo(), tempfile::tempdir().expect("a folder"));
    let (cert, key) = authority.issue(1, |_| {});
    write(files.path(), "shop.pem", &cert);
    write(files.path(), "shop.key", &key);
    let setup = Setup::resources(resources(files.path(), &upstream)).listener("tls: true");
    let gateway = Gateway::start(STILLGATE, &setup);
    let elsewhere = tempfile::tempdir().expect("a folder");
    gateway.write_config(&Setup { resources: Some(resources(elsewhere.path(), &upstream)), ..setup });
    eventually("the refusal", || last_error(&gateway).contains("cannot be read"));
    let (cert, key) = authority.issue(2, |_| {});
    write(elsewhere.path(), "shop.key", &key);
    write(elsewhere.path(), "shop.pem", &cert);
    eventually("the certificate", || shown(&gateway, &authority) == 2);
}

#[test]
fn check_looks_at_certificates() {
    let authority = Authority::new();
    let (cert, key) = authority.issue(1, |_| {});
    let (expired, expired_key) = authority.issue(2, |params| params.not_after = date_time_ymd(2020, 1, 1));
    let config = "gateway: {listeners: [{address: \"127.0.0.1:9443\", tls: true}]}\n\
                  ssls:\n  - {id: shop, cert: shop.pem, key: shop.key, sni: shop.example.com}\nroutes: []\n";
    let file = |name: &str| config.replace("shop.", name).replace(&format!("{name}example.com"), NAME);
    let folder = Folder::with(&[
        ("good.yaml", config),
        ("mixed.yaml", &config.replace("shop.key", "expired.key")),
        ("expired.yaml", &file("expired.")),
        ("other.yaml", &config.replace(NAME, "other.example.com")),
        ("shop.pem", &cert),
        ("shop.key", &key),
        ("expired.pem", &expired),
        ("expired.key", &expired_key),
    ]);
    keep_secret(&folder.path().join("shop.key"));
    keep_secret(&folder.path().join("expired.key"));
    folder.check(
        &["check", "good.yaml"],
        expect![[r#"
        exit 0
        good.yaml:1:1: warning: routes: no routes; every request is answered 404
        good.yaml: ok (no routes, no upstreams; 1 warning)
    "#]],
    );
    folder.check(&["check", "mixed.yaml"], expect![[r#"
        exit 1
        mixed.yaml:1:1: warning: routes: no routes; every request is answered 404
        mixed.yaml: ssls["shop"].key: expired.key: the key does not belong to the certificate; is one of them of an earlier renewal?
        mixed.yaml: refused (1 error, 1 warning)
    "#]]);
    folder.check(
        &["check", "expired.yaml"],
        expect![[r#"
        exit 1
        expired.yaml:1:1: warning: routes: no routes; every request is answered 404
        expired.yaml: ssls["shop"].cert: expired.pem: certificate 1 expired on Jan  1 00:00:00 2020 +00:00; renew it
        expired.yaml: refused (1 error, 1 warning)
    "#]],
    );
    folder.check(&["check", "other.yaml"], expect![[r#"
        exit 0
        other.yaml: warning: ssls["shop"].cert: shop.pem: the certificate does not have the name "other.example.com", so clients will refuse it; take the name out of the entry's snis, or ask for another certificate
        other.yaml:1:1: warning: routes: no routes; every request is answered 404
        other.yaml: ok (no routes, no upstreams; 2 warnings)
    "#]]);
}

#[test]
fn a_start_with_an_expired_certificate_is_refused() {
    let (authority, upstream, files) = (Authority::new(), Upstream::echo(), tempfile::tempdir().expect("a folder"));
    let (cert, key) = authority.issue(1, |params| params.not_after = date_time_ymd(2020, 1, 1));
    write(files.path(), "shop.pem", &cert);
    write(files.path(), "shop.key", &key);
    let config = files.path().join("stillgate.yaml");
    let gateway = "gateway: {listeners: [{address: \"127.0.0.1:0\", tls: true}]}\n";
    fs::write(&config, format!("{gateway}{}", resources(files.path(), &upstream))).expect("write");
    let mut command = std::process::Command::new(STILLGATE);
    command.arg("run").arg("--config").arg(&config);
    let mut process = Process::spawn("stillgate", &mut command, &files.path().join("log"));
    assert_eq!(process.wait_within(END_PATIENCE).code(), Some(1));
    let log = process.log();
    assert!(log.contains("shop.pem: certificate 1 expired on Jan  1 00:00:00 2020"), "{log}");
}
