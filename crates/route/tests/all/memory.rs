//! Memory of a matcher: no more than it reports, and no more than 400 bytes a route.

use std::sync::Arc;
use stillgate_route::{Expression, Matcher, RouteMatch, RouteSpec};

/// Most bytes that a route may take in the index.
const ROUTE_BYTES_MAX: usize = 400;

fn check(name: &str, expression: fn(usize) -> String) {
    const ROUTES: usize = 20_000;
    let specs: Vec<Arc<RouteSpec>> = (0..ROUTES)
        .map(|n| {
            let takes = RouteMatch::Expression(Expression::parse(&expression(n)).unwrap());
            Arc::new(RouteSpec { id: n.to_string(), priority: 0, takes })
        })
        .collect();
    let mut matcher = None;
    let counted = allocation_counter::measure(|| matcher = Some(Matcher::compile(specs).unwrap()));
    let said = matcher.unwrap().index_bytes();
    // The list itself was allocated before, and its memory is given back.
    let kept = usize::try_from(counted.bytes_current).unwrap() + ROUTES * size_of::<Arc<RouteSpec>>();
    assert!(kept <= said + said / 10, "{name}: {kept} bytes are kept, {said} are reported");
    assert!(said / ROUTES <= ROUTE_BYTES_MAX, "{name}: {} bytes a route", said / ROUTES);
}

#[test]
fn an_index_takes_what_it_says() {
    check("paths and methods", |n| format!(r#"http.path ^= "/service-{n}/" && http.method == "GET""#));
    check("hosts and paths", |n| {
        format!(r#"http.host == "shop-{}.example" && http.path ^= "/area-{}/""#, n / 100, n % 100)
    });
    check("headers", |n| format!(r#"http.headers.x_tenant == "tenant-{n}" && http.path ^= "/orders/""#));
    check("header names", |n| format!(r#"http.headers.x_{n} == "1""#));
    check("arguments", |n| format!(r#"any(http.queries.tag) == "tag-{n}" || http.headers.x_tag == "tag-{n}""#));
    check("regexes", |n| format!(r##"http.path ~ r#"^/svc-{n}/v[0-9]+/items$"#"##));
    check("regexes without a beginning", |n| format!(r##"http.path ~ r#"/item-[0-9]+-{n}$"#"##));
    check("networks", |n| format!("net.src.ip in 10.{}.{}.0/24", n / 256, n % 256));
    check("left to be asked", |n| format!(r#"http.path contains "part-{n}""#));
}
