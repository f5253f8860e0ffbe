//! `type: chash`: which value is hashed, and the fallback for a missing value.

use crate::shared::STILLGATE;
use stillgate_testkit::{Gateway, Setup, Upstream};

/// Nodes that say which they are.
fn nodes() -> [Upstream; 4] {
    [0, 1, 2, 3].map(|number| {
        Upstream::serve(move |connection| {
            while connection.read_head().is_ok() {
                connection.send(format!("HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n{number}"));
            }
        })
    })
}

fn gateway(nodes: &[Upstream; 4], key: &str, plugins: &str) -> Gateway {
    let nodes = nodes.each_ref().map(|node| format!("\"{}\": 1", node.addr()));
    Gateway::start(
        STILLGATE,
        &Setup::resources(format!(
            "upstreams: [{{id: u, type: chash, {key}, nodes: {{{}}}}}]\n\
             routes: [{{id: r, uri: /*, upstream_id: u, plugins: {{{plugins}}}}}]\n",
            nodes.join(", ")
        )),
    )
}

/// The nodes of sixteen requests, each with its number in a field and an argument.
fn asked(gateway: &Gateway) -> Vec<Vec<u8>> {
    let mut client = gateway.client();
    let nodes = (0..16).map(|number| {
        client.send(format!("GET /?n={number} HTTP/1.1\r\nHost: h\r\nX-N: {number}\r\nCookie: n={number}\r\n\r\n"));
        client.expect_response("GET").body
    });
    nodes.collect()
}

fn is_one_node(nodes: &[Vec<u8>]) -> bool {
    nodes.iter().all(|node| *node == nodes[0])
}

#[test]
fn the_value_is_what_plugins_have_left() {
    let nodes = nodes();
    for (key, set, sets_same, sets_by_request) in [
        (
            "hash_on: header, key: X-Key",
            "X-Key",
            "proxy-rewrite: {headers: {set: {X-Key: same}}}",
            "proxy-rewrite: {headers: {set: {X-Key: \"$http_x_n\"}}}",
        ),
        (
            "hash_on: header, key: X-N",
            "X-N",
            "proxy-rewrite: {headers: {set: {X-N: same}}}",
            "proxy-rewrite: {headers: {set: {X-N: \"again-$http_x_n\"}}}",
        ),
        (
            "hash_on: vars, key: arg_key",
            "arg_key",
            "proxy-rewrite: {uri: \"/a?key=same\"}",
            "proxy-rewrite: {uri: \"/a?key=$http_x_n\"}",
        ),
        (
            "hash_on: cookie, key: n",
            "cookie n",
            "proxy-rewrite: {headers: {set: {Cookie: \"n=same\"}}}",
            "proxy-rewrite: {headers: {set: {Cookie: \"n=again-$http_x_n\"}}}",
        ),
    ] {
        assert!(is_one_node(&asked(&gateway(&nodes, key, sets_same))), "{set}");
        let by_request = gateway(&nodes, key, sets_by_request);
        let first = asked(&by_request);
        assert!(!is_one_node(&first), "{set}");
        assert_eq!(asked(&by_request), first, "{set}");
    }
}

#[test]
fn without_a_value_it_is_the_clients_address() {
    let nodes = nodes();
    let by_address = asked(&gateway(&nodes, "key: remote_addr", ""));
    assert!(is_one_node(&by_address));
    for (key, plugins) in [
        ("hash_on: header, key: X-Absent", ""),
        ("hash_on: cookie, key: absent", ""),
        ("key: arg_absent", ""),
        ("hash_on: header, key: X-N", "proxy-rewrite: {headers: {remove: [X-N]}}"),
    ] {
        assert_eq!(asked(&gateway(&nodes, key, plugins)), by_address, "{key} {plugins}");
    }
    // An empty value counts as a value.
    let gateway = gateway(&nodes, "hash_on: header, key: X-N", "");
    let mut client = gateway.client();
    let mut ask = |value: &str| {
        client.send(format!("GET / HTTP/1.1\r\nHost: h\r\nX-N: {value}\r\n\r\n"));
        client.expect_response("GET").body
    };
    assert_eq!(ask(""), ask(""));
}

#[test]
fn several_variables_are_one_key() {
    let nodes = nodes();
    let hash = |key: &str, plugins: &str| asked(&gateway(&nodes, key, plugins));
    let by_number = hash("hash_on: header, key: X-N", "");
    // The text that is hashed is that of the header alone.
    for key in ["$http_x_n", "$arg_absent$http_x_n", "$arg_absent$arg_n"] {
        assert_eq!(hash(&format!("hash_on: vars_combinations, key: \"{key}\""), ""), by_number, "{key}");
    }
    let both = hash("hash_on: vars_combinations, key: \"$http_x_n-$arg_n\"", "");
    let rewritten =
        hash("hash_on: header, key: X-Both", "proxy-rewrite: {headers: {set: {X-Both: \"$http_x_n-$arg_n\"}}}");
    assert_eq!(both, rewritten);
    assert_ne!(both, by_number);
    // What plugins have left, with text around it.
    let set = "proxy-rewrite: {headers: {set: {X-N: same}}}";
    assert!(is_one_node(&hash("hash_on: vars_combinations, key: \"a-$http_x_n-b\"", set)));
    // None of the variables has a value: the client's address, as APISIX counts.
    let by_address = hash("key: remote_addr", "");
    for key in ["a-$arg_absent", "constant"] {
        assert_eq!(hash(&format!("hash_on: vars_combinations, key: \"{key}\""), ""), by_address, "{key}");
    }
}

/// The name is hashed, whichever of the consumer's keys is sent.
#[test]
fn a_consumer_always_goes_to_one_node() {
    const CONSUMERS: usize = 16;
    let nodes = nodes();
    let consumers: String = (0..CONSUMERS)
        .map(|number| {
            format!(
                "  - {{username: c{number}, plugins: {{key-auth: {{key: first-{number}}}}}, \
                 credentials: [{{id: spare, plugins: {{key-auth: {{key: spare-{number}}}}}}}]}}\n"
            )
        })
        .collect();
    let gateway = |key: &str| {
        let nodes = nodes.each_ref().map(|node| format!("\"{}\": 1", node.addr()));
        Gateway::start(
            STILLGATE,
            &Setup::resources(format!(
                "upstreams: [{{id: u, type: chash, {key}, nodes: {{{}}}}}]\n\
                 routes: [{{id: r, uri: /*, upstream_id: u, plugins: {{key-auth: {{}}}}}}]\nconsumers:\n{consumers}",
                nodes.join(", ")
            )),
        )
    };
    let asked = |gateway: &Gateway, which: &str| -> Vec<Vec<u8>> {
        let mut client = gateway.client();
        let nodes = (0..CONSUMERS).map(|number| {
            client.send(format!("GET / HTTP/1.1\r\nHost: h\r\napikey: {which}-{number}\r\nX-Name: c{number}\r\n\r\n"));
            let response = client.expect_response("GET");
            assert_eq!(response.head.status(), 200, "{which}-{number}");
            response.body
        });
        nodes.collect()
    };
    let by_consumer = gateway("hash_on: consumer");
    let first = asked(&by_consumer, "first");
    for which in ["first", "spare", "first"] {
        assert_eq!(asked(&by_consumer, which), first, "{which}");
    }
    assert!(!is_one_node(&first), "they are spread");
    // The text that is hashed is the name alone.
    assert_eq!(asked(&gateway("hash_on: header, key: X-Name"), "first"), first);
}
