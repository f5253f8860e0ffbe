//! What `check` says of a store and of the admin address: whatever `run` would end with.

use crate::shared::authority::Authority;
use crate::shared::folder::Folder;

const STORE: &str = "gateway:\n  config: {source: store, store: \"STORE\"}\n  admin: {address: \"127.0.0.1:0\"}\n\
                     \x20 listeners: [{address: \"127.0.0.1:0\"}]\n";

const TLS: &str = "gateway:\n  admin:\n    address: \"127.0.0.1:0\"\n    tls: {cert: \"DIR/a.pem\", key: \"KEY\", client_ca: \"CA\"}\n\
                   \x20 listeners: [{address: \"127.0.0.1:0\"}]\nroutes: []\n";

/// Checks that `run` refuses the file, that `check` does with this line, and that `check --offline` does not look.
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
    for (name, text) in [("empty.redb", ""), ("text.redb", "routes: []\n")] {
        let file = folder.path().join(name);
        std::fs::write(&file, text).expect("write a file");
        refused(&at(&file.display().to_string()), &format!("{name} is not a store of Stillgate; name another file"));
    }
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
