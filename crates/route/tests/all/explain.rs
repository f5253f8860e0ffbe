//! The output of explain, word for word.

use crate::explained::{Head, ask, route, uri};
use expect_test::{Expect, expect};
use stillgate_route::path::normalise;
use stillgate_route::{Lookup, MatchRequest, Matcher, Method, UriRoute, Variable, parse_method, vars};

struct Query(Option<&'static str>);

impl Lookup for Query {
    fn value<'a>(&'a self, variable: &Variable, _: &'a mut Vec<u8>) -> Option<&'a [u8]> {
        self.0.filter(|_| variable.to_string() == "arg_v").map(str::as_bytes)
    }

    fn each_header(&self, _: &mut dyn FnMut(&[u8], &[u8])) {}
}

fn routes() -> Matcher {
    let v_is_2 = vars::Expr::parse(&serde_json::json!([["arg_v", "==", "2"]])).unwrap();
    let methods = ["POST", "PUT"].map(|method| parse_method(method).unwrap());
    let inside = vec!["10.0.0.0/8".parse().unwrap()];
    Matcher::compile(vec![
        route("everything", 0, uri(&[], &["/*"])),
        route("orders", 0, uri(&["*.shop.com", "shop.com"], &["/orders/:id", "/orders/:id/*"])),
        route("write", 0, UriRoute { methods: methods.into_iter().collect(), ..uri(&["eu.shop.com"], &["/orders/*"]) }),
        route("beta", 9, UriRoute { vars: Some(v_is_2), ..uri(&["*.shop.com"], &["/orders/:order"]) }),
        route("inside", 5, UriRoute { remote_addrs: inside, ..uri(&[], &["/*"]) }),
        route("urgent", 3, uri(&["*.shop.com"], &["/orders/:id"])),
        route("shadowed", 0, uri(&["shop.com"], &["/orders/:number"])),
    ])
    .unwrap()
}

fn check(host: &str, path: &str, query: Option<&'static str>, asked: Option<&str>, expected: Expect) {
    let mut buffer = Vec::new();
    let request = MatchRequest {
        method: Method::Get,
        host: host.as_bytes(),
        path: normalise(path.as_bytes(), &mut buffer).unwrap(),
        client: "192.0.2.1".parse().unwrap(),
        vars: &Query(query),
    };
    expected.assert_eq(&routes().explain(&request, asked).unwrap().to_string());
}

#[test]
fn better_placed_routes_have_their_reasons() {
    check(
        "eu.shop.com",
        "/orders/7",
        None,
        None,
        expect![[r#"
        route "urgent" (*.shop.com, /orders/:id) takes the request
          id is "7"
        better placed, but ruled out:
          "write" (eu.shop.com, /orders/*): methods are POST, PUT; the request's is GET
          "beta" (*.shop.com, /orders/:order): vars: ["arg_v","==","2"]: arg_v is absent
    "#]],
    );
    check(
        "eu.shop.com",
        "/orders/7/items",
        None,
        None,
        expect![[r#"
        route "orders" (*.shop.com, /orders/:id/*) takes the request
          id is "7"
        better placed, but ruled out:
          "write" (eu.shop.com, /orders/*): methods are POST, PUT; the request's is GET
    "#]],
    );
    check(
        "eu.shop.com",
        "/orders/7",
        Some("3"),
        None,
        expect![[r#"
        route "urgent" (*.shop.com, /orders/:id) takes the request
          id is "7"
        better placed, but ruled out:
          "write" (eu.shop.com, /orders/*): methods are POST, PUT; the request's is GET
          "beta" (*.shop.com, /orders/:order): vars: ["arg_v","==","2"]: arg_v is "3"
    "#]],
    );
    check(
        "other.com",
        "/orders/7",
        None,
        None,
        expect![[r#"
        route "everything" (any host, /*) takes the request
        better placed, but ruled out:
          "inside" (any host, /*): remote_addrs are 10.0.0.0/8; the client is 192.0.2.1
    "#]],
    );
}

#[test]
fn one_can_ask_about_a_route() {
    check(
        "eu.shop.com",
        "/orders/7",
        Some("2"),
        Some("beta"),
        expect![[r#"
        route "beta" (*.shop.com, /orders/:order) takes the request
          order is "7"
        better placed, but ruled out:
          "write" (eu.shop.com, /orders/*): methods are POST, PUT; the request's is GET
        route "beta" takes the request
    "#]],
    );
    check(
        "eu.shop.com",
        "/orders/7",
        Some("2"),
        Some("orders"),
        expect![[r#"
        route "beta" (*.shop.com, /orders/:order) takes the request
          order is "7"
        better placed, but ruled out:
          "write" (eu.shop.com, /orders/*): methods are POST, PUT; the request's is GET
        route "orders" could take it, but comes later: priority 9 is above 0
    "#]],
    );
    check(
        "eu.shop.com",
        "/orders/7",
        Some("3"),
        Some("beta"),
        expect![[r#"
        route "urgent" (*.shop.com, /orders/:id) takes the request
          id is "7"
        better placed, but ruled out:
          "write" (eu.shop.com, /orders/*): methods are POST, PUT; the request's is GET
          "beta" (*.shop.com, /orders/:order): vars: ["arg_v","==","2"]: arg_v is "3"
        route "beta" cannot take it: vars: ["arg_v","==","2"]: arg_v is "3"
    "#]],
    );
    check(
        "shop.com",
        "/orders/7",
        None,
        Some("write"),
        expect![[r#"
        route "orders" (shop.com, /orders/:id) takes the request
          id is "7"
        route "write" cannot take it: hosts are eu.shop.com; the request's is "shop.com"
    "#]],
    );
    check(
        "shop.com",
        "/orders",
        None,
        Some("orders"),
        expect![[r#"
        route "everything" (any host, /*) takes the request
        better placed, but ruled out:
          "inside" (any host, /*): remote_addrs are 10.0.0.0/8; the client is 192.0.2.1
        route "orders" cannot take it: paths are /orders/:id, /orders/:id/*; the request's is "/orders"
    "#]],
    );
    check(
        "shop.com",
        "/orders/7",
        None,
        Some("everything"),
        expect![[r#"
        route "orders" (shop.com, /orders/:id) takes the request
          id is "7"
        route "everything" could take it, but comes later: host shop.com is more specific than any host
    "#]],
    );
    check(
        "shop.com",
        "/orders/7",
        None,
        Some("shadowed"),
        expect![[r#"
        route "orders" (shop.com, /orders/:id) takes the request
          id is "7"
        route "shadowed" could take it, but comes later: of the same host, path and priority, "orders" comes first
    "#]],
    );
    check(
        "shop.com",
        "/orders/7",
        None,
        Some("inside"),
        expect![[r#"
        route "orders" (shop.com, /orders/:id) takes the request
          id is "7"
        route "inside" cannot take it: remote_addrs are 10.0.0.0/8; the client is 192.0.2.1
    "#]],
    );
    check(
        "shop.com",
        "/orders/7",
        None,
        Some("nowhere"),
        expect![[r#"
        route "orders" (shop.com, /orders/:id) takes the request
          id is "7"
        there is no route "nowhere"
    "#]],
    );
}

#[test]
fn vars_are_reported_as_they_were_written() {
    let ask_of = |rule: serde_json::Value, expected: Expect| {
        let vars = Some(vars::Expr::parse(&rule).unwrap());
        let routes =
            vec![route("asked", 1, UriRoute { vars, ..uri(&[], &["/*rest"]) }), route("all", 0, uri(&[], &["/*"]))];
        let path = normalise(b"/a/b", &mut Vec::new()).unwrap().bytes().to_vec();
        ask(routes, std::str::from_utf8(&path).unwrap(), &Head(None, &[]), None, expected);
    };
    ask_of(
        serde_json::json!([["http_x", "==", "1"], ["http_y", "==", "1"]]),
        expect![[r#"
        route "all" (any host, /*) takes the request
        better placed, but ruled out:
          "asked" (any host, /*rest): vars: ["http_x","==","1"]: http_x is absent
    "#]],
    );
    ask_of(
        serde_json::json!([["server_port", "~=", "8080"]]),
        expect![[r#"
        route "all" (any host, /*) takes the request
        better placed, but ruled out:
          "asked" (any host, /*rest): vars: ["server_port","~=","8080"]: server_port is "8080"
    "#]],
    );
    ask_of(
        serde_json::json!([["server_port", "!", ">", 80]]),
        expect![[r#"
        route "all" (any host, /*) takes the request
        better placed, but ruled out:
          "asked" (any host, /*rest): vars: ["server_port","!",">",80]: server_port is "8080"
    "#]],
    );
    ask_of(
        serde_json::json!([["server_port", "==", null]]),
        expect![[r#"
        route "all" (any host, /*) takes the request
        better placed, but ruled out:
          "asked" (any host, /*rest): vars: ["server_port","==",null]: server_port is "8080"
    "#]],
    );
    ask_of(
        serde_json::json!([["http_x", "~=", null]]),
        expect![[r#"
        route "all" (any host, /*) takes the request
        better placed, but ruled out:
          "asked" (any host, /*rest): vars: ["http_x","~=",null]: http_x is absent
    "#]],
    );
    ask_of(
        serde_json::json!([["server_port", "in", [80, 443, "8443"]]]),
        expect![[r#"
        route "all" (any host, /*) takes the request
        better placed, but ruled out:
          "asked" (any host, /*rest): vars: none holds: ["server_port","in",[80]], ["server_port","in",[443]], ["server_port","in",["8443"]]: server_port is "8080"
    "#]],
    );
    ask_of(
        serde_json::json!([["server_port", "!", "in", [80, 8080]]]),
        expect![[r#"
        route "all" (any host, /*) takes the request
        better placed, but ruled out:
          "asked" (any host, /*rest): vars: ["server_port","in",[8080]] holds: server_port is "8080"
    "#]],
    );
    ask_of(
        serde_json::json!(["!OR", ["http_x", "~=", "1"], ["http_y", "==", "1"]]),
        expect![[r#"
        route "all" (any host, /*) takes the request
        better placed, but ruled out:
          "asked" (any host, /*rest): vars: ["http_x","~=","1"] holds: http_x is absent
    "#]],
    );
    ask_of(
        serde_json::json!(["!AND", ["server_port", ">", 1], ["http_x", "~=", "1"]]),
        expect![[r#"
        route "all" (any host, /*) takes the request
        better placed, but ruled out:
          "asked" (any host, /*rest): vars: all hold: ["server_port",">",1] holds: server_port is "8080"; ["http_x","~=","1"] holds: http_x is absent
    "#]],
    );
    ask_of(
        serde_json::json!([["uri_param_rest", "==", "a"]]),
        expect![[r#"
        route "all" (any host, /*) takes the request
        better placed, but ruled out:
          "asked" (any host, /*rest): vars: ["uri_param_rest","==","a"]: uri_param_rest is "a/b"
    "#]],
    );
}

#[test]
fn nothing_matches_nothing() {
    let mut buffer = Vec::new();
    let path = normalise(b"/", &mut buffer).unwrap();
    let client = "192.0.2.1".parse().unwrap();
    let request = MatchRequest { method: Method::Other, host: b"", path, client, vars: &Query(None) };
    let explanation = Matcher::compile(Vec::new()).unwrap().explain(&request, None).unwrap();
    expect![[r#"
        no route takes the request
    "#]]
    .assert_eq(&explanation.to_string());
}
