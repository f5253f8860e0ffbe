//! `GET /`: the paths that can be opened in a browser, from the table of endpoints.

use crate::endpoints::Endpoint;
use axum::body::Body;
use axum::http::header::{ACCEPT, CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HeaderMap, HeaderValue};
use axum::http::{Method, Response};
use std::fmt::Write;

/// The dashboard consists of files, which the table does not have.
const DASHBOARD: (&str, &str) = ("/ui/", "Open the dashboard");

/// The index as text, or as a page for browsers.
pub(crate) fn answer(endpoints: &[Endpoint], headers: &HeaderMap) -> Response<Body> {
    let is_browser = headers.get(ACCEPT).is_some_and(|accept| accept.as_bytes().starts_with(b"text/html"));
    let entries = entries(endpoints);
    let (content_type, body) = match is_browser {
        true => ("text/html; charset=utf-8", page(&entries)),
        false => ("text/plain; charset=utf-8", lines(&entries)),
    };
    let mut response = Response::new(Body::from(body));
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(CONTENT_SECURITY_POLICY, HeaderValue::from_static("default-src 'none'"));
    response
}

/// Paths and their purposes, sorted by path. Those with a variable lead nowhere by themselves.
fn entries(endpoints: &[Endpoint]) -> Vec<(&str, &str)> {
    let is_link = |endpoint: &&Endpoint| endpoint.method == Method::GET && !endpoint.path.contains('{');
    let links = endpoints.iter().filter(is_link).map(|endpoint| (endpoint.path.as_str(), endpoint.summary.as_str()));
    let mut entries: Vec<(&str, &str)> = links.chain([DASHBOARD]).collect();
    entries.sort_unstable();
    entries
}

/// One line a path.
fn lines(entries: &[(&str, &str)]) -> String {
    let width = entries.iter().map(|(path, _)| path.len()).max().unwrap_or(0);
    entries.iter().fold(String::new(), |mut lines, (path, what)| {
        writeln!(lines, "GET {path:width$}  {what}").expect("writing to a String does not fail");
        lines
    })
}

fn page(entries: &[(&str, &str)]) -> String {
    let items = entries.iter().fold(String::new(), |mut items, (path, what)| {
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
    use crate::endpoints::{Page, endpoints};
    use axum::routing::get;

    #[test]
    fn each_endpoint_that_can_be_opened_has_a_line() {
        let status =
            Page { method: Method::GET, path: "/v1/status", summary: "Get the status", answer: get(|| async {}) };
        let mut described = endpoints(&[status]);
        described.retain(|endpoint| !endpoint.is_hidden);
        let entries = entries(&described);
        let lines = lines(&entries);
        assert!(lines.starts_with("GET / "), "{lines}");
        for path in ["/v1/status", "/v1/history", "/v1/openapi.json", "/ui/", "/apisix/admin/routes"] {
            assert_eq!(lines.matches(&format!("GET {path} ")).count(), 1, "{path}: {lines}");
        }
        assert!(!lines.contains('{') && !lines.contains("/v1/batch"), "{lines}");
        assert_eq!(lines.lines().count(), entries.len());
        assert!(page(&entries).contains("<a href=\"/v1/status\">/v1/status</a>: Get the status"));
        // No entry is markup.
        assert!(entries.iter().all(|(path, what)| !path.contains('<') && !what.contains('<')));
    }
}
