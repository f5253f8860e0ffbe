//! APISIX's documentation of `apisix.yaml`, in a running gateway: stars in hosts and paths, merge keys, resources without ids, and
//! a query that an unsafe target keeps.

use crate::shared::STILLGATE;
use stillgate_testkit::{Client, Gateway, Setup, Upstream};

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
