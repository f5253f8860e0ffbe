//! Secrets of consumers: changed while the gateway runs, refused where they are gone, and shown nowhere.

use crate::shared::STILLGATE;
use std::net::SocketAddr;
use std::process::Command;
use stillgate_testkit::{ACCEPT_TEXT, Client, Gateway, ReservedPort, Setup, Upstream, eventually, scrape};

pub(crate) const FIRST: &str = "planted-first";
pub(crate) const SECOND: &str = "planted-second";
pub(crate) const INLINE: &str = "planted-inline";

pub(crate) fn setup(node: &Upstream, secret: &str) -> Setup {
    Setup::resources(format!(
        "routes:\n- {{id: a, uri: /*, plugins: {{key-auth: {{}}}}, upstream: {{nodes: {{\"{}\": 1}}}}}}\n\
         consumers:\n- {{username: jack, plugins: {{key-auth: {{key: \"{secret}\"}}}}}}\n\
         - {{username: rose, plugins: {{key-auth: {{key: {INLINE}}}}}}}\n",
        node.addr()
    ))
    .gateway("access_log: {path: \"{dir}/access.log\"}")
}

/// The status of a request with a key in its header. One in the query would be in the access log, as the request is.
#[track_caller]
pub(crate) fn status(gateway: &Gateway, key: &str) -> u16 {
    let mut client = gateway.client();
    client.send(format!("GET / HTTP/1.1\r\nHost: h\r\napikey: {key}\r\n\r\n"));
    client.expect_response("GET").head.status()
}

/// The output of a command for the gateway's file.
fn command(gateway: &Gateway, name: &str, arguments: &[&str]) -> String {
    let mut command = Command::new(STILLGATE);
    let output = command.arg(name).arg(gateway.config_path()).args(arguments).output().expect("run stillgate");
    let said = [output.stdout, output.stderr].concat();
    assert!(!said.is_empty(), "{name} says nothing");
    String::from_utf8_lossy(&said).into_owned()
}

/// Everything that people and programs can see of a gateway: its log and access log, its admin API, metrics, and the output of
/// commands for its file.
fn shown(gateway: &Gateway, metrics: Option<SocketAddr>) -> Vec<(&'static str, String)> {
    let admin = |target: &str| {
        let response = Client::connect(gateway.admin_addr()).get(target);
        String::from_utf8_lossy(&response.body).into_owned()
    };
    let access_log = std::fs::read_to_string(gateway.dir().join("access.log")).expect("an access log");
    let mut shown = vec![
        ("log", gateway.log()),
        ("access log", access_log),
        ("/v1/status", gateway.status().to_string()),
        ("/v1/explain", admin("/v1/explain?url=http://h/&consumer=jack&header=apikey:x")),
        ("check", command(gateway, "check", &[])),
        ("check as JSON", command(gateway, "check", &["--format", "json"])),
        ("explain", command(gateway, "explain", &["--request", "GET http://h/", "--consumer", "jack"])),
    ];
    if let Some(metrics) = metrics {
        shown.push(("/metrics", scrape(metrics, "/metrics", ACCEPT_TEXT, false).text().to_owned()));
    }
    shown
}

#[track_caller]
pub(crate) fn assert_hidden(gateway: &Gateway, metrics: Option<SocketAddr>) {
    for (place, text) in shown(gateway, metrics) {
        assert!(!text.contains("planted"), "{place}: {text}");
    }
}

/// Plugins with secrets of every kind.
fn with_secrets(node: SocketAddr) -> String {
    format!(
        "upstreams: [{{id: u, nodes: {{\"{node}\": 1}}}}]\n\
         plugin_metadata:\n\
         - {{id: opentelemetry, collector: {{address: \"127.0.0.1:1\", request_headers: {{Authorization: planted-otel}}}}}}\n\
         global_rules:\n\
         - {{id: g, plugins: {{csrf: {{key: planted-csrf, _meta: {{filter: [[arg_csrf, \"==\", \"planted-filter\"]]}}}}}}}}\n\
         routes:\n\
         - id: a\n  uri: /*\n  upstream_id: u\n  plugins:\n    multi-auth:\n      auth_plugins: [key-auth: {{}}, basic-auth: {{}}, jwt-auth: {{}}, hmac-auth: {{}}]\n    \
             http-logger: {{uri: \"http://127.0.0.1:1/\", auth_header: planted-http, batch_max_size: 1}}\n    \
             loki-logger: {{endpoint_addrs: [\"http://127.0.0.1:1\"], headers: {{Authorization: planted-loki}}, batch_max_size: 1}}\n    \
             elasticsearch-logger: {{endpoint_addr: \"http://127.0.0.1:1\", field: {{index: i}}, auth: {{username: e, password: planted-elastic}}}}\n    \
             opentelemetry: {{sampler: {{name: always_on}}}}\n\
         consumers:\n\
         - username: jack\n  plugins:\n    key-auth: {{key: planted-key}}\n    basic-auth: {{username: jack, password: planted-basic}}\n    \
             jwt-auth: {{key: jack, secret: planted-jwt}}\n    hmac-auth: {{key_id: jack, secret_key: planted-hmac}}\n\
         - username: rose\n  plugins: {{basic-auth: {{username: rose, password: planted-rose}}}}\n"
    )
}

