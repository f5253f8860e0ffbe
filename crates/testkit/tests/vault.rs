//! Answers of a Vault to the gateway's requests, and to others: the double and a real one give the same.

use expect_test::expect;
use serde_json::{Value, json};
use std::fmt::Write;
use stillgate_testkit::Vault;

/// Status, and the fields that the client reads.
fn line(vault: &Vault, name: &str, request: (&str, &str, Option<&str>, Value)) -> String {
    let (method, path, token, body) = request;
    let (status, answer) = vault.ask(method, path, token, &body);
    let errors = match &answer["errors"] {
        Value::Array(errors) => format!(" {}", Value::from(errors.clone())),
        _ => String::new(),
    };
    let data = match (&answer["data"]["data"], &answer["data"]) {
        (Value::Null, Value::Null) => String::new(),
        (Value::Null, data) if data["metadata"].is_null() => format!(" data {data}"),
        (data, _) => format!(" data.data {data}"),
    };
    let login = match answer["auth"]["client_token"].is_string() {
        true => format!(" token for {} s", answer["auth"]["lease_duration"]),
        false => String::new(),
    };
    format!("{name}: {status}{errors}{data}{login}\n")
}

#[test]
fn answers_are_those_that_the_client_was_written_for() {
    let vault = Vault::start();
    vault.put("kv/gate/jack", &json!({"key": "one", "number": 7}));
    vault.put("kv2/gate/jack", &json!({"key": "two"}));
    vault.put("kv2/gate/gone", &json!({"key": "two"}));
    vault.delete("kv2/gate/gone");
    let (token, role) = (vault.token("600s"), vault.app_role(json!({"token_ttl": "90s"})));
    let get = |path: &'static str| ("GET", path, Some(&*token), Value::Null);
    let login = |role_id: &str, secret_id: Value| {
        ("POST", "auth/approle/login", None, json!({"role_id": role_id, "secret_id": secret_id}))
    };
    let mut said = String::new();
    for (name, request) in [
        ("version 1", get("kv/gate/jack")),
        ("version 1, nothing there", get("kv/gate/rose")),
        ("version 2", get("kv2/data/gate/jack")),
        ("version 2, nothing there", get("kv2/data/gate/rose")),
        ("version 2, deleted", get("kv2/data/gate/gone")),
        ("version 2, read as version 1", get("kv2/gate/jack")),
        ("version 1, read as version 2", get("kv/data/gate/jack")),
        ("no engine", get("none/gate/jack")),
        ("a path that may not be read", get("kv/other")),
        ("another token", ("GET", "kv/gate/jack", Some("hvs.none"), Value::Null)),
        ("no token", ("GET", "kv/gate/jack", None, Value::Null)),
        ("a write", ("POST", "kv/gate/jack", Some(&*token), json!({"key": "three"}))),
        ("login", login(&role.role_id, json!(role.secret_id))),
        ("login with another role", login("none", json!(role.secret_id))),
        ("login with another secret", login(&role.role_id, json!("none"))),
        ("login without a secret", login(&role.role_id, Value::Null)),
        (
            "login of no service account",
            ("POST", "auth/kubernetes/login", None, json!({"role": "gate", "jwt": "a.b.c"})),
        ),
        ("login at no method", ("POST", "auth/none/login", None, json!({"role": "gate"}))),
    ] {
        write!(said, "{}", line(&vault, name, request)).expect("writing to a String cannot fail");
    }
    vault.seal();
    said.push_str(&line(&vault, "sealed", get("kv/gate/jack")));
    said.push_str(&line(&vault, "sealed, login", login(&role.role_id, json!(role.secret_id))));
    expect![[r#"
        version 1: 200 data {"key":"one","number":7}
        version 1, nothing there: 404 []
        version 2: 200 data.data {"key":"two"}
        version 2, nothing there: 404 []
        version 2, deleted: 404 data.data null
        version 2, read as version 1: 403 ["1 error occurred:\n\t* permission denied\n\n"]
        version 1, read as version 2: 403 ["1 error occurred:\n\t* permission denied\n\n"]
        no engine: 403 ["1 error occurred:\n\t* permission denied\n\n"]
        a path that may not be read: 403 ["1 error occurred:\n\t* permission denied\n\n"]
        another token: 403 ["permission denied"]
        no token: 403 ["permission denied"]
        a write: 403 ["1 error occurred:\n\t* permission denied\n\n"]
        login: 200 token for 90 s
        login with another role: 400 ["invalid role ID"]
        login with another secret: 500 ["invalid secret id"]
        login without a secret: 400 ["missing secret_id"]
        login of no service account: 400 ["invalid role name \"gate\""]
        login at no method: 403 ["permission denied"]
        sealed: 503 ["Vault is sealed"]
        sealed, login: 503 ["Vault is sealed"]
    "#]]
    .assert_eq(&said);
}
