//! The sets of routes that are measured, and the requests that take each route.

use std::sync::Arc;
use stillgate_route::{
    Expression, HostPattern, InvalidParts, Lookup, PathPattern, RouteMatch, RouteSpec, UriRoute, Variable,
};

/// A kind of route set. Everything goes by the route's number.
pub(crate) struct Family {
    pub(crate) name: &'static str,
    /// The route as an expression; `None` for a URI route.
    pub(crate) expression: Option<fn(usize) -> String>,
    /// Host and path pattern of a URI route.
    pub(crate) uri: fn(usize) -> (Option<String>, String),
    /// A request that the route takes.
    pub(crate) request: fn(usize) -> Sample,
    /// Turns it into a request that no route takes.
    pub(crate) spoil: fn(&mut Sample),
}

/// A request as text.
#[derive(Clone, Default)]
pub(crate) struct Sample {
    pub(crate) host: String,
    pub(crate) path: String,
    pub(crate) query: String,
    /// Names with dashes, in lower case.
    pub(crate) headers: Vec<(String, String)>,
}

impl Lookup for Sample {
    fn value<'a>(&'a self, variable: &Variable, _: &'a mut Vec<u8>) -> Option<&'a [u8]> {
        matches!(variable, Variable::Args).then_some(self.query.as_bytes())
    }

    fn each_header(&self, visit: &mut dyn FnMut(&[u8], &[u8])) {
        for (name, value) in &self.headers {
            visit(name.as_bytes(), value.as_bytes());
        }
    }
}

/// Headers that a browser usually sends, so that a search for a header has something to pass over.
fn usual() -> Sample {
    let headers = [
        ("accept", "text/html,application/xhtml+xml"),
        ("accept-encoding", "gzip, deflate, br"),
        ("accept-language", "en"),
        ("user-agent", "Mozilla/5.0 (X11; Linux x86_64)"),
        ("x-request-id", "5f2b7c0e"),
    ];
    Sample {
        host: "www.example.com".to_owned(),
        path: "/".to_owned(),
        query: String::new(),
        headers: headers.map(|(name, value)| (name.to_owned(), value.to_owned())).to_vec(),
    }
}

fn no_uri(_: usize) -> (Option<String>, String) {
    (None, "/".to_owned())
}

const METHODS: [&str; 4] = ["GET", "GET", "GET", "POST"];

