//! The kinds of route sets with which a gateway is measured: each route as in the file, and a request that it takes.
//!
//! These are the kinds in `cargo bench -p stillgate-route`; as text here, since this crate does not depend on the gateway.

use std::fmt::Write as _;

/// A kind of route set. Everything is derived from the route's number.
pub(super) struct Family {
    pub(super) name: &'static str,
    /// The route's condition, as a line of the file.
    condition: fn(usize) -> String,
    /// A request that it takes, and that no earlier route takes.
    request: fn(usize) -> Request,
    /// The number of routes after which the kinds of conditions repeat.
    pub(super) kinds: usize,
    /// A condition that takes every request.
    pub(super) any: &'static str,
}

/// The parts of a request's head that depend on the route.
struct Request {
    method: &'static str,
    host: String,
    target: String,
    /// A whole header line, or nothing.
    header: String,
}

/// Headers of a browser, so that searching for a header has something to skip.
const USUAL: &str = "Accept: text/html,application/xhtml+xml\r\n\
    Accept-Encoding: gzip, deflate, br\r\n\
    Accept-Language: en\r\n\
    User-Agent: Mozilla/5.0 (X11; Linux x86_64)\r\n\
    X-Request-Id: 5f2b7c0e\r\n";

const ANY_EXPRESSION: &str = r#"expression: 'http.path ^= "/"'"#;

pub(super) const FAMILIES: [Family; 5] = [
    Family {
        name: "paths",
        condition: |n| {
            let method = ["GET", "POST"][n % 2];
            expression(&format!(r#"http.path ^= "/api/v1/service-{}/" && http.method == "{method}""#, n / 2))
        },
        request: |n| {
            let target = format!("/api/v1/service-{}/items/4711", n / 2);
            Request { method: ["GET", "POST"][n % 2], ..get(target) }
        },
        kinds: 1,
        any: ANY_EXPRESSION,
    },
    Family {
        name: "hosts",
        condition: |n| expression(&host_and_path(n)),
        request: host_and_path_request,
        kinds: 1,
        any: ANY_EXPRESSION,
    },
    Family {
        name: "headers",
        condition: |n| match n % 2 {
            0 => expression(&format!(r#"http.headers.x_tenant == "tenant-{n}" && http.path ^= "/orders/""#)),
            _ => expression(&format!(r#"any(http.queries.tag) == "tag-{n}" && http.path ^= "/orders/""#)),
        },
        request: |n| match n % 2 {
            0 => tenant(n),
            _ => get(format!("/orders/4711?tag=new&tag=tag-{n}&page=2")),
        },
        kinds: 2,
        any: ANY_EXPRESSION,
    },
    Family {
        name: "mixed",
        condition: |n| expression(&mixed(n)),
        request: mixed_request,
        kinds: 20,
        any: ANY_EXPRESSION,
    },
    Family {
        name: "uri",
        condition: |n| format!("uri: /api/v1/service-{n}/*"),
        request: |n| get(format!("/api/v1/service-{n}/items/4711")),
        kinds: 1,
        any: "uri: /*",
    },
];

impl Family {
    /// The route as an item of the file's list.
    pub(super) fn route(&self, n: usize) -> String {
        entry(n, &(self.condition)(n))
    }

    /// The head of a request that the route takes.
    pub(super) fn head(&self, n: usize) -> String {
        let Request { method, host, target, header } = (self.request)(n);
        // A POST without a body needs an explicit length.
        let length = if method == "POST" { "Content-Length: 0\r\n" } else { "" };
        format!("{method} {target} HTTP/1.1\r\nHost: {host}\r\n{USUAL}{header}{length}\r\n")
    }
}

/// A route with this condition.
pub(super) fn entry(n: usize, condition: &str) -> String {
    format!("  - id: r{n}\n    {condition}\n    upstream_id: u\n")
}

/// A script for wrk that sends these heads in turn.
pub(super) fn script(heads: &[String]) -> String {
    let mut text = "local heads = {\n".to_owned();
    for head in heads {
        // Writing to a `String` cannot fail.
        let _ = writeln!(text, "  \"{}\",", head.replace("\r\n", "\\r\\n"));
    }
    text.push_str("}\nlocal last = 0\nrequest = function()\n  last = last % #heads + 1\n  return heads[last]\nend\n");
    text
}

fn expression(text: &str) -> String {
    format!("expression: '{text}'")
}

fn get(target: String) -> Request {
    Request { method: "GET", host: "www.example.com".to_owned(), target, header: String::new() }
}

fn tenant(n: usize) -> Request {
    Request { header: format!("X-Tenant: tenant-{n}\r\n"), ..get("/orders/4711".to_owned()) }
}

fn host_and_path(n: usize) -> String {
    format!(r#"http.host == "shop-{}.example.com" && http.path ^= "/area-{}/""#, n / 100, n % 100)
}

fn host_and_path_request(n: usize) -> Request {
    Request { host: format!("shop-{}.example.com", n / 100), ..get(format!("/area-{}/cart", n % 100)) }
}

/// Every twentieth route has a regex, every tenth an `||`; the kinds share the others evenly.
fn mixed(n: usize) -> String {
    match n % 20 {
        0 if n.is_multiple_of(100) => format!(r##"http.path ~ r#"/item-[0-9]+-{n}$"#"##),
        0 => format!(r##"http.path ~ r#"^/svc-{n}/v[0-9]+/items/[0-9]+$"#"##),
        1 | 11 => format!(r#"(http.path ^= "/left-{n}/" || http.path ^= "/right-{n}/") && http.method == "GET""#),
        2..=6 => format!(r#"http.headers.x_tenant == "tenant-{n}" && http.method == "GET""#),
        7 | 8 => format!(r#"any(http.queries.tag) == "tag-{n}""#),
        9 | 10 | 12 => host_and_path(n),
        13 => format!(r#"lower(http.path) ^= "/docs-{n}/" && !(http.headers.x_beta == "1")"#),
        14 => format!(r#"http.path == "/exact/{n}" && net.src.ip in 127.0.0.0/8"#),
        _ => format!(r#"http.method == "GET" && http.path ^= "/api/v1/service-{n}/""#),
    }
}

fn mixed_request(n: usize) -> Request {
    match n % 20 {
        0 if n.is_multiple_of(100) => get(format!("/item-4711-{n}")),
        0 => get(format!("/svc-{n}/v2/items/4711")),
        1 | 11 => get(format!("/right-{n}/basket")),
        2..=6 => tenant(n),
        7 | 8 => get(format!("/search?page=2&tag=tag-{n}")),
        9 | 10 | 12 => host_and_path_request(n),
        13 => get(format!("/Docs-{n}/Index.html")),
        14 => get(format!("/exact/{n}")),
        _ => get(format!("/api/v1/service-{n}/items/4711")),
    }
}
