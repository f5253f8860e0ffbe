//! The paths of the admin API: one table, which requests are looked up in and people are shown.

use hyper::Method;
use std::fmt::Write;

/// What a request asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Endpoint {
    Index,
    Status,
    Health,
    Upstreams,
    Cardinality,
    Explain,
}

/// Why there is nothing to answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NotFound {
    Path,
    Method,
}

/// Path, what is there, and what that is for.
const ENDPOINTS: [(&str, Endpoint, &str); 6] = [
    ("/", Endpoint::Index, "this list"),
    ("/v1/status", Endpoint::Status, "configuration, connections, requests, certificates"),
    ("/v1/health", Endpoint::Health, "200, or 503 while the gateway shuts down; for load balancers"),
    ("/v1/upstreams", Endpoint::Upstreams, "health of every node"),
    ("/v1/metrics/cardinality", Endpoint::Cardinality, "number of metric series by family and label"),
    (
        "/v1/explain",
        Endpoint::Explain,
        "route of a request: ?url=http://host/path[&method=PUT][&header=name:value]; see docs/routes-in-operation.md",
    ),
];

pub(super) fn find(method: &Method, path: &str) -> Result<Endpoint, NotFound> {
    let (_, endpoint, _) = ENDPOINTS.iter().find(|(known, ..)| *known == path).ok_or(NotFound::Path)?;
    match *method {
        Method::GET | Method::HEAD => Ok(*endpoint),
        _ => Err(NotFound::Method),
    }
}

/// One line a path.
pub(super) fn index() -> String {
    let width = ENDPOINTS.iter().map(|(path, ..)| path.len()).max().unwrap_or(0);
    ENDPOINTS.iter().fold(String::new(), |mut lines, (path, _, what)| {
        writeln!(lines, "GET {path:width$}  {what}").expect("writing to a String does not fail");
        lines
    })
}

/// All paths, for a sentence.
pub(super) fn paths() -> String {
    ENDPOINTS.map(|(path, ..)| path).join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::expect;

    #[test]
    fn what_is_found() {
        let check = |method: Method, path: &str, expected| {
            assert_eq!(find(&method, path), expected, "{method} {path}");
        };
        check(Method::GET, "/", Ok(Endpoint::Index));
        check(Method::GET, "/v1/status", Ok(Endpoint::Status));
        check(Method::HEAD, "/v1/health", Ok(Endpoint::Health));
        check(Method::GET, "/v1/metrics/cardinality", Ok(Endpoint::Cardinality));
        check(Method::GET, "/v1/explain", Ok(Endpoint::Explain));
        check(Method::GET, "/v1/upstreams", Ok(Endpoint::Upstreams));
        check(Method::GET, "/v1/metrics", Err(NotFound::Path));
        check(Method::GET, "/v1/status/", Err(NotFound::Path));
        check(Method::GET, "", Err(NotFound::Path));
        check(Method::POST, "/v1/status", Err(NotFound::Method));
    }

    #[test]
    fn the_index_has_a_line_for_each_path() {
        expect![[r#"
            GET /                        this list
            GET /v1/status               configuration, connections, requests, certificates
            GET /v1/health               200, or 503 while the gateway shuts down; for load balancers
            GET /v1/upstreams            health of every node
            GET /v1/metrics/cardinality  number of metric series by family and label
            GET /v1/explain              route of a request: ?url=http://host/path[&method=PUT][&header=name:value]; see docs/routes-in-operation.md
        "#]].assert_eq(&index());
    }
}
