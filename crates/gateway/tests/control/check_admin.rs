//! The findings of `check` about a store and the admin address: every problem that `run` would end with.

use crate::shared::authority::Authority;
use crate::shared::folder::Folder;

const STORE: &str = "gateway:\n  config: {source: store, store: \"STORE\"}\n  admin: {address: \"127.0.0.1:0\"}\n\
                     \x20 listeners: [{address: \"127.0.0.1:0\"}]\n";

const TLS: &str = "gateway:\n  admin:\n    address: \"127.0.0.1:0\"\n    tls: {cert: \"DIR/a.pem\", key: \"KEY\", client_ca: \"CA\"}\n\
                   \x20 listeners: [{address: \"127.0.0.1:0\"}]\nroutes: []\n";

/// Checks that `run` refuses the file, that `check` reports this line, and that `check --offline` does not check it.
#[track_caller]
fn refused(text: &str, expected: &str) {
    let folder = Folder::with(&[("f.yaml", text)]);
    let told = |arguments: &[&str]| {
        let output = folder.run(arguments);
        let told = [&output.stdout[..], &output.stderr[..]].map(String::from_utf8_lossy).concat();
        (output.status.code(), told)
    };
    let (code, checked) = told(&["check", "f.yaml"]);
    assert!(code == Some(1) && checked.contains(expected), "{expected}\n{checked}");
    let (code, run) = told(&["run", "-c", "f.yaml"]);
    assert_eq!(code, Some(1), "{run}");
    let (code, offline) = told(&["check", "--offline", "f.yaml"]);
    assert_eq!(code, Some(0), "{offline}");
}

#[test]
fn the_place_of_a_store() {
    let at = |store: &str| STORE.replace("STORE", store);
    refused(
        &at("/none/config.redb"),
        "f.yaml:2:34: gateway.config.store: the folder /none does not exist; create it (`mkdir -p /none`), or change",
    );
    refused(&at("/tmp"), "f.yaml:2:34: gateway.config.store: /tmp is a folder; name a file in it");
    let folder = tempfile::tempdir().expect("a folder");
    for (name, text, why) in [
        ("empty.redb", "", "the file is empty, so it is not a store"),
        ("text.redb", "routes: []\n", "this is not a store of Stillgate; name another file"),
        ("short.redb", "redb\x1a\n", "this is not a store of Stillgate; name another file"),
    ] {
        let file = folder.path().join(name);
        std::fs::write(&file, text).expect("write a file");
        refused(&at(&file.display().to_string()), &format!("{name}: {why}"));
    }
    // The key that an earlier start has generated.
    let file = folder.path().join("keyed.redb");
    std::fs::write(folder.path().join("keyed.redb.admin-key"), "short").expect("write a file");
    refused(&at(&file.display().to_string()), "keyed.redb.admin-key has no valid admin key; remove the file");
}

const ETCD: &str = "gateway:\n  config: {source: etcd, etcd: {endpoints: [\"ENDPOINT\"]MORE}}\n\
                    \x20 listeners: [{address: \"127.0.0.1:0\"}]\n";

#[test]
fn the_connection_to_etcd() {
    let check = |endpoint: &str, more: &str, expected: &str| {
        refused(&ETCD.replace("ENDPOINT", endpoint).replace("MORE", more), expected);
    };
    let plain = "http://127.0.0.1:1";
    check(plain, ", user: root", "gateway.config.etcd.password: it is missing, but `user` is set; write both");
    check(plain, ", password: x", "gateway.config.etcd.user: it is missing, but `password` is set; write both");
    check("https://127.0.0.1:1", ", tls: {ca: /none/ca.pem}", "gateway.config.etcd.tls.ca: cannot read /none/ca.pem");
    check(
        "https://127.0.0.1:1",
        ", tls: {cert: /none/c.pem}",
        "only one of cert and key is here; write both, or neither",
    );
    // The path is missing, which no machine can make valid.
    let missing = "gateway:\n  config: {source: etcd}\n  listeners: [{address: \"127.0.0.1:0\"}]\n";
    let folder = Folder::with(&[("f.yaml", missing)]);
    for arguments in [&["check", "f.yaml"][..], &["check", "--offline", "f.yaml"], &["run", "-c", "f.yaml"]] {
        let output = folder.run(arguments);
        let told = [&output.stdout[..], &output.stderr[..]].map(String::from_utf8_lossy).concat();
        assert!(
            !output.status.success() && told.contains("nothing says where etcd is; add gateway.config.etcd"),
            "{told}"
        );
    }
}

#[test]
fn addresses_of_devices() {
    let text = "gateway:\n  listeners: [{address: \"127.0.0.1:0\"}]\n  devices: {address: \"192.0.2.1:9191\", keys: [{name: a, key: 0123456789abcdef0123456789abcdef}]}\nroutes: []\n";
    refused(text, "gateway.devices.address: 192.0.2.1 is not an address of this machine");
}

#[test]
fn tls_of_the_admin_address() {
    let authority = Authority::new();
    authority.issue("a", &["localhost"]);
    authority.issue("b", &["localhost"]);
    let dir = authority.dir().display().to_string();
    let with = |key: &str, ca: &str| TLS.replace("KEY", key).replace("CA", ca).replace("DIR", &dir);
    let check = |key: &str, ca: &str, expected: &str| refused(&with(key, ca), expected);
    let other = "gateway.admin.tls.key: the key does not belong to gateway.admin.tls.cert";
    check("DIR/b.key", "DIR/ca.pem", other);
    check("DIR/none.key", "DIR/ca.pem", "gateway.admin.tls.key: cannot read ");
    check("DIR/a.key", "DIR/b.key", "gateway.admin.tls.client_ca: no certificate found; write it as PEM");
    let folder = Folder::with(&[("f.yaml", with("DIR/a.key", "DIR/ca.pem"))]);
    assert!(folder.run(&["check", "f.yaml"]).status.success());
}
