//! Secrets of consumers: changed while the gateway runs, refused where they are gone, and shown nowhere.

use serde_json::json;
use std::net::{SocketAddr, TcpListener};
use std::sync::{Arc, Mutex};
use stillgate_testkit::{Connection, Gateway, Setup, Upstream, eventually};

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

/// A Vault with one secret, which is answered to one token, until it is closed.
struct Vault {
    address: SocketAddr,
    /// `None`: it is sealed.
    secret: Arc<Mutex<Option<&'static str>>>,
}

impl Vault {
    fn start(secret: &'static str) -> Vault {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let vault =
            Vault { address: listener.local_addr().expect("bound"), secret: Arc::new(Mutex::new(Some(secret))) };
        let secret = vault.secret.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let mut connection = Connection::new(stream.expect("a client"));
                // A gateway that ends leaves.
                let Ok(request) = connection.read_request() else { continue };
                let is_known = request.head.start == "GET /v1/kv/data/gate/jack HTTP/1.1"
                    && request.head.get("x-vault-token") == Some("planted-token");
                let (status, body) = match (is_known, *secret.lock().expect("no panic")) {
                    (_, None) => ("503 Service Unavailable", json!({"errors": ["Vault is sealed"]})),
                    (false, _) => ("403 Forbidden", json!({"errors": ["permission denied"]})),
                    (true, Some(secret)) => ("200 OK", json!({"data": {"data": {"key": secret}, "metadata": {}}})),
                };
                let body = body.to_string();
                connection.send(format!("HTTP/1.1 {status}\r\nContent-Length: {}\r\n\r\n{body}", body.len()));
            }
        });
        vault
    }

    fn sets(&self, secret: Option<&'static str>) {
        *self.secret.lock().expect("no panic") = secret;
    }
}

#[test]
fn a_secret_of_a_vault_is_read_again_and_stays_while_the_vault_is_sealed() {
    let (node, vault) = (Upstream::echo(), Vault::start(FIRST));
    let folder = tempfile::tempdir().expect("a folder");
    let token = folder.path().join("token");
    std::fs::write(&token, "planted-token\n").expect("write");
    let mut setup = setup(&node, "$secret://vault/main/jack/key");
    let resources = setup.resources.as_mut().expect("resources");
    resources.push_str(&format!(
        "secrets:\n- {{id: vault/main, uri: \"http://{}\", prefix: kv/gate, token: \"$secret://file{}\", kv_version: 2, \
         refresh: 1s}}\n",
        vault.address,
        token.display()
    ));
    let mut gateway = Gateway::start(env!("CARGO_BIN_EXE_stillgate"), &setup);
    let status = |key: &str| gateway.get(&format!("/?apikey={key}")).head.status();
    assert_eq!((status(FIRST), status(SECOND)), (200, 401));
    vault.sets(Some(SECOND));
    eventually("the new secret", || status(SECOND) == 200);
    assert_eq!(status(FIRST), 401);
    vault.sets(None);
    eventually("the warning", || gateway.log().contains("what was read before stays in use"));
    gateway
        .write_config_text(&std::fs::read_to_string(gateway.config_path()).expect("the file").replace(INLINE, "new"));
    eventually("the reload", || status("new") == 200);
    assert_eq!(status(SECOND), 200);
    let told = format!("{}\n{}", gateway.log(), gateway.status());
    assert!(!told.contains("planted"), "{told}");
    gateway.assert_healthy();
}
