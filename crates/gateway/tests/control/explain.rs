//! The output of `stillgate explain` for requests typed on the command line.

use crate::shared::folder::{Folder, KINDS, SHOP, WRONG};
use expect_test::{Expect, expect};

#[test]
fn explain_tells_the_route_and_who_was_ruled_out() {
    let folder = Folder::with(&[("shop.yaml", SHOP)]);
    let explain = |request: &str, more: &[&str], expected: Expect| {
        let arguments = [&["explain", "shop.yaml", "--request", request], more].concat();
        folder.check(&arguments, expected);
    };
    explain(
        "GET http://shop.example.com/orders/7?x=1",
        &[],
        expect![[r#"
        exit 0
        route "orders" (line 9; any host, /orders/*) takes the request
        it goes to upstream "shop": 10.0.0.1:8080, backend.internal:8080
        better placed, but ruled out:
          "order" (line 13; any host, /orders/:number): vars: ["http_x_beta","==","1"]: http_x_beta is absent
    "#]],
    );
    explain(
        "GET http://shop.example.com/orders/7",
        &["-H", "X-Beta: 1"],
        expect![[r#"
        exit 0
        route "order" (line 13; any host, /orders/:number) takes the request
          number = "7"
        it goes to upstream "shop": 10.0.0.1:8080, backend.internal:8080
    "#]],
    );
    explain(
        "DELETE http://other.example.com:8080/orders/7",
        &["--route", "orders"],
        expect![[r#"
        exit 0
        route "other-host" (line 18; other.example.com, /*) takes the request
        it goes to upstream "routes/other-host": [::1]:81
        route "orders" cannot take it: methods are GET, POST; the request's is DELETE
    "#]],
    );
    explain(
        "GET /x",
        &["-H", "Host: Other.Example.com."],
        expect![[r#"
        exit 0
        route "other-host" (line 18; other.example.com, /*) takes the request
        it goes to upstream "routes/other-host": [::1]:81
    "#]],
    );
    explain(
        "GET http://shop.example.com/",
        &["--route", "order"],
        expect![[r#"
            exit 0
            no route takes the request; it is answered 404
            same path, other hosts:
              "other-host" (line 18; other.example.com, /*): hosts are other.example.com; the request's is "shop.example.com"
            route "order" cannot take it: paths are /orders/:number; the request's is "/"
        "#]],
    );
    explain(
        "GET http://shop.example.com/../x",
        &[],
        expect![[r#"
        exit 0
        no route is sought; the request is answered 400: the path leads above the root
    "#]],
    );
}

#[test]
fn hosts_that_were_missed_are_listed_the_nearest_first() {
    let upstream = "upstreams: [{id: u, nodes: {\"10.0.0.1:80\": 1}}]\nroutes:\n";
    let hosts = ["far.test", "other.example", "*.shop.example", "www.shop.exmaple", "none.example"];
    let mut yaml = upstream.to_owned();
    for (number, host) in hosts.iter().enumerate() {
        let method = if number == 1 { ", methods: [PUT]" } else { "" };
        let uri = if number == 4 { "/b" } else { "/a" };
        yaml += &format!("  - {{id: r{number}, host: \"{host}\", uri: {uri}{method}, upstream_id: u}}\n");
    }
    let folder = Folder::with(&[("hosts.yaml", yaml.as_str())]);
    folder.check(
        &["explain", "hosts.yaml", "--request", "GET http://shop.example/a"],
        expect![[r#"
            exit 0
            no route takes the request; it is answered 404
            same path, other hosts:
              "r2" (line 5; *.shop.example, /a): hosts are *.shop.example; the request's is "shop.example"
              "r3" (line 6; www.shop.exmaple, /a): hosts are www.shop.exmaple; the request's is "shop.example"
              "r0" (line 3; far.test, /a): hosts are far.test; the request's is "shop.example"
              "r1" (line 4; other.example, /a): hosts are other.example; the request's is "shop.example"; also methods are PUT; the request's is GET
        "#]],
    );
    let many: String =
        (0..30).map(|n| format!("  - {{id: r{n}, host: h{n}.example, uri: /a, upstream_id: u}}\n")).collect();
    let folder = Folder::with(&[("many.yaml", format!("{upstream}{many}"))]);
    let told = folder.run(&["explain", "many.yaml", "--request", "GET http://h.example/a"]);
    let told = String::from_utf8_lossy(&told.stdout).into_owned();
    assert_eq!(told.matches("the request's is").count(), 10, "{told}");
    assert!(told.ends_with("  and 20 more\n"), "{told}");
}

#[test]
fn a_server_name_is_taken_from_the_url_or_given() {
    let yaml = "upstreams: [{id: u, nodes: {\"10.0.0.1:80\": 1}}]\nroutes:\n  - {id: tls, expression: 'tls.sni == \"shop.example\"', upstream_id: u}\n";
    let folder = Folder::with(&[("tls.yaml", yaml)]);
    let check = |request: &str, more: &[&str], expected: &str| {
        let told = folder.run(&[&["explain", "tls.yaml", "--request", request], more].concat());
        let told = [told.stdout, told.stderr].map(|part| String::from_utf8_lossy(&part).into_owned()).concat();
        assert!(told.starts_with(expected), "{request} {more:?}: {told}");
    };
    check("GET https://Shop.Example:8443/", &[], "route \"tls\" (line 3; ");
    check("GET https://other.example/", &["--sni", "shop.example"], "route \"tls\" (line 3; ");
    check("GET https://shop.example/", &["--sni", ""], "no route takes the request");
    check("GET http://shop.example/", &[], "no route takes the request");
    check("GET http://shop.example/", &["--sni", "shop.example"], "stillgate: --sni: only a request through TLS");
}

#[test]
fn explain_points_into_expressions() {
    let folder = Folder::with(&[("kinds.yaml", KINDS)]);
    let request = ["explain", "kinds.yaml", "--request", "GET http://h/orders/7", "-H", "x-beta: 2", "-H", "X-Beta: 3"];
    folder.check(&request, expect![[r#"
        exit 0
        route "all" (line 9; any host, /*) takes the request
        it goes to upstream "shop": 10.0.0.1:8080
        better placed, but ruled out:
          "mixed" (line 20; http.method == "PUT" && http.path == "/a" || http.path == "/b"): at 1:1, http.method == "PUT": http.method is "GET"
          "beta" (line 12; http.path ^= "/orders/" && any(http.headers.x_beta) == "1"): at 2:6, any(http.headers.x_beta) == "1": http.headers.x_beta is "2", "3"; none passes
          "beta-again" (line 17; http.path ^= "/orders/7" && any(http.headers.x_beta) == "1"): at 1:29, any(http.headers.x_beta) == "1": http.headers.x_beta is "2", "3"; none passes
    "#]]);
    folder.check(
        &[&request[..], &["--format", "json", "--route", "mixed"]].concat(),
        expect![[r#"
            exit 0
            {
              "status": null,
              "route": {
                "id": "all",
                "line": 9,
                "host": null,
                "path": "/*"
              },
              "params": {},
              "upstream": {
                "id": "shop",
                "nodes": [
                  "10.0.0.1:8080"
                ]
              },
              "plugins": [],
              "plugins_left_out": [],
              "ruled_out": [
                {
                  "route": {
                    "id": "mixed",
                    "line": 20,
                    "expression": "http.method == \"PUT\" && http.path == \"/a\" || http.path == \"/b\""
                  },
                  "reason": "at 1:1, http.method == \"PUT\": http.method is \"GET\"",
                  "predicates": [
                    {
                      "line": 1,
                      "column": 1,
                      "predicate": "http.method == \"PUT\"",
                      "field": "http.method",
                      "values": [
                        "GET"
                      ],
                      "known": true,
                      "omitted": 0,
                      "holds": false
                    }
                  ]
                },
                {
                  "route": {
                    "id": "beta",
                    "line": 12,
                    "expression": "http.path ^= \"/orders/\"\n  && any(http.headers.x_beta) == \"1\"\n"
                  },
                  "reason": "at 2:6, any(http.headers.x_beta) == \"1\": http.headers.x_beta is \"2\", \"3\"; none passes",
                  "predicates": [
                    {
                      "line": 2,
                      "column": 6,
                      "predicate": "any(http.headers.x_beta) == \"1\"",
                      "field": "http.headers.x_beta",
                      "values": [
                        "2",
                        "3"
                      ],
                      "known": true,
                      "omitted": 0,
                      "holds": false
                    }
                  ]
                },
                {
                  "route": {
                    "id": "beta-again",
                    "line": 17,
                    "expression": "http.path ^= \"/orders/7\" && any(http.headers.x_beta) == \"1\""
                  },
                  "reason": "at 1:29, any(http.headers.x_beta) == \"1\": http.headers.x_beta is \"2\", \"3\"; none passes",
                  "predicates": [
                    {
                      "line": 1,
                      "column": 29,
                      "predicate": "any(http.headers.x_beta) == \"1\"",
                      "field": "http.headers.x_beta",
                      "values": [
                        "2",
                        "3"
                      ],
                      "known": true,
                      "omitted": 0,
                      "holds": false
                    }
                  ]
                }
              ],
              "omitted": 0,
              "missed": [],
              "missed_omitted": 0,
              "notes": [],
              "asked": {
                "id": "mixed",
                "verdict": "cannot take it: at 1:1, http.method == \"PUT\": http.method is \"GET\"",
                "predicates": [
                  {
                    "line": 1,
                    "column": 1,
                    "predicate": "http.method == \"PUT\"",
                    "field": "http.method",
                    "values": [
                      "GET"
                    ],
                    "known": true,
                    "omitted": 0,
                    "holds": false
                  }
                ]
              }
            }
        "#]],
    );
}

#[test]
fn explain_for_programs() {
    let folder = Folder::with(&[("shop.yaml", SHOP), ("bad.yaml", WRONG)]);
    let request = ["--request", "GET http://h/orders/7", "--format", "json"];
    folder.check(
        &[&["explain", "shop.yaml"], &request[..]].concat(),
        expect![[r#"
            exit 0
            {
              "status": null,
              "route": {
                "id": "orders",
                "line": 9,
                "host": null,
                "path": "/orders/*"
              },
              "params": {},
              "upstream": {
                "id": "shop",
                "nodes": [
                  "10.0.0.1:8080",
                  "backend.internal:8080"
                ]
              },
              "plugins": [],
              "plugins_left_out": [],
              "ruled_out": [
                {
                  "route": {
                    "id": "order",
                    "line": 13,
                    "host": null,
                    "path": "/orders/:number"
                  },
                  "reason": "vars: [\"http_x_beta\",\"==\",\"1\"]: http_x_beta is absent",
                  "predicates": [
                    {
                      "line": null,
                      "column": null,
                      "predicate": "[\"http_x_beta\",\"==\",\"1\"]",
                      "field": "http_x_beta",
                      "values": [],
                      "known": true,
                      "omitted": 0,
                      "holds": false
                    }
                  ]
                }
              ],
              "omitted": 0,
              "missed": [],
              "missed_omitted": 0,
              "notes": [],
              "asked": null
            }
        "#]],
    );
    assert_eq!(folder.run(&[&["explain", "bad.yaml"], &request[..]].concat()).status.code(), Some(1));
}

#[test]
fn what_was_not_given_is_not_said_to_be_absent() {
    let yaml =
        format!("{SHOP}  - {{id: peer, expression: 'net.src.port > 1 && net.dst.port == 80', upstream_id: shop}}\n");
    let folder = Folder::with(&[("peer.yaml", yaml)]);
    let request = ["explain", "peer.yaml", "--request", "GET http://h/peer", "--client"];
    folder.check(
        &[&request[..], &["127.0.0.1"]].concat(),
        expect![[r#"
            exit 0
            no route takes the request; it is answered 404
            better placed, but ruled out:
              "peer" (line 22; net.src.port > 1 && net.dst.port == 80): at 1:1, net.src.port > 1: net.src.port is not given
            same path, other hosts:
              "other-host" (line 18; other.example.com, /*): hosts are other.example.com; the request's is "h"
            note: 1 route reads net.src.port, which is not given, so the answer may be wrong; give the client as IP:PORT
            note: 1 route reads net.dst.port, which is not given, so the answer may be wrong; give the server as IP:PORT
        "#]],
    );
    folder.check(
        &[&request[..], &["[::1]:5000", "--server", "[::1]:80"]].concat(),
        expect![[r#"
        exit 0
        route "peer" (line 22; net.src.port > 1 && net.dst.port == 80) takes the request
        it goes to upstream "shop": 10.0.0.1:8080, backend.internal:8080
    "#]],
    );
}

#[test]
fn a_split_may_send_a_request_elsewhere() {
    let text = "routes:\n  - id: r\n    uri: /\n    plugins: {traffic-split: {rules: [{weighted_upstreams: [{weight: 1}]}]}}\n    \
                upstream: {nodes: {\"10.0.0.1:80\": 1}}\n";
    let folder = Folder::with(&[("split.yaml", text)]);
    folder.check(
        &["explain", "split.yaml", "--request", "GET http://h/"],
        expect![[r#"
        exit 0
        route "r" (line 2; any host, /) takes the request
        it goes to upstream "routes/r": 10.0.0.1:80; traffic-split may send it elsewhere
        plugins, in each phase in this order:
          traffic-split of route "r" (line 4; priority 966; access)
    "#]],
    );
}

#[test]
fn requests_that_cannot_be_are_not_explained() {
    let folder = Folder::with(&[("shop.yaml", SHOP)]);
    folder.check(
        &["explain", "shop.yaml", "--request", "GET /", "-H", "Host: a,b"],
        expect![[r#"
        exit 2
        stillgate: this request cannot be routed: "a,b" is not a host
    "#]],
    );
}

/// Plugins at every level.
const PLUGINS: &str = r#"upstreams: [{id: u, nodes: {"10.0.0.1:80": 1}}]
global_rules:
  - id: everywhere
    plugins:
      limit-count: {count: 1000, time_window: 1, _meta: {filter: [["http_x_token", "~=", "never-to-be-shown"]]}}
services:
  - id: s
    upstream_id: u
    plugins:
      limit-count: {count: 7, time_window: 60, key: consumer_name, _meta: {filter: [["consumer_name", "==", "jack"]]}}
routes:
  - id: r
    uri: /r
    service_id: s
    plugins:
      key-auth: {header: never-to-be-shown}
  - id: open
    uri: /open
    service_id: s
    plugins:
      key-auth: {_meta: {disable: true}}
consumers:
  - username: jack
    plugins: {key-auth: {key: never-to-be-shown-1}}
  - username: jill
    group_id: g
    plugins: {key-auth: {key: never-to-be-shown-2}}
consumer_groups:
  - id: g
    plugins:
      limit-count: {_meta: {disable: true}, count: 1, time_window: 1}
"#;

#[test]
#[expect(clippy::too_many_lines, reason = "a table")]
fn explain_tells_the_chain_and_where_each_plugin_is_written() {
    let folder = Folder::with(&[("plugins.yaml", PLUGINS)]);
    let explain = |request: &str, more: &[&str], expected: Expect| {
        let arguments = [&["explain", "plugins.yaml", "--request", request], more].concat();
        let told = folder.run(&arguments);
        assert!(!String::from_utf8_lossy(&told.stdout).contains("never"), "a configured value is shown");
        folder.check(&arguments, expected);
    };
    explain(
        "GET http://h/r",
        &[],
        expect![[r#"
        exit 0
        route "r" (line 12; any host, /r) takes the request
        it goes to upstream "u": 10.0.0.1:80
        plugins, in each phase in this order:
          limit-count of global rule "everywhere" (line 5; priority 1002; access)
          key-auth of route "r" (line 16; priority 2500; rewrite)
          limit-count of service "s" (line 10; priority 1002; access): not known whether _meta.filter holds: consumer_name
        note: a consumer's own plugins join these; name the consumer (--consumer, consumer=) to see them
    "#]],
    );
    explain(
        "GET http://h/r",
        &["--consumer", "jack"],
        expect![[r#"
        exit 0
        route "r" (line 12; any host, /r) takes the request
        it goes to upstream "u": 10.0.0.1:80
        plugins, in each phase in this order:
          limit-count of global rule "everywhere" (line 5; priority 1002; access)
          key-auth of route "r" (line 16; priority 2500; rewrite)
          limit-count of service "s" (line 10; priority 1002; access)
    "#]],
    );
    explain(
        "GET http://h/r",
        &["--consumer", "jill"],
        expect![[r#"
        exit 0
        route "r" (line 12; any host, /r) takes the request
        it goes to upstream "u": 10.0.0.1:80
        plugins, in each phase in this order:
          limit-count of global rule "everywhere" (line 5; priority 1002; access)
          key-auth of route "r" (line 16; priority 2500; rewrite)
        left out: limit-count, which consumer group "g" disables (line 31)
    "#]],
    );
    explain(
        "GET http://h/open",
        &["--consumer", "jack"],
        expect![[r#"
        exit 0
        route "open" (line 17; any host, /open) takes the request
        it goes to upstream "u": 10.0.0.1:80
        plugins, in each phase in this order:
          limit-count of global rule "everywhere" (line 5; priority 1002; access)
          limit-count of service "s" (line 10; priority 1002; access): skipped, since _meta.filter does not hold: consumer_name is absent
        left out: key-auth, which route "open" disables (line 21)
        note: no plugin here authenticates, so the request is not that of consumer "jack", whose plugins do not run
    "#]],
    );
    explain(
        "GET http://h/none",
        &[],
        expect![[r#"
        exit 0
        no route takes the request; it is answered 404
        plugins, in each phase in this order:
          limit-count of global rule "everywhere" (line 5; priority 1002; access)
    "#]],
    );
    explain(
        "GET http://h/r",
        &["--consumer", "joe"],
        expect![[r#"
        exit 2
        stillgate: --consumer: there is no consumer "joe"
    "#]],
    );
    explain(
        "GET http://h/r",
        &["--consumer", "jack", "--format", "json"],
        expect![[r#"
        exit 0
        {
          "status": null,
          "route": {
            "id": "r",
            "line": 12,
            "host": null,
            "path": "/r"
          },
          "params": {},
          "upstream": {
            "id": "u",
            "nodes": [
              "10.0.0.1:80"
            ]
          },
          "plugins": [
            {
              "name": "limit-count",
              "chain": "global",
              "priority": 1002,
              "phases": [
                "access"
              ],
              "origin": {
                "kind": "global_rule",
                "id": "everywhere",
                "line": 5
              },
              "runs": true,
              "filter": []
            },
            {
              "name": "key-auth",
              "chain": "route",
              "priority": 2500,
              "phases": [
                "rewrite"
              ],
              "origin": {
                "kind": "route",
                "id": "r",
                "line": 16
              },
              "runs": true,
              "filter": []
            },
            {
              "name": "limit-count",
              "chain": "route",
              "priority": 1002,
              "phases": [
                "access"
              ],
              "origin": {
                "kind": "service",
                "id": "s",
                "line": 10
              },
              "runs": true,
              "filter": []
            }
          ],
          "plugins_left_out": [],
          "ruled_out": [],
          "omitted": 0,
          "missed": [],
          "missed_omitted": 0,
          "notes": [],
          "asked": null
        }
    "#]],
    );
}

#[test]
fn a_file_without_the_resources_explains_nothing() {
    let etcd = "gateway: {config: {source: etcd, etcd: {endpoints: [\"http://127.0.0.1:2379\"]}}}\n";
    let store =
        "gateway: {admin: {address: \"127.0.0.1:9180\"}, config: {source: store, store: /nowhere/config.redb}}\n";
    let folder = Folder::with(&[("etcd.yaml", etcd), ("store.yaml", store)]);
    for file in ["etcd.yaml", "store.yaml"] {
        let output = folder.run(&["explain", file, "--request", "GET /"]);
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(
            said.starts_with(&format!("stillgate: {file} has no resources")) && said.contains("GET /v1/explain"),
            "{said}"
        );
    }
}
