//! The explanations of the admin API for the routes that are served.

use crate::shared::STILLGATE;
use crate::shared::authority::Authority;
use expect_test::expect;
use serde_json::{Value, json};
use stillgate_testkit::{Client, Gateway, Setup, Upstream, run_tool};

const RESOURCES: &str = r#"upstreams:
  - id: shop
    type: roundrobin
    nodes: {"127.0.0.1:1": 1}
routes:
  - id: orders
    uri: /orders/:id
    upstream_id: shop
  - id: beta
    expression: |
      http.path ^= "/orders/"
        && http.headers.x_beta == "1"
    upstream_id: shop
  - id: port
    expression: net.dst.port == 81
    priority: -1
    upstream_id: shop
  - id: cookie
    uri: /cookie
    vars: [[cookie_a, "==", ""]]
    upstream_id: shop
  - id: peer
    expression: http.path == "/peer" && net.src.port > 1
    priority: -1
    upstream_id: shop
"#;

fn explain(gateway: &Gateway, query: &str) -> (u16, Value) {
    let response = Client::connect(gateway.admin_addr()).get(&format!("/v1/explain{query}"));
    (response.head.status(), serde_json::from_slice(&response.body).expect("JSON"))
}

#[test]
#[expect(clippy::too_many_lines, reason = "a table")]
fn what_is_served_is_explained() {
    let gateway = Gateway::start(STILLGATE, &Setup::resources(RESOURCES));
    let (status, answer) = explain(&gateway, "?url=http://shop.example.com/orders/7&header=X-Beta:+2&route=nowhere");
    assert_eq!(status, 200);
    expect![[r#"
        {
          "status": null,
          "route": {
            "id": "orders",
            "line": 13,
            "host": null,
            "path": "/orders/:id"
          },
          "params": {
            "id": "7"
          },
          "upstream": {
            "id": "shop",
            "nodes": [
              "127.0.0.1:1"
            ]
          },
          "plugins": [],
          "plugins_left_out": [],
          "ruled_out": [
            {
              "route": {
                "id": "beta",
                "line": 16,
                "expression": "http.path ^= \"/orders/\"\n  && http.headers.x_beta == \"********\"\n"
              },
              "reason": "at 2:6, ********: http.headers.x_beta is \"2\"",
              "predicates": [
                {
                  "line": 2,
                  "column": 6,
                  "predicate": null,
                  "field": "http.headers.x_beta",
                  "values": [
                    "2"
                  ],
                  "known": true,
                  "omitted": 0,
                  "holds": false
                }
              ]
            },
            {
              "route": {
                "id": "port",
                "line": 21,
                "expression": "net.dst.port == 81"
              },
              "reason": "at 1:1, net.dst.port == 81: net.dst.port is not given",
              "predicates": [
                {
                  "line": 1,
                  "column": 1,
                  "predicate": "net.dst.port == 81",
                  "field": "net.dst.port",
                  "values": [],
                  "known": false,
                  "omitted": 0,
                  "holds": false
                }
              ]
            },
            {
              "route": {
                "id": "peer",
                "line": 29,
                "expression": "http.path == \"/peer\" && net.src.port > 1"
              },
              "reason": "at 1:1, http.path == \"/peer\": http.path is \"/orders/7\"",
              "predicates": [
                {
                  "line": 1,
                  "column": 1,
                  "predicate": "http.path == \"/peer\"",
                  "field": "http.path",
                  "values": [
                    "/orders/7"
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
          "notes": [
            "1 route reads net.src.port, which is not given, so the answer may be wrong; give the client as IP:PORT",
            "1 route reads net.dst.port, which is not given, so the answer may be wrong; give the server as IP:PORT"
          ],
          "asked": {
            "id": "nowhere",
            "verdict": "does not exist, or has `status: 0`",
            "predicates": []
          },
          "generation": 1
        }
    "#]]
    .assert_eq(&format!("{answer:#}\n"));
    let (status, answer) = explain(&gateway, "?url=/orders/7&host=shop.example.com&header=x-beta:1&method=PUT");
    assert_eq!((status, &answer["route"]["id"]), (200, &json!("beta")));
    let (_, answer) = explain(&gateway, "?url=/port&server=127.0.0.1:81");
    assert_eq!(answer["route"]["id"], json!("port"));
    let (_, answer) = explain(&gateway, "?url=/peer&client=127.0.0.1:5000");
    assert_eq!(answer["route"]["id"], json!("peer"));
    let (_, answer) = explain(&gateway, "?url=/peer&route=peer");
    let verdict = "cannot take it: at 1:25, net.src.port > 1: net.src.port is not given";
    assert_eq!(answer["asked"]["verdict"], json!(verdict));
    // The header is as it is on the wire.
    let (_, answer) = explain(&gateway, "?url=/cookie&header=Cookie:a");
    assert_eq!(answer["status"], json!(404));
    let mut connection = gateway.client().into_connection();
    connection.send("GET /cookie HTTP/1.1\r\nHost: h\r\nCookie: a\r\n\r\n");
    assert_eq!(connection.expect_response("GET").head.status(), 404);
    let (status, answer) = explain(&gateway, "?url=/../x");
    assert_eq!((status, &answer["status"], &answer["generation"]), (200, &json!(400), &json!(1)));
    let (status, answer) = explain(&gateway, "?url=/else");
    assert_eq!((status, &answer["status"]), (200, &json!(404)));

    // It explains the next configuration as soon as that is served.
    let changed = RESOURCES.replace("x_beta == \"1\"", "x_beta == \"2\"");
    gateway.reload(&Setup::resources(changed));
    let (_, answer) = explain(&gateway, "?url=/orders/7&header=X-Beta:2");
    assert_eq!((&answer["route"]["id"], &answer["generation"]), (&json!("beta"), &json!(2)));
}

#[test]
fn routes_of_other_hosts_are_reported_where_none_takes_the_request() {
    let yaml = "upstreams: [{id: u, nodes: {\"127.0.0.1:1\": 1}}]\nroutes:\n  - {id: shop, host: shop.example, uri: /a, upstream_id: u}\n";
    let gateway = Gateway::start(STILLGATE, &Setup::resources(yaml));
    let (_, answer) = explain(&gateway, "?url=http://shop.exmaple/a");
    assert_eq!(answer["missed"][0]["route"]["id"], json!("shop"));
    assert_eq!(answer["missed"][0]["reason"], json!("hosts are shop.example; the request's is \"shop.exmaple\""));
    let (_, answer) = explain(&gateway, "?url=http://shop.example/a");
    assert_eq!(answer["missed"], json!([]));
}

#[test]
fn a_route_by_server_name_is_explained_as_it_is_served() {
    let authority = Authority::new();
    authority.issue("shop", &["shop.example"]);
    let upstream = Upstream::echo();
    let resources = format!(
        "ssls: [{{id: shop, cert: \"{}\", key: \"{}\", snis: [shop.example]}}]\nupstreams: [{{id: u, nodes: {{\"{}\": 1}}}}]\n\
         routes:\n  - {{id: named, expression: 'tls.sni == \"shop.example\" && net.protocol == \"https\"', upstream_id: u}}\n",
        authority.path("shop.pem"),
        authority.path("shop.key"),
        upstream.addr()
    );
    let gateway = Gateway::start(STILLGATE, &Setup::resources(resources).listener("tls: true"));
    let at = format!("shop.example:{}:127.0.0.1", gateway.addr().port());
    let url = format!("https://shop.example:{}/", gateway.addr().port());
    let (ca, status) = (authority.path("ca.pem"), "%{http_code}");
    let curl = ["--silent", "--max-time", "300", "--cacert", &ca, "--resolve", &at, "--output", "/dev/null"];
    let served = run_tool("curl", "curl", &[&curl[..], &["--write-out", status, &url]].concat());
    assert_eq!(String::from_utf8_lossy(&served.stdout), "200");

    let (_, answer) = explain(&gateway, &format!("?url={url}"));
    assert_eq!(answer["route"]["id"], json!("named"));
    let (_, answer) = explain(&gateway, "?url=https://other.example/&sni=shop.example");
    assert_eq!(answer["route"]["id"], json!("named"));
    for query in
        ["?url=http://shop.example/", "?url=https://shop.example/&sni=", "?url=https://shop.example/&sni=other"]
    {
        let (_, answer) = explain(&gateway, query);
        assert_eq!(answer["status"], json!(404), "{query}");
    }
}

#[test]
fn wrong_questions_are_answered_400_with_what_to_write() {
    let gateway = Gateway::start(STILLGATE, &Setup::resources(RESOURCES));
    for (query, told) in [
        ("", "url is missing; write url=http://host/path, or url=/path&host=HOST"),
        (
            "?uri=/",
            "unknown parameter \"uri\"; there are url, host, method, header, client, server, sni, route and consumer",
        ),
        (
            "?url=/&client=%ff",
            "client: bytes that are not UTF-8 cannot be asked about; write %25ff for a \"%ff\" of the url",
        ),
    ] {
        let (status, answer) = explain(&gateway, query);
        assert_eq!((status, &answer), (400, &json!({"error_msg": told})), "{query}");
    }
    let response = Client::connect(gateway.admin_addr()).request("POST", "/v1/explain?url=/", b"");
    assert_eq!(response.head.status(), 401, "without a key nothing but reads is answered");
}

#[test]
fn the_chain_is_that_of_the_consumer_who_is_named() {
    let gateway = Gateway::start(
        STILLGATE,
        &Setup::resources(
            "upstreams: [{id: u, nodes: {\"127.0.0.1:1\": 1}}]
routes:
  - {id: r, uri: /r, upstream_id: u, plugins: {key-auth: {}}}
consumers:
  - username: jack
    plugins:
      key-auth: {key: never-to-be-shown}
      limit-count: {count: 1, time_window: 60}
",
        ),
    );
    let names = |query: &str| {
        let (status, answer) = explain(&gateway, query);
        assert_eq!(status, 200);
        assert!(!answer.to_string().contains("never-to-be-shown"), "{answer}");
        let plugins = answer["plugins"].as_array().expect("a list").iter();
        plugins.map(|plugin| format!("{} {}", plugin["name"], plugin["origin"]["kind"])).collect::<Vec<_>>()
    };
    assert_eq!(names("?url=/r"), [r#""key-auth" "route""#]);
    assert_eq!(names("?url=/r&consumer=jack"), [r#""key-auth" "route""#, r#""limit-count" "consumer""#]);
    assert_eq!(names("?url=/none&consumer=jack"), [""; 0]);
    let (status, answer) = explain(&gateway, "?url=/r&consumer=jill");
    assert_eq!((status, answer), (400, json!({"error_msg": "consumer: there is no consumer \"jill\""})));
}

#[test]
fn many_questions_at_once_hold_up_neither_requests_nor_the_status() {
    let upstream = Upstream::echo();
    let gateway = Gateway::start(STILLGATE, &Setup::to(upstream.addr()));
    let admin = gateway.admin_addr();
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(move || {
                let mut client = Client::connect(admin);
                for _ in 0..20 {
                    assert_eq!(client.get("/v1/explain?url=/&route=x").head.status(), 200);
                }
            });
        }
        for _ in 0..20 {
            assert_eq!(gateway.get("/").head.status(), 200);
            gateway.status();
        }
    });
}
