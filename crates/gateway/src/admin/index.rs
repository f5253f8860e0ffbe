//! `GET /` of the admin address: a list of its pages, with links.

use axum::body::Body;
use axum::response::Response;
use hyper::header::{ACCEPT, CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HeaderMap, HeaderValue};
use std::fmt::Write;

/// Paths, each with its purpose.
const ENTRIES: [(&str, &str); 16] = [
    ("/", "this list"),
    ("/ui/", "dashboard"),
    ("/v1/status", "configuration, connections, requests, certificates"),
    ("/v1/health", "200, or 503 while the gateway starts or shuts down; for load balancers"),
    ("/v1/upstreams", "health of every node"),
    ("/metrics", "metrics for Prometheus; see docs/monitoring.md"),
    ("/v1/metrics/cardinality", "number of metric series by family and label"),
    (
        "/v1/explain",
        "route of a request: ?url=http://host/path[&method=PUT][&header=name:value]; see docs/routes-in-operation.md",
    ),
    ("/v1/routes", "routes that are served: ?search=text[&page=2]; one of them: /v1/routes/ID"),
    ("/v1/live", "requests, latency and connections, second by second, as server-sent events"),
    ("/v1/slow", "slowest requests of each minute, and why they were slow; off unless gateway.debug.slow is set"),
    ("/v1/history", "changes of the store; one of them: /v1/history/REVISION"),
    (
        "/debug/pprof/",
        "profiles of CPU time, heap and stalls; off unless gateway.debug.pprof is set; see docs/profiling.md",
    ),
    ("/v1/openapi.json", "description of all of this for programs"),
    ("/apisix/admin/routes", "Admin API: routes; see docs/admin-api.md for all resources"),
    ("/apisix/admin/plugins/list", "Admin API: names of the plugins"),
];

/// The index as text, or as a page for browsers.
pub(super) fn index(headers: &HeaderMap) -> Response {
    let is_browser = headers.get(ACCEPT).is_some_and(|accept| accept.as_bytes().starts_with(b"text/html"));
    let (content_type, body) = match is_browser {
        true => ("text/html; charset=utf-8", page()),
        false => ("text/plain; charset=utf-8", lines()),
    };
    let mut response = Response::new(Body::from(body));
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(CONTENT_SECURITY_POLICY, HeaderValue::from_static("default-src 'none'"));
    response
}

/// One line a path.
fn lines() -> String {
    let width = ENTRIES.iter().map(|(path, _)| path.len()).max().unwrap_or(0);
    ENTRIES.iter().fold(String::new(), |mut lines, (path, what)| {
        writeln!(lines, "GET {path:width$}  {what}").expect("writing to a String does not fail");
        lines
    })
}

fn page() -> String {
    let items = ENTRIES.iter().fold(String::new(), |mut items, (path, what)| {
        writeln!(items, "<li><a href=\"{path}\">{path}</a>: {what}</li>").expect("writing to a String does not fail");
        items
    });
    format!(
        "<!doctype html>\n<html lang=\"en\"><head><title>Stillgate</title></head>\n<body><h1>Stillgate {}</h1>\n<ul>\n{items}</ul></body></html>\n",
        env!("CARGO_PKG_VERSION")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_index_has_a_line_for_each_path() {
        let lines = lines();
        assert!(lines.starts_with("GET /                           this list\n"), "{lines}");
        assert_eq!(lines.lines().count(), ENTRIES.len());
        assert!(page().contains("<a href=\"/v1/status\">/v1/status</a>"));
        // No entry is markup.
        assert!(ENTRIES.iter().all(|(path, what)| !path.contains('<') && !what.contains('<')));
    }
}
