//! APISIX's documentation of `apisix.yaml`, in a running gateway: stars in hosts and paths, merge keys, resources without ids, a
//! query that an unsafe target keeps, and the list of plugins to load.

use crate::shared::STILLGATE;
use crate::shared::authority::Authority;
use std::io::{Read as _, Write as _};
use stillgate_testkit::{Client, Gateway, Setup, Upstream, eventually};

/// A node that answers with the request line.
fn node() -> Upstream {
    Upstream::serve(|connection| {
        while let Ok(request) = connection.read_request() {
            let target = request.head.method_and_target().1.to_owned();
            let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", target.len());
            if connection.try_send(head + &target).is_err() {
                return;
            }
        }
    })
}

fn ask(client: &mut Client, host: &str, target: &str) -> String {
    client.send(format!("GET {target} HTTP/1.1\r\nHost: {host}\r\n\r\n"));
    let response = client.expect_response("GET");
    match response.head.status() {
        200 => String::from_utf8(response.body).expect("a target"),
        status => status.to_string(),
    }
}

#[test]
fn stars_merge_keys_and_resources_without_ids() {
    let node = node();
    let yaml = format!(
        r#"
routes:
  - uri: "*"
    hosts: ["*"]
    plugins: {{proxy-rewrite: {{uri: /star}}}}
    upstream_id: &id 2
  - uri: /*
    plugins: {{proxy-rewrite: {{uri: /no-host}}}}
    upstream_id: *id
  - <<: &own {{hosts: [own.test], upstream_id: 2}}
    uri: /a/*/b
    plugins: {{proxy-rewrite: {{uri: /middle}}}}
  - {{<<: *own, uri: /a/*, plugins: {{proxy-rewrite: {{uri: /rest}}}}}}
  - {{<<: *own, uri: /a/*/c, priority: 010, plugins: {{proxy-rewrite: {{uri: /eight}}}}}}
  - {{<<: *own, uri: /a/x/*, priority: 1, plugins: {{
      proxy-rewrite: {{uri: /x}}
  }}
    }}
upstreams:
  - nodes: {{"127.0.0.1:1": 1}}
  - nodes: {{"${{{{NO_SUCH_VARIABLE:={node}}}}}": 1}}
global_rules:
  - plugins: {{}}
#END
"#,
        node = node.addr()
    );
    let gateway = Gateway::start(STILLGATE, &Setup::resources(yaml));
    let mut client = gateway.client();
    for (host, target, expected) in [
        ("else.test", "/", "/star"),
        ("else.test", "/a/y/b", "/star"),
        ("own.test", "/a/y/b", "/middle"),
        ("own.test", "/a/y/z/b?q", "/middle?q"),
        ("own.test", "/a/b", "/rest"),
        ("own.test", "/a/y/bb", "/rest"),
        ("own.test", "/a/y/c", "/eight"),
        // More of it is text.
        ("own.test", "/a/x/b", "/x"),
        // No route of the host takes it; `*` comes before routes without hosts.
        ("own.test", "/b", "/star"),
        ("own.test", "/a/y%2Fb", "400"),
    ] {
        assert_eq!(ask(&mut client, host, target), expected, "{host} {target}");
    }
}

#[test]
fn an_unsafe_target_keeps_the_query_and_values_stay_below_their_path() {
    let node = node();
    let route = |uri: &str, keys: &str| {
        format!(
            "  - {{uri: {uri}, plugins: {{proxy-rewrite: {{{keys}}}}}, upstream: {{nodes: {{\"{}\": 1}}}}}}\n",
            node.addr()
        )
    };
    let yaml = "routes:\n".to_owned()
        + &route("/safe", "uri: /get")
        + &route("/unsafe", "uri: /get, use_real_request_uri_unsafe: true")
        + &route("/unsafe2", "uri: '/get?a=1', use_real_request_uri_unsafe: true")
        + &route("/value", "uri: '/users/$arg_id/profile'");
    let gateway = Gateway::start(STILLGATE, &Setup::resources(yaml));
    let mut client = gateway.client();
    for (target, expected) in [
        ("/safe?foo=bar%20x", "/get?foo=bar%20x"),
        ("/unsafe?foo=bar%20x", "/get?foo=bar%20x"),
        ("/unsafe", "/get"),
        ("/unsafe2?foo=bar%20x", "/get?a=1&foo=bar%20x"),
        ("/value?id=7", "/users/7/profile?id=7"),
        ("/value?id=..", "400"),
        ("/value?id=..%2f..%2fadmin%3f", "400"),
    ] {
        assert_eq!(ask(&mut client, "h.test", target), expected, "{target}");
    }
}

#[test]
fn credentials_are_items_of_consumers_and_an_upstream_id_takes_precedence() {
    let node = node();
    let nodes = format!("nodes: {{\"{}\": 1}}", node.addr());
    let yaml = format!(
        r#"
consumers:
  - id: rose/credentials/542f7414-87f6-4793-a68e-99983dde9913
    name: rose
    plugins: {{key-auth: {{key: csdt8UPw76/SG+WlHBoFeg==}}}}
  - id: rose
    username: rose
    plugins: {{limit-count: {{count: 9, time_window: 60, rejected_code: 429}}}}
routes:
  - {{uri: /guarded, plugins: {{key-auth: {{}}}}, upstream: {{{nodes}}}}}
  - {{uri: /twice, upstream_id: 2}}
  - {{uri: /both, upstream_id: 1, upstream: {{nodes: {{"127.0.0.1:1": 1}}}}}}
  - {{uri: /service, service_id: 1}}
  - {{uri: /own, service_id: 1, upstream: {{nodes: {{"127.0.0.1:1": 1}}}}}}
  - {{uri: /id, service_id: 2, upstream_id: 1, upstream: {{nodes: {{"127.0.0.1:1": 1}}}}}}
services:
  - {{id: 1, upstream_id: 1, upstream: {{nodes: {{"127.0.0.1:1": 1}}}}}}
  - {{id: 2, upstream: {{nodes: {{"127.0.0.1:1": 1}}}}}}
upstreams:
  - {{id: 1, {nodes}}}
  - id: 2
    tls: {{verify: false}}
    nodes:
      - {{host: 127.0.0.1, port: {port}, weight: 100}}
      - {{host: 127.0.0.1, port: {port}, weight: 1}}
#END
"#,
        port = node.addr().port()
    );
    let gateway = Gateway::start(STILLGATE, &Setup::resources(yaml));
    let mut client = gateway.client();
    for (target, expected) in [
        ("/twice", "/twice"),
        ("/both", "/both"),
        ("/service", "/service"),
        ("/own", "502"),
        ("/id", "/id"),
        ("/guarded", "401"),
    ] {
        assert_eq!(ask(&mut client, "h.test", target), expected, "{target}");
    }
    for (key, expected) in [("csdt8UPw76/SG+WlHBoFeg==", 200), ("other", 401)] {
        client.send(format!("GET /guarded HTTP/1.1\r\nHost: h.test\r\napikey: {key}\r\n\r\n"));
        let response = client.expect_response("GET");
        assert_eq!(response.head.status(), expected, "{key}");
        // The consumer's own plugin runs.
        assert_eq!(response.head.get("x-ratelimit-limit"), (expected == 200).then_some("9"));
    }
}

#[test]
fn certificates_without_ids_are_shown() {
    let (authority, node) = (Authority::new(), node());
    let entry = |name: &str| {
        authority.issue(name, &[name]);
        let text = |extension: &str| -> String {
            let pem = std::fs::read_to_string(authority.file(&format!("{name}.{extension}"))).expect("PEM");
            pem.lines().map(|line| format!("      {line}\n")).collect()
        };
        format!("  - cert: |\n{}    key: |\n{}    snis: [{name}]\n", text("pem"), text("key"))
    };
    let names = ["one.test", "two.test"];
    let entries: String = names.into_iter().map(entry).collect();
    let yaml =
        format!("ssls:\n{entries}routes:\n  - {{uri: /*, upstream: {{nodes: {{\"{}\": 1}}}}}}\n#END\n", node.addr());
    let gateway = Gateway::start(STILLGATE, &Setup::resources(yaml).listener("tls: true"));
    for name in names {
        // The client checks that the certificate has this name.
        let mut client = authority.connect(gateway.addr(), name, &[]);
        write!(client, "GET /of/{name} HTTP/1.1\r\nHost: {name}\r\n\r\n").expect("a request");
        let mut response = Vec::new();
        while !response.ends_with(format!("\r\n\r\n/of/{name}").as_bytes()) {
            let mut byte = [0];
            client.read_exact(&mut byte).expect("a response");
            response.push(byte[0]);
        }
        assert!(response.starts_with(b"HTTP/1.1 200 "), "{}", String::from_utf8_lossy(&response));
    }
}

/// The list decides in APISIX what runs.
#[test]
fn a_plugin_that_the_list_of_plugins_lacks_runs_with_a_warning() {
    let node = node();
    let yaml = format!(
        r#"
plugins:
  - key-auth
  - {{name: mqtt-proxy, stream: true}}
  - name: no-such-plugin
routes:
  - {{uri: /guarded, plugins: {{key-auth: {{}}}}, upstream_id: 1}}
  - {{uri: /rewritten, plugins: {{proxy-rewrite: {{uri: /in-its-place}}}}, upstream_id: 1}}
upstreams:
  - nodes: {{"{}": 1}}
#END
"#,
        node.addr()
    );
    let gateway = Gateway::start(STILLGATE, &Setup::resources(yaml));
    let mut client = gateway.client();
    for (target, expected) in [("/guarded", "401"), ("/rewritten", "/in-its-place")] {
        assert_eq!(ask(&mut client, "h.test", target), expected, "{target}");
    }
    let warning = "plugins: APISIX would leave out plugins that this list does not name, but that resources have; here they \
                   run: proxy-rewrite; add them, or remove them from the resources";
    eventually("the warning", || gateway.log().contains(warning));
    // What the list names beyond that does no harm, whether it is there or not.
    for name in ["key-auth", "mqtt-proxy", "no-such-plugin"] {
        assert!(!gateway.log().contains(name), "{name}: {}", gateway.log());
    }
}

#[test]
fn metadata_of_a_node_may_have_any_values() {
    let node = node();
    let yaml = format!(
        r#"
upstreams:
  - nodes:
      - host: 127.0.0.1
        port: {}
        weight: 1
        metadata: {{version: 2, share: 0.5, is_new: true, zones: [1, b], none: null, 7: {{deep: -1e3}}}}
routes:
  - {{uri: /*, upstream_id: 1}}
#END
"#,
        node.addr().port()
    );
    let gateway = Gateway::start(STILLGATE, &Setup::resources(yaml));
    assert_eq!(ask(&mut gateway.client(), "h.test", "/any"), "/any");
}
