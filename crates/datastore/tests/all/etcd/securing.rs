//! Users, passwords and TLS.

use crate::etcd::{FollowerThread, options, run, texts};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, ExtendedKeyUsagePurpose, IsCa, KeyPair};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use stillgate_datastore::etcd::{Etcd, EtcdError, EtcdOptions, EtcdTls, RenewTls};
use stillgate_testkit::{EtcdServer as Server, EtcdSetup, eventually};
use tempfile::TempDir;

const PASSWORD: &str = "correct-horse";

fn with_password(endpoint: String, password: &str) -> EtcdOptions {
    let (user, password) = (Some("root".to_owned()), Some(password.to_owned()));
    EtcdOptions { user, password, ..options(vec![endpoint]) }
}

#[test]
fn a_user_is_let_in_again_after_its_token_is_over() {
    let mut server = Server::start();
    server.put(0, "/apisix/routes/1", "a");
    server.require_password(PASSWORD);
    let etcd = Etcd::new(with_password(server.endpoint(0), PASSWORD)).unwrap();
    let following = FollowerThread::start(with_password(server.endpoint(0), PASSWORD));
    following.await_value("routes/1", Some("a"));
    for round in 0..3 {
        assert_eq!(texts(&run(etcd.list()).unwrap().snapshot).len(), 1);
        // etcd keeps its tokens in memory only.
        server.kill(0);
        server.start_again(0);
        let write = stillgate_datastore::Write::Put {
            key: crate::etcd::key("routes/1"),
            value: round.to_string(),
            ttl_seconds: None,
        };
        let change = stillgate_datastore::Transaction {
            conditions: Vec::new(),
            unreferenced: Vec::new(),
            writes: vec![write],
            author: stillgate_datastore::Author::default(),
        };
        run(etcd.commit(&change)).unwrap();
        following.await_value("routes/1", Some(&round.to_string()));
    }
    assert_eq!(following.snapshots(), 1);
}

#[test]
fn a_wrong_password_is_reported_without_showing_it() {
    let server = Server::start();
    server.require_password(PASSWORD);
    let check = |options: EtcdOptions, expected: &str| {
        let etcd = Etcd::new(options.clone()).unwrap();
        let error = run(etcd.list()).unwrap_err();
        assert!(error.to_string().contains(expected), "{error}");
        for shown in [format!("{options:?}"), format!("{etcd:?}"), format!("{error:?}"), error.to_string()] {
            assert!(!shown.contains("battery-staple") && !shown.contains(PASSWORD), "{shown}");
        }
    };
    check(with_password(server.endpoint(0), "battery-staple"), "are `user` and `password` right?");
    check(options(vec![server.endpoint(0)]), "authentication is on: set `user` and `password`");
}

#[test]
fn a_password_where_none_is_asked_for_does_no_harm() {
    let server = Server::start();
    let etcd = Etcd::new(with_password(server.endpoint(0), PASSWORD)).unwrap();
    run(etcd.list()).unwrap();
    // When etcd begins to require the password, it is sent.
    server.require_password(PASSWORD);
    run(etcd.list()).unwrap();
}

/// A root, with files of a server's certificate and PEM of a client's.
struct Certificates {
    dir: TempDir,
    root: String,
    client: (Vec<u8>, Vec<u8>),
}

impl Certificates {
    fn new() -> Certificates {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let root = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        let issue = || {
            let key = KeyPair::generate().unwrap();
            let mut params = CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap();
            // etcd's JSON gateway is a client of etcd with the server's certificate.
            params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
            (params.signed_by(&key, &root).unwrap().pem(), key.serialize_pem())
        };
        let dir = tempfile::tempdir().unwrap();
        let (cert, key) = issue();
        for (name, text) in [("root", &root.pem()), ("cert", &cert), ("key", &key)] {
            std::fs::write(dir.path().join(name), text).unwrap();
        }
        let (cert, key) = issue();
        Certificates { dir, root: root.pem(), client: (cert.into_bytes(), key.into_bytes()) }
    }

    fn file(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }
}

