//! Secrets of consumers: changed while the gateway runs, refused where they are gone, and shown nowhere.

use stillgate_testkit::{Gateway, Setup, Upstream, eventually};

const FIRST: &str = "planted-first";
const SECOND: &str = "planted-second";
const INLINE: &str = "planted-inline";

fn setup(node: &Upstream, secret: &str) -> Setup {
    Setup::resources(format!(
        "routes:\n- {{id: a, uri: /*, plugins: {{key-auth: {{}}}}, upstream: {{nodes: {{\"{}\": 1}}}}}}\n\
         consumers:\n- {{username: jack, plugins: {{key-auth: {{key: \"{secret}\"}}}}}}\n\
         - {{username: rose, plugins: {{key-auth: {{key: {INLINE}}}}}}}\n",
        node.addr()
    ))
}

#[test]
fn a_changed_secret_takes_effect_and_is_shown_nowhere() {
    let node = Upstream::echo();
    let folder = tempfile::tempdir().expect("a folder");
    let (file, beside) = (folder.path().join("secret"), folder.path().join("new"));
    let write = |text: &str| {
        std::fs::write(&beside, text).expect("write");
        std::fs::rename(&beside, &file).expect("rename");
    };
    write(&format!("{FIRST}\n"));
    let setup = setup(&node, &format!("$secret://file{}", file.display()));
    let mut gateway = Gateway::start(env!("CARGO_BIN_EXE_stillgate"), &setup);
    let status = |key: &str| gateway.get(&format!("/?apikey={key}")).head.status();
    assert_eq!((status(FIRST), status(INLINE), status(SECOND)), (200, 200, 401));

    write(SECOND);
    eventually("the new secret", || status(SECOND) == 200);
    assert_eq!(status(FIRST), 401);

    // Gone: what was read before goes on, and the reason is told.
    std::fs::remove_file(&file).expect("remove");
    eventually("the refusal", || gateway.status()["config"]["last_error"].to_string().contains("there is no file"));
    assert_eq!(status(SECOND), 200);
    write(FIRST);
    eventually("the secret that is back", || status(FIRST) == 200);
    assert_eq!(status(SECOND), 401);

    let refused = gateway.get("/");
    assert_eq!(refused.head.status(), 401);
    assert_eq!(refused.head.get("www-authenticate"), Some("apikey realm=\"key\""));
    assert_eq!(refused.body, b"{\"message\":\"Missing API key in request\"}\n");
    // A key that two have: both are named, the key is not.
    gateway
        .write_config_text(&std::fs::read_to_string(gateway.config_path()).expect("the file").replace(INLINE, FIRST));
    eventually("the refusal", || gateway.status()["config"]["last_error"].to_string().contains("has the same"));
    let told = format!("{}\n{}", gateway.log(), gateway.status());
    assert!(!told.contains("planted"), "{told}");
    gateway.assert_healthy();
}
