//! The output of explain for expression routes and for both kinds together, word for word; and its bounds.

use crate::explained::{Head, ask, expression, route, uri};
use expect_test::{Expect, expect};
use std::sync::Arc;
use stillgate_route::path::normalise;
use stillgate_route::{
    Lookup, MatchRequest, Matcher, Method, RULED_OUT_MAX, RoutePart, RouteSpec, RouteVerdict, UriRoute, Variable,
};

#[test]
#[expect(clippy::too_many_lines, reason = "a table")]
fn expressions_report_the_predicate_and_its_position() {
    let ask_of = |text: &str, expected: Expect| {
        let head = Head(
            Some("page=7&tag=A&tag=b"),
            &[("X-Beta", "no"), ("x-many", "1"), ("X-Many", "2"), ("x-many", "1"), ("x-many", "4"), ("x-many", "5")],
        );
        let routes = vec![expression("asked", 0, text), expression("all", -1, "http.path ^= \"/\"")];
        ask(routes, "/Orders/7/items", &head, None, expected);
    };
    ask_of(
        "http.host == \"shop.com\" &&\n  http.headers.x_beta == \"yes\" && http.path == \"/a\"",
        expect![[r#"
            route "all" (http.path ^= "/") takes the request
            better placed, but ruled out:
              "asked" (http.host == "shop.com" && http.headers.x_beta == "yes" && http.path == "/a"): at 2:3, http.headers.x_beta == "yes": http.headers.x_beta is "no"
        "#]],
    );
    ask_of(
        "http.headers.x_gone != \"a\"",
        expect![[r#"
        route "all" (http.path ^= "/") takes the request
        better placed, but ruled out:
          "asked" (http.headers.x_gone != "a"): at 1:1, http.headers.x_gone != "a": http.headers.x_gone is absent
    "#]],
    );
    ask_of(
        "lower(http.path) ^= \"/order/\"",
        expect![[r#"
        route "all" (http.path ^= "/") takes the request
        better placed, but ruled out:
          "asked" (lower(http.path) ^= "/order/"): at 1:1, lower(http.path) ^= "/order/": lower(http.path) is "/orders/7/items"
    "#]],
    );
    ask_of(
        "http.headers.x_many == \"1\"",
        expect![[r#"
        route "all" (http.path ^= "/") takes the request
        better placed, but ruled out:
          "asked" (http.headers.x_many == "1"): at 1:1, http.headers.x_many == "1": http.headers.x_many is "1", "2", "1", "4" and 1 more; not all pass
    "#]],
    );
    ask_of(
        "any(http.headers.x_many) == \"3\"",
        expect![[r#"
        route "all" (http.path ^= "/") takes the request
        better placed, but ruled out:
          "asked" (any(http.headers.x_many) == "3"): at 1:1, any(http.headers.x_many) == "3": http.headers.x_many is "1", "2", "1", "4" and 1 more; none passes
    "#]],
    );
    ask_of(
        "any(lower(http.queries.tag)) == \"c\" || any(http.queries.page) ~ r#\"^\\D$\"#",
        expect![[r##"
        route "all" (http.path ^= "/") takes the request
        better placed, but ruled out:
          "asked" (any(lower(http.queries.tag)) == "c" || any(http.queries.page) ~ r#"^\D$"#): none holds: at 1:1, any(lower(http.queries.tag)) == "c": lower(http.queries.tag) is "a", "b"; none passes; at 1:40, any(http.queries.page) ~ r#"^\D$"#: http.queries.page is "7"
    "##]],
    );
    ask_of(
        "http.path == \"/a\" || http.path == \"/b\" || (net.dst.port < 80 && http.method == \"PUT\")",
        expect![[r#"
        route "all" (http.path ^= "/") takes the request
        better placed, but ruled out:
          "asked" (http.path == "/a" || http.path == "/b" || (net.dst.port < 80 && http.method == "…): none holds: at 1:1, http.path == "/a", at 1:22, http.path == "/b": http.path is "/Orders/7/items"; at 1:44, net.dst.port < 80: net.dst.port is 8080
    "#]],
    );
    ask_of(
        "!(http.host == \"shop.com\")",
        expect![[r#"
        route "all" (http.path ^= "/") takes the request
        better placed, but ruled out:
          "asked" (!(http.host == "shop.com")): at 1:3, http.host == "shop.com" holds: http.host is "shop.com"
    "#]],
    );
    ask_of(
        "http.host == \"shop.com\" && !(http.path == \"/\" || http.method == \"GET\")",
        expect![[r#"
        route "all" (http.path ^= "/") takes the request
        better placed, but ruled out:
          "asked" (http.host == "shop.com" && !(http.path == "/" || http.method == "GET")): at 1:50, http.method == "GET" holds: http.method is "GET"
    "#]],
    );
    ask_of(
        "!(http.path ^= \"/Orders\" && http.method == \"GET\")",
        expect![[r#"
        route "all" (http.path ^= "/") takes the request
        better placed, but ruled out:
          "asked" (!(http.path ^= "/Orders" && http.method == "GET")): all hold: at 1:3, http.path ^= "/Orders" holds: http.path is "/Orders/7/items"; at 1:29, http.method == "GET" holds: http.method is "GET"
    "#]],
    );
    ask_of(
        "!(any(http.headers.x_many) == \"1\") || http.path.segments.len == 2",
        expect![[r#"
        route "all" (http.path ^= "/") takes the request
        better placed, but ruled out:
          "asked" (!(any(http.headers.x_many) == "1") || http.path.segments.len == 2): none holds: at 1:3, any(http.headers.x_many) == "1" holds: http.headers.x_many is "1", "2", "1", "4" and 1 more; at 1:39, http.path.segments.len == 2: http.path.segments.len is 3
    "#]],
    );
    ask_of(
        "net.src.ip in 10.0.0.0/8 || net.src.ip == 192.0.2.7",
        expect![[r#"
        route "all" (http.path ^= "/") takes the request
        better placed, but ruled out:
          "asked" (net.src.ip in 10.0.0.0/8 || net.src.ip == 192.0.2.7): none holds: at 1:1, net.src.ip in 10.0.0.0/8, at 1:29, net.src.ip == 192.0.2.7: net.src.ip is 192.0.2.1
    "#]],
    );
    ask_of(
        &(0..40).map(|n| format!("http.path == \"/{n}\"")).collect::<Vec<_>>().join(" || "),
        expect![[r#"
            route "all" (http.path ^= "/") takes the request
            better placed, but ruled out:
              "asked" (http.path == "/0" || http.path == "/1" || http.path == "/2" || http.path == "/3"…): none holds: at 1:1, http.path == "/0", at 1:22, http.path == "/1", at 1:43, http.path == "/2", at 1:64, http.path == "/3", at 1:85, http.path == "/4", at 1:106, http.path == "/5", at 1:127, http.path == "/6", at 1:148, http.path == "/7": http.path is "/Orders/7/items"; and 32 more
        "#]],
    );
}

/// Every kind of route, with captures.
fn mixed() -> Vec<Arc<RouteSpec>> {
    vec![
        route("uri", 9, uri(&["shop.com"], &["/orders/:id", "/orders/*"])),
        expression("low", -1, "http.path ^= \"/\""),
        expression("item", 0, "http.path ~ r#\"^/orders/(?<id>\\d+)$\"# && http.headers.x_beta == \"1\""),
        expression("same", 0, "http.path ^= \"/orders/\" && http.headers.x_beta == \"1\""),
        expression("high", 7, "http.method == \"PUT\""),
    ]
}

#[test]
fn the_order_of_both_kinds_is_reported() {
    const BETA: Head = Head(None, &[("x-beta", "1")]);
    ask(
        mixed(),
        "/orders/7",
        &BETA,
        Some("uri"),
        expect![[r##"
        route "item" (http.path ~ r#"^/orders/(?<id>\d+)$"# && http.headers.x_beta == "1") takes the request
          id is "7"
        better placed, but ruled out:
          "high" (http.method == "PUT"): at 1:1, http.method == "PUT": http.method is "GET"
        route "uri" could take it, but comes later: expression routes come before URI routes
    "##]],
    );
    ask(
        mixed(),
        "/orders/7",
        &BETA,
        Some("low"),
        expect![[r##"
        route "item" (http.path ~ r#"^/orders/(?<id>\d+)$"# && http.headers.x_beta == "1") takes the request
          id is "7"
        better placed, but ruled out:
          "high" (http.method == "PUT"): at 1:1, http.method == "PUT": http.method is "GET"
        route "low" could take it, but comes later: priority 0 is above -1
    "##]],
    );
    ask(
        mixed(),
        "/orders/7",
        &BETA,
        Some("same"),
        expect![[r##"
        route "item" (http.path ~ r#"^/orders/(?<id>\d+)$"# && http.headers.x_beta == "1") takes the request
          id is "7"
        better placed, but ruled out:
          "high" (http.method == "PUT"): at 1:1, http.method == "PUT": http.method is "GET"
        route "same" could take it, but comes later: of the same priority, "item" comes first
    "##]],
    );
    ask(
        mixed(),
        "/orders/7",
        &BETA,
        Some("high"),
        expect![[r##"
        route "item" (http.path ~ r#"^/orders/(?<id>\d+)$"# && http.headers.x_beta == "1") takes the request
          id is "7"
        better placed, but ruled out:
          "high" (http.method == "PUT"): at 1:1, http.method == "PUT": http.method is "GET"
        route "high" cannot take it: at 1:1, http.method == "PUT": http.method is "GET"
    "##]],
    );
    let mut without_low = mixed();
    without_low.remove(1);
    ask(
        without_low,
        "/orders/7",
        &Head(None, &[]),
        None,
        expect![[r##"
        route "uri" (shop.com, /orders/:id) takes the request
          id is "7"
        better placed, but ruled out:
          "high" (http.method == "PUT"): at 1:1, http.method == "PUT": http.method is "GET"
          "item" (http.path ~ r#"^/orders/(?<id>\d+)$"# && http.headers.x_beta == "1"): at 1:42, http.headers.x_beta == "1": http.headers.x_beta is absent
          "same" (http.path ^= "/orders/" && http.headers.x_beta == "1"): at 1:28, http.headers.x_beta == "1": http.headers.x_beta is absent
    "##]],
    );
}

#[test]
fn of_many_routes_the_nearest_are_reported() {
    const NEAR: usize = 7_000;
    let mut routes: Vec<_> = (0..10_000)
        .map(|n| match n {
            NEAR => expression("near", 0, "http.host == \"shop.com\" && http.path ^= \"/\" && http.method == \"PUT\""),
            n => expression(&format!("r{n}"), 0, &format!("http.host == \"{n}.com\" && http.headers.x_{n} == \"1\"")),
        })
        .collect();
    routes.push(route("uri", 0, UriRoute { remote_addrs: vec!["10.0.0.0/8".parse().unwrap()], ..uri(&[], &["/*"]) }));
    let mut buffer = Vec::new();
    let path = normalise(b"/", &mut buffer).unwrap();
    let client = "192.0.2.1".parse().unwrap();
    let request = MatchRequest { method: Method::Get, host: b"shop.com", path, client, vars: &Head(None, &[]) };
    let explanation = Matcher::compile(routes).unwrap().explain(&request, Some("r5000")).unwrap();
    assert_eq!((explanation.ruled_out.len(), explanation.omitted), (RULED_OUT_MAX, 10_001 - RULED_OUT_MAX));
    let ids: Vec<&str> = explanation.ruled_out.iter().map(|(candidate, _)| candidate.id.as_str()).collect();
    assert_eq!((ids[0], ids[97], ids[98], ids[99]), ("r0", "r97", "near", "uri"));
    assert!(matches!(&explanation.ruled_out[98].0.part, RoutePart::Expression { text } if text.contains("PUT")));
    let (_, near) = &explanation.ruled_out[98];
    assert_eq!(near.predicates.len(), 1);
    assert_eq!(near.predicates[0].at, Some((1, 48)));
    assert_eq!(
        (near.predicates[0].field.as_str(), &near.predicates[0].values[..]),
        ("http.method", &["GET".to_owned()][..])
    );
    assert!(
        matches!(&explanation.asked, Some((_, RouteVerdict::RuledOut(reason))) if reason.text.contains("5000.com"))
    );
}

#[test]
fn reports_are_bounded() {
    struct Many;
    impl Lookup for Many {
        fn value<'a>(&'a self, _: &Variable, _: &'a mut Vec<u8>) -> Option<&'a [u8]> {
            None
        }

        fn each_header(&self, visit: &mut dyn FnMut(&[u8], &[u8])) {
            let value = "ä".repeat(1 << 12);
            visit(b"x", value.as_bytes());
            (0..1_000).for_each(|n| visit(b"x", n.to_string().as_bytes()));
        }
    }
    let text = format!("http.headers.x == \"{}\"", "y".repeat(10_000));
    let many = (0..1000).map(|n| format!("any(http.headers.x) == \"z{n}\"")).collect::<Vec<_>>().join(" || ");
    let deep = format!("{}http.path ^= \"/\"{}", "!(".repeat(63), ")".repeat(63));
    let routes = vec![expression("long", 0, &text), expression("many", 0, &many), expression("deep", 0, &deep)];
    let mut buffer = Vec::new();
    let path = normalise(b"/", &mut buffer).unwrap();
    let client = "192.0.2.1".parse().unwrap();
    let request = MatchRequest { method: Method::Get, host: b"", path, client, vars: &Many };
    let explanation = Matcher::compile(routes).unwrap().explain(&request, Some("many")).unwrap();
    assert_eq!(explanation.ruled_out.len(), 3);
    for (candidate, reason) in &explanation.ruled_out {
        assert!(reason.text.len() < 2_000, "{}: {}", candidate.id, reason.text);
        assert!(reason.predicates.len() <= 8);
    }
    let long = &explanation.ruled_out[0].1.predicates[0];
    assert_eq!((long.values.len(), long.omitted), (4, 997));
    assert!(explanation.ruled_out[1].1.text.ends_with("; and 992 more"));
    assert!(explanation.to_string().len() < 6_000);
}

#[test]
fn an_updated_matcher_is_explained_as_one() {
    let before = Matcher::compile(mixed()).unwrap();
    let mut after = mixed();
    after[2] = expression("item", 8, "http.path ~ r#\"^/orders/(?<number>\\d+)$\"#");
    after.remove(0);
    let matcher = before.update(after.clone()).unwrap();
    let mut buffer = Vec::new();
    let request = MatchRequest {
        method: Method::Get,
        host: b"shop.com",
        path: normalise(b"/orders/7", &mut buffer).unwrap(),
        client: "192.0.2.1".parse().unwrap(),
        vars: &Head(None, &[]),
    };
    for asked in ["item", "same", "low", "uri"] {
        let expected = Matcher::compile(after.clone()).unwrap().explain(&request, Some(asked)).unwrap();
        assert_eq!(matcher.explain(&request, Some(asked)).unwrap(), expected);
        assert_eq!(expected.params, [("number".to_owned(), "7".to_owned())]);
    }
}