#[test]
fn over_tls_both_sides_are_verified() {
    let certificates = Certificates::new();
    let mut setup = EtcdSetup {
        certificate: Some((certificates.file("cert"), certificates.file("key"))),
        client_ca: Some(certificates.file("root")),
        ..EtcdSetup::default()
    };
    let server = Server::start_with(&setup);
    server.put(0, "/apisix/routes/1", "a");
    let ca = Some(certificates.root.clone().into_bytes());
    let client = Some(certificates.client.clone());
    let with = |server: &Server, tls| EtcdOptions { tls: Some(tls), ..options(vec![server.tls_endpoint(0)]) };
    let good = EtcdTls { ca, client, verify: true };
    let following = FollowerThread::start(with(&server, good.clone()));
    following.await_value("routes/1", Some("a"));
    server.put(0, "/apisix/routes/1", "b");
    following.await_value("routes/1", Some("b"));
    let list = |server: &Server, tls: &EtcdTls| run(Etcd::new(with(server, tls.clone())).unwrap().list());
    assert!(list(&server, &EtcdTls { ca: None, verify: false, ..good.clone() }).is_ok());
    let refused = |tls: EtcdTls, expected: &str| {
        let error = list(&server, &tls).unwrap_err();
        assert!(matches!(error, EtcdError::Unreachable { .. }) && error.to_string().contains(expected), "{error}");
    };
    let other = Certificates::new();
    refused(
        EtcdTls { ca: Some(other.root.into_bytes()), ..good.clone() },
        "TLS: its certificate was not signed by the root",
    );
    refused(EtcdTls { ca: None, ..good.clone() }, "name its roots in `gateway.config.etcd.tls.ca`");
    refused(
        EtcdTls { client: None, ..good.clone() },
        "name a certificate that etcd trusts in `gateway.config.etcd.tls`",
    );
    setup.client_ca = None;
    let server = Server::start_with(&setup);
    eventually("a client without a certificate to be let in", || {
        list(&server, &EtcdTls { client: None, ..good.clone() }).is_ok()
    });
}

/// A certificate that is renewed in its file is used by the next connection; a file that cannot be used changes nothing.
#[test]
fn renewed_certificates_are_used() {
    let certificates = Certificates::new();
    let setup = EtcdSetup {
        certificate: Some((certificates.file("cert"), certificates.file("key"))),
        client_ca: Some(certificates.file("root")),
        ..EtcdSetup::default()
    };
    let server = Server::start_with(&setup);
    let ca = Some(certificates.root.clone().into_bytes());
    let good = EtcdTls { ca: ca.clone(), client: Some(certificates.client.clone()), verify: true };
    // Its issuer is one that etcd does not trust.
    let old = EtcdTls { ca, client: Some(Certificates::new().client), verify: true };
    let files = Arc::new(Mutex::new(Ok(old.clone())));
    let read = Arc::clone(&files);
    let renew_tls: RenewTls = Arc::new(move || read.lock().unwrap().clone());
    let options = EtcdOptions { tls: Some(old), renew_tls: Some(renew_tls), ..options(vec![server.tls_endpoint(0)]) };
    let etcd = Etcd::new(options).unwrap();
    assert!(run(etcd.list()).is_err());
    *files.lock().unwrap() = Ok(good);
    run(etcd.list()).unwrap();
    *files.lock().unwrap() = Err("cannot read it".to_owned());
    run(etcd.list()).unwrap();
}

#[test]
fn tls_that_cannot_be_used_is_refused_at_once() {
    let certificates = Certificates::new();
    let check = |tls: EtcdTls, expected: &str| {
        let options = EtcdOptions { tls: Some(tls), ..options(vec!["https://127.0.0.1:1".to_owned()]) };
        let error = Etcd::new(options).unwrap_err();
        assert!(error.option == "tls" && error.message.contains(expected), "{error}");
    };
    check(EtcdTls { ca: Some(Vec::new()), client: None, verify: true }, "no certificate");
    let (cert, _) = certificates.client.clone();
    check(EtcdTls { ca: None, client: Some((cert, Vec::new())), verify: false }, "key cannot be read");
}