/// The contents of the file, with a mistake next to a secret, or in it.
const MISTAKES: &[(&str, &str)] = &[
    ("key: planted-csrf", "key: [planted-csrf]"),
    ("key: planted-csrf", "key: \"\", kye: planted-csrf"),
    ("auth_header: planted-http", "auth_header: \"planted\\r\\nhttp\""),
    ("auth_header: planted-http", "auth_header: {planted: http}"),
    ("{Authorization: planted-loki}", "{Authorization: \"planted\\nloki\"}"),
    ("{Authorization: planted-loki}", "[planted-loki]"),
    ("{Authorization: planted-loki}", "planted-loki"),
    ("{username: e, password: planted-elastic}", "planted-elastic"),
    ("request_headers: {Authorization: planted-otel}", "request_headers: {Authorization: [planted-otel]}"),
    ("request_headers: {Authorization: planted-otel}", "request_headers: planted-otel"),
    ("{key: planted-key}", "{kye: planted-key}"),
    ("{key: planted-key}", "planted-key"),
    ("password: planted-basic", "password: \"$2b$planted\""),
    ("password: planted-basic", "password: \"$argon2id$planted\""),
    ("secret: planted-jwt", "public_key: planted-jwt, algorithm: RS256"),
    ("secret: planted-jwt", "secret: \"planted jwt\", base64_secret: true"),
    ("secret_key: planted-hmac", "secret_key: [planted-hmac]"),
    ("username: rose, password: planted-rose", "username: jack, password: planted-basic"),
];

#[test]
fn secrets_of_plugins_are_shown_nowhere() {
    let (node, metrics) = (Upstream::echo(), ReservedPort::new());
    let good = with_secrets(node.addr());
    let setup = Setup::resources(&*good).gateway(&format!(
        "access_log: {{path: \"{{dir}}/access.log\"}}\nmetrics: {{address: \"{}\"}}",
        metrics.addr()
    ));
    let mut gateway = Gateway::start(STILLGATE, &setup);
    assert_eq!((status(&gateway, "planted-key"), status(&gateway, "planted-no")), (200, 401));
    // No receiver accepts what the loggers send.
    eventually("losses to be told", || gateway.log().contains("http-logger") && gateway.log().contains("loki-logger"));
    assert_hidden(&gateway, Some(metrics.addr()));
    for (from, to) in MISTAKES {
        assert!(good.contains(from), "{from}");
        gateway.write_config(&Setup { resources: Some(good.replacen(from, to, 1)), ..setup.clone() });
        eventually(&format!("{to} to be refused"), || !gateway.status()["config"]["last_error"].is_null());
        assert_hidden(&gateway, Some(metrics.addr()));
        gateway.reload(&setup);
        eventually("the good one", || gateway.status()["config"]["last_error"].is_null());
    }
    assert_eq!(status(&gateway, "planted-key"), 200);
    gateway.assert_healthy();
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
    let mut gateway = Gateway::start(STILLGATE, &setup);
    let status = |key: &str| status(&gateway, key);
    assert_eq!((status(FIRST), status(INLINE), status(SECOND)), (200, 200, 401));

    write(SECOND);
    eventually("the new secret", || status(SECOND) == 200);
    assert_eq!(status(FIRST), 401);

    // The file is gone: the last value stays in use, and the reason is reported.
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
    // A key of two consumers: both are named, the key is not.
    gateway
        .write_config_text(&std::fs::read_to_string(gateway.config_path()).expect("the file").replace(INLINE, FIRST));
    eventually("the refusal", || gateway.status()["config"]["last_error"].to_string().contains("has the same"));
    assert_hidden(&gateway, None);
    gateway.assert_healthy();
}