/// The fourth family: every twentieth route has a regex, every tenth an `||`; of the others each kind has its share.
fn mixed(n: usize) -> String {
    match n % 20 {
        0 if n.is_multiple_of(100) => format!(r##"http.path ~ r#"/item-[0-9]+-{n}$"#"##),
        0 => format!(r##"http.path ~ r#"^/svc-{n}/v[0-9]+/items/[0-9]+$"#"##),
        1 | 11 => format!(r#"(http.path ^= "/left-{n}/" || http.path ^= "/right-{n}/") && http.method == "GET""#),
        2..=6 => format!(r#"http.headers.x_tenant == "tenant-{n}" && http.method == "GET""#),
        7 | 8 => format!(r#"any(http.queries.tag) == "tag-{n}""#),
        9 | 10 | 12 => {
            let (host, area) = (n / 100, n % 100);
            format!(r#"http.host == "shop-{host}.example.com" && http.path ^= "/area-{area}/""#)
        }
        13 => format!(r#"lower(http.path) ^= "/docs-{n}/" && !(http.headers.x_beta == "1")"#),
        14 => format!(r#"http.path == "/exact/{n}" && net.src.ip in 127.0.0.0/8"#),
        _ => format!(r#"http.method == "GET" && http.path ^= "/api/v1/service-{n}/""#),
    }
}

fn mixed_request(n: usize) -> Sample {
    let path = |path: String| Sample { path, ..usual() };
    match n % 20 {
        0 if n.is_multiple_of(100) => path(format!("/item-4711-{n}")),
        0 => path(format!("/svc-{n}/v2/items/4711")),
        1 | 11 => path(format!("/right-{n}/basket")),
        2..=6 => with_header(path("/orders/4711".to_owned()), n),
        7 | 8 => Sample { query: format!("page=2&tag=tag-{n}"), ..path("/search".to_owned()) },
        9 | 10 | 12 => {
            Sample { host: format!("shop-{}.example.com", n / 100), ..path(format!("/area-{}/cart", n % 100)) }
        }
        13 => path(format!("/Docs-{n}/Index.html")),
        14 => path(format!("/exact/{n}")),
        _ => path(format!("/api/v1/service-{n}/items/4711")),
    }
}

fn with_header(mut sample: Sample, n: usize) -> Sample {
    sample.headers.push(("x-tenant".to_owned(), format!("tenant-{n}")));
    sample
}

/// The families of expression routes, and after them those of URI routes.
pub(crate) const FAMILIES: [Family; 8] = [
    Family {
        name: "paths × methods",
        expression: Some(|n| {
            format!(r#"http.path ^= "/api/v1/service-{}/" && http.method == "{}""#, n / 2, ["GET", "POST"][n % 2])
        }),
        uri: no_uri,
        request: |n| Sample { path: format!("/api/v1/service-{}/items/4711", n / 2), ..usual() },
        spoil: |sample| sample.path = sample.path.replace("service", "servant"),
    },
    Family {
        name: "hosts × paths",
        expression: Some(|n| {
            format!(r#"http.host == "shop-{}.example.com" && http.path ^= "/area-{}/""#, n / 100, n % 100)
        }),
        uri: no_uri,
        request: |n| Sample {
            host: format!("shop-{}.example.com", n / 100),
            path: format!("/area-{}/cart", n % 100),
            ..usual()
        },
        spoil: |sample| sample.path = sample.path.replace("area", "arena"),
    },
    Family {
        name: "headers, queries",
        expression: Some(|n| match n % 2 {
            0 => format!(r#"http.headers.x_tenant == "tenant-{n}" && http.path ^= "/orders/""#),
            _ => format!(r#"any(http.queries.tag) == "tag-{n}" && http.path ^= "/orders/""#),
        }),
        uri: no_uri,
        request: |n| {
            let sample = Sample { path: "/orders/4711".to_owned(), ..usual() };
            match n % 2 {
                0 => with_header(sample, n),
                _ => Sample { query: format!("tag=new&tag=tag-{n}&page=2"), ..sample },
            }
        },
        spoil: |sample| {
            sample.query = sample.query.replace("tag-", "tug-");
            sample.headers.iter_mut().for_each(|(_, value)| *value = value.replace("tenant-", "tenent-"));
        },
    },
    Family {
        name: "mixed",
        expression: Some(mixed),
        uri: no_uri,
        request: mixed_request,
        spoil: |sample| *sample = Sample { path: "/nobody/takes/this".to_owned(), ..usual() },
    },
    Family {
        name: "uri exact",
        expression: None,
        uri: |n| (None, format!("/api/v1/service-{n}/items")),
        request: |n| Sample { path: format!("/api/v1/service-{n}/items"), ..usual() },
        spoil: |sample| sample.path = sample.path.replace("service", "servant"),
    },
    Family {
        name: "uri prefix",
        expression: None,
        uri: |n| (None, format!("/api/v1/service-{n}/*")),
        request: |n| Sample { path: format!("/api/v1/service-{n}/items/4711"), ..usual() },
        spoil: |sample| sample.path = sample.path.replace("service", "servant"),
    },
    Family {
        name: "uri params",
        expression: None,
        uri: |n| (None, format!("/tenants/:tenant/apps/{n}/:action")),
        request: |n| Sample { path: format!("/tenants/acme/apps/{n}/restart"), ..usual() },
        spoil: |sample| sample.path = sample.path.replace("apps", "app"),
    },
    Family {
        name: "uri hosts",
        expression: None,
        uri: |n| {
            let star = if n % 2 == 0 { "" } else { "*." };
            let path = if n % 4 < 2 { "/*" } else { "/cart" };
            (Some(format!("{star}shop-{n}.example.com")), path.to_owned())
        },
        request: |n| {
            let host = if n % 2 == 0 { format!("shop-{n}.example.com") } else { format!("www.shop-{n}.example.com") };
            Sample { host, path: "/cart".to_owned(), ..usual() }
        },
        spoil: |sample| sample.host = sample.host.replace("shop", "shoe"),
    },
];

impl Family {
    pub(crate) fn spec(&self, n: usize) -> Arc<RouteSpec> {
        let takes = match self.expression {
            Some(expression) => {
                RouteMatch::Expression(Expression::parse(&expression(n)).expect("an expression of ours"))
            }
            None => {
                let (host, path) = (self.uri)(n);
                RouteMatch::Uri(UriRoute {
                    hosts: host.iter().map(|host| HostPattern::parse(host).expect("a host of ours")).collect(),
                    paths: vec![PathPattern::parse(&path).expect("a path of ours")],
                    methods: METHODS.iter().map(|name| stillgate_route::Method::from_bytes(name.as_bytes())).collect(),
                    remote_addrs: Vec::new(),
                    vars: None,
                    function: None,
                    invalid: InvalidParts::default(),
                })
            }
        };
        Arc::new(RouteSpec { id: format!("route-{n}"), priority: 0, takes })
    }

    /// The request of a route, and the method it takes.
    pub(crate) fn method(&self, n: usize) -> &'static str {
        if self.name == "paths × methods" { ["GET", "POST"][n % 2] } else { "GET" }
    }
}
