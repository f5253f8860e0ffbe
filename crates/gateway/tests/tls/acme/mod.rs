//! A gateway that orders certificates, and the server that issues them.

use crate::shared::STILLGATE;
use crate::shared::authority::Authority;
use serde_json::Value;
use std::fs;
use std::path::PathBuf;
use std::time::Duration;
use stillgate_testkit::{
    Gateway, Pebble, PebbleSetup, ReservedPort, Setup, Upstream, eventually, eventually_within, run_tool,
};
use tempfile::TempDir;

pub(crate) const NAME: &str = "shop.example.com";
pub(crate) const SHOP: &str = ", {id: shop, acme: true, sni: shop.example.com}";
pub(crate) const TWO_NAMES: &str = ", {id: shop, acme: true, snis: [shop.example.com, www.example.com]}";
/// A server issues within seconds, where nothing else is to be done.
pub(crate) const ISSUED_WITHIN: Duration = Duration::from_secs(300);

/// A gateway with one listener with TLS and one without, and the servers that issue its certificates.
pub(crate) struct Stage {
    pub(crate) gateway: Gateway,
    pub(crate) pebble: Pebble,
    pub(crate) authority: Authority,
    pub(crate) http: ReservedPort,
    storage: TempDir,
    pub(crate) upstream: Upstream,
}

impl Stage {
    /// Nothing is ordered yet. `change`: changes the settings of pebble.
    pub(crate) fn new(change: impl FnOnce(&mut PebbleSetup)) -> Stage {
        Stage::at(ReservedPort::new(), change)
    }

    /// [`Stage::new`] with this port for the listener without TLS.
    pub(crate) fn at(http: ReservedPort, change: impl FnOnce(&mut PebbleSetup)) -> Stage {
        let (authority, upstream) = (Authority::new(), Upstream::echo());
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

    /// A setup with these keys of `gateway.acme` besides the required ones, and this entry.
    pub(crate) fn setup(&self, acme: &str, entry: &str) -> Setup {
        self.setup_at(&self.pebble, acme, entry)
    }

    /// Like `setup`, with this server.
    pub(crate) fn setup_at(&self, pebble: &Pebble, acme: &str, entry: &str) -> Setup {
        let (directory, storage) = (pebble.directory(), self.storage().display().to_string());
        let ca = self.authority.path("ca.pem");
        let acme =
            format!("acme: {{directory: \"{directory}\", storage: {storage}, ca: {ca}, agree_terms: true, {acme}}}");
        setup(&self.authority, &self.upstream, &self.http, &acme, entry)
    }

    /// The gateway creates it.
    pub(crate) fn storage(&self) -> PathBuf {
        self.storage.path().join("acme")
    }

    /// The state for the server, where only one was used.
    pub(crate) fn folder(&self) -> PathBuf {
        let folders: Vec<_> = fs::read_dir(self.storage()).expect("a folder").collect();
        assert_eq!(folders.len(), 1, "{folders:?}");
        folders[0].as_ref().expect("an entry").path()
    }

    pub(crate) fn certificate(&self) -> Value {
        let status = self.gateway.status();
        let all = status["certificates"].as_array().expect("a list");
        all.iter().find(|of| of["id"] == "shop").cloned().unwrap_or_default()
    }

    #[track_caller]
    pub(crate) fn await_certificate(&self) {
        eventually_within(ISSUED_WITHIN, "the certificate", || !self.certificate()["not_after"].is_null());
        self.await_no_error();
    }

    /// A certificate is served as soon as it is stored, and earlier failures are forgotten a little later.
    #[track_caller]
    pub(crate) fn await_no_error(&self) {
        eventually("the last failure to be forgotten", || self.certificate()["acme"]["last_error"].is_null());
    }

    #[track_caller]
    pub(crate) fn await_failure(&self, error: &str) {
        eventually_within(ISSUED_WITHIN, "the failure to be told", || {
            self.certificate()["acme"]["last_error"].as_str().is_some_and(|told| told.contains(error))
        });
        eventually("the log", || {
            let log = self.gateway.log();
            log.lines().any(|line| line.contains("ACME: no certificate: ") && line.contains(error))
        });
    }

    /// Whether curl gets an answer by this name, trusting `root` only.
    pub(crate) fn is_served(&self, name: &str, root: &str) -> bool {
        fetch(&self.gateway, name, root).starts_with("200")
    }

    /// The serial number of the certificate that clients are shown.
    pub(crate) fn serial(&self) -> String {
        let at = self.gateway.addr().to_string();
        let command = format!(
            "openssl s_client -connect {at} -servername {NAME} </dev/null 2>/dev/null | openssl x509 -noout -serial"
        );
        let output = run_tool("sh", "dash", &["-c", &command]);
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    }
}

/// curl's status, verifying with `root` only.
pub(crate) fn fetch(gateway: &Gateway, name: &str, root: &str) -> String {
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
    .gateway("pid_file: \"{dir}/pid\"")
    .gateway(acme)
}
