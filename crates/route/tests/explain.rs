//! What explain says, word for word.

#![allow(clippy::unwrap_used)]

use expect_test::{Expect, expect};
use stillgate_route::path::normalise;
use stillgate_route::{
    HostPattern, Lookup, Matcher, Method, MethodSet, PathPattern, Request, RouteSpec, Variable, vars,
};

struct Query(Option<&'static str>);

impl Lookup for Query {
    fn value<'a>(&'a self, variable: &Variable, _: &'a mut Vec<u8>) -> Option<&'a [u8]> {
        self.0.filter(|_| variable.to_string() == "arg_v").map(str::as_bytes)
    }
}

fn spec(id: &str, hosts: &[&str], paths: &[&str]) -> RouteSpec {
    RouteSpec {
        id: id.to_owned(),
        hosts: hosts.iter().map(|host| HostPattern::parse(host).unwrap()).collect(),
        paths: paths.iter().map(|path| PathPattern::parse(path).unwrap()).collect(),
        methods: MethodSet::default(),
        remote_addrs: Vec::new(),
        priority: 0,
        vars: None,
    }
}

fn routes() -> Matcher {
    let v_is_2 = vars::Expr::parse(&serde_json::json!([["arg_v", "==", "2"]])).unwrap();
    let post = [Method::Post, Method::Put].into_iter().collect::<MethodSet>();
    Matcher::compile(vec![
        spec("everything", &[], &["/*"]),
        spec("orders", &["*.shop.com", "shop.com"], &["/orders/:id", "/orders/:id/*"]),
        RouteSpec { methods: post, ..spec("write", &["eu.shop.com"], &["/orders/*"]) },
        RouteSpec { priority: 9, vars: Some(v_is_2), ..spec("beta", &["*.shop.com"], &["/orders/:order"]) },
        RouteSpec { priority: 5, remote_addrs: vec!["10.0.0.0/8".parse().unwrap()], ..spec("inside", &[], &["/*"]) },
        RouteSpec { priority: 3, ..spec("urgent", &["*.shop.com"], &["/orders/:id"]) },
        spec("shadowed", &["shop.com"], &["/orders/:number"]),
    ])
    .unwrap()
}

fn check(host: &str, path: &str, query: Option<&'static str>, asked: Option<&str>, expected: Expect) {
    let mut buffer = Vec::new();
    let request = Request {
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
        route "shadowed" could take it, but comes later: of the same host, path and priority, "orders" stands first
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
fn nothing_matches_nothing() {
    let mut buffer = Vec::new();
    let path = normalise(b"/", &mut buffer).unwrap();
    let client = "192.0.2.1".parse().unwrap();
    let request = Request { method: Method::Other, host: b"", path, client, vars: &Query(None) };
    let explanation = Matcher::compile(Vec::new()).unwrap().explain(&request, None).unwrap();
    expect![[r#"
        no route takes the request
    "#]]
    .assert_eq(&explanation.to_string());
}
